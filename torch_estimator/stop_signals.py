"""Signals that ask a process to stop: SIGTERM, which clusters send before they take a machine away, and Ctrl-C."""

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

_signals: list[int] = []
"""Signals that have come inside the body of the current `on_stop_signals`."""

_DEFAULTS: dict[signal.Signals, Any] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}


@contextmanager
def on_stop_signals(stop: Callable[[int], object], *, until: str) -> Iterator[None]:
    """Call ``stop`` on SIGTERM and on the first Ctrl-C inside the body; a second Ctrl-C raises KeyboardInterrupt.

    A signal that the user handles or ignores keeps the user's handler. Outside the main thread this does nothing,
    because Python runs signal handlers in the main thread only. ``stop`` gets the number of the signal, between any two
    instructions of the main thread. `until` is what the process still does after the first Ctrl-C, for the log line.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: object) -> None:
        _signals.append(number)
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            lines_written.append(_log_in_thread(f"Ctrl-C: {until}; press Ctrl-C again to end at once."))
        stop(number)

    lines_written: list[_thread.LockType] = []
    replaced = [number for number, default in _DEFAULTS.items() if signal.getsignal(number) == default]
    for number in replaced:
        signal.signal(number, handle)
    try:
        yield
    finally:
        if replaced:
            _signals.clear()
        for number in replaced:
            # Do not replace a handler that the user's code has set inside the body.
            if signal.getsignal(number) == handle:
                signal.signal(number, _DEFAULTS[number])
        for line in lines_written:
            # Wait until the line is written. The process may exit right after this, which would kill the thread.
            line.acquire(timeout=_MOST_SECS_TO_WRITE)


def is_stop_asked() -> bool:
    """Return whether SIGTERM or Ctrl-C has come inside the current body of `on_stop_signals`."""
    return bool(_signals)


def _log_in_thread(text: str) -> _thread.LockType:
    """Log a line from a new thread; return a lock that is released once the line is written.

    A signal handler must not log itself: the code that it interrupted may be in the middle of a write to the same
    stream, or hold the lock of the log handler. The thread waits for both. It is started with `_thread` because
    `threading.Thread.start` takes a lock that the interrupted code may hold as well.
    """
    line = _thread.allocate_lock()
    line.acquire()

    def write() -> None:
        try:
            logger.warning("%s", text)
        finally:
            line.release()

    _thread.start_new_thread(write, ())
    return line
