"""Cache files: an Arrow IPC stream with one record batch per chunk of rows, followed by checksums.

Arrow ignores what follows the end of its stream. After that end the file has JSON: for each record batch, the position
in the file at which it ends, and its CRC-32. The checksum of the first batch includes the schema before it. The last 12
bytes are the length of this JSON (uint64) and its CRC-32 (uint32), little-endian.

A batch is compared with its checksum when it is first read, so opening a large cache does not read all of it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from torch_estimator import tree
from torch_estimator.data import arrow
from torch_estimator.data.chunk import Chunk, LabelColumn
from torch_estimator.data.columns import STRINGS, Column, from_objects, is_strings
from torch_estimator.data.lists import is_lists
from torch_estimator.data.operations.cache import CacheStore
from torch_estimator.errors import DataError, RowError
from torch_estimator.files import reason
from torch_estimator.json_text import parse_json
from torch_estimator.runs.locks import FileLock

logger = logging.getLogger("torch_estimator")

_IDENTITY = b"torch_estimator.cache"
_LAYOUT = b"torch_estimator.layout"
_FOOTER = struct.Struct("<QI")
# Another writer locks a file for a moment, to see whether it is a leftover.
_LOOK_SECS = 1.0


class FileStore(CacheStore):
    """Storage of chunks in a file. The file is written under a temporary name, and renamed when complete.

    A file with the final name is therefore always complete, also after a crash. A file that was written with another
    identity is replaced. Raise a DataError if the directory cannot be written.
    """

    def __init__(self, path: str, identity: str) -> None:
        self._path = path
        self._identity = identity.encode()
        self._writer = _CacheWriter(path)
        self._reader: _CacheReader | None = None
        self._batches = 0
        self.complete = False
        found = _CacheReader.open(path, self._identity)
        if found is not None:
            self._reader, self._batches, self.complete = found, found.count, True

    def __len__(self) -> int:
        return self._batches

    def get(self, number: int) -> Chunk:
        if self._reader is None or self._reader.count <= number:
            path = self._path if self.complete else self._writer.flush()
            self._reader = _CacheReader(path, self._batches, is_whole=self.complete)
        return self._reader.get(number)

    def add(self, chunk: Chunk) -> Chunk:
        with self._writing():
            kept = self._writer.add(chunk, self._identity)
        self._batches += 1
        return kept

    def finish(self) -> None:
        self.complete = True
        with self._writing():
            self._writer.publish(self._identity)
        self._reader = None

    def close(self) -> None:
        self._reader = None
        if not self.complete:
            self._writer.remove()

    @contextlib.contextmanager
    def _writing(self) -> Any:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            self._writer.remove()
            raise DataError(f"the cache {self._path} cannot be written: {reason(error)}.") from error


class _CacheWriter:
    """Writer of a cache file. The file has a temporary name until `publish` gives it the final name, `path`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._temporary = f"{path}.{socket.gethostname()}-{os.getpid()}-{id(self)}.partial"
        self._file: Any = None
        self._lock: FileLock | None = None
        self._writer: Any = None
        self._layout: Layout | None = None
        self._checksums: _ChecksumFile | None = None

    def add(self, chunk: Chunk, identity: bytes) -> Chunk:
        """Write a chunk to the temporary file. Return a chunk with the columns that a reader of the file gets."""
        batch, layout = to_record_batch(chunk, self._layout)
        if self._writer is None:
            self._layout = layout
            self._open(batch.schema, identity, layout.to_json())
        assert self._checksums is not None
        self._writer.write_batch(batch)
        self._checksums.end_batch()
        kept = to_chunk(batch, layout, self._path, 0)
        kept.locate = chunk.locate
        return kept

    def flush(self) -> str:
        """Flush the temporary file, so that the chunks written so far can be read. Return the name of the file."""
        self._file.flush()
        return self._temporary

    def publish(self, identity: bytes) -> None:
        """Write the checksums, and rename the temporary file to the final name."""
        if self._writer is None:
            # The stream had no chunks. Write a file without batches, so that the next run does not read the source.
            self._open(pa.schema([]), identity, Layout().to_json())
        assert self._checksums is not None
        self._writer.close()
        self._file.write(self._checksums.footer())
        self._file.flush()
        os.fsync(self._file.fileno())
        os.replace(self._temporary, self._path)
        self._close()
        logger.info("Wrote the cache %s.", self._path)

    def remove(self) -> None:
        """Remove the temporary file, if there is one."""
        if self._file is not None:
            Path(self._temporary).unlink(missing_ok=True)
            self._close()

    def _close(self) -> None:
        self._file.close()
        self._file = self._writer = None
        if self._lock is not None:
            self._lock.release()

    def _open(self, schema: pa.Schema, identity: bytes, layout: bytes) -> None:
        Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(self._path)
        if os.path.exists(self._path):
            logger.info(
                "Replacing the cache %s: it was written for other data, another pipeline or another version.",
                self._path,
            )
        # Lock the file, so that other writers do not take it for the leftover of a killed process.
        with contextlib.suppress(NotImplementedError):
            self._lock = FileLock(self._temporary, wait_secs=_LOOK_SECS)
        # There is no `with` block, because `publish` or `remove` closes the file.
        self._file = open(self._temporary, "wb")  # noqa: SIM115
        self._checksums = _ChecksumFile(self._file)
        sink = pa.PythonFile(self._checksums, mode="w")
        self._writer = pa.ipc.new_stream(sink, schema.with_metadata({_IDENTITY: identity, _LAYOUT: layout}))


