"""Where a process's CPU seconds go: by thread, and by what its training thread does."""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

TRANSPORT = "transport"
MAIN = "main"
OTHERS = "others"

_QUANTILES = 50


def cpu_by_thread() -> dict[str, float]:
    """CPU seconds of the main thread, of ZeroMQ's, and of all others, those included that have ended."""
    seconds = {MAIN: 0.0, TRANSPORT: 0.0}
    for task in Path("/proc/self/task").iterdir():
        try:
            name, times = (task / "comm").read_text(), (task / "schedstat").read_text()
        except OSError:
            continue
        if task.name == str(os.getpid()):
            seconds[MAIN] += int(times.split()[0]) / 1e9
        elif name.startswith("ZMQbg"):
            seconds[TRANSPORT] += int(times.split()[0]) / 1e9
    return {**seconds, OTHERS: time.process_time() - sum(seconds.values())}


def quantiles(secs: Sequence[float]) -> list[float]:
    """What stands for all of them."""
    return statistics.quantiles(secs, n=_QUANTILES, method="inclusive")


class StageClock:
    """Times stages of the main thread's work; one within another counts for itself alone.

    Attributes:
        cpu: By stage, CPU seconds of each call.
        wall: By stage, seconds of all calls together, those within them included.
        owners: By stage, whose method was called last.
    """

    def __init__(self) -> None:
        self.cpu: dict[str, list[float]] = defaultdict(list)
        self.wall: dict[str, float] = defaultdict(float)
        self.owners: dict[str, Any] = {}
        self._within = 0.0

    def reset(self) -> None:
        """Forgets what it has seen."""
        self.cpu.clear()
        self.wall.clear()

    @contextmanager
    def timing(self, owner: type, stages: Mapping[str, str]) -> Iterator[None]:
        """Times methods of a class, by name of the method the stage, in the body."""
        originals = {name: getattr(owner, name) for name in stages}
        for name, stage in stages.items():
            setattr(owner, name, self._timed(originals[name], stage))
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(owner, name, original)

    def _timed(self, original: Any, stage: str) -> Any:
        @wraps(original)
        def timed(owner: Any, *args: Any, **kwargs: Any) -> Any:
            self.owners[stage] = owner
            before, self._within = self._within, 0.0
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                return original(owner, *args, **kwargs)
            finally:
                spent = time.thread_time() - cpu
                self.cpu[stage].append(spent - self._within)
                self.wall[stage] += time.perf_counter() - wall
                self._within = before + spent

        return timed
