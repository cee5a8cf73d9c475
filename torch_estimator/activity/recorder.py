"""The recorder: writes what this process does into a file of the model directory, for those who look at the job.

On a local file system the file is appended to, and its first line is replaced in place twice a second, so that a reader
knows within a second when a process was killed. Elsewhere the file is written whole, and less often. It is
never synced: a sync waits for checkpoints on the same disk.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from torch_estimator import files
from torch_estimator.activity.state import LONG_SECS, STATE, WAITING, Moment
from torch_estimator.activity.timeline import ENDED, FOLDER, HEAD_BYTES, NAME, Change, Spent
from torch_estimator.activity.writer import Writer
from torch_estimator.cluster.task import REPLICA, Task, role_of
from torch_estimator.errors import RESTART_ME

_LOOK_EVERY_SECS = 0.5
# Where a file is written whole: after a change, and at the latest.
_UPLOAD_SECS = (10.0, 60.0)

# A line with the times spent comes after a tenth of the time that the run has taken, within these limits.
_SPENT_EVERY_SECS = (5.0, 120.0)

# A file is about 100 kB long at most, and a role has so many.
_MOST_LINES = 900
_MOST_FILES = 32

_MOST_REASON = 300
_MOST_SECS_TO_END = 5.0


class Recorder(Writer):
    """Writer of the timeline of this process, as one role of the job in a model directory.

    `process` is what one file is of; `reason` and `failed` are those of the end, as far as they are known.
    """

    on_change = True

    def __init__(self, process: tuple[int, str, str]) -> None:
        super().__init__(_LOOK_EVERY_SECS)
        self.process = pid, model_dir, role = process
        self.reason, self.failed = "", False
        self._began = time.time()
        self._folder = files.join(model_dir, FOLDER)
        self._file = TimelineFile(files.join(self._folder, f"{role}.{self._began * 1000:.0f}-{pid}.jsonl"))
        self._about = {"pid": pid, "host": socket.gethostname()[:100], "began": round(self._began, 3)}
        self._unwritten: list[Change | Spent] = []
        self._wrote_at = self._spent_at = -math.inf
        self._last = Change(time=self._began, state="")
        # When the last wait began that was written; see `LONG_SECS`.
        self._wait_since = 0.0
        self._step: int | None = None
        self._last_step: float | None = None
        self._before = STATE.secs(time.monotonic()), time.process_time()

    def is_there(self) -> bool:
        """Return whether the file can be written on."""
        return files.exists(self._file.path)

    def write(self) -> None:
        """Write what has changed, and from time to time how the time was spent."""
        now, wall = time.monotonic(), time.time()
        self._look(now, wall)
        least, most = _SPENT_EVERY_SECS
        is_due = now >= self._spent_at + min(max(least, (wall - self._began) / 10), most)
        if self._file.is_local or now >= self._wrote_at + _UPLOAD_SECS[not self._unwritten]:
            spent = self._spent(now, wall)
            if is_due:
                self._spent_at = now
                self._unwritten.append(spent)
            self._write(spent, now)

    def end(self, reason: str, *, failed: bool) -> None:
        """Write that the process has ended its part of the job, and why."""
        # A forked process leaves the file to its parent.
        if os.getpid() != self.process[0] or not self.stop(_MOST_SECS_TO_END):
            return
        with contextlib.suppress(Exception):
            now, wall = time.monotonic(), time.time()
            self._look(now, wall)
            spent, reason = self._spent(now, wall), reason[:_MOST_REASON]
            self._last = Change(time=round(wall, 3), state=ENDED, step=self._step, reason=reason, failed=failed)
            self._unwritten += [spent, self._last]
            self._write(spent, now)

    def _write(self, spent: Spent, now: float) -> None:
        lines, self._unwritten = self._unwritten, []
        self._file.write(lines, {**self._about, "last_step": self._last_step, "spent": _content(spent)})
        if self._wrote_at == -math.inf:
            self._prune()
        self._wrote_at = now

    def _look(self, now: float, wall: float) -> None:
        """Add the changes of state since the last look to what is to be written."""
        if (step := STATE.step()) != self._step:
            self._step, self._last_step = step, None if step is None else wall
        moments = []
        while STATE.unwritten:
            moment = STATE.unwritten.popleft()
            # What `State.end_wait` says of a wait may be known already.
            if moment.word and (moment.word != WAITING or moment.time != self._wait_since):
                moments.append(moment)
        names, wait = STATE.waits_for(), STATE.wait
        if wait is not None and now - wait[1] >= LONG_SECS:
            waits_for, is_known = STATE.named(wait[0], names), wait[1] == self._wait_since
            if not is_known or (waits_for and waits_for != self._last.waits_for):
                moments.append(Moment(now if is_known else wait[1], WAITING, step, waits_for))
            self._wait_since = wait[1]
        for one in moments:
            # Times since 1970, of those of `time.monotonic`.
            at = round(one.time + wall - now, 3)
            change = Change(time=at, state=one.word, waits_for=one.waits_for, step=one.step)
            if replace(self._last, time=at) != change:
                self._unwritten.append(change)
                self._last = change

    def _spent(self, now: float, wall: float) -> Spent:
        secs, (before, cpu) = STATE.secs(now), self._before

        def of(*keys: str) -> float:
            return round(sum(secs.get(key, 0.0) - before.get(key, 0.0) for key in keys), 3)

        return Spent(
            time=round(wall, 3),
            step=self._step,
            computing=of("training", "serving"),
            input=of("input"),
            reading=of("reading"),
            servers=of("servers"),
            others=of("others"),
            saving=of("saving"),
            evaluating=of("evaluating", "exporting"),
            starting=of("starting", "compiling"),
            recording=round(self.cpu_secs, 4),
            cpu=round(time.process_time() - cpu, 3),
        )

    def _prune(self) -> None:
        """Remove the oldest files of the role, so that a job that is restarted again and again does not fill a disk."""
        names = filter(None, map(NAME.fullmatch, files.listdir(self._folder)))
        own = sorted((name for name in names if name[1] == self.process[2]), key=lambda name: int(name[2]))
        for name in own[:-_MOST_FILES]:
            files.remove_tree(files.join(self._folder, name[0]))


class TimelineFile:
    """The file: added to on a local file system, written as a whole elsewhere."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_local = files.is_local(path)
        self._lines: list[Change | Spent] = []
        self._is_begun = False

    def write(self, lines: Sequence[Change | Spent], head: Mapping[str, Any]) -> None:
        """Add lines, and replace the first one by this object."""
        self._lines += lines
        first = f"{json.dumps(head):<{HEAD_BYTES - 1}}\n".encode()
        is_full = len(self._lines) > _MOST_LINES
        if self._is_begun and self.is_local and not is_full:
            # If this fails, write the whole file the next time.
            self._is_begun = False
            with open(files.as_url(self.path), "r+b", buffering=0) as file:
                file.seek(0, os.SEEK_END)
                file.write(_encoded(lines))
                file.seek(0)
                file.write(first)
        else:
            if is_full:
                self._lines = _thinned(self._lines)
            files.makedirs(files.parent(self.path))
            # Readers must not see a part of the first line.
            files.write_atomic(self.path, first + _encoded(self._lines), synced=False)
        self._is_begun = True


