"""Chunks in a file: one Arrow IPC stream, a record batch for each."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
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
            self._reader = _Reader(path, self._batches)
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

    def add(self, chunk: Chunk, identity: bytes) -> Chunk:
        batch, layout = as_batch(chunk, self._layout)
        if self._writer is None:
            self._layout = layout
            self._open(batch.schema, identity, layout.to_json())
        self._writer.write_batch(batch)
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
        self._writer.close()
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
            logger.info("Replacing the cache %s: it is of other data or another pipeline.", self._path)
        # Closed by publish or remove.
        self._file = open(self._own, "wb")  # noqa: SIM115
        self._writer = pa.ipc.new_stream(self._file, schema.with_metadata({_IDENTITY: identity, _LAYOUT: layout}))


class _Reader:
    """Reads record batches, mostly one after the other; memory is that of the file."""

    def __init__(self, path: str, count: int) -> None:
        self._path = path
        self.count = count
        self._rewind()

    @classmethod
    def open(cls, path: str, identity: bytes) -> _Reader | None:
        """Returns a reader of a complete file, or None where there is none that holds what it must."""
        try:
            reader = cls(path, 0)
            if reader._stream.schema.metadata[_IDENTITY] != identity:
                return None
            while reader._read() is not None:
                reader.count += 1
        except (OSError, pa.ArrowException, KeyError, TypeError, ValueError):
            return None
        return reader

    def get(self, number: int) -> Chunk:
        if number < self._at:
            self._rewind()
        while self._at < number:
            self._read()
        batch = self._read()
        if batch is None:
            raise DataError(f"the cache {self._path} became shorter while it was read; remove it.")
        return as_chunk(batch, self._layout, self._path, self._first - batch.num_rows)

    def _rewind(self) -> None:
        self._stream = pa.ipc.open_stream(pa.memory_map(self._path))
        self._layout = Layout.from_json(self._stream.schema.metadata[_LAYOUT])
        self._at = 0
        self._first = 0

    def _read(self) -> pa.RecordBatch | None:
        try:
            batch = self._stream.read_next_batch()
        except StopIteration:
            return None
        self._at += 1
        self._first += batch.num_rows
        return batch


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
