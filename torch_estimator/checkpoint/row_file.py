"""Safetensors files with every n-th row of tables, as parameter servers write and read them. Needs numpy alone.

Server k of n holds the rows k, k + n, k + 2n, … of a table. It writes them one after the other; the file's metadata
says for each tensor which row of the variable the first one is, and how far apart they are.

The checksums of the data follow it as the last tensor of the file, one CRC-32 for each MiB. So a file is written from
its beginning to its end, in memory of one block, and a reader checks only the blocks that it reads.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from torch_estimator import files
from torch_estimator.errors import CheckpointError

ROWS = "rows"
"""Key in the metadata: for each tensor the number of its first row in the variable, and the distance of two rows."""

DAMAGED_ADVICE = "use an older checkpoint by naming it in 'checkpoint' of its model_dir"

_CHECKSUMS = "__crc32__"
# Key in the metadata of an ordinary checkpoint: a CRC-32 for each tensor (`format.CHECKSUMS`).
_SUM_OF_TENSORS = "crc32"
_CHECKED_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 22
_AHEAD_BYTES = 1 << 24
# Size of a request to an object store. Up to 2 MiB of it are read twice, since blocks are checked as a whole.
_REMOTE_BYTES = 1 << 24
# The library safetensors reads no longer one either.
_LONGEST_HEADER = 100_000_000
_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8")}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class RowFileName:
    """What ``state.json`` says of a file with rows: its name, what it holds, and its digest.

    `kind` is ``"variables"`` or ``"slots"``. The digest is a CRC-32 of the header and of all checksums, so it differs
    for any other content.
    """

    name: str
    kind: str
    digest: int


@dataclass(frozen=True, slots=True)
class SavedRows:
    """A file of a checkpoint with rows of a variable or slot, which is called `name` there.

    `offset` is the number in the variable of the first row in the file, if the file does not say it itself. `digest` is
    None for a file without one.
    """

    path: str
    name: str
    offset: int = 0
    digest: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SomeRows:
    """Rows of a variable in a file: the rows `first`, `first` + `step`, … of the variable called `name`."""

    name: str
    count: int
    width: int
    dtype: np.dtype[Any]
    first: int
    step: int

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self.count * self.width * self.dtype.itemsize


class RowFileWriter:
    """Writes a file with some rows of `variables`, which `write` gets in this order, into an open binary `file`."""

    def __init__(self, file: IO[bytes], variables: Sequence[SomeRows]) -> None:
        self._file = file
        self._header = _header(variables)
        self._checksums = _Checksums()
        file.write(self._header)

    def write(self, rows: Array) -> None:
        """Write the next rows."""
        piece = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
        self._checksums.add(piece)
        self._file.write(piece)

    def finish(self) -> int:
        """Write the checksums, and return the file's digest."""
        sums = self._checksums.finish().tobytes()
        self._file.write(sums)
        return zlib.crc32(sums, zlib.crc32(self._header))


