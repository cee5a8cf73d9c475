"""A wait spins only while it is short and no other thread needs the core."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import pytest

from torch_estimator.parameter_server.spin_wait import SpinWait

US = 1e-6


class Reply:
    """A simulated reply that comes at some time; each check takes time, too."""

    def __init__(self, check: Callable[[int], float] = lambda number: 5 * US) -> None:
        self.now = self.comes_at = 0.0
        self.checks = self.sleeps = 0
        self.spin = SpinWait(lambda: self.now)
        self._check = check

    def wait(self, comes_at: float) -> bool:
        self.checks, self.comes_at = 0, self.now + comes_at
        return self.spin.wait(self._is_there, self._sleep)

    def _is_there(self) -> bool:
        self.checks += 1
        self.now += self._check(self.checks)
        return self.now >= self.comes_at

    def _sleep(self) -> bool:
        self.sleeps += 1
        came = self.comes_at <= self.now + 0.05
        self.now = max(self.now, self.comes_at) if came else self.now + 0.05
        return came


def test_a_short_wait_does_not_sleep() -> None:
    reply = Reply()

    assert reply.wait(500 * US)

    assert (reply.checks, reply.sleeps) == (100, 0)


@pytest.mark.parametrize("comes_at", [0.02, 5.0])
def test_a_long_wait_sleeps_and_the_next_one_sleeps_at_once(comes_at: float) -> None:
    reply = Reply()

    assert reply.wait(comes_at) == (comes_at < 1.0)

    assert (reply.checks, reply.sleeps) == (200, 1)
    reply.wait(0.02)
    assert (reply.checks, reply.sleeps) == (0, 2)


def test_after_a_short_wait_the_next_one_spins_again() -> None:
    reply = Reply()
    reply.wait(0.02)
    reply.wait(500 * US)
    assert (reply.checks, reply.sleeps) == (0, 2)

    reply.wait(500 * US)

    assert (reply.checks, reply.sleeps) == (100, 2)


def test_a_spinning_wait_sleeps_when_another_thread_needs_the_core() -> None:
    reply = Reply(lambda number: 200 * US if number == 3 else 5 * US)

    assert reply.wait(500 * US)

    assert (reply.checks, reply.sleeps) == (3, 1)


def test_a_spinning_wait_releases_python_s_lock() -> None:
    began, gate, interval = threading.Event(), threading.Lock(), sys.getswitchinterval()
    gate.acquire()
    other = threading.Thread(target=lambda: gate.acquire() and began.set())
    other.start()
    checks = iter(range(1_000_000))
    # Python does not take the lock away from any thread.
    sys.setswitchinterval(1000.0)
    try:
        gate.release()
        assert SpinWait(lambda: 0.0).wait(lambda: began.is_set() or next(checks, None) is None, lambda: False)
        assert next(checks, None) is not None
    finally:
        sys.setswitchinterval(interval)
    other.join()
