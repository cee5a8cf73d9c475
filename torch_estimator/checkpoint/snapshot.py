"""A copy of named tensors in host memory, laid out as a safetensors file."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from torch_estimator.checkpoint.host_copy import as_bytes, copy_all, host_memory, touch
from torch_estimator.errors import InvalidTypeError

_CHUNK_BYTES = 32 * 1024 * 1024

CHECKSUMS = "crc32"
"""Of the entry in a file's metadata that holds one checksum for each tensor, in hexadecimal, in their order."""

_DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class HostSnapshot:
    """The content of one safetensors file, in memory that is filled again by every `fill`.

    Tensors may be views, slices of one storage, transposed or shared; every one is stored whole and
    contiguous. Memory is pinned where a tensor comes from a GPU.
    """

    def __init__(self) -> None:
        self._layout: list[tuple[str, torch.dtype, tuple[int, ...]]] | None = None
        self._header: dict[str, dict[str, Any]] = {}
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._views: dict[str, torch.Tensor] = {}

    def prepare(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Gets the memory for `tensors`, so that `fill` only has to copy; reads none of them.

        Raises:
            InvalidTypeError: As `fill`.
        """
        if self._lay_out(tensors) and not self._buffer.is_pinned():
            touch(self._buffer)

    def fill(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copies `tensors`; when it returns they may change.

        Raises:
            InvalidTypeError: A value is not a dense tensor, or of a dtype that safetensors lacks.
        """
        self._lay_out(tensors)
        copy_all((view, tensors[name].detach()) for name, view in self._views.items())
        for device in {tensor.device for tensor in tensors.values() if tensor.is_cuda}:
            torch.cuda.current_stream(device).synchronize()

    def chunks(self) -> Iterator[bytes | memoryview]:
        """Yields the bytes of the file."""
        yield self._header_bytes()
        content = self._buffer.numpy().data
        for start in range(0, len(content), _CHUNK_BYTES):
            yield content[start : start + _CHUNK_BYTES]

    def _lay_out(self, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Takes the layout of `tensors`; returns whether that is another one than before."""
        for name, tensor in tensors.items():
            _check(name, tensor)
        # Widest elements first, so that every tensor lies at a multiple of its element size.
        names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
        layout = [(name, tensors[name].dtype, tuple(tensors[name].shape)) for name in names]
        if layout == self._layout:
            return False
        pinned = any(tensor.is_cuda for tensor in tensors.values())
        self._layout = None
        self._allocate({name: tensors[name] for name in names}, pinned=pinned)
        self._layout = layout
        return True

    def _allocate(self, tensors: Mapping[str, torch.Tensor], *, pinned: bool) -> None:
        self._header = {}
        end = 0
        for name, tensor in tensors.items():
            start, end = end, end + tensor.numel() * tensor.element_size()
            dtype = _DTYPE_NAMES[tensor.dtype]
            self._header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
        self._views = {}
        self._buffer = torch.empty(end, dtype=torch.uint8, pin_memory=True) if pinned else host_memory(end)
        position = 0
        for name, tensor in tensors.items():
            size = tensor.numel() * tensor.element_size()
            view = self._buffer[position : position + size].view(tensor.dtype)
            self._views[name] = view.view(tensor.shape)
            position += size

    def _header_bytes(self) -> bytes:
        sums = [f"{checksum(name, entry, self._views[name]):08x}" for name, entry in self._header.items()]
        header = {"__metadata__": {"format": "pt", CHECKSUMS: " ".join(sums)}, **self._header}
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text


def checksum(name: str, entry: Mapping[str, Any], tensor: torch.Tensor) -> int:
    """Return the CRC-32 of a tensor in host memory, its name, and its dtype and shape as a file's header has them."""
    return zlib.crc32(as_bytes(tensor).data, zlib.crc32(json.dumps([name, entry["dtype"], entry["shape"]]).encode()))


def storable(tensor: torch.Tensor) -> bool:
    """Whether `HostSnapshot` takes a tensor: a dense one of a dtype that safetensors has."""
    return tensor.layout == torch.strided and tensor.dtype in _DTYPE_NAMES


def _check(name: str, tensor: object) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise InvalidTypeError(f"variable {name!r} must be a tensor to be saved, but got {tensor!r}.")
    if not storable(tensor):
        raise InvalidTypeError(
            f"variable {name!r} must be a dense tensor of a common dtype to be saved, "
            f"but it is {tensor.layout} of {tensor.dtype}."
        )
