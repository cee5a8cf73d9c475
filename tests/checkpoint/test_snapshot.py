"""HostSnapshot writes what safetensors reads."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch

from torch_estimator.checkpoint.snapshot import HostSnapshot
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


def test_memory_can_be_made_ready_before() -> None:
    snapshot = HostSnapshot()
    tensors = {"x": torch.ones(1000), "n": torch.tensor(3)}
    snapshot.prepare(tensors)
    buffer = snapshot._buffer.data_ptr()
    snapshot.fill(tensors)
    snapshot.prepare(tensors)
    _assert_same(_read(snapshot), tensors)
    assert snapshot._buffer.data_ptr() == buffer


def test_another_layout_is_taken_up() -> None:
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
