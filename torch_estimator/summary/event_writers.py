"""The event files of one run: one in each directory, whoever writes there."""

from __future__ import annotations

from types import TracebackType

from torch_estimator import files
from torch_estimator.summary.event_files import EventWriter


class EventWriters:
    """Makes event writers by directory and closes them all; TensorBoard follows one growing file per directory.

    Args:
        resumed_at: Step of the checkpoint that a resumed run goes on from: what was written beyond it is dropped.
    """

    def __init__(self, resumed_at: int | None = None) -> None:
        self._resumed_at = resumed_at
        self._writers: dict[str, EventWriter] = {}

    def writer(self, logdir: files.PathLike) -> EventWriter:
        """The one writer into ``logdir``."""
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
