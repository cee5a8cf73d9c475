"""Signals that ask a job to end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def signals_to(handle: Callable[[int], None]) -> Iterator[None]:
    """Calls `handle` with the number of a signal, in the main thread; ignored signals stay ignored, as under nohup."""
    before = {number: signal.getsignal(number) for number in _NUMBERS}
    caught = [number for number in _NUMBERS if before[number] != signal.SIG_IGN]
    for number in caught:
        signal.signal(number, lambda number, frame: handle(number))
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, before[number])