def _encoded(lines: Sequence[Change | Spent]) -> bytes:
    return b"".join(json.dumps(_content(line)).encode() + b"\n" for line in lines)


def _content(line: Change | Spent) -> dict[str, Any]:
    values = ((one, getattr(line, one.name)) for one in fields(line))
    return {one.name: value for one, value in values if value != one.default}


def _thinned(lines: list[Change | Spent]) -> list[Change | Spent]:
    """Return the changes that lasted longest, and every second of the times spent, of whichever there are many."""
    changes = [one for one in lines if isinstance(one, Change)]
    spent = [one for one in lines if isinstance(one, Spent)]
    if len(spent) > _MOST_LINES // 2:
        spent = spent[::2]
    if len(changes) > _MOST_LINES // 2:
        lasted = {id(one): after.time - one.time for one, after in itertools.pairwise(changes)}
        changes = sorted(changes, key=lambda one: lasted.get(id(one), math.inf))[-_MOST_LINES // 3 :]
    kept = {id(one) for one in (*spent, *changes)}
    return [one for one in lines if id(one) in kept]


# The recorder of the training that is under way in this process, and that of the last one.
_current: Recorder | None = None
_previous: Recorder | None = None


@contextlib.contextmanager
def recording(model_dir: str, task: Task) -> Iterator[None]:
    """Record in the body what this process does, as the role of a task. One that records already goes on with that.

    Copies of a process record nothing, nor does a training in ``memory://``, which no other process can see.
    """
    global _current, _previous
    process = os.getpid(), model_dir, role_of(task)
    is_nested = _current is not None and _current.process[0] == os.getpid()
    if is_nested or task.is_copy or task.type == REPLICA or model_dir.startswith("memory://"):
        yield
        return
    if _previous is None or _previous.process != process or not _previous.is_there():
        _previous = Recorder(process)
    recorder = _current = _previous
    recorder.reason, recorder.failed = "", False
    STATE.begin_anew()
    recorder.begin()
    reason, failed = "", True
    try:
        with _metrics(model_dir, task):
            yield
        reason, failed = recorder.reason, recorder.failed
    except KeyboardInterrupt:
        reason = "Ctrl-C"
        raise
    except SystemExit as error:
        reason, failed = recorder.reason or f"exit status {error.code}", error.code not in (None, 0, RESTART_ME)
        raise
    except BaseException as error:
        reason = f"{type(error).__name__}: {files.reason(error)}"
        raise
    finally:
        _current = None
        recorder.end(reason, failed=failed)


def _metrics(model_dir: str, task: Task) -> contextlib.AbstractContextManager[None]:
    """Return the context in which the chief serves its metrics, if the environment asks for that."""
    if not (task.is_chief and (port := os.environ.get("TORCH_ESTIMATOR_METRICS_PORT"))):
        return contextlib.nullcontext()
    # Import the HTTP server only where it is wanted.
    from torch_estimator.activity.metrics_port import metrics_served

    return metrics_served(port, model_dir)


def note_end(reason: str, *, failed: bool = False) -> None:
    """Say why this process ends its part of the job, which the recorder writes at its end."""
    if _current is not None:
        _current.reason, _current.failed = reason, failed
