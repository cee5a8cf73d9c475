"""Measures whether a core is idle, for a compiler that is to run beside the training."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_MEASURE_SECS = 1.0

# Of a core. A compiler that gets less takes far longer, and what it takes it takes from somebody.
_ENOUGH = 0.5


@dataclass(frozen=True, slots=True)
class _Quota:
    """What a control group may use, in cores, and what it has used, in seconds of a core."""

    cores: float
    used: Callable[[], float]


class IdleCores:
    """Measures how many cores are idle, of those that this process may use.

    The kernel counts how long each core was idle. So other programs, other trainings on this machine, compilers that
    earlier trainings left behind, and the threads of this process all count by what they really use.

    Args:
        allowed: The numbers of the cores that this process may run on; by default its affinity.
        proc: Where procfs is.
        groups: Where the control groups are, of version 1 or 2.
        clock: Seconds of a clock that never goes back.
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
        self._measured = self._measure()
        self.cores = min(len(self._allowed), *(quota.cores for quota in self._quotas), float("inf"))
        """How many cores this process may use at most: its affinity, or the quota of a control group."""

    def is_one_idle(self) -> bool:
        """Return whether a core was idle since the last measurement, measured at most once a second.

        False until there are two measurements, and where the system does not tell.
        """
        if self._clock() - self._measured[0] >= _MEASURE_SECS:
            before, now = self._measured, self._measure()
            self._measured = now
            elapsed = now[0] - before[0]
            idle, *used = ((after - earlier) / elapsed for after, earlier in zip(now[1:], before[1:], strict=True))
            left = [quota.cores - share for quota, share in zip(self._quotas, used, strict=True)]
            self._is_one_idle = min(idle, *left, float("inf")) >= _ENOUGH
        return self._is_one_idle

    def _measure(self) -> tuple[float, ...]:
        """Return the time, for how long the cores were idle, and what each control group has used, in seconds."""
        return (self._clock(), self._idle_secs(), *(quota.used() for quota in self._quotas))

    def _idle_secs(self) -> float:
        try:
            lines = self._stat.read_text().splitlines()
        except OSError:
            return 0.0
        # cpu<number> user nice system idle iowait ..., in ticks.
        fields = (line.split() for line in lines if line.startswith("cpu") and line[3:4].isdigit())
        ticks = sum(int(idle) + int(wait) for name, _, _, _, idle, wait, *_ in fields if int(name[3:]) in self._allowed)
        return ticks / os.sysconf("SC_CLK_TCK")


def _quotas(membership: Path, groups: Path) -> Iterator[_Quota]:
    """Return the quotas of the control groups that a process is in, and of those above them."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        # In a container the path may be the host's, and the container's own group is the root.
        parts = [Path(path.lstrip("/")), *Path(path.lstrip("/")).parents]
        for part in dict.fromkeys(parts):
            with contextlib.suppress(OSError, ValueError, IndexError):
                if not controllers:
                    yield _quota_of_version_2(groups / part)
                elif "cpu" in controllers.split(","):
                    yield _quota_of_version_1(groups / "cpu" / part, groups / "cpuacct" / part)


def _quota_of_version_2(group: Path) -> _Quota:
    quota, period = (group / "cpu.max").read_text().split()

    def used() -> float:
        # Its first line is "usage_usec <number>".
        return int((group / "cpu.stat").read_text().split()[1]) / 1e6

    used()
    # "max" is no number, and no quota.
    return _Quota(int(quota) / int(period), used)


def _quota_of_version_1(group: Path, account: Path) -> _Quota:
    quota, period = (int((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
    if quota < 0:
        raise ValueError("no quota")

    def used() -> float:
        return int((account / "cpuacct.usage").read_text()) / 1e9

    used()
    return _Quota(quota / period, used)
