"""The training step itself, taken out of a run of `Estimator.train`: the same code, fed from memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from torch_estimator.engine.compiled.program import StepProgram
from torch_estimator.engine.step import TrainStep


class BareSteps:
    """Takes the steps of a run with nothing around them.

    Args:
        batches: How many of the run's first batches are kept to feed them.

    Attributes:
        ready: Whether the run has been recorded.
    """

    def __init__(self, batches: int) -> None:
        self._wanted = batches
        self._batches: list[tuple[Any, int]] = []
        self._threads = 1
        self._take: Callable[[Any, int], object] | None = None

    @property
    def ready(self) -> bool:
        """Whether all batches were met."""
        return sum(count for _, count in self._batches) >= self._wanted

    def record(self, take: Callable[[Any, int], object], batches: Any, count: int) -> None:
        """Tells of a call of the engine with so many batches, and of what makes such a call."""
        self._take = take
        self._threads = torch.get_num_threads()
        self._batches.append((batches, count))

    def __call__(self, steps: int) -> None:
        """Takes so many steps on the batches kept, over and over, as many in a call as the run took."""
        assert self._take is not None
        strokes = itertools.cycle(self._batches)
        threads = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            while steps > 0:
                batches, count = next(strokes)
                self._take(batches, min(count, steps))
                steps -= count
        finally:
            torch.set_num_threads(threads)


@contextmanager
def recording(steps: BareSteps, *, compiled: bool) -> Iterator[None]:
    """Lets `steps` see what the engine calls in the body, until it has seen enough."""
    owner, name, replaced = (
        (StepProgram, "take", _compiled_take(steps)) if compiled else (TrainStep, "__call__", _eager_call(steps))
    )
    original = getattr(owner, name)

    def seen(self: Any, *given: Any) -> Any:
        if not steps.ready:
            replaced(original, self, *given)
        return original(self, *given)

    setattr(owner, name, seen)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _compiled_take(steps: BareSteps) -> Callable[..., None]:
    def seen(take: Any, program: StepProgram, first: Any, numbers: Any) -> None:
        steps.record(
            lambda batches, count: take(program, batches, numbers[:1].repeat(count, axis=0)), first, len(numbers)
        )

    return seen


def _eager_call(steps: BareSteps) -> Callable[..., None]:
    def seen(call: Any, step: TrainStep, *batch: Any) -> None:
        steps.record(lambda one, _: call(step, *one), batch, 1)

    return seen
