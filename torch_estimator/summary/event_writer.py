"""Writer of TensorBoard's event files, on local and remote file systems.

This module uses only the protocol buffers of tensorboard, and imports them with the first event. `tfrecord.records`
frames the records; its documentation explains why tensorboard's own writer is not used.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, BinaryIO, Protocol

import numpy as np

from torch_estimator import files
from torch_estimator.errors import UserError
from torch_estimator.summary.recorder import Summary
from torch_estimator.summary.summary_values import summary_values
from torch_estimator.tfrecord.records import record

_file_numbers = itertools.count()


class EventWriters:
    """Event writers of one run, one for each directory. All are closed at the end of the ``with`` block.

    TensorBoard follows one growing file per directory, so everything that writes into a directory shares a writer.
    Readers drop the events that an earlier run wrote after the step `resumed_at` of the checkpoint that the run resumes
    from.
    """

    def __init__(self, resumed_at: int | None = None) -> None:
        self._resumed_at = resumed_at
        self._writers: dict[str, EventWriter] = {}

    def writer(self, logdir: files.PathLike) -> EventWriter:
        """Return the event writer of a directory. The first call for a directory creates the writer."""
        directory = files.as_url(logdir)
        if directory not in self._writers:
            self._writers[directory] = EventWriter(directory)
            if self._resumed_at is not None:
                self._writers[directory].session_start(self._resumed_at + 1)
        return self._writers[directory]

    def __enter__(self) -> EventWriters:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for writer in self._writers.values():
            writer.close()


class EventWriter:
    """Writer of one event file ``events.out.tfevents.<seconds>.<host>.<pid>.<n>``. The first event creates the file.

    A local file is appended event by event, so a running TensorBoard sees each event immediately. A remote file is
    replaced as a whole, because object stores cannot append: every `flush_secs` seconds in the background, and by
    `flush` and `close`. `clock` returns the time of an event, in seconds since 1970.
    """

    def __init__(
        self,
        logdir: files.PathLike,
        *,
        flush_secs: float = 30.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.logdir = files.as_url(logdir)
        self._flush_secs = flush_secs
        self._clock = clock
        self._sink: Sink | None = None

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Write one number as the scalar `tag` at a step. All methods raise `UserError` if writing fails."""
        self.scalars({tag: value}, step)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write several scalars of a step as one event."""
        self._write(step, {"value": [{"tag": tag, "simple_value": float(values[tag])} for tag in values]})

    def text(self, tag: str, value: str, step: int) -> None:
        """Write a string that TensorBoard shows in its text tab."""
        from tensorboard.compat.proto import types_pb2

        tensor = {"dtype": types_pb2.DT_STRING, "tensor_shape": {}, "string_val": [value.encode()]}
        metadata = {"plugin_data": {"plugin_name": "text"}}
        self._write(step, {"value": [{"tag": tag, "tensor": tensor, "metadata": metadata}]})

    def tensor(self, tag: str, value: np.ndarray[Any, Any], step: int) -> None:
        """Write an array of numbers as a tensor summary of a step."""
        from tensorboard.util.tensor_util import make_tensor_proto

        self._write(step, {"value": [{"tag": tag, "tensor": make_tensor_proto(value)}]})

    def summaries(self, summaries: Iterable[Summary], step: int) -> None:
        """Write the summaries of a step as one event, or nothing if there are none."""
        values = summary_values(summaries)
        if values:
            self._write(step, {"value": values})

    def parameters(self, values: Mapping[str, Any], run: str) -> None:
        """Write the parameters of a run with this name, which TensorBoard's HParams tab shows beside its metrics."""
        from tensorboard.compat.proto import event_pb2
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        summary = hparams_pb(dict(values), trial_id=run)
        self._append(event_pb2.Event(wall_time=self._clock(), summary=summary))

    def session_start(self, step: int) -> None:
        """Record that training resumes at `step`. TensorBoard then drops earlier events of this and later steps."""
        from tensorboard.compat.proto import event_pb2

        session = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._append(event_pb2.Event(wall_time=self._clock(), step=step, session_log=session))

    def flush(self) -> None:
        """Make all events written so far visible to readers."""
        if self._sink is not None:
            self._guard(self._sink.flush)

    def close(self) -> None:
        """Flush and close the event file. A later event would create a new file."""
        if self._sink is not None:
            self._guard(self._sink.close)
            self._sink = None

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, step: int, summary: dict[str, Any]) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2

        event = event_pb2.Event(wall_time=self._clock(), step=step, summary=summary_pb2.Summary(**summary))
        self._append(event)

    def _append(self, event: Any) -> None:
        self._guard(lambda: self._open().write(record(event.SerializeToString()), now=event.wall_time))

    def _open(self) -> Sink:
        if self._sink is None:
            from tensorboard.compat.proto import event_pb2

            now = self._clock()
            files.makedirs(self.logdir)
            path = files.join(self.logdir, _file_name(now))
            self._sink = (
                LocalSink(path) if files.is_local(path) else RemoteSink(path, flush_secs=self._flush_secs, now=now)
            )
            version = event_pb2.Event(wall_time=now, file_version="brain.Event:2")
            self._sink.write(record(version.SerializeToString()), now=now)
        return self._sink

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            raise UserError(
                f"summaries cannot be written into {self.logdir}: {files.reason(error)}; make room or permit writing."
            ) from error


