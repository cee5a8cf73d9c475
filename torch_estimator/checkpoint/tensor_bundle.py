"""Reader of TensorFlow's checkpoints: ``model.ckpt-300.index`` and ``model.ckpt-300.data-00000-of-00001``.

The index is a table of LevelDB's format without compression: blocks of entries whose keys share prefixes, an index of
the blocks, and a footer. Each block has a masked CRC-32C. The key is the name of a tensor; the value is a protocol
buffer (``BundleEntryProto`` of tensorflow/core/protobuf/tensor_bundle.proto) with dtype, shape, and the place of its
bytes in a data file. A partitioned variable has an entry without bytes that lists its slices, and an entry for each
slice. The protocol buffers are parsed here, because their few fields do not justify a dependency.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_estimator import files
from torch_estimator.errors import CheckpointError
from torch_estimator.tfrecord.records import masked_crc32c

INDEX_SUFFIX = ".index"

# DataType of tensorflow/core/framework/types.proto.
_DTYPES = {
    1: torch.float32,
    2: torch.float64,
    3: torch.int32,
    4: torch.uint8,
    5: torch.int16,
    6: torch.int8,
    8: torch.complex64,
    9: torch.int64,
    10: torch.bool,
    14: torch.bfloat16,
    17: torch.uint16,
    18: torch.complex128,
    19: torch.float16,
    22: torch.uint32,
    23: torch.uint64,
}

_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
_TRAILER_BYTES = 5
_MOST_DIMENSIONS = 254
# More numbers than a file can hold. Sizes of zero count as one, because torch multiplies the other sizes, too.
_MOST_NUMBERS = 2**59
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_Slice = tuple[tuple[int, int], ...]


class _Damaged(Exception):
    """Damage at a byte of the file that is being read. The caller adds the path of the file."""

    def __init__(self, offset: int, problem: str) -> None:
        super().__init__(problem)
        self.offset = offset


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """Place and type of a tensor, or of one slice of it, in the data files.

    `place` is the position of the entry in the index file, for messages. `slices` holds for a partitioned variable the
    first row and the number of rows of each slice, by dimension.
    """

    place: int
    dtype: int
    shape: tuple[int, ...]
    shard: int = 0
    offset: int = 0
    size: int = 0
    checksum: int = 0
    slices: tuple[_Slice, ...] = ()


class TensorBundle(Mapping[str, Tensor]):
    """Tensors of a TensorFlow checkpoint by name. A tensor is read and compared with its checksum when it is used.

    `prefix` is the path or URL of the checkpoint without the suffixes of its files, such as ``runs/model.ckpt-300``.
    Strings and other types that torch does not have are not in the mapping; `texts` holds the names of such tensors.
    """

    def __init__(self, prefix: files.PathLike) -> None:
        self.prefix = files.as_url(prefix)
        self._index_path = f"{self.prefix}{INDEX_SUFFIX}"
        table = dict(self._read_index())
        self._shards = self._number_of_shards(table)
        self._entries: dict[str, _Entry] = {}
        # Keys of slices begin with a zero byte, which no name of a variable does.
        self._slices = {key: entry for key, entry in table.items() if key.startswith(b"\0")}
        for key, entry in table.items():
            if key and not key.startswith(b"\0"):
                self._entries[self._name(key, entry.place)] = entry
        self.texts = [name for name, entry in self._entries.items() if entry.dtype not in _DTYPES]
        for name in self.texts:
            del self._entries[name]
        self._data: dict[int, _Bytes] = {}

    def __getitem__(self, name: str) -> Tensor:
        return self.joined([name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def shape(self, name: str) -> list[int]:
        """Return the shape of a tensor without reading it."""
        return list(self._entries[name].shape)

    def joined(self, names: Sequence[str]) -> Tensor:
        """Return the tensor whose slices are saved under several names of one shape, as slots of partitions are."""
        first = self._entries[names[0]]
        if len(names) == 1 and not first.slices:
            return self._tensor(names[0], first)
        parts = [self._slice(name, self._entries[name], one) for name in names for one in self._entries[name].slices]
        covered = sum(math.prod(entry.shape) for _, entry in parts)
        if covered != math.prod(first.shape):
            raise CheckpointError(
                f"{self._index_path} has {covered:,} of the {math.prod(first.shape):,} numbers of {names[0]!r}."
            )
        for _, entry in parts:
            # Find out that the numbers are there before memory is reserved for them.
            self._content(names[0], entry)
        if not _is_covered(first.shape, [place for place, _ in parts]):
            raise CheckpointError(
                f"{self._index_path} is damaged at byte {first.place}: slices of {names[0]!r} overlap, so others are "
                "missing; put back a good copy of the file, or use another checkpoint."
            )
        whole = torch.zeros(first.shape, dtype=_DTYPES[first.dtype])
        for place, entry in parts:
            whole[place] = self._tensor(names[0], entry)
        return whole

    def _slice(self, name: str, whole: _Entry, slices: _Slice) -> tuple[tuple[slice, ...], _Entry]:
        """Return the place and the entry of one slice of a partitioned tensor."""
        entry = self._slices.get(_slice_key(name, slices))
        if entry is None:
            raise CheckpointError(f"{self._index_path} lacks a slice of {name!r} that it announces.")
        place = tuple(slice(None) if length < 0 else slice(start, start + length) for start, length in slices)
        expected = tuple(len(range(size)[one]) for size, one in zip(whole.shape, place, strict=True))
        if entry.shape != expected or entry.dtype != whole.dtype:
            raise CheckpointError(
                f"{self._index_path} is damaged at byte {entry.place}: a slice of {name!r} has shape "
                f"{list(entry.shape)}, but {list(expected)} was expected."
            )
        return place, entry

    def _content(self, name: str, entry: _Entry) -> _Bytes:
        """Return the bytes of a tensor in its data file, without reading them, after a check of their number."""
        path, dtype = self._data_path(entry.shard), _DTYPES[entry.dtype]
        data = self._open(entry.shard)
        content = data[entry.offset : entry.offset + entry.size]
        if len(content) != entry.size:
            raise CheckpointError(
                f"{path} is truncated: {name!r} is at bytes {entry.offset:,} to {entry.offset + entry.size:,}, but the "
                f"file has {len(data):,}; put back a whole copy of the file."
            )
        if entry.size != math.prod(entry.shape) * dtype.itemsize:
            raise CheckpointError(
                f"{self._index_path} is damaged at byte {entry.place}: {name!r} has {entry.size} bytes, which is not "
                f"the size of {dtype} {list(entry.shape)}."
            )
        return content

    def _tensor(self, name: str, entry: _Entry) -> Tensor:
        path, dtype = self._data_path(entry.shard), _DTYPES[entry.dtype]
        content = self._content(name, entry)
        if masked_crc32c(content.tobytes()) != entry.checksum:
            raise CheckpointError(
                f"{path} is damaged: the checksum of {name!r} at byte {entry.offset:,} differs; put back a good copy "
                "of the file, or use another checkpoint."
            )
        # torch refuses an empty buffer.
        flat = torch.frombuffer(bytearray(content), dtype=dtype) if entry.size else torch.empty(0, dtype=dtype)
        return flat.reshape(entry.shape)

    def _data_path(self, shard: int) -> str:
        return f"{self.prefix}.data-{shard:05d}-of-{self._shards:05d}"

    def _open(self, shard: int) -> _Bytes:
        """Return the bytes of a data file. A local file is mapped into memory; a remote one is read completely."""
        path = self._data_path(shard)
        if shard not in self._data:
            try:
                if files.is_local(path) and files.sizes(files.parent(path)).get(files.basename(path)):
                    self._data[shard] = np.memmap(path, np.uint8, "r")
                else:
                    self._data[shard] = np.frombuffer(files.read_bytes(path), np.uint8)
            except FileNotFoundError as error:
                raise CheckpointError(f"{path} is missing, so its checkpoint is not whole; put it back.") from error
            except OSError as error:
                raise CheckpointError(f"{path} cannot be read: {files.reason(error)}.") from error
        return self._data[shard]

    def _read_index(self) -> Iterator[tuple[bytes, _Entry]]:
        try:
            content = files.read_bytes(self._index_path)
        except FileNotFoundError as error:
            if files.exists(self.prefix) and not files.is_dir(self.prefix):
                raise CheckpointError(
                    f"{self.prefix} is one file: a checkpoint of TensorFlow's first format (V1), or none at all; save "
                    "it again with tf.compat.v1.train.Saver in TensorFlow, which writes files that can be read here."
                ) from error
            raise CheckpointError(f"there is no checkpoint of TensorFlow at {self.prefix}: no .index file.") from error
        except OSError as error:
            raise CheckpointError(f"{self._index_path} cannot be read: {files.reason(error)}.") from error
        try:
            for key, place, start, stop in _table(content):
                yield (
                    key,
                    _parse_header(content, place, start, stop)
                    if not key
                    else _parse_entry(content, place, start, stop),
                )
        except _Damaged as damage:
            raise CheckpointError(
                f"{self._index_path} is damaged at byte {damage.offset:,}, or is no index of a TensorFlow checkpoint: "
                f"{damage}; put back a good copy of the file."
            ) from damage

    def _number_of_shards(self, table: Mapping[bytes, _Entry]) -> int:
        if b"" not in table:
            raise CheckpointError(f"{self._index_path} is no index of a TensorFlow checkpoint: it has no header.")
        return table[b""].size

    def _name(self, key: bytes, place: int) -> str:
        try:
            return key.decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(
                f"{self._index_path} is damaged at byte {place:,}: the name {key!r} is not UTF-8."
            ) from error


def _table(content: bytes) -> Iterator[tuple[bytes, int, int, int]]:
    """Yield key, place of the entry, and start and stop of the value of each entry of a table, in the order of keys."""
    footer = len(content) - _FOOTER_BYTES
    if footer < 0 or struct.unpack_from("<Q", content, len(content) - 8)[0] != _MAGIC:
        raise _Damaged(max(footer, 0), "the last 8 bytes are not those of a table")
    position = footer
    handle = []
    for _ in range(4):  # Offset and size of the block of meta information, which is empty, and of the index block.
        number, position = _varint(content, position, len(content))
        handle.append(number)
    if any(_block(content, handle[0], handle[1], footer)):
        raise _Damaged(handle[0], "the block of meta information is not empty")
    for _, place, start, stop in _block(content, handle[2], handle[3], footer):
        offset, next_field = _varint(content, start, stop)
        size, _ = _varint(content, next_field, stop)
        if offset >= footer:
            raise _Damaged(place, "an offset lies beyond the end")
        yield from _block(content, offset, size, footer)


def _block(content: bytes, offset: int, size: int, end: int) -> Iterator[tuple[bytes, int, int, int]]:
    if offset + size + _TRAILER_BYTES > end or size < 4:
        raise _Damaged(min(offset, len(content)), f"a block of {size} bytes does not fit in the file")
    kind, checksum = struct.unpack_from("<BI", content, offset + size)
    if masked_crc32c(content[offset : offset + size + 1]) != checksum:
        raise _Damaged(offset, "the checksum of a block differs")
    if kind != 0:
        raise _Damaged(offset + size, f"a block has the compression {kind}, which TensorFlow does not use")
    (restarts,) = struct.unpack_from("<I", content, offset + size - 4)
    stop = offset + size - 4 * (restarts + 1)
    position, key = offset, b""
    while position < stop:
        place = position
        shared, position = _varint(content, position, stop)
        own, position = _varint(content, position, stop)
        length, position = _varint(content, position, stop)
        if shared > len(key) or position + own + length > stop:
            raise _Damaged(place, "an entry does not fit in its block")
        key = key[:shared] + content[position : position + own]
        position += own + length
        yield key, place, position - length, position


def _varint(content: bytes, position: int, stop: int) -> tuple[int, int]:
    value = shift = 0
    while position < stop and shift < 64:
        byte = content[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
    raise _Damaged(position, "a number has no end")


def _fields(content: bytes, position: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, value and end of each field of a protocol buffer; for bytes the value is the position of the first.

    A field of another wire type than its number promises shows up as a value that the callers check.
    """
    while position < stop:
        tag, position = _varint(content, position, stop)
        kind = tag & 7
        if kind == _VARINT:
            value, position = _varint(content, position, stop)
        elif kind == _BYTES:
            size, value = _varint(content, position, stop)
            position = value + size
        elif kind in (_FIXED32, _FIXED64):
            width = 4 if kind == _FIXED32 else 8
            value = int.from_bytes(content[position : position + width], "little")
            position += width
        else:
            raise _Damaged(position, f"a field has the unknown type {kind}")
        if position > stop:
            raise _Damaged(position, "a field is longer than its message")
        yield tag >> 3, value, position


