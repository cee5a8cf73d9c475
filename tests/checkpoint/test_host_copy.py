"""Copying much memory: every byte arrives, whatever the layout and however many threads share the work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from torch_estimator.checkpoint.snapshot import copy_all, host_memory, touch


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


def test_what_is_larger_than_a_piece_arrives_whole(threads: int) -> None:
    tensor = torch.arange(70_000_001, dtype=torch.int32)
    assert torch.equal(_copied(tensor), tensor)


def test_tensors_of_all_sizes_keep_to_their_places(threads: int) -> None:
    tensors = [torch.full((size,), float(size)) for size in (1, 3_000_000, 0, 7, 20_000_000, 400_000)]
    memory = host_memory(sum(one.nbytes for one in tensors)).view(torch.float32)
    targets = list(memory.split([len(one) for one in tensors]))
    copy_all(zip(targets, tensors, strict=True))
    assert all(torch.equal(target, one) for target, one in zip(targets, tensors, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool, torch.uint16])
def test_dtypes_that_numpy_lacks_and_others(dtype: torch.dtype) -> None:
    tensor = torch.randint(0, 2, (1200, 1500)).to(dtype)
    assert _copied(tensor).tolist() == tensor.tolist()


def test_large_tensors_that_do_not_lie_in_order() -> None:
    base = torch.randn(1500, 1200, dtype=torch.complex64)
    for tensor in (base.t(), base[::2], base[:1].expand(700, -1), base.conj(), base.conj().imag):
        assert torch.equal(_copied(tensor), tensor)


def test_touched_memory_can_be_of_any_size() -> None:
    for size in (0, 1, 5000, 70_000_000):
        memory = host_memory(size)
        touch(memory)
        assert memory[::4096].sum() == 0
