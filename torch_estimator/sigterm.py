"""What a process does when SIGTERM comes, with which clusters take machines back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def on_sigterm(act: Callable[[], object]) -> Iterator[None]:
    """Has SIGTERM call something in the body; leaves alone who has a handler of their own, and threads."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda number, frame: act())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
