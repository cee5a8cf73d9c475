"""Steps of a run that are nothing but their losses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import torch

from torch_estimator.hooks.hook import RunContext


class Losses:
    """Steps with these losses, several a call."""

    def __init__(self, values: Iterable[float], steps_per_call: int = 1) -> None:
        self.steps_per_call = steps_per_call
        self.asked: list[int] = []
        self._remaining = iter(values)

    def stops(self, context: RunContext) -> bool:
        return context.stop_requested

    def take(self, steps: int) -> list[torch.Tensor]:
        self.asked.append(steps)
        taken: list[torch.Tensor] = []
        for value in itertools.islice(self._remaining, steps):
            taken.append(torch.tensor(value))
            if not math.isfinite(value):
                break
        return taken

    def invalidate(self) -> None:
        """There is nothing that could change."""
