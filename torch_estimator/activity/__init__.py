"""What this process does, and how it spends its time: for its launcher, and for those who look at the job.

The parts of a training say what they do (`doing`) and for what they wait (`waiting`, `Wait`):

- `state` holds that, and adds up the seconds.
- `writer` has the threads that look at it, for as long as something is to be written.
- `record` is the small file by which a launcher notices that its process hangs.
- `recorder` writes the timeline: a file a process, in ``activity/`` of the model directory.
- `timeline` reads those files.

Nothing is noted in a step: where the process waits anyway, the seconds are added up, and the thread does the rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch_estimator.activity.record import FILE, Record, Records, Unchanged, start
from torch_estimator.activity.recorder import note_end, recording
from torch_estimator.activity.state import INPUT, OTHERS, SERVERS, STATE, Doing, Names, Progress, Wait

__all__ = [
    "FILE",
    "INPUT",
    "OTHERS",
    "SERVERS",
    "Record",
    "Records",
    "Unchanged",
    "doing",
    "note_end",
    "recording",
    "waiting",
]


@contextlib.contextmanager
def doing(word: str, progress: Progress = lambda: None, *, step: Progress | None = None) -> Iterator[None]:
    """Say what the body does. `progress` returns a number that changes as it goes on; another thread calls it.

    `step` returns the global step, where that is known.
    """
    entry = Doing(word, progress, step)
    STATE.begin(entry)
    try:
        start()
        yield
    finally:
        STATE.end(entry)


@contextlib.contextmanager
def waiting(names: Names, kind: Wait | None = None) -> Iterator[None]:
    """Say in the body for which tasks of the job this process waits, if any; another thread calls `names`.

    With a `kind` the whole body is a wait.
    """
    STATE.names.append(names)
    STATE.changes += 1
    try:
        with kind or contextlib.nullcontext():
            yield
    finally:
        STATE.names.remove(names)
        STATE.changes += 1