class _ChecksumFile:
    """A file object that records the end and the checksum of every record batch that Arrow writes to it."""

    closed = False

    def __init__(self, file: Any) -> None:
        self._file = file
        self._size = self._checksum = 0
        self._batches: list[tuple[int, int]] = []

    def write(self, data: Any) -> int:
        """Write bytes or another buffer to the file, and return the number of bytes."""
        size = memoryview(data).nbytes
        self._file.write(data)
        self._size += size
        self._checksum = zlib.crc32(data, self._checksum)
        return size

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()

    def close(self) -> None:
        """Mark this object as closed. The file stays open, since the checksums are written after the stream."""
        self.closed = True

    def end_batch(self) -> None:
        """Record the end and the checksum of a batch, which consists of the bytes written since the last call."""
        self._batches.append((self._size, self._checksum))
        self._checksum = 0

    def footer(self) -> bytes:
        """Return the bytes to write after the Arrow stream: the end and checksum of every batch."""
        text = json.dumps(self._batches).encode()
        return text + _FOOTER.pack(len(text), zlib.crc32(text))


def _read_footer(content: memoryview) -> list[tuple[int, int]]:
    """Return the end position and the checksum of every batch in a cache file, read from the end of the file.

    Raise a ValueError if the file is not complete.
    """
    if len(content) < _FOOTER.size:
        raise ValueError("it has no checksums")
    size, expected = _FOOTER.unpack(content[-_FOOTER.size :])
    text = content[: -_FOOTER.size][-size:]
    if not size or len(text) != size or zlib.crc32(text) != expected:
        raise ValueError("it has no checksums")
    return [(end, checksum) for end, checksum in json.loads(bytes(text))]


class _CacheReader:
    """Reader of the `count` record batches in a cache file. The arrays share the memory of the memory-mapped file.

    A file that is not whole, because this process is still writing it, has no checksums yet.
    """

    def __init__(self, path: str, count: int, *, is_whole: bool) -> None:
        self._path = path
        self.count = count
        self._content = memoryview(pa.memory_map(path).read_buffer())
        self._checksums = _read_footer(self._content) if is_whole else []
        self._verified = 0
        self._rewind()

    @classmethod
    def open(cls, path: str, identity: bytes) -> _CacheReader | None:
        """Return a reader of a complete cache file. Return None if the file is missing or has another identity."""
        try:
            reader = cls(path, 0, is_whole=True)
            if reader._stream.schema.metadata[_IDENTITY] != identity:
                return None
        except (OSError, pa.ArrowException, KeyError, TypeError, ValueError):
            return None
        reader.count = len(reader._checksums)
        return reader

    def get(self, number: int) -> Chunk:
        """Return the record batch with this number as a chunk. Reading in ascending order is fastest."""
        if number < self._at:
            self._rewind()
        while self._at < number:
            self._read()
        batch = self._read()
        return to_chunk(batch, self._layout, self._path, self._first - batch.num_rows)

    def _rewind(self) -> None:
        try:
            self._stream = pa.ipc.open_stream(pa.memory_map(self._path))
        except (OSError, pa.ArrowException) as error:
            raise DataError(
                f"the cache {self._path} was removed or changed while it was read; train again, and it is written anew."
            ) from error
        self._layout = Layout.from_json(self._stream.schema.metadata[_LAYOUT])
        # `_at` is the number of the next batch, and `_first` the number of its first row.
        self._at = 0
        self._first = 0

    def _read(self) -> pa.RecordBatch:
        self._verify()
        try:
            batch = self._stream.read_next_batch()
        except (StopIteration, OSError, pa.ArrowException) as error:
            raise DataError(f"the cache {self._path} became shorter while it was read; remove it.") from error
        self._at += 1
        self._first += batch.num_rows
        return batch

    def _verify(self) -> None:
        # Batches are read in order, so all batches before number `_verified` have been verified already.
        if self._at < self._verified or self._at >= len(self._checksums):
            return
        begin = self._checksums[self._at - 1][0] if self._at else 0
        end, expected = self._checksums[self._at]
        if zlib.crc32(self._content[begin:end]) != expected:
            raise DataError(
                f"the cache {self._path} is damaged: the checksum of its rows from {self._first} (from 0) on differs; "
                "remove it, and it is written anew."
            )
        self._verified = self._at + 1


