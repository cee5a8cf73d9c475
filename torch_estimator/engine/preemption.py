"""SIGTERM, with which clusters take machines back: training saves a checkpoint and asks to be started again."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch_estimator.errors import RESTART_ME
from torch_estimator.hooks.run_context import RunContext

logger = logging.getLogger("torch_estimator")


class Preempted(SystemExit):
    """Ends the process with `RESTART_ME`, once all that can be saved is saved."""

    def __init__(self) -> None:
        super().__init__(RESTART_ME)


@contextmanager
def heeding_sigterm(context: RunContext) -> Iterator[None]:
    """Has SIGTERM end training after the step at hand; leaves alone who has a handler of their own, and threads."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def heed(number: int, frame: Any) -> None:
        context.preempted = True
        context.request_stop()

    signal.signal(signal.SIGTERM, heed)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
