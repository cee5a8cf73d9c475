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
        self._batches: list[Any] = []
        self._stroke = 1
        self._threads = 1
        self._take: Callable[[list[Any]], object] | None = None

    @property
    def ready(self) -> bool:
        """Whether all batches were met."""
        return len(self._batches) == self._wanted

    def record(self, take: Callable[[list[Any]], object], batches: list[Any]) -> None:
        """Tells of a call of the engine, with what makes the same call with other batches."""
        self._take = take
        self._stroke = max(self._stroke, len(batches))
        self._threads = torch.get_num_threads()
        self._batches += batches[: self._wanted - len(self._batches)]

    def __call__(self, steps: int) -> None:
        """Takes so many steps on the batches kept, over and over, as many in a call as the run takes at most."""
        assert self._take is not None
        starts = range(0, len(self._batches), self._stroke)
        strokes = itertools.cycle([self._batches[start : start + self._stroke] for start in starts])
        threads = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            while steps > 0:
                some = next(strokes)[:steps]
                self._take(some)
                steps -= len(some)
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
    def seen(take: Any, program: StepProgram, batches: Any, numbers: Any) -> None:
        setting = numbers[:1]
        steps.record(lambda some: take(program, some, setting.repeat(len(some), axis=0)), list(batches))

    return seen


def _eager_call(steps: BareSteps) -> Callable[..., None]:
    def seen(call: Any, step: TrainStep, *batch: Any) -> None:
        steps.record(lambda some: [call(step, *one) for one in some], [batch])

    return seen
