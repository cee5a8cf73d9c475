"""Where event files lie: on a disk, which can append, or in an object store, which cannot."""

from __future__ import annotations

import concurrent.futures
import contextlib
from typing import BinaryIO, Protocol

from torch_estimator import files


class Sink(Protocol):
    """Takes the records of one event file."""

    def write(self, data: bytes, *, now: float) -> None:
        """Adds a record at `now`, in seconds since 1970."""

    def flush(self) -> None:
        """Makes all records visible to readers."""

    def close(self) -> None:
        """Flushes and ends the file."""


class LocalSink:
    """A file that is appended to, unbuffered."""

    def __init__(self, path: str) -> None:
        self._file: BinaryIO = open(path, "ab", buffering=0)  # noqa: SIM115 - open until close()

    def write(self, data: bytes, *, now: float) -> None:
        start = self._file.tell()
        try:
            while data:
                # A disk that fills up takes what fits without an error; the write after that names the reason.
                data = data[self._file.write(data) :]
        except OSError:
            # Half a record would hide all that follow it.
            self._file.truncate(start)
            raise

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._file.close()


class RemoteSink:
    """An object that is put anew, whole, now and then.

    Args:
        path: Its URL.
        flush_secs: After how many seconds a record has it put, in a thread of its own. What goes wrong there is raised
            by a later call.
        now: The time.
    """

    def __init__(self, path: str, *, flush_secs: float, now: float) -> None:
        self._path = path
        self._flush_secs = flush_secs
        self._flushed_at = now
        self._content = bytearray()
        self._dirty = False
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="events")
        self._putting: concurrent.futures.Future[None] | None = None

    def write(self, data: bytes, *, now: float) -> None:
        self._content += data
        self._dirty = True
        if self._putting is not None and not self._putting.done():
            return
        self._end_put()
        if now - self._flushed_at >= self._flush_secs:
            self._flushed_at = now
            self._dirty = False
            self._putting = self._thread.submit(files.write_atomic, self._path, bytes(self._content))

    def flush(self) -> None:
        # What could not be put before is put again here.
        with contextlib.suppress(Exception):
            self._end_put()
        if self._dirty:
            files.write_atomic(self._path, bytes(self._content))
            self._dirty = False

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._thread.shutdown()

    def _end_put(self) -> None:
        """Waits for what is being put; raises what went wrong with it."""
        if self._putting is None:
            return
        putting, self._putting = self._putting, None
        try:
            putting.result()
        except Exception:
            self._dirty = True
            raise
