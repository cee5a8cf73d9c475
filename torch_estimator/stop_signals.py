"""Signals that ask a process to end: SIGTERM, with which clusters take machines back, and Ctrl-C."""

from __future__ import annotations

import _thread
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

logger = logging.getLogger("torch_estimator")

_MOST_SECS_TO_WRITE = 1.0

_DEFAULTS: dict[signal.Signals, Any] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}


@contextmanager
def on_stop_signals(stop: Callable[[int], object], *, until: str) -> Iterator[None]:
    """Call ``stop`` on SIGTERM and on the first Ctrl-C in the body; a second Ctrl-C raises KeyboardInterrupt at once.

    Where a signal has a handler of the user's, or is ignored, that stays. Python runs handlers in the main thread
    only: in another thread the signals do what they did before.

    Args:
        stop: Called with the number of the signal, between any two instructions of the main thread.
        until: What the process still does after the first Ctrl-C, for the log.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: object) -> None:
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            written.append(_log(f"Ctrl-C: {until}; press Ctrl-C again to end at once."))
        stop(number)

    written: list[_thread.LockType] = []
    replaced = [number for number, default in _DEFAULTS.items() if signal.getsignal(number) == default]
    for number in replaced:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in replaced:
            # A hook may have set a handler meanwhile, which stays.
            if signal.getsignal(number) == handle:
                signal.signal(number, _DEFAULTS[number])
        for line in written:
            # The process may be about to end, and the thread that writes with it.
            line.acquire(timeout=_MOST_SECS_TO_WRITE)


def _log(text: str) -> _thread.LockType:
    """Log a line from another thread; return a lock that is free once it is written."""
    # A signal handler must not write: it may have interrupted a write to the same stream, or hold a lock that it needs.
    # A thread waits for both; `threading.Thread.start` would take a lock of its own in this one.
    line = _thread.allocate_lock()
    line.acquire()

    def write() -> None:
        try:
            logger.warning("%s", text)
        finally:
            line.release()

    _thread.start_new_thread(write, ())
    return line
