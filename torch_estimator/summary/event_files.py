"""TensorBoard event files: written while training and evaluating, read for early stopping and by users.

Only tensorboard's protocol buffers are used, imported with the first event; a record's framing is TFRecord's.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from torch_estimator import files
from torch_estimator.errors import UserError
from torch_estimator.summary.crc32c import masked_crc32c
from torch_estimator.summary.event_sinks import LocalSink, RemoteSink, Sink
from torch_estimator.summary.recorder import Summary
from torch_estimator.summary.summary_values import summary_values

_logger = logging.getLogger(__name__)
_numbers = itertools.count()


class EventWriter:
    """Writes one event file ``events.out.tfevents.<seconds>.<host>.<pid>.<n>``, made with the first event.

    A local file is appended to event by event, so that a TensorBoard that runs sees each at once. A remote
    one is written anew, whole, every `flush_secs` seconds, in the background, and on `flush` and `close`, because
    object stores cannot append.

    Args:
        logdir: The directory, made where it is absent; a path or an fsspec URL.
        flush_secs: For remote files, after how many seconds an event has them written.
        clock: Gives the time of an event, in seconds since 1970.
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
        """Writes one number.

        Raises:
            UserError: The file cannot be written; so do the other methods.
        """
        self.scalars({tag: value}, step)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Writes several numbers as one event."""
        self._write(step, {"value": [{"tag": tag, "simple_value": float(values[tag])} for tag in values]})

    def text(self, tag: str, value: str, step: int) -> None:
        """Writes a string, for instance ``checkpoint_path``; TensorBoard shows it among the texts."""
        from tensorboard.compat.proto import types_pb2

        tensor = {"dtype": types_pb2.DT_STRING, "tensor_shape": {}, "string_val": [value.encode()]}
        metadata = {"plugin_data": {"plugin_name": "text"}}
        self._write(step, {"value": [{"tag": tag, "tensor": tensor, "metadata": metadata}]})

    def tensor(self, tag: str, value: np.ndarray[Any, Any], step: int) -> None:
        """Writes an array of numbers."""
        from tensorboard.util.tensor_util import make_tensor_proto

        self._write(step, {"value": [{"tag": tag, "tensor": make_tensor_proto(value)}]})

    def summaries(self, summaries: Iterable[Summary], step: int) -> None:
        """Writes numbers, histograms and images as one event; nothing where there are none."""
        values = summary_values(summaries)
        if values:
            self._write(step, {"value": values})

    def session_start(self, step: int) -> None:
        """Says that training goes on at `step`: TensorBoard drops what a killed run wrote from there on."""
        from tensorboard.compat.proto import event_pb2

        session = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._append(event_pb2.Event(wall_time=self._clock(), step=step, session_log=session))

    def flush(self) -> None:
        """Makes every event so far visible to readers."""
        if self._sink is not None:
            self._guard(self._sink.flush)

    def close(self) -> None:
        """Flushes and closes the file; a later event begins another."""
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
        self._guard(lambda: self._open().write(_record(event.SerializeToString()), now=event.wall_time))

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
            self._sink.write(_record(version.SerializeToString()), now=now)
        return self._sink

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            raise UserError(
                f"summaries cannot be written into {self.logdir}: {files.reason(error)}; make room or permit writing."
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarPoint:
    """One number of a curve; `wall_time` in seconds since 1970."""

    step: int
    value: float
    wall_time: float


def read_scalars(logdir: files.PathLike) -> dict[str, list[ScalarPoint]]:
    """Returns the numbers in the event files of `logdir` by tag, in the order of writing.

    Where a run went on from an earlier step, what was written beyond that step before is left out.
    """
    curves: dict[str, list[ScalarPoint]] = {}
    for event in read_events(logdir):
        if event.HasField("session_log") and event.session_log.status == event.session_log.START:
            curves = {tag: [p for p in points if p.step < event.step] for tag, points in curves.items()}
        for value in event.summary.value:
            if value.HasField("simple_value"):
                point = ScalarPoint(step=event.step, value=value.simple_value, wall_time=event.wall_time)
                curves.setdefault(value.tag, []).append(point)
    return curves


def read_events(logdir: files.PathLike) -> Iterator[Any]:
    """Yields tensorboard's `Event` protocol buffers in the event files of `logdir`, oldest file first.

    A record that is not whole, as a writer that runs or was killed leaves it, ends its file.
    """
    for name in files.listdir(logdir):
        if "tfevents" in name:
            yield from events_of(files.join(logdir, name))


def events_of(path: str) -> Iterator[Any]:
    """Yields the events of one file; see `read_events`."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # stubs are not a dependency
    from tensorboard.compat.proto import event_pb2

    content = files.read_bytes(path)
    position = 0
    while position + 12 <= len(content):
        (length,) = struct.unpack_from("<Q", content, position)
        start = position + 12
        position = start + length + 4
        if position > len(content):
            return
        try:
            yield event_pb2.Event.FromString(content[start : start + length])
        except DecodeError:
            _logger.warning("%s is damaged at byte %d; the rest of it is skipped.", path, start)
            return


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    checks = [struct.pack("<I", masked_crc32c(part)) for part in (length, data)]
    return length + checks[0] + data + checks[1]


def _file_name(now: float) -> str:
    return f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}.{next(_numbers):04d}"
