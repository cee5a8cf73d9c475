"""Busy waiting for a reply that is about to come."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

_MOST_SECS = 1e-3
# One check takes some microseconds. Where it took longer, another thread needed the core or Python's lock.
_LONG_CHECK_SECS = 1e-4

# Unlike `os.sched_yield` of Python 3.11, a call through ctypes releases Python's lock.
_yield_core = ctypes.CDLL(None).sched_yield


class SpinWait:
    """Waits by checking again and again for up to a millisecond, and by sleeping after that.

    An idle core, of a virtual machine above all, wakes up late and with cold caches. Where a reply takes half a
    millisecond, training takes half as many steps again if its thread stays awake. The wait must cost others nothing:
    it yields the core between two checks, and it sleeps as soon as a check took long, or where the wait before took
    longer than a millisecond.

    Args:
        clock: Returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._is_worth_it = True

    def wait(self, is_there: Callable[[], bool], sleep: Callable[[], bool]) -> bool:
        """Wait; return whether what was waited for is there.

        Args:
            is_there: Checks whether it is there.
            sleep: Sleeps until it is there or some time has passed; returns whether it is there.
        """
        started = checked = self._clock()
        while self._is_worth_it and checked < started + _MOST_SECS:
            if is_there():
                return True
            _yield_core()
            before, checked = checked, self._clock()
            if checked > before + _LONG_CHECK_SECS:
                break
        came = sleep()
        self._is_worth_it = came and self._clock() < started + _MOST_SECS
        return came
