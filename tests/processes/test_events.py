"""Signals are events of the main thread."""

from __future__ import annotations

import os
import signal
import threading

from torch_estimator.processes.events import Events

MANY_SECS = 60.0


def test_a_signal_ends_the_wait_and_ignored_signals_stay_ignored() -> None:
    events, came = Events(), list[int]()
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
