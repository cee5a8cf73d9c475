"""Signals, and what other threads report, are handled one by one in the main thread."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from torch_estimator.processes.events import Events

MANY_SECS = 60.0


@pytest.fixture
def events() -> Iterator[Events]:
    events = Events()
    yield events
    events.close()


def test_a_signal_ends_the_wait_and_ignored_signals_stay_ignored(events: Events) -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with events.on_signals(came.append):
            os.kill(os.getpid(), signal.SIGHUP)
            timer = threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGTERM))
            timer.start()
            while not events.handle_one(MANY_SECS):
                pass
    finally:
        signal.signal(signal.SIGHUP, before)
    timer.join()
    assert came == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) == handler


def test_events_of_other_threads_are_handled_in_order_and_none_waits_unseen(events: Events) -> None:
    seen: list[int] = []
    thread = threading.Thread(target=lambda: [events.put(lambda n=n: seen.append(n)) for n in range(100_000)])
    thread.start()
    # More events than the socket takes bytes. Each one ends a wait nevertheless.
    while len(seen) < 100_000:
        events.handle_one(MANY_SECS)
    thread.join()
    assert seen == list(range(100_000))
    assert events.is_empty
    assert not events.handle_one()
