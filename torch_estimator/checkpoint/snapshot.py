"""Copies of named tensors in CPU memory, arranged as in a safetensors file.

Training continues as soon as its tensors are copied; a thread writes the copy to disk later. The file is assembled
by hand instead of with ``safetensors.torch.save_file`` for two reasons: the copy lies in one buffer that every save
uses again, and parts of this buffer can be written to any file system (fsspec) without another copy.
"""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_estimator.checkpoint.format import CHECKSUMS, DTYPE_NAMES, as_bytes, checksum, storable
from torch_estimator.errors import InvalidTypeError

_CHUNK_BYTES = 32 * 1024 * 1024
_PAGE_BYTES = 4096
# Copying is faster in pieces this large: the C library then writes past the caches, without reading the target first.
_PIECE_BYTES = 64 * 1024 * 1024
_SMALL_BYTES = 1024 * 1024
_MOST_THREADS = 8

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class HostSnapshot:
    """Copy of named tensors in CPU memory, as content of one safetensors file. Every save uses the same memory.

    Tensors may be views, slices of one storage, transposed or shared; each is stored completely and contiguously. The
    memory is pinned if a tensor is on a GPU.
    """

    def __init__(self) -> None:
        self._layout: list[tuple[str, torch.dtype, tuple[int, ...]]] | None = None
        self._header: dict[str, dict[str, Any]] = {}
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._views: dict[str, Tensor] = {}

    def prepare(self, tensors: Mapping[str, Tensor]) -> None:
        """Allocate the memory for `tensors` without reading them, so that `fill` only has to copy."""
        if self._lay_out(tensors) and not self._buffer.is_pinned():
            touch(self._buffer)

    def fill(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy `tensors` into this object. The tensors may change after the call."""
        self._lay_out(tensors)
        copy_all((view, tensors[name].detach()) for name, view in self._views.items())
        for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()

    def chunks(self) -> Iterator[bytes | memoryview]:
        """Yield the content of the safetensors file, in pieces."""
        yield self._header_bytes()
        content = self._buffer.numpy().data
        for start in range(0, len(content), _CHUNK_BYTES):
            yield content[start : start + _CHUNK_BYTES]

    def _lay_out(self, tensors: Mapping[str, Tensor]) -> bool:
        """Allocate memory for `tensors`, unless that of the last call fits; return whether memory was allocated."""
        for name, tensor in tensors.items():
            _check(name, tensor)
        # Put the widest elements first, so that every tensor starts at a multiple of its element size.
        names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
        layout = [(name, tensors[name].dtype, tuple(tensors[name].shape)) for name in names]
        if layout == self._layout:
            return False
        pinned = any(tensor.is_cuda for tensor in tensors.values())
        self._layout = None  # The layout stays None if the allocation fails.
        self._allocate({name: tensors[name] for name in names}, pinned=pinned)
        self._layout = layout
        return True

    def _allocate(self, tensors: Mapping[str, Tensor], *, pinned: bool) -> None:
        self._header = {}
        end = 0
        for name, tensor in tensors.items():
            start, end = end, end + tensor.numel() * tensor.element_size()
            dtype = DTYPE_NAMES[tensor.dtype]
            self._header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
        self._views = {}
        self._buffer = torch.empty(end, dtype=torch.uint8, pin_memory=True) if pinned else host_memory(end)
        for name, tensor in tensors.items():
            start, end = self._header[name]["data_offsets"]
            self._views[name] = self._buffer[start:end].view(tensor.dtype).view(tensor.shape)

    def _header_bytes(self) -> bytes:
        sums = [f"{checksum(name, entry, self._views[name]):08x}" for name, entry in self._header.items()]
        header = {"__metadata__": {"format": "pt", CHECKSUMS: " ".join(sums)}, **self._header}
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text


def _check(name: str, tensor: object) -> None:
    if not isinstance(tensor, Tensor):
        raise InvalidTypeError(f"variable {name!r} must be a tensor to be saved, but got {tensor!r}.")
    if not storable(tensor):
        raise InvalidTypeError(
            f"variable {name!r} must be a dense tensor of a common dtype to be saved, "
            f"but it is {tensor.layout} of {tensor.dtype}."
        )


def host_memory(size: int) -> Tensor:
    """Return `size` uninitialized bytes of CPU memory, in huge pages if the system has them.

    The kernel provides each page at the first write to it. With pages of 4 kB that takes longer than the write itself.
    numpy requests huge pages for large arrays, torch does not.
    """
    return torch.from_numpy(np.empty(size, np.uint8))


def touch(memory: Tensor) -> None:
    """Write to every page of `memory`, so that the kernel provides the pages now and not during a save."""
    for start in range(0, len(memory), _PIECE_BYTES):
        memory[start : start + _PIECE_BYTES : _PAGE_BYTES].fill_(0)


def copy_all(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy the second tensor of each pair into the first. Several threads copy large CPU tensors.

    The first tensor must be contiguous, on the CPU, and of the same dtype as the second. Copies from a GPU may still be
    running when the function returns.
    """
    pieces: list[tuple[_Bytes, _Bytes]] = []
    for target, source in pairs:
        if target.nbytes >= _SMALL_BYTES and _is_plain(source):
            pieces += _pieces(as_bytes(target), as_bytes(source))
        else:
            target.copy_(source, non_blocking=True)
    _copy_in_threads(pieces)


def _is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor's values lie in CPU memory one after the other, so that their bytes can be copied."""
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _pieces(target: _Bytes, source: _Bytes) -> list[tuple[_Bytes, _Bytes]]:
    starts = range(0, len(target), _PIECE_BYTES)
    return [(target[start : start + _PIECE_BYTES], source[start : start + _PIECE_BYTES]) for start in starts]


def _copy_in_threads(pieces: Sequence[tuple[_Bytes, _Bytes]]) -> None:
    remaining = iter(pieces)

    def work() -> None:
        # The threads share one iterator, which is safe because its `next` is atomic. numpy releases the GIL to copy.
        for target, source in remaining:
            np.copyto(target, source)

    # Use at most one thread per whole piece, because starting a thread can take longer than copying a part of a piece.
    worthwhile = sum(len(target) for target, _ in pieces) // _PIECE_BYTES
    helpers = min(torch.get_num_threads(), _MOST_THREADS, worthwhile) - 1
    if helpers < 1:
        work()
        return
    with concurrent.futures.ThreadPoolExecutor(helpers, thread_name_prefix="copy") as pool:
        futures = [pool.submit(work) for _ in range(helpers)]
        work()
        for future in futures:
            future.result()
