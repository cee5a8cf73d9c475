"""What tells the clock of our own side's steps."""

from __future__ import annotations

import sys
from typing import Any

import torch_estimator as te
from benchmarks.peers.report import Pace

COMPILE: dict[str, Any] = {"auto": "auto", "yes": True, "no": False}
"""`RunConfig.compile` by what a command line says."""


class PaceHook(te.Hook):
    """Tells the clock of the first step, of the one that ends the warm-up, and of the last."""

    def __init__(self, pace: Pace, warmup: int, steps: int) -> None:
        self._pace = pace
        self._told = 0
        self._last = steps
        self.first_step = warmup
        self.every_n_steps = max(1, steps - warmup)

    def after_step(self, context: te.RunContext) -> None:
        self._pace.step(context.global_step - self._told)
        self._told = context.global_step
        if context.global_step >= self._last:
            self._pace.end()


class FirstStepHook(te.Hook):
    """Tells the clock of the first step alone."""

    every_n_steps = sys.maxsize

    def __init__(self, pace: Pace) -> None:
        self._pace = pace

    def after_step(self, context: te.RunContext) -> None:
        self._pace.first()
