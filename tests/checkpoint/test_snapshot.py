"""HostSnapshot writes files that safetensors reads; its copies of large tensors are exact."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import safetensors.torch
import torch

from torch_estimator.checkpoint.snapshot import HostSnapshot, copy_all, host_memory, touch
from torch_estimator.errors import InvalidTypeError


def _read(snapshot: HostSnapshot) -> dict[str, torch.Tensor]:
    return safetensors.torch.load(b"".join(bytes(chunk) for chunk in snapshot.chunks()))


def _assert_same(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert actual[name].dtype == tensor.dtype
        assert actual[name].shape == tensor.shape
        assert actual[name].tolist() == tensor.tolist()


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64),
        *(
            torch.int64,
            torch.int32,
            torch.int16,
            torch.int8,
            torch.uint8,
            torch.uint16,
            torch.uint64,
            torch.bool,
        ),
    ],
)
def test_every_dtype_comes_back(dtype: torch.dtype) -> None:
    tensors = {"odd": torch.ones(3, dtype=torch.uint8), "x": torch.tensor([0, 1, 3]).to(dtype)}
    snapshot = HostSnapshot()
    snapshot.fill(tensors)
    _assert_same(_read(snapshot), tensors)


def test_views_and_shared_storages_are_stored_contiguous() -> None:
    base = torch.arange(24.0, requires_grad=True)
    tensors = {
        "slice": base[3:7],
        "strided": base[::5],
        "transposed": base.view(4, 6).t(),
        "expanded": base[:1].expand(3),
        "alias": base,
        "conjugate": torch.tensor([1 + 2j], dtype=torch.complex64).conj(),
        "scalar": torch.tensor(5),
        "empty": torch.empty(0, 3),
    }
    snapshot = HostSnapshot()
    snapshot.fill(tensors)
    _assert_same(_read(snapshot), tensors)


def test_it_is_a_copy_and_its_memory_is_used_again() -> None:
    snapshot = HostSnapshot()
    tensor = torch.zeros(1000)
    snapshot.fill({"x": tensor})
    buffer = snapshot._buffer.data_ptr()
    tensor += 1
    assert _read(snapshot)["x"].sum() == 0
    snapshot.fill({"x": tensor})
    assert _read(snapshot)["x"].sum() == 1000
    assert snapshot._buffer.data_ptr() == buffer


def test_memory_can_be_allocated_before() -> None:
    snapshot = HostSnapshot()
    tensors = {"x": torch.ones(1000), "n": torch.tensor(3)}
    snapshot.prepare(tensors)
    buffer = snapshot._buffer.data_ptr()
    snapshot.fill(tensors)
    snapshot.prepare(tensors)
    _assert_same(_read(snapshot), tensors)
    assert snapshot._buffer.data_ptr() == buffer


def test_another_layout_gets_new_memory() -> None:
    snapshot = HostSnapshot()
    for tensors in ({"x": torch.zeros(4)}, {"x": torch.ones(2, 2), "é": torch.ones(3)}, {}):
        snapshot.fill(tensors)
        _assert_same(_read(snapshot), tensors)


def test_what_cannot_be_stored_is_refused_by_name() -> None:
    with pytest.raises(InvalidTypeError, match=r"'w' must be a dense tensor .* torch\.sparse_coo"):
        HostSnapshot().fill({"w": torch.eye(2).to_sparse()})
    with pytest.raises(InvalidTypeError, match=r"'c' must be a dense tensor .* torch\.complex128"):
        HostSnapshot().fill({"c": torch.ones(2, dtype=torch.complex128)})
    with pytest.raises(InvalidTypeError, match=r"'n' must be a tensor to be saved, but got 3"):
        HostSnapshot().fill({"n": 3})  # type: ignore[dict-item]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_tensors_are_copied_before_fill_returns() -> None:
    tensor = torch.full((1 << 22,), 7.0, device="cuda")
    snapshot = HostSnapshot()
    for value in (7.0, 8.0):
        snapshot.fill({"x": tensor.view(2, -1).t(), "host": torch.ones(3)})
        tensor += 1
        assert (_read(snapshot)["x"] == value).all()


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    target = host_memory(tensor.nbytes).view(tensor.dtype).view(tensor.shape)
    copy_all([(target, tensor)])
    return target


def test_a_tensor_larger_than_a_piece_is_copied_completely(threads: int) -> None:
    tensor = torch.arange(70_000_001, dtype=torch.int32)
    assert torch.equal(_copied(tensor), tensor)


def test_tensors_of_all_sizes_stay_in_their_memory(threads: int) -> None:
    tensors = [torch.full((size,), float(size)) for size in (1, 3_000_000, 0, 7, 20_000_000, 400_000)]
    memory = host_memory(sum(one.nbytes for one in tensors)).view(torch.float32)
    targets = list(memory.split([len(one) for one in tensors]))
    copy_all(zip(targets, tensors, strict=True))
    assert all(torch.equal(target, one) for target, one in zip(targets, tensors, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool, torch.uint16])
def test_dtypes_with_and_without_a_numpy_type(dtype: torch.dtype) -> None:
    tensor = torch.randint(0, 2, (1200, 1500)).to(dtype)
    assert _copied(tensor).tolist() == tensor.tolist()


def test_large_tensors_that_are_not_contiguous() -> None:
    base = torch.randn(1500, 1200, dtype=torch.complex64)
    for tensor in (base.t(), base[::2], base[:1].expand(700, -1), base.conj(), base.conj().imag):
        assert torch.equal(_copied(tensor), tensor)


def test_touched_memory_can_be_of_any_size() -> None:
    for size in (0, 1, 5000, 70_000_000):
        memory = host_memory(size)
        touch(memory)
        assert memory[::4096].sum() == 0