def _parse_header(content: bytes, place: int, start: int, stop: int) -> _Entry:
    """Return the header as an entry whose size is the number of data files."""
    values = {number: value for number, value, _ in _fields(content, start, stop)}
    if values.get(2, 0) != 0:
        raise _Damaged(place, "the numbers are big-endian, which this reader cannot read")
    if not values.get(1):
        raise _Damaged(place, "the header names no data file")
    return _Entry(place=place, dtype=0, shape=(), size=values[1])


def _parse_entry(content: bytes, place: int, start: int, stop: int) -> _Entry:
    found = {"dtype": 0, "shard": 0, "offset": 0, "size": 0, "checksum": 0}
    names = {1: "dtype", 3: "shard", 4: "offset", 5: "size", 6: "checksum"}
    shape: tuple[int, ...] = ()
    slices: list[_Slice] = []
    for number, value, end in _fields(content, start, stop):
        if number == 2:
            shape = tuple(_one(content, dim, dim_end) for one, dim, dim_end in _fields(content, value, end) if one == 2)
        elif number == 7:
            slices.append(
                tuple(_extent(content, dim, dim_end) for one, dim, dim_end in _fields(content, value, end) if one == 1)
            )
        elif number in names:
            found[names[number]] = value
    if len(shape) > _MOST_DIMENSIONS or any(len(one) != len(shape) for one in slices):
        raise _Damaged(place, "the slices of a tensor do not have its dimensions")
    if math.prod(max(size, 1) for size in shape) > _MOST_NUMBERS:
        raise _Damaged(place, f"no tensor has the shape {shape}")
    for one in slices:
        if any(start + max(length, 0) > size for (start, length), size in zip(one, shape, strict=True)):
            raise _Damaged(place, f"a slice lies outside of its tensor of the shape {shape}")
    return _Entry(place=place, shape=shape, slices=tuple(slices), **found)


