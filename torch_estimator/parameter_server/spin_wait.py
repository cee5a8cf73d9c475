"""Busy waiting for a reply that is about to arrive."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

_MOST_SECS = 1e-3
# One check takes a few microseconds. If it took longer than this, another thread used the core or held the GIL.
_LONG_CHECK_SECS = 1e-4

# Unlike `os.sched_yield` of Python 3.11, a call through ctypes releases the GIL.
_yield_core = ctypes.CDLL(None).sched_yield


class SpinWait:
    """Waits by checking repeatedly for up to a millisecond, and by sleeping after that.

    An idle core, especially of a virtual machine, wakes up late and with cold caches. If replies take half a
    millisecond, training is 1.5 times as fast if its thread stays awake. Other threads must not suffer from that. So
    the wait yields the core between two checks. It sleeps at once if a check took long, or if the previous wait took
    longer than a millisecond.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._is_worth_it = True

    def wait(self, is_there: Callable[[], bool], sleep: Callable[[], bool]) -> bool:
        """Wait for something to arrive; return whether it has.

        `is_there` returns whether it has arrived, without waiting. `sleep` sleeps until it has arrived or some time has
        passed, and returns whether it has arrived.
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
