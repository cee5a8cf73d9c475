"""Timelines of a model directory: what each role of the job did, when, and how its time was spent.

The files are written by `torch_estimator.activity.recorder`, one a process:

    MODEL_DIR/activity/worker-0.1764318000123-4711.jsonl

The first line, of fixed length, is replaced again and again: which process this is, when it was last seen, and how its
time was spent up to then. Further lines are added: changes of state, which have a ``state``, and times spent. Files are
read while they are written, replaced and removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import dataclass, field

from torch_estimator import files
from torch_estimator.runs.state_file import from_json

FOLDER = "activity"
ENDED = "ended"

HEAD_BYTES = 640
"""Length of the first line of a file."""

# What JSON of other programs, or half of a line, can raise.
_DAMAGED = ValueError, KeyError, TypeError, OverflowError, RecursionError

NAME = re.compile(r"([a-z]+-\d+)\.(\d+)-(\d+)\.jsonl")
"""Name of a file: the role, when it began in milliseconds since 1970, and the number of the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of state.

    Attributes:
        time: When it happened, in seconds since 1970 by the role's own clock.
        state: ``starting``, ``compiling``, ``training``, ``waiting``, ``saving``, ``evaluating``, ``exporting``,
            ``serving`` or ``ended``.
        waits_for: Roles that a waiting one waits for, such as ``ps-0``; ``("input",)`` if it waits for its input.
        step: The global step, if it was known.
        reason: Why the role has ended.
        failed: Whether it has ended before its time, by an error or a signal.
    """

    time: float
    state: str
    waits_for: tuple[str, ...] = ()
    step: int | None = None
    reason: str = ""
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """How the time was spent since the process began to record, in seconds. No second is counted twice.

    Attributes:
        time: When this was written, in seconds since 1970 by the role's own clock.
        step: The global step, if it was known.
        computing: Training steps, or requests to a parameter server, without what they waited for.
        input: Training waited for its input.
        reading: A thread read the input of the training ahead, which is no part of the time of the process.
        servers: Waited for parameter servers.
        others: Waited for other roles, or for a checkpoint to evaluate; a parameter server: for requests.
        saving: Training stood still because a checkpoint was copied.
        evaluating: Evaluations and exports.
        starting: Everything before the first step, and waits for compiled steps.
        recording: Processor time of the recorder itself.
        cpu: Processor time of the process.
    """

    time: float
    step: int | None = None
    computing: float = 0.0
    input: float = 0.0
    reading: float = 0.0
    servers: float = 0.0
    others: float = 0.0
    saving: float = 0.0
    evaluating: float = 0.0
    starting: float = 0.0
    recording: float = 0.0
    cpu: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One process of a role, from the time when it began to record. All times are by its own clock.

    Attributes:
        role: Its role, as `torch_estimator.cluster.task.role_of` names it.
        pid: Number of the process.
        host: Name of its machine.
        began: When it began to record.
        changes: Its changes of state, the oldest first. Of a long run, the shortest ones are left out.
        spent: How its time was spent, the oldest first; the last one is of `last_seen`.
        last_seen: When it wrote for the last time: twice a second on a local path, every minute at a URL.
        last_step: When its global step was last seen to change.
    """

    role: str
    pid: int
    host: str
    began: float
    changes: list[Change] = field(default_factory=list)
    spent: list[Spent] = field(default_factory=list)
    last_seen: float
    last_step: float | None = None

    @property
    def end(self) -> Change | None:
        """The change with which it has ended; None if it goes on, or was killed."""
        return self.changes[-1] if self.changes and self.changes[-1].state == ENDED else None


def read_runs(model_dir: files.PathLike) -> list[Run]:
    """Return the runs of a model directory by role, then by their beginning."""
    return TimelineReader(model_dir).runs()


class TimelineReader:
    """Reader of the timelines of a model directory. Each call of `runs` reads only what was written since the last."""

    def __init__(self, model_dir: files.PathLike) -> None:
        self._folder = files.join(model_dir, FOLDER)
        self._files: dict[str, _File] = {}

    def runs(self) -> list[Run]:
        """Return the runs by role, then by their beginning; an empty list if there are none.

        Raise OSError if the directory cannot be read.
        """
        try:
            names = [*filter(None, map(NAME.fullmatch, files.listdir(self._folder)))]
        except NotADirectoryError:
            names = []
        known = self._files
        self._files = {
            name[0]: known.get(name[0]) or _File(files.join(self._folder, name[0]), name[1]) for name in names
        }
        found = []
        for one in self._files.values():
            # A file that is removed while it is read is a run that is no longer there.
            with contextlib.suppress(OSError):
                if (run := one.read()) is not None:
                    found.append(run)
        return sorted(found, key=lambda run: (*_sort_key(run.role), run.began))


class _File:
    """One file, and what was read of it."""

    def __init__(self, path: str, role: str) -> None:
        self._path = path
        self._role = role
        self._seen: object = None
        self._body = b""
        self._changes: list[Change] = []
        self._spent: list[Spent] = []
        self._run: Run | None = None

    def read(self) -> Run | None:
        """Read on; return the run, or None if the beginning of the file is not there yet."""
        if files.is_local(self._path):
            stat = os.stat(files.as_url(self._path))
            seen = stat.st_ino, stat.st_mtime_ns, stat.st_size
            if seen == self._seen:
                return self._run
            self._seen = seen
        head, _, body = files.read_bytes(self._path).partition(b"\n")
        body = body[: body.rfind(b"\n") + 1]
        if not body.startswith(self._body):
            # The file was replaced.
            self._body, self._changes, self._spent = b"", [], []
        for line in body[len(self._body) :].splitlines():
            # A line that a crash of the machine has torn is left out.
            with contextlib.suppress(*_DAMAGED):
                content = json.loads(line)
                if isinstance(content, dict) and "state" in content:
                    self._changes.append(from_json(Change, content))
                else:
                    self._spent.append(from_json(Spent, content))
        self._body = body
        with contextlib.suppress(*_DAMAGED):
            about = json.loads(head)
            last, last_step = from_json(Spent, about["spent"]), about.get("last_step")
            self._run = Run(
                role=self._role,
                pid=int(about["pid"]),
                host=str(about["host"]),
                began=float(about["began"]),
                changes=self._changes.copy(),
                spent=[*self._spent, last],
                last_seen=last.time,
                last_step=None if last_step is None else float(last_step),
            )
        return self._run


def _sort_key(role: str) -> tuple[str, int]:
    kind, _, number = role.rpartition("-")
    return kind, int(number) if number.isdigit() else 0