def _header(variables: Sequence[SomeRows]) -> bytes:
    entries: dict[str, Any] = {
        "__metadata__": {"format": "pt", ROWS: json.dumps({one.name: [one.first, one.step] for one in variables})}
    }
    end = 0
    for one in variables:
        start, end = end, end + one.size
        shape = [one.count, one.width]
        entries[one.name] = {"dtype": _NAMES[one.dtype], "shape": shape, "data_offsets": [start, end]}
    blocks = -(-end // _CHECKED_BYTES)
    entries[_CHECKSUMS] = {"dtype": "U32", "shape": [blocks], "data_offsets": [end, end + 4 * blocks]}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


class _Checksums:
    """CRC-32 of each block of bytes that come in pieces of any size."""

    def __init__(self) -> None:
        self._done: list[int] = []
        self._of_block = self._bytes = 0

    def add(self, piece: memoryview) -> None:
        at = 0
        while at < len(piece):
            part = piece[at : at + _CHECKED_BYTES - self._bytes]
            self._of_block = zlib.crc32(part, self._of_block)
            self._bytes += len(part)
            at += len(part)
            if self._bytes == _CHECKED_BYTES:
                self._end_block()

    def finish(self) -> npt.NDArray[np.uint32]:
        if self._bytes:
            self._end_block()
        return np.array(self._done, "<u4")

    def _end_block(self) -> None:
        self._done.append(self._of_block)
        self._of_block = self._bytes = 0


def _mapped(path: str) -> mmap.mmap:
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


class RowFile(Mapping[str, Array]):
    """A safetensors file with some rows of variables, or of an ordinary checkpoint.

    A local file is mapped into memory. Of a remote one, only the rows that are asked for are read, each time. What is
    read is first compared with its checksum: a block of 1 MiB, or a whole tensor of an ordinary checkpoint. With
    `digest`, the file must be the one that was written with it. Raise CheckpointError if the file is missing, damaged
    or another one.
    """

    def __init__(self, path: str, digest: int | None = None) -> None:
        self.path, self.digest = path, digest
        with self._reading():
            size = files.read_part(path, 0, 8)
            length = int.from_bytes(size, "little")
            if length > _LONGEST_HEADER:
                raise ValueError(f"its header has {length} bytes")
            header = files.read_part(path, 8, 8 + length)
            self._start = 8 + length
            entries = json.loads(header)
            metadata = entries.pop("__metadata__", {})
            rows = json.loads(metadata.get(ROWS, "{}"))
            sums = entries.pop(_CHECKSUMS, None)
            self._entries = {name: _Entry.of(one, *rows.get(name, (0, 1))) for name, one in entries.items()}
            of_tensors = metadata.get(_SUM_OF_TENSORS)
            self._unchecked = {} if of_tensors is None else dict(zip(self._entries, of_tensors.split(" "), strict=True))
            self._size = max((one.stop for one in self._entries.values()), default=0)
            self._map = _mapped(path) if files.is_local(path) else None
            self._local = None if self._map is None else np.frombuffer(self._map, np.uint8)
            self._sums = None if sums is None else self._bytes(*sums["data_offsets"]).view("<u4")
            # A file without checksums may be cut off before its end.
            self._bytes(max(self._size - 1, 0), self._size)
        if digest is not None and (
            self._sums is None or zlib.crc32(self._sums.tobytes(), zlib.crc32(size + header)) != digest
        ):
            raise CheckpointError(
                f"{path} is damaged, or belongs to another checkpoint: its checksum differs; {DAMAGED_ADVICE}."
            )
        self._is_unchecked = np.ones(0 if self._sums is None else len(self._sums), bool)

    def __getitem__(self, name: str) -> Array:
        return self.rows(name, 0, self._entries[name].shape[0])

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def shape(self, name: str) -> list[int]:
        """Return the number of rows of a variable in this file, and their width."""
        return list(self._entries[name].shape)

    def place(self, name: str) -> tuple[int, int]:
        """Return the number that the first row has in the variable, and the distance of two rows."""
        entry = self._entries[name]
        return entry.first, entry.step

    def rows(self, name: str, start: int, stop: int) -> Array:
        """Return the rows ``start:stop`` of those in this file, which nobody may write to, after checking them."""
        entry = self._entries[name]
        row = entry.width * entry.dtype.itemsize
        with self._reading():
            found = self._checked(name, entry.start + start * row, entry.start + stop * row)
        return found.view(entry.dtype).reshape(stop - start, *entry.shape[1:])

    def blocks(self, name: str) -> Iterator[tuple[int, Array]]:
        """Yield all rows in pieces of some MB, each with the number in this file of its first row."""
        entry = self._entries[name]
        size = _REMOTE_BYTES if self._local is None else _BLOCK_BYTES
        step = max(1, size // max(1, entry.width * entry.dtype.itemsize))
        for start in range(0, entry.shape[0], step):
            self._read_ahead(entry.start + (start + step) * entry.width * entry.dtype.itemsize)
            yield start, self.rows(name, start, min(start + step, entry.shape[0]))

    def _read_ahead(self, start: int) -> None:
        """Have the system read some blocks of the data from the disk, while what is before them is in use."""
        if self._map is not None and hasattr(mmap, "MADV_WILLNEED"):
            begin = (self._start + start) // mmap.PAGESIZE * mmap.PAGESIZE
            if begin < len(self._map):
                self._map.madvise(mmap.MADV_WILLNEED, begin, min(_AHEAD_BYTES, len(self._map) - begin))

    def _bytes(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Return bytes of the data."""
        start, stop = self._start + start, self._start + stop
        if self._local is None:
            found = np.frombuffer(files.read_part(self.path, start, stop) if stop > start else b"", np.uint8)
        else:
            found = self._local[start:stop]
        if len(found) < stop - start:
            raise ValueError(f"it ends before byte {stop}")
        return found

    def _checked(self, name: str, first: int, last: int) -> npt.NDArray[np.uint8]:
        """Return bytes of the data, in `name`, after comparing what holds them with its checksum."""
        if self._sums is None:
            if name in self._unchecked:
                entry = self._entries[name]
                found = zlib.crc32(json.dumps([name, entry.name_of_dtype, list(entry.shape)]).encode())
                for start in range(entry.start, entry.stop, _REMOTE_BYTES):
                    found = zlib.crc32(self._bytes(start, min(start + _REMOTE_BYTES, entry.stop)).data, found)
                if f"{found:08x}" != self._unchecked[name]:
                    raise self._damaged(f"of {name!r}")
                del self._unchecked[name]
            return self._bytes(first, last)
        begin = first // _CHECKED_BYTES * _CHECKED_BYTES
        data = self._bytes(begin, min(-(-last // _CHECKED_BYTES) * _CHECKED_BYTES, self._size))
        for at in range(0, len(data), _CHECKED_BYTES):
            block = (begin + at) // _CHECKED_BYTES
            if self._local is None or self._is_unchecked[block]:
                if zlib.crc32(data[at : at + _CHECKED_BYTES].data) != self._sums[block]:
                    start = begin + at
                    raise self._damaged(f"of bytes {start} to {start + _CHECKED_BYTES} of its data, in {name!r},")
                self._is_unchecked[block] = False
        return data[first - begin : last - begin]

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn errors of reading into a CheckpointError."""
        path = self.path
        try:
            yield
        except CheckpointError:
            raise
        except FileNotFoundError as error:
            raise CheckpointError(f"{path} is missing, so its checkpoint is not whole; {DAMAGED_ADVICE}.") from error
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {files.reason(error)}.") from error
        # A damaged header can raise any error.
        except Exception as error:
            raise CheckpointError(
                f"{path} is truncated or damaged ({type(error).__name__}: {error}); {DAMAGED_ADVICE}."
            ) from error

    def _damaged(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path} is damaged: the checksum {what} differs; put back a good copy of the file, or "
            f"{DAMAGED_ADVICE}."
        )


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor in a file; `first` and `step` are as in `SomeRows`."""

    name_of_dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int
    first: int
    step: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return _DTYPES[self.name_of_dtype]

    @property
    def width(self) -> int:
        return math.prod(self.shape[1:])

    @classmethod
    def of(cls, entry: Mapping[str, Any], first: int, step: int) -> _Entry:
        start, stop = entry["data_offsets"]
        return cls(entry["dtype"], tuple(entry["shape"]), start, stop, first, step)
