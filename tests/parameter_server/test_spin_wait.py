"""Whoever waits for an answer stays awake only where that is short and nobody else needs the core."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import pytest

from torch_estimator.parameter_server.spin_wait import Spin

US = 1e-6


class Road:
    """Something comes at some time; to look for it takes time, too."""

    def __init__(self, look: Callable[[int], float] = lambda number: 5 * US) -> None:
        self.now = self.comes_at = 0.0
        self.looks = self.sleeps = 0
        self.spin = Spin(lambda: self.now)
        self._look = look

    def wait(self, comes_at: float) -> bool:
        self.looks, self.comes_at = 0, self.now + comes_at
        return self.spin.wait(self._is_there, self._sleep)

    def _is_there(self) -> bool:
        self.looks += 1
        self.now += self._look(self.looks)
        return self.now >= self.comes_at

    def _sleep(self) -> bool:
        self.sleeps += 1
        came = self.comes_at <= self.now + 0.05
        self.now = max(self.now, self.comes_at) if came else self.now + 0.05
        return came


def test_what_comes_soon_is_waited_for_without_sleep() -> None:
    road = Road()

    assert road.wait(500 * US)

    assert (road.looks, road.sleeps) == (100, 0)


@pytest.mark.parametrize("comes_at", [0.02, 5.0])
def test_what_takes_long_is_slept_for_and_next_time_at_once(comes_at: float) -> None:
    road = Road()

    assert road.wait(comes_at) == (comes_at < 1.0)

    assert (road.looks, road.sleeps) == (200, 1)
    road.wait(0.02)
    assert (road.looks, road.sleeps) == (0, 2)


def test_once_it_comes_soon_again_nobody_sleeps_for_it() -> None:
    road = Road()
    road.wait(0.02)
    road.wait(500 * US)
    assert (road.looks, road.sleeps) == (0, 2)

    road.wait(500 * US)

    assert (road.looks, road.sleeps) == (100, 2)


def test_whoever_needs_the_core_gets_it() -> None:
    road = Road(lambda number: 200 * US if number == 3 else 5 * US)

    assert road.wait(500 * US)

    assert (road.looks, road.sleeps) == (3, 1)


def test_other_threads_of_the_process_have_python_s_lock_meanwhile() -> None:
    began, gate, interval = threading.Event(), threading.Lock(), sys.getswitchinterval()
    gate.acquire()
    other = threading.Thread(target=lambda: gate.acquire() and began.set())
    other.start()
    looks = iter(range(1_000_000))
    # Nobody is made to let go of the lock.
    sys.setswitchinterval(1000.0)
    try:
        gate.release()
        assert Spin(lambda: 0.0).wait(lambda: began.is_set() or next(looks, None) is None, lambda: False)
        assert next(looks, None) is not None
    finally:
        sys.setswitchinterval(interval)
    other.join()
