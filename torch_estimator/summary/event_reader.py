"""Reader of the protocol buffers in TensorBoard's event files. `scalar_reader` reads curves."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from torch_estimator import files
from torch_estimator.tfrecord.records import records

_logger = logging.getLogger(__name__)


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
