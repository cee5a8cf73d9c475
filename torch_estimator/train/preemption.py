"""Handling of SIGTERM and Ctrl-C: training saves a checkpoint and ends.

After SIGTERM, the exit status of the process asks for a restart.
"""

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
    """Exit of the process with the status `RESTART_ME`, raised after everything that can be saved has been saved."""

    def __init__(self) -> None:
        super().__init__(RESTART_ME)


@contextmanager
def ending_on_signals(context: RunContext, *, saves: bool) -> Iterator[None]:
    """While the body runs, let SIGTERM and the first Ctrl-C end training after the current step.

    Raise KeyboardInterrupt if Ctrl-C was pressed while this process was waiting for other processes.
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
    """Return the name of the signal that has asked the process to end, for log lines."""
    return "Ctrl-C" if context.interrupted else "SIGTERM"


def checking_preemption(context: RunContext) -> Callable[[str, float, float], None]:
    """Return a function that limits how long this process waits for other processes after a stop signal.

    A process group calls the function again and again while it waits: ``check(whom, since, secs)``. The arguments are
    the description of the other process, the time at which waiting began (`time.monotonic`), and how many seconds the
    wait may last after the signal. If that time is over, the function raises `Preempted`.
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
