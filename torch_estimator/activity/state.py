"""What this process does now, for whom it waits, and the seconds that it has spent with each.

Changes are noted where they happen, which is rarely. A wait of a step is no change: its seconds are added up. It is a
change once it has lasted `LONG_SECS`, and then from its true beginning on.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

LONG_SECS = 0.75
"""A wait that lasts longer is a change of state."""

WAITING = "waiting"
STARTING = "starting"

_MOST_UNWRITTEN = 64

Progress = Callable[[], float | None]
Names = Callable[[], Sequence[str]]


class Moment(NamedTuple):
    """A change of what the process does, at a time of `time.monotonic`."""

    time: float
    word: str
    step: int | None
    waits_for: tuple[str, ...] = ()


class Doing(NamedTuple):
    """Something that the process does; see `torch_estimator.activity.doing`."""

    word: str
    progress: Progress
    step: Progress | None


class State:
    """The state of this process. The first thread that does something is its main thread, which changes it.

    Attributes:
        changes: How often it has changed.
        word: What the process does, such as ``training``; empty outside of what this package does.
        names: Functions that return for whom it waits.
        wait: The kind of the wait that goes on, and since when; None if there is none.
        unwritten: Changes for the recorder, which takes them from the left.
        changed: Set at each change.
    """

    def __init__(self) -> None:
        self.changes = 0
        self.word = ""
        self.wait: tuple[str, float] | None = None
        self.unwritten: deque[Moment] = deque(maxlen=_MOST_UNWRITTEN)
        self.changed = threading.Event()
        self._doing: list[Doing] = []
        self.names: list[Names] = []
        self._secs: defaultdict[str, float] = defaultdict(float)
        self._since = 0.0
        self._thread = 0
        self._depth = 0
        self._last_step: int | None = None
        # The names that `look` has found in the wait that began at this time.
        self._found: tuple[float, tuple[str, ...]] = 0.0, ()

    def begin_anew(self) -> None:
        """Forget the changes up to now, and the global step: another training starts."""
        self.unwritten.clear()
        self._last_step = None
        now = time.monotonic()
        self._note(Moment(now, STARTING, None), Moment(now, self.word, None))

    def begin(self, entry: Doing) -> None:
        """Do something as part of what is done already."""
        if not self._doing:
            self._thread, self._depth, self.wait = threading.get_ident(), 0, None
        step = self.step()
        self._doing.append(entry)
        self._turn(step, goes_back=False)

    def end(self, entry: Doing) -> None:
        """Go back to what was done before."""
        step = self.step()
        self._doing.remove(entry)
        self._turn(step, goes_back=True)

    def _turn(self, step: int | None, *, goes_back: bool) -> None:
        now, before = time.monotonic(), self.word
        self._secs[before] += now - self._since
        self._since = now
        self.word = self._doing[-1].word if self._doing else ""
        if goes_back and self.word == STARTING:
            # The start is over once anything else was done.
            self.word = ""
        self.changes += 1
        self._note(Moment(now, self.word, self.step() if step is None else step))

    def _note(self, *moments: Moment) -> None:
        self.unwritten.extend(moments)
        self.changed.set()

    def begin_wait(self, kind: str) -> None:
        """Begin a wait, unless one goes on already or another thread than the main one waits."""
        if threading.get_ident() == self._thread:
            if not self._depth:
                self.wait = kind, time.monotonic()
            self._depth += 1

    def end_wait(self) -> None:
        """End the wait that `begin_wait` has begun."""
        if threading.get_ident() != self._thread or not self._depth:
            return
        self._depth -= 1
        if self._depth or self.wait is None:
            return
        (kind, since), self.wait = self.wait, None
        now = time.monotonic()
        if self._counts(kind):
            self._secs[kind] += now - since
            self._secs[self.word] -= now - since
        if now - since >= LONG_SECS:
            step, found = self.step(), self._found
            names = self.named(kind, found[1] if found[0] == since else ())
            self._note(Moment(since, WAITING, step, names), Moment(now, self.word, step))

    def _counts(self, kind: str) -> bool:
        # The input of an evaluation is a part of the evaluation.
        return kind != INPUT.kind or self.word == "training"

    @staticmethod
    def named(kind: str, names: Sequence[str]) -> tuple[str, ...]:
        """Return whom a wait of a kind waits for, as the job's files name roles."""
        return (kind,) if kind == INPUT.kind else tuple(name.replace(" ", "-") for name in names)

    def waits_for(self) -> list[str]:
        """Return the names of the tasks that this process waits for. Any thread may call this."""
        found = [name for names in list(self.names) for name in names()]
        if (wait := self.wait) is not None and found:
            self._found = wait[1], tuple(found)
        return found

    def innermost(self) -> tuple[str, float | None]:
        """Return what is done, and a number that changes as it goes on, if there is one."""
        entry = self._doing[-1] if self._doing else None
        return ("", None) if entry is None else (entry.word, entry.progress())

    def step(self) -> int | None:
        """Return the last known global step."""
        for entry in reversed(self._doing):
            if entry.step is not None and (step := entry.step()) is not None:
                self._last_step = int(step)
                break
        return self._last_step

    def note_reading(self, secs: float) -> None:
        """Add seconds for which another thread has read ahead. That is no part of the time of the main thread."""
        if self.word == "training":
            self._secs["reading"] += secs

    def secs(self, now: float) -> dict[str, float]:
        """Return the seconds spent up to now, by word and by kind of wait. No second is counted twice."""
        secs, word, wait = self._secs.copy(), self.word, self.wait
        secs[word] += now - self._since
        if wait is not None and self._counts(wait[0]):
            secs[wait[0]] += now - wait[1]
            secs[word] -= now - wait[1]
        return secs


STATE = State()


def _renew_lock() -> None:
    # A thread of the parent may have held it.
    STATE.changed = threading.Event()


os.register_at_fork(after_in_child=_renew_lock)


class Wait(contextlib.ContextDecorator):
    """Context manager for a wait of a kind. It costs half a microsecond, so that a step may wait in it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __enter__(self) -> None:
        STATE.begin_wait(self.kind)

    def __exit__(self, *exception: object) -> None:
        STATE.end_wait()


INPUT = Wait("input")
SERVERS = Wait("servers")
OTHERS = Wait("others")