def _remove_leftovers(path: str) -> None:
    """Remove temporary files of this cache that killed processes on this machine have left behind."""
    folder, name = os.path.split(path)
    prefix = f"{name}.{socket.gethostname()}-"
    for entry in os.listdir(folder or "."):
        if not (entry.startswith(prefix) and entry.endswith(".partial")):
            continue
        # A writer holds a lock on its file. Without locks, nobody can know whether it still writes.
        with contextlib.suppress(OSError, NotImplementedError):
            FileLock(os.path.join(folder, entry)).release(remove=True)


@dataclass(frozen=True, slots=True)
class Layout:
    """Mapping of a record batch's columns to features and labels, which may be dicts or tuples of columns.

    In the structures of features and labels, each column is replaced by its number. Tuples become lists in JSON.
    `shapes` has the shape of a row, by column; `label_column` is as in `Chunk`.
    """

    features: Any = None
    labels: Any = None
    shapes: tuple[tuple[int, ...], ...] = ()
    schema: pa.Schema | None = None
    label_column: LabelColumn = None

    def to_json(self) -> bytes:
        """Serialize the layout without its schema, since the Arrow stream contains the schema."""
        return json.dumps([self.features, self.labels, self.shapes, self.label_column]).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Layout:
        """Read a layout that `to_json` wrote."""
        features, labels, shapes, label_column = parse_json(text.decode())
        return cls(features, labels, tuple(map(tuple, shapes)), None, label_column)


def to_record_batch(chunk: Chunk, layout: Layout | None) -> tuple[pa.RecordBatch, Layout]:
    """Convert a chunk to a record batch; return the batch and the layout of its columns.

    The batch gets the column types of `layout`, that of the first chunk, or None if this is the first. Raise a
    DataError if a column holds neither numbers nor strings, or if the columns differ from those of the first chunk.
    """
    columns = list(chunk.columns())
    numbers = iter(range(len(columns)))
    features = tree.map(lambda column: next(numbers), chunk.features)
    labels = tree.map(lambda column: next(numbers), chunk.labels)
    arrays = [_to_arrow(column, chunk) for column in columns]
    shapes = tuple(column.shape[1:] if isinstance(column, np.ndarray) else () for column in columns)
    if layout is None:
        schema = pa.schema([pa.field(str(number), array.type) for number, array in enumerate(arrays)])
        layout = Layout(features, labels, shapes, schema, chunk.label_column)
    if (features, labels, shapes) != (layout.features, layout.labels, layout.shapes):
        raise DataError(
            f"{chunk.locate(0)}: these rows have other columns or shapes than the first ones in the cache; cache them "
            "before batch, or without a filename."
        )
    assert layout.schema is not None
    try:
        arrays = [a if a.type == kind else a.cast(kind) for a, kind in zip(arrays, layout.schema.types, strict=True)]
    except pa.ArrowException as error:
        raise DataError(f"{chunk.locate(0)}: these rows are of another type than the first in the cache.") from error
    return pa.RecordBatch.from_arrays(arrays, schema=layout.schema), layout


def to_chunk(batch: pa.RecordBatch, layout: Layout, path: str, first: int) -> Chunk:
    """Convert a record batch to a chunk.

    `first` is the number of rows before the batch in the file `path`, for messages.
    """
    columns = [_from_arrow(array, shape) for array, shape in zip(batch.columns, layout.shapes, strict=True)]
    return Chunk(
        _restored(layout.features, columns),
        _restored(layout.labels, columns),
        batch.num_rows,
        lambda row: f"row {first + row} (from 0) of the cache {path}",
        layout.label_column,
    )


def _restored(structure: Any, columns: list[Column]) -> Any:
    if isinstance(structure, dict):
        return {name: _restored(part, columns) for name, part in structure.items()}
    if isinstance(structure, list | tuple):
        return tuple(_restored(part, columns) for part in structure)
    return None if structure is None else columns[structure]


def _to_arrow(column: Column, chunk: Chunk) -> pa.Array:
    if isinstance(column, np.ndarray) and is_strings(column):
        try:
            column = from_objects(column, convert=True)
        except RowError as error:
            raise chunk.error(error) from error
    if not isinstance(column, np.ndarray):
        if is_lists(column) or column.type == STRINGS:
            return column
        return column.cast(STRINGS)
    if column.dtype.kind not in "biuf":
        raise DataError(
            f"{chunk.locate(0)}: a column of {column.dtype} of shape {list(column.shape)} cannot be cached in a file; "
            "cache it before batch, or without a filename."
        )
    return arrow.nested(column)


def _from_arrow(array: pa.Array, shape: tuple[int, ...]) -> Column:
    if pa.types.is_dictionary(array.type) or is_lists(array):
        return array
    rows = len(array)
    for _ in shape:
        array = array.flatten()
    return arrow.to_numpy(array).reshape(rows, *shape)
