"""Reader of TensorBoard's event files: curves of scalars, and the metrics of evaluations."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch_estimator import files
from torch_estimator.tfrecord.records import records

_logger = logging.getLogger(__name__)

Results = dict[int, dict[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarPoint:
    """One point of a scalar curve. `wall_time` is the time of writing, in seconds since 1970."""

    step: int
    value: float
    wall_time: float


def read_scalars(logdir: files.PathLike) -> dict[str, list[ScalarPoint]]:
    """Return the scalars in the event files of a directory: for each tag a list of points, in the order of writing.

    If a run resumed at a step, the points that earlier runs wrote at this step or later are left out.
    """
    curves: dict[str, list[ScalarPoint]] = {}
    for event in read_events(logdir):
        if _is_session_start(event):
            curves = {tag: [p for p in points if p.step < event.step] for tag, points in curves.items()}
        for value in event.summary.value:
            if (scalar := _scalar(value)) is not None:
                point = ScalarPoint(step=event.step, value=scalar, wall_time=event.wall_time)
                curves.setdefault(value.tag, []).append(point)
    return curves


def _scalar(value: Any) -> float | None:
    """Return the number of a summary; TensorFlow 2 writes it as a tensor."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if value.metadata.plugin_data.plugin_name != "scalars":
        return None
    from tensorboard.util.tensor_util import make_ndarray

    return float(make_ndarray(value.tensor))


def read_events(logdir: files.PathLike) -> Iterator[Any]:
    """Yield the ``Event`` protocol buffers in the event files of a directory, the oldest file first.

    Reading of a file stops at an incomplete record, which a running or killed writer leaves behind.
    """
    for name in files.listdir(logdir):
        if "tfevents" in name:
            yield from _events_in(files.join(logdir, name))


def _events_in(path: str) -> Iterator[Any]:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # stubs are not a dependency
    from tensorboard.compat.proto import event_pb2

    for start, data in records(files.read_bytes(path)):
        try:
            yield event_pb2.Event.FromString(data)
        except DecodeError:
            _logger.warning("%s is damaged at byte %d; the rest of it is skipped.", path, start)
            return


def _is_session_start(event: Any) -> bool:
    return bool(event.HasField("session_log") and event.session_log.status == event.session_log.START)


class EvaluationReader:
    """Reader of the evaluation metrics in a directory, which reads only event files that are new or have changed."""

    def __init__(self, eval_dir: files.PathLike) -> None:
        self.eval_dir = files.as_url(eval_dir)
        self._read: dict[str, tuple[int, list[_Entry]]] = {}

    def results(self) -> Results:
        """Return the evaluation metrics by step.

        If a metric of a step was written several times, the last value counts. When a restarted run begins at a step,
        the metrics of that step and of later steps are dropped.
        """
        for name, size in files.sizes(self.eval_dir).items():
            known = self._read.get(name)
            if "tfevents" in name and (known is None or known[0] != size):
                self._read[name] = (size, list(_entries(files.join(self.eval_dir, name))))
        results: Results = {}
        for name in sorted(self._read):
            for entry in self._read[name][1]:
                if entry.values is None:
                    results = {step: values for step, values in results.items() if step < entry.step}
                else:
                    results.setdefault(entry.step, {}).update(entry.values)
        return dict(sorted(results.items()))


@dataclass(frozen=True, slots=True)
class _Entry:
    """Scalars of one event. `values` is None for an event that marks where a run resumed from a checkpoint."""

    step: int
    values: dict[str, float] | None


def _entries(path: str) -> Iterator[_Entry]:
    for event in _events_in(path):
        if _is_session_start(event):
            yield _Entry(event.step, None)
        values = {value.tag: value.simple_value for value in event.summary.value if value.HasField("simple_value")}
        if values:
            yield _Entry(event.step, values)


def evaluation_since(eval_dir: files.PathLike, checkpoint: str, since: float) -> dict[str, float] | None:
    """Return the metrics that an evaluation of `checkpoint` has written since the time `since`, or None without one.

    `since` is in seconds since 1970. The metrics have float32 precision, as in the event file.
    """
    for name in files.listdir(eval_dir):
        if "tfevents" in name:
            evaluated = ""
            for event in _events_in(files.join(eval_dir, name)):
                for value in event.summary.value:
                    if value.tag == "checkpoint_path" and event.wall_time >= since:
                        evaluated = files.basename(value.tensor.string_val[0].decode())
                metrics = {value.tag: value.simple_value for value in event.summary.value}
                if evaluated == checkpoint and "loss" in metrics:
                    return dict(sorted({**metrics, "global_step": event.step}.items()))
    return None
