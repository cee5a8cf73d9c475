"""What it takes until an idle core does what it is given."""

from __future__ import annotations

import os
import statistics
import time

_ROUNDS = 5
# So long that the other core goes to sleep meanwhile.
_WORK_SECS = 100e-6


def wake_secs(count: int = 400) -> float:
    """Seconds from waking a process on another core until that runs, less what both compute; 0 with one core."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return 0.0
    try:
        return statistics.median(_idle_secs(cores[0], cores[1], count) for _ in range(_ROUNDS))
    finally:
        os.sched_setaffinity(0, cores)


def _idle_secs(mine: int, other: int, count: int) -> float:
    to, back = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.sched_setaffinity(0, {other})
        before = time.process_time()
        for _ in range(count):
            os.read(to[0], 1)
            _work()
            os.write(back[1], b"x")
        os.write(back[1], repr(time.process_time() - before).encode())
        os._exit(0)
    os.sched_setaffinity(0, {mine})
    began, before = time.perf_counter(), time.process_time()
    for _ in range(count):
        _work()
        os.write(to[1], b"x")
        os.read(back[0], 1)
    secs, cpu = time.perf_counter() - began, time.process_time() - before
    theirs = float(os.read(back[0], 64))
    os.waitpid(child, 0)
    for end in (*to, *back):
        os.close(end)
    return max(0.0, (secs - cpu - theirs) / (2 * count))


def _work() -> None:
    until = time.thread_time() + _WORK_SECS
    while time.thread_time() < until:
        pass
