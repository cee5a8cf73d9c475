"""Chunks in a file: one Arrow IPC stream, a record batch for each, and then checksums.

What follows the end of the stream, and Arrow does not read, is JSON: where each record batch ends in the file, and its
CRC-32 (that of the first one includes the schema before it); then the length and the CRC-32 of that JSON. A batch is
compared with its checksum when it is first read, so that opening a large cache reads none of it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import struct
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa

from torch_estimator.data.cache import CacheStore
from torch_estimator.data.cache_columns import Layout, as_batch, as_chunk
from torch_estimator.data.chunk import Chunk
from torch_estimator.errors import DataError
from torch_estimator.files import reason

logger = logging.getLogger("torch_estimator")

_IDENTITY = b"torch_estimator.cache"
_LAYOUT = b"torch_estimator.layout"
_FOOT = struct.Struct("<QI")


class FileStore(CacheStore):
    """A file that is written beside and renamed when it is complete, so that there is a whole one or none.

    Args:
        path: The file.
        identity: What it must hold; a file that holds anything else is replaced.

    Raises:
        DataError: The directory cannot be written.
    """

    def __init__(self, path: str, identity: str) -> None:
        self._path = path
        self._identity = identity.encode()
        self._partial = _Partial(path)
        self._reader: _Reader | None = None
        self._batches = 0
        self.complete = False
        found = _Reader.open(path, self._identity)
        if found is not None:
            self._reader, self._batches, self.complete = found, found.count, True

    def __len__(self) -> int:
        return self._batches

    def get(self, number: int) -> Chunk:
        if self._reader is None or self._reader.count <= number:
            path = self._path if self.complete else self._partial.flushed()
            self._reader = _Reader(path, self._batches, is_whole=self.complete)
        return self._reader.get(number)

    def add(self, chunk: Chunk) -> Chunk:
        with self._writing():
            kept = self._partial.add(chunk, self._identity)
        self._batches += 1
        return kept

    def finish(self) -> None:
        self.complete = True
        with self._writing():
            self._partial.publish(self._identity)
        self._reader = None

    def close(self) -> None:
        self._reader = None
        if not self.complete:
            self._partial.remove()

    @contextlib.contextmanager
    def _writing(self) -> Any:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            self._partial.remove()
            raise DataError(f"the cache {self._path} cannot be written: {reason(error)}.") from error


class _Partial:
    """The file while it is being written."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._own = f"{path}.{socket.gethostname()}-{os.getpid()}-{id(self)}.partial"
        self._file: Any = None
        self._writer: Any = None
        self._layout: Layout | None = None
        self._sums: _Summed | None = None

    def add(self, chunk: Chunk, identity: bytes) -> Chunk:
        batch, layout = as_batch(chunk, self._layout)
        if self._writer is None:
            self._layout = layout
            self._open(batch.schema, identity, layout.to_json())
        assert self._sums is not None
        self._writer.write_batch(batch)
        self._sums.end_batch()
        # As in the epochs that follow, but for the place.
        kept = as_chunk(batch, layout, self._path, 0)
        kept.place = chunk.place
        return kept

    def flushed(self) -> str:
        self._file.flush()
        return self._own

    def publish(self, identity: bytes) -> None:
        if self._writer is None:
            # Nothing was read: an empty file says so.
            self._open(pa.schema([]), identity, Layout().to_json())
        assert self._sums is not None
        self._writer.close()
        self._file.write(self._sums.foot())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._own, self._path)
        self._file = self._writer = None
        logger.info("Wrote the cache %s.", self._path)

    def remove(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = self._writer = None
            Path(self._own).unlink(missing_ok=True)

    def _open(self, schema: pa.Schema, identity: bytes, layout: bytes) -> None:
        Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(self._path)
        if os.path.exists(self._path):
            logger.info("Replacing the cache %s: it is of other data, another pipeline or another version.", self._path)
        # Closed by publish or remove.
        self._file = open(self._own, "wb")  # noqa: SIM115
        self._sums = _Summed(self._file)
        sink = pa.PythonFile(self._sums, mode="w")
        self._writer = pa.ipc.new_stream(sink, schema.with_metadata({_IDENTITY: identity, _LAYOUT: layout}))


class _Summed:
    """A file that notes where each batch ends that is written to it, and its checksum.

    Args:
        file: Written to.
    """

    closed = False

    def __init__(self, file: Any) -> None:
        self._file = file
        self._size = self._sum = 0
        self._batches: list[tuple[int, int]] = []

    def write(self, data: Any) -> int:
        """Write anything that holds bytes; return how many."""
        size = memoryview(data).nbytes
        self._file.write(data)
        self._size += size
        self._sum = zlib.crc32(data, self._sum)
        return size

    def flush(self) -> None:
        """Do what a file does."""
        self._file.flush()

    def close(self) -> None:
        """Leave the file open, for what comes after the stream."""
        self.closed = True

    def end_batch(self) -> None:
        """Note that what was written since the last call is one batch."""
        self._batches.append((self._size, self._sum))
        self._sum = 0

    def foot(self) -> bytes:
        """Return what comes after the stream."""
        text = json.dumps(self._batches).encode()
        return text + _FOOT.pack(len(text), zlib.crc32(text))


def _sums_in(content: memoryview) -> list[tuple[int, int]]:
    """Return where each batch of a file ends, and its checksum.

    Raises:
        ValueError: The file is not whole.
    """
    if len(content) < _FOOT.size:
        raise ValueError("it has no checksums")
    size, expected = _FOOT.unpack(content[-_FOOT.size :])
    text = content[: -_FOOT.size][-size:]
    if not size or len(text) != size or zlib.crc32(text) != expected:
        raise ValueError("it has no checksums")
    return [(end, checksum) for end, checksum in json.loads(bytes(text))]


class _Reader:
    """Reads record batches, mostly one after the other; memory is that of the file.

    Args:
        path: The file.
        count: Of its batches.
        is_whole: Whether it is complete; what this process is still writing has no checksums yet.
    """

    def __init__(self, path: str, count: int, *, is_whole: bool) -> None:
        self._path = path
        self.count = count
        self._content = memoryview(pa.memory_map(path).read_buffer())
        self._sums = _sums_in(self._content) if is_whole else []
        self._verified = 0
        self._rewind()

    @classmethod
    def open(cls, path: str, identity: bytes) -> _Reader | None:
        """Returns a reader of a complete file, or None where there is none that holds what it must."""
        try:
            reader = cls(path, 0, is_whole=True)
            if reader._stream.schema.metadata[_IDENTITY] != identity:
                return None
        except (OSError, pa.ArrowException, KeyError, TypeError, ValueError):
            return None
        reader.count = len(reader._sums)
        return reader

    def get(self, number: int) -> Chunk:
        if number < self._at:
            self._rewind()
        while self._at < number:
            self._read()
        batch = self._read()
        return as_chunk(batch, self._layout, self._path, self._first - batch.num_rows)

    def _rewind(self) -> None:
        self._stream = pa.ipc.open_stream(pa.memory_map(self._path))
        self._layout = Layout.from_json(self._stream.schema.metadata[_LAYOUT])
        self._at = 0
        self._first = 0

    def _read(self) -> pa.RecordBatch:
        self._verify()
        try:
            batch = self._stream.read_next_batch()
        except StopIteration:
            raise DataError(f"the cache {self._path} became shorter while it was read; remove it.") from None
        self._at += 1
        self._first += batch.num_rows
        return batch

    def _verify(self) -> None:
        # They are read in their order, and each one that was read before is known to be good.
        if self._at < self._verified or self._at >= len(self._sums):
            return
        begin = self._sums[self._at - 1][0] if self._at else 0
        end, expected = self._sums[self._at]
        if zlib.crc32(self._content[begin:end]) != expected:
            raise DataError(
                f"the cache {self._path} is damaged: the checksum of its rows from {self._first} (from 0) on differs; "
                "remove it, and it is written anew."
            )
        self._verified = self._at + 1


def _remove_leftovers(path: str) -> None:
    """Removes what processes of this machine that were killed left behind."""
    folder, name = os.path.split(path)
    prefix = f"{name}.{socket.gethostname()}-"
    for entry in os.listdir(folder or "."):
        if not (entry.startswith(prefix) and entry.endswith(".partial")):
            continue
        process = entry.removeprefix(prefix).partition("-")[0]
        if process.isdecimal() and not _is_running(int(process)):
            Path(folder, entry).unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
