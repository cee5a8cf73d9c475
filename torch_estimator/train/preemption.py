"""SIGTERM and Ctrl-C: training saves a checkpoint and ends, after SIGTERM with the wish to be started again."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch_estimator.errors import RESTART_ME
from torch_estimator.hooks.hook import RunContext
from torch_estimator.stop_signals import on_stop_signals

logger = logging.getLogger("torch_estimator")


class Preempted(SystemExit):
    """Ends the process with `RESTART_ME`, once all that can be saved is saved."""

    def __init__(self) -> None:
        super().__init__(RESTART_ME)


@contextmanager
def ending_on_signals(context: RunContext, *, saves: bool) -> Iterator[None]:
    """Have SIGTERM and the first Ctrl-C end training after the step at hand; see `on_stop_signals`.

    Args:
        context: Of the training.
        saves: Whether it saves checkpoints, for the log.

    Raises:
        KeyboardInterrupt: Ctrl-C came while this process waited for others.
    """

    def stop(number: int) -> None:
        context.preempted = True
        context.interrupted = context.interrupted or number == signal.SIGINT
        context.request_stop()

    saving = "and saves a checkpoint" if saves else "and saves nothing, since checkpoints are switched off"
    with on_stop_signals(stop, until=f"training ends after the step or evaluation at hand, {saving}"):
        try:
            yield
        except Preempted:
            if context.interrupted:
                raise KeyboardInterrupt from None
            raise


def stop_signal(context: RunContext) -> str:
    """Return what the log calls the signal that has asked the process to end."""
    return "Ctrl-C" if context.interrupted else "SIGTERM"


def checking_preemption(context: RunContext) -> Callable[[str, float, float], None]:
    """Return what a group calls while it waits for others.

    The function takes whom this process waits for, since when, and for how many seconds more it may wait after a signal
    has asked it to end. It raises `Preempted` after these.
    """
    noticed: list[float] = []

    def check(whom: str, since: float, secs: float) -> None:
        if context.preempted:
            noticed.append(time.monotonic())
            if noticed[-1] >= max(noticed[0], since) + secs:
                name = stop_signal(context)
                logger.error("%s came while this process waited for %s; start again to go on.", name, whom)
                raise Preempted

    return check
