"""Waiting without sleep for what is about to come."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

_MOST_SECS = 1e-3
# A look takes some microseconds; one that takes longer was interrupted by others who need the core, or Python's lock.
_LONG_LOOK_SECS = 1e-4

# Unlike `os.sched_yield` of Python 3.11, this lets go of Python's lock meanwhile.
_let_others_run = ctypes.CDLL(None).sched_yield


class Spin:
    """Looks again and again before it sleeps.

    An idle core, of a virtual machine above all, wakes up late and with cold caches; where an answer takes half a
    millisecond, steps with a parameter server are half as fast again if the training thread stays awake. It lets
    others run between two looks, and sleeps for the rest of the time as soon as any of them needed long, or where the
    time before was longer than a millisecond.

    Args:
        clock: Seconds that only go forward.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._is_worth_it = True

    def wait(self, is_there: Callable[[], bool], sleep: Callable[[], bool]) -> bool:
        """Returns whether it has come.

        Args:
            is_there: Whether it has by now.
            sleep: Sleeps until it has, or enough time has passed; returns which of them.
        """
        started = looked = self._clock()
        while self._is_worth_it and looked < started + _MOST_SECS:
            if is_there():
                return True
            _let_others_run()
            before, looked = looked, self._clock()
            if looked > before + _LONG_LOOK_SECS:
                break
        came = sleep()
        self._is_worth_it = came and self._clock() < started + _MOST_SECS
        return came
