"""Policy of compilation: which batch shapes are compiled, and when compiling saves time.

`ShapePolicy` answers the first question. The second depends on what a compiler costs: 5 to 20 seconds of one core,
after which a step is three to ten times as fast. A runner that pauses the training for it asks `is_worth_waiting`. A
runner that compiles in another process asks `is_worth_compiling_in_background`, which measures with `IdleCores` whether
a core is free for that process.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

logger = logging.getLogger("torch_estimator")

_ROWS = "rows"
_SHAPES = "shapes"
_SMALLER = "smaller"

# At most this number of shapes is compiled, because each takes many seconds. Batches of other shapes run in Python.
_MAX_SHAPES = 8

# A smaller shape is compiled after this number of batches. Most trainings have fewer partial last batches.
_MANY = 200
# Batches are counted for at most this number of smaller shapes, which limits the memory of the counts.
_MAX_COUNTED = 64

# Measure steps in Python for this time before estimating how long the rest of a training takes.
_MEASURE_STEPS_SECS = 1.0
# If after a shorter time the rest is estimated to take so long, compile in the background at once. In a shorter
# training it would count that the compiler slows the training down by a tenth.
_FIRST_MEASURE_SECS = 0.2
_LONG_SECS = 3.0
# Pause a training to compile (10 to 20 seconds) only if its remaining steps take at least this long in Python.
_WORTH_SECS = 20.0
# If no core is idle, compile only if the remaining steps take at least this many times `_WORTH_SECS` in Python.
_BUSY_FACTOR = 10

CHECK_EVERY_SECS = 10.0
"""Seconds between two comparisons of a compiled step with Python, before checkpoints."""

_MEASURE_IDLE_SECS = 1.0
# Share of a core that must be idle. With a smaller share, the compiler would run for long and slow the training down.
_IDLE_SHARE = 0.5


class ShapePolicy:
    """Rule that decides for each batch, by its shape, whether the batch runs as compiled code or in Python.

    Batches that are smaller than an earlier one, such as the partial last batch of an epoch, run in Python, until very
    many of one shape have come. Among batches with the same number of rows, shapes may differ in the length of lists;
    the first eight shapes are compiled.

    Args:
        before: The `state` in the run before a resume, or None. With it, a resumed run takes each batch the same way
            as an uninterrupted run, so that the results are equal bit for bit.

    Attributes:
        rows: Number of rows of the largest batch that was admitted.
    """

    def __init__(self, before: Mapping[str, Any] | None) -> None:
        self.rows: int = before[_ROWS] if before else 0
        self._shapes: list[str] = list(before[_SHAPES]) if before else []
        self._smaller: dict[str, int] = dict(before.get(_SMALLER, {})) if before else {}
        self._has_logged_limit = False

    def state(self) -> dict[str, Any]:
        """Return the shapes that are compiled and the counts of smaller shapes, as values that JSON can represent."""
        return {_ROWS: self.rows, _SHAPES: self._shapes, _SMALLER: self._smaller}

    def admits(self, rows: int, shape: object) -> bool:
        """Count a batch by its shape, and return whether batches of this shape are compiled.

        Args:
            rows: Number of rows in the batch.
            shape: Description of all its tensors, in values that JSON can represent.
        """
        name = json.dumps(shape)
        if rows < self.rows and not self._is_frequent(name, rows):
            return False
        if name not in self._shapes:
            if len(self._shapes) == _MAX_SHAPES:
                if not self._has_logged_limit:
                    self._has_logged_limit = True
                    logger.info(
                        "Batches come in more than %d shapes; only the first %d are compiled.", _MAX_SHAPES, _MAX_SHAPES
                    )
                return False
            self._shapes.append(name)
        self.rows = max(rows, self.rows)
        return True

    def _is_frequent(self, name: str, rows: int) -> bool:
        """Count a batch with fewer rows than an earlier batch; return whether more than 200 of its shape have come."""
        if name not in self._smaller:
            if len(self._smaller) == _MAX_COUNTED:
                return False
            self._smaller[name] = 0
        if self._smaller[name] <= _MANY:
            self._smaller[name] += 1
        if self._smaller[name] == _MANY // 4:
            message = "Batches of %d rows, after some of %d, run uncompiled until %d of them have come."
            logger.info(message, rows, self.rows, _MANY)
        return self._smaller[name] > _MANY


def is_worth_waiting(eager_secs: float, eager_steps: int, steps_left: float | None) -> bool:
    """Return whether a training ends sooner if it pauses until its step is compiled.

    Args:
        eager_secs: Seconds that steps have taken in Python so far.
        eager_steps: Number of these steps.
        steps_left: Number of steps until training ends, or None if that is not known.
    """
    return eager_secs >= _MEASURE_STEPS_SECS and _secs_left(eager_secs, eager_steps, steps_left) >= _WORTH_SECS


def is_worth_compiling_in_background(
    eager_secs: float, eager_steps: int, steps_left: float | None, idle: IdleCores
) -> bool:
    """Return whether to compile a step in another process while the training goes on.

    The answer is False until steps have taken a second, or 0.2 seconds if the rest will take 3 seconds or longer.
    On an idle core, compiling costs the training nothing; even if this training ends too soon to gain, the next run of
    the same program finds the compiled step in the cache. If no core is idle, only a long training compiles. A process
    that may use a single core never does.

    Args:
        eager_secs: Seconds that steps have taken in Python so far.
        eager_steps: Number of these steps.
        steps_left: Number of steps until training ends, or None if that is not known.
        idle: Measures the cores that this process may use.
    """
    if eager_secs < _FIRST_MEASURE_SECS or idle.cores < 2:
        return False
    secs_left = _secs_left(eager_secs, eager_steps, steps_left)
    if eager_secs < _MEASURE_STEPS_SECS:
        return secs_left >= _LONG_SECS and idle.is_one_idle()
    return idle.is_one_idle() or secs_left >= _BUSY_FACTOR * _WORTH_SECS


def missing_core(eager_secs: float, idle: IdleCores) -> str:
    """Return for a log line why no step was compiled in the background: no core was idle, or the process has one core.

    Args:
        eager_secs: Seconds for which the step has run in Python.
        idle: Measures the cores that this process may use.

    Returns:
        A clause for a log line; empty if the training was too short to measure.
    """
    if eager_secs < _MEASURE_STEPS_SECS:
        return ""
    return "this process has one core" if idle.cores < 2 else "no core was idle during the training"


def _secs_left(eager_secs: float, eager_steps: int, steps_left: float | None) -> float:
    """Estimate how many seconds the remaining steps of a training would take in Python.

    If the last step is not known, the rest is assumed to take as long as the training has run already.
    """
    return eager_secs if steps_left is None else steps_left * eager_secs / eager_steps


class IdleCores:
    """Measurement of whether at least half a core is idle, among the cores that this process may use.

    The Linux kernel counts the idle time of each core. Therefore everything that runs on the machine counts with the
    time it really takes: other programs, other trainings, compilers that earlier trainings left behind, and the
    threads of this process.

    Args:
        allowed: Numbers of the cores that this process may run on; by default its CPU affinity.
        proc: Directory at which procfs is mounted.
        groups: Directory at which the control groups of version 1 or 2 are mounted.
        clock: Returns seconds of a clock that never goes back.

    Attributes:
        cores: How many cores this process may use at most, by its affinity and by the quotas of its control groups;
            a quota may be a fraction.
    """

    def __init__(
        self,
        allowed: set[int] | None = None,
        *,
        proc: Path = Path("/proc"),
        groups: Path = Path("/sys/fs/cgroup"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._allowed = os.sched_getaffinity(0) if allowed is None else allowed
        self._stat = proc / "stat"
        self._quotas = list(_quotas(proc / "self" / "cgroup", groups))
        self._clock = clock
        self._is_one_idle = False
        self._last = self._measure()
        self._next = self._last[0] + _FIRST_MEASURE_SECS
        self.cores = min(len(self._allowed), *(quota.cores for quota in self._quotas), float("inf"))

    def is_one_idle(self) -> bool:
        """Return whether at least half a core was idle in the time between the last two measurements.

        The first measurement is made with the object, the second 0.2 seconds later at the earliest, and from then on
        one per second at most. The answer is False until there are two measurements, and on systems that do not publish
        these counters.
        """
        if self._clock() >= self._next:
            before, now = self._last, self._measure()
            self._last, self._next = now, now[0] + _MEASURE_IDLE_SECS
            elapsed = now[0] - before[0]
            idle, *used = ((after - earlier) / elapsed for after, earlier in zip(now[1:], before[1:], strict=True))
            # The CPU quota of a control group limits this process even if cores are idle.
            left = [quota.cores - share for quota, share in zip(self._quotas, used, strict=True)]
            self._is_one_idle = min(idle, *left, float("inf")) >= _IDLE_SHARE
        return self._is_one_idle

    def _measure(self) -> tuple[float, ...]:
        """Return in seconds: the clock, the idle time of the allowed cores, and the CPU time of each control group."""
        return (self._clock(), self._idle_secs(), *(quota.used() for quota in self._quotas))

    def _idle_secs(self) -> float:
        """Return the idle time since the machine started, summed over all allowed cores, in seconds."""
        try:
            lines = self._stat.read_text().splitlines()
        except OSError:
            return 0.0
        # Each line is "cpu<number> user nice system idle iowait ...", with times in clock ticks.
        fields = (line.split() for line in lines if line.startswith("cpu") and line[3:4].isdigit())
        ticks = sum(int(idle) + int(wait) for name, _, _, _, idle, wait, *_ in fields if int(name[3:]) in self._allowed)
        return ticks / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class _Quota:
    """CPU quota of a control group.

    Attributes:
        cores: How many cores the group may use, possibly a fraction.
        used: Returns the CPU time that the group has used, in seconds.
    """

    cores: float
    used: Callable[[], float]


def _quotas(membership: Path, groups: Path) -> Iterator[_Quota]:
    """Yield the CPU quotas of the control groups that this process is in, and of their parent groups.

    Args:
        membership: The file ``/proc/self/cgroup``.
        groups: Directory where the control groups are mounted.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # In a container, this path may be the path on the host, although the container's group is mounted as the root.
        # So try every parent of the path, and skip paths that do not exist.
        parts = [Path(path.lstrip("/")), *Path(path.lstrip("/")).parents]
        for part in dict.fromkeys(parts):
            with contextlib.suppress(OSError, ValueError, IndexError):
                if not controllers:
                    yield _quota_of_version_2(groups / part)
                elif "cpu" in controllers.split(","):
                    yield _quota_of_version_1(groups / "cpu" / part, groups / "cpuacct" / part)


def _quota_of_version_2(group: Path) -> _Quota:
    """Return the CPU quota of a control group (version 2); raise ValueError if the group has no quota ("max")."""
    quota, period = (group / "cpu.max").read_text().split()

    def used() -> float:
        # The first line of the file is "usage_usec <number>".
        return int((group / "cpu.stat").read_text().split()[1]) / 1e6

    # Call the function once, so that an unreadable file raises OSError here and not in the middle of a training.
    used()
    return _Quota(int(quota) / int(period), used)


def _quota_of_version_1(group: Path, account: Path) -> _Quota:
    """Return the CPU quota of a control group (version 1); raise ValueError if the group has no quota."""
    quota, period = (int((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
    if quota < 0:
        raise ValueError("no quota")

    def used() -> float:
        return int((account / "cpuacct.usage").read_text()) / 1e9

    used()
    return _Quota(quota / period, used)
