"""How long a cluster takes from a kill to its next step, told from its lines, and whether that is what is promised."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.protocol import Verdict, at_most
from scripts.storms.cluster import LAUNCHER, Line
from scripts.storms.job import STEP

SERVED = {"ps": 2.0}
"""By role, how many seconds at most to the next step, where parameters are with servers."""

TOGETHER = {"worker": 8.0}
"""The same for those that train in step."""

_AGAIN = re.compile(r"started (.*) again, restart")
_PID = re.compile(r" \(pid \d+\)")
_HOLDS = re.compile(r"ps \d+ holds \d+ numbers")
_TRAINS = ("chief", "worker")


@dataclass(slots=True)
class Kill:
    """A kill that reached a process, and how long recovery took.

    `together` says whether all processes that train are restarted together, and `alone` whether no other kill came
    before recovery. `step_secs` is the time to the first step that could not come without recovery, and `back_secs` the
    time until the killed process worked again; None until then.
    """

    name: str
    at: float
    together: bool
    alone: bool = True
    step_secs: float | None = None
    back_secs: float | None = None
    _is_started: bool = False

    @property
    def role(self) -> str:
        """Of the process."""
        return self.name.partition(" ")[0]

    @property
    def is_over(self) -> bool:
        """Whether all is well again."""
        return self.step_secs is not None and self.back_secs is not None

    @property
    def in_words(self) -> str:
        """How long all that has taken."""
        return f"the next step came after {self.step_secs:.2f} s, and it was at work after {self.back_secs:.2f} s"

    def see(self, line: Line) -> None:
        """Takes a line."""
        secs = line.at - self.at
        if secs < 0.0:
            return
        if line.name == LAUNCHER:
            found = _AGAIN.search(line.text)
            self._is_started |= found is not None and self.name in _PID.sub("", found[1]).split(", ")
            return
        is_step = line.text.startswith(f"{STEP} ")
        if self._is_started and line.name == self.name and self.back_secs is None and self._is_work(line, is_step):
            self.back_secs = secs
        if is_step and self.step_secs is None and self._may_be_counted(line):
            self.step_secs = secs

    def _is_work(self, line: Line, is_step: bool) -> bool:
        if self.role == "ps":
            return _HOLDS.search(line.text) is not None
        return is_step or self.role not in _TRAINS

    def _may_be_counted(self, line: Line) -> bool:
        if self.role == "ps":
            return self.back_secs is not None
        if self.role in _TRAINS and self.together:
            return self._is_started
        return line.name != self.name


def table(kills: Sequence[Kill]) -> str:
    """By role, the medians and the worst of kills that came alone."""
    rows = [f"{'':10} {'kills':>6} {'alone':>6} {'next step s':>20} {'back at work s':>20}"]
    for role in dict.fromkeys(kill.role for kill in kills):
        some = [kill for kill in kills if kill.role == role]
        alone = [kill for kill in some if kill.alone]
        secs = (
            [one for one in (kill.step_secs for kill in alone) if one is not None],
            [one for one in (kill.back_secs for kill in alone) if one is not None],
        )
        rows.append(f"{role:10} {len(some):6} {len(alone):6} {_told(secs[0]):>20} {_told(secs[1]):>20}")
    return "\n".join(rows)


def verdicts(kills: Sequence[Kill], most: Mapping[str, float]) -> list[Verdict]:
    """Return, by role, whether the step after each kill that came alone was in time; `most` is `SERVED` or `TOGETHER`.

    Where a second process died before recovery, the step waited for that one, too: this is counted, not judged.
    """
    return [_verdict([kill for kill in kills if kill.role == role], role, limit) for role, limit in most.items()]


def _verdict(kills: Sequence[Kill], role: str, limit: float) -> Verdict:
    alone, others = (_step_secs([kill for kill in kills if kill.alone == one]) for one in (True, False))
    overlapping = f" ({_within(others, limit)} that overlapped with another)" if others else ""
    what = f"seconds from a kill of {role} to the next step, {_within(alone, limit)} in time{overlapping}; the worst"
    return at_most(what, limit, max(alone, default=None), digits=2)


def _step_secs(kills: Sequence[Kill]) -> list[float]:
    """Without a step after it, a kill is as bad as can be."""
    return [math.inf if kill.step_secs is None else kill.step_secs for kill in kills]


def _within(secs: Sequence[float], limit: float) -> str:
    return f"{sum(one <= limit for one in secs)} of {len(secs)}"


def _told(secs: Sequence[float]) -> str:
    return f"{statistics.median(secs):.2f}, worst {max(secs):.2f}" if secs else "-"
