"""SIGTERM, with which clusters take machines back: training saves a checkpoint and asks to be started again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch_estimator.errors import RESTART_ME
from torch_estimator.hooks.run_context import RunContext
from torch_estimator.sigterm import on_sigterm


class Preempted(SystemExit):
    """Ends the process with `RESTART_ME`, once all that can be saved is saved."""

    def __init__(self) -> None:
        super().__init__(RESTART_ME)


@contextmanager
def heeding_sigterm(context: RunContext) -> Iterator[None]:
    """Has SIGTERM end training after the step at hand; leaves alone who has a handler of their own, and threads."""

    def heed() -> None:
        context.preempted = True
        context.request_stop()

    with on_sigterm(heed):
        yield