def _file_name(now: float) -> str:
    return f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}.{next(_file_numbers):04d}"


class Sink(Protocol):
    """Destination of one event file's records: a local file or a remote object."""

    def write(self, data: bytes, *, now: float) -> None:
        """Append an encoded record. `now` is the current time, in seconds since 1970."""

    def flush(self) -> None:
        """Make all records written so far visible to readers."""

    def close(self) -> None:
        """Flush and close the file."""


class LocalSink:
    """Local event file. Each record is appended without a buffer."""

    def __init__(self, path: str) -> None:
        self._file: BinaryIO = open(path, "ab", buffering=0)  # noqa: SIM115 - open until close()

    def write(self, data: bytes, *, now: float) -> None:
        start = self._file.tell()
        try:
            while data:
                # On a full disk, `write` may first store a part of the record. Only the next call raises the error.
                data = data[self._file.write(data) :]
        except OSError:
            # Remove the incomplete record, because it would make all later records unreadable.
            self._file.truncate(start)
            raise

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._file.close()


class RemoteSink:
    """Remote event file. All records are uploaded again every `flush_secs` seconds, since object stores cannot append.

    Uploads run in a thread; an error of one is raised by a later call. `now` is in seconds since 1970.
    """

    def __init__(self, path: str, *, flush_secs: float, now: float) -> None:
        self._path = path
        self._flush_secs = flush_secs
        self._flushed_at = now
        self._content = bytearray()
        self._dirty = False
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="events")
        self._upload: concurrent.futures.Future[None] | None = None

    def write(self, data: bytes, *, now: float) -> None:
        self._content += data
        self._dirty = True
        if self._upload is not None and not self._upload.done():
            return
        self._end_upload()
        if now - self._flushed_at >= self._flush_secs:
            self._flushed_at = now
            self._dirty = False
            self._upload = self._thread.submit(files.write_atomic, self._path, bytes(self._content))

    def flush(self) -> None:
        # Ignore an error of the last upload, because its records are uploaded again here.
        with contextlib.suppress(Exception):
            self._end_upload()
        if self._dirty:
            files.write_atomic(self._path, bytes(self._content))
            self._dirty = False

    def close(self) -> None:
        try:
            self.flush()
        finally:
            self._thread.shutdown()

    def _end_upload(self) -> None:
        """Wait until the running upload has ended, if there is one, and raise its error."""
        if self._upload is None:
            return
        upload, self._upload = self._upload, None
        try:
            upload.result()
        except Exception:
            self._dirty = True
            raise