def _is_covered(shape: Sequence[int], places: Sequence[tuple[slice, ...]]) -> bool:
    """Return whether slices, which have as many elements in all as a tensor, cover each of its elements."""
    partitioned = [any(len(range(size)[place[axis]]) < size for place in places) for axis, size in enumerate(shape)]
    # One flag stands for a dimension that no slice divides: usually all but one.
    flags = np.zeros([size if divided else 1 for size, divided in zip(shape, partitioned, strict=True)], np.bool_)
    for place in places:
        flags[tuple(one if divided else slice(None) for one, divided in zip(place, partitioned, strict=True))] = True
    return bool(flags.all())


def _one(content: bytes, start: int, stop: int) -> int:
    """Return protobuf field 1, or 0 if it is absent."""
    return next((value for number, value, _ in _fields(content, start, stop) if number == 1), 0)


def _extent(content: bytes, start: int, stop: int) -> tuple[int, int]:
    """Return first index and length of a slice along one dimension; the length is -1 for the whole dimension."""
    values = {number: value for number, value, _ in _fields(content, start, stop)}
    return values.get(1, 0), values.get(2, -1)


def _slice_key(name: str, slices: _Slice) -> bytes:
    """Return the key of a slice: TensorFlow's order-preserving encoding of 0, the name, and the extents."""
    text = name.encode().replace(b"\xff", b"\xff\0").replace(b"\0", b"\0\xff")
    numbers = b"".join(_signed(number) for extent in slices for number in extent)
    return b"\0" + text + b"\0\x01" + _unsigned(len(slices)) + numbers


def _unsigned(number: int) -> bytes:
    size = (number.bit_length() + 7) // 8
    return bytes([size]) + number.to_bytes(size, "big")


def _signed(number: int) -> bytes:
    """Encode a signed number in 1 to 10 bytes, whose leading bits, as many as there are bytes, give the length."""
    size = (~number if number < 0 else number).bit_length() // 7 + 1
    header = ((1 << size) - 1) << (8 * size - size)
    return ((number & ((1 << 8 * size) - 1)) ^ header).to_bytes(size, "big")
