"""Whom a process names while it waits in a collective."""

from __future__ import annotations

import threading
from collections.abc import Callable

from torch.distributed import HashStore

from torch_estimator.distributed.heartbeat import Heartbeat


def wait_until(holds: Callable[[], bool]) -> None:
    for _ in range(10_000):
        if holds():
            return
        threading.Event().wait(0.005)
    raise AssertionError


def heartbeat(store: HashStore, rank: int, silence_secs: float) -> Heartbeat:
    return Heartbeat(store, rank, range(3), lambda one: f"worker {one}", silence_secs, lambda: None)


def test_a_process_waits_for_all_others_until_it_knows_who_is_late() -> None:
    store = HashStore()
    chief, other = heartbeat(store, 0, 1000.0), heartbeat(store, 1, 0.04)
    assert chief.waits_for() == other.waits_for() == []
    chief.enter_collective()
    other.enter_collective()
    assert chief.waits_for() == ["worker 1", "worker 2"]
    # The first has entered the collective, too.
    wait_until(lambda: other.waits_for() == ["worker 2"])
    other.leave_collective()
    assert other.waits_for() == []
    chief.stop()
    other.stop()


def test_a_process_waits_for_nobody_in_a_collective_that_hangs_although_all_have_entered_it() -> None:
    store = HashStore()
    all_three = [heartbeat(store, rank, 0.04) for rank in range(3)]
    for one in all_three:
        one.enter_collective()
    wait_until(lambda: all(one.waits_for() == [] for one in all_three))
    for one in all_three:
        one.stop()
