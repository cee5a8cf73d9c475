"""The training step itself, taken out of a run of `Estimator.train`: the same code, fed from memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from torch_estimator.compile.compiled_runner import CompiledRunner
from torch_estimator.compile.compiled_step import CompiledStep
from torch_estimator.train.step import TrainStep
from torch_estimator.train.threads import threads_for


class BareSteps:
    """Takes the steps of a run with nothing around them, fed with the run's first batches.

    `batches` is how many of these are kept; it is `ready` when they have been recorded.
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

    def record(self, take: Callable[[Any, int], object], batches: Any, count: int, threads: int) -> None:
        """Tells of a call of the engine with so many batches and threads, and of what makes such a call."""
        self._take = take
        self._threads = threads
        self._batches.append((batches, count))

    def __call__(self, steps: int) -> None:
        """Takes so many steps on the batches kept, over and over, as many in a call as the run took."""
        assert self._take is not None
        calls = itertools.cycle(self._batches)
        threads = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            while steps > 0:
                batches, count = next(calls)
                self._take(batches, min(count, steps))
                steps -= count
        finally:
            torch.set_num_threads(threads)


@contextmanager
def recording(steps: BareSteps, *, compiled: bool) -> Iterator[None]:
    """Lets `steps` see what the engine calls in the body, until it has seen enough."""
    owner: type = CompiledRunner if compiled else TrainStep
    name = "_take_compiled" if compiled else "__call__"
    replaced = _compiled_take(steps) if compiled else _eager_call(steps)
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
    def seen(_: Any, run: CompiledRunner, step: CompiledStep, block: Any, batches: Any, start: int, __: Any) -> None:
        settings = np.array([number for group in run._step.groups for number in group.numbers()], np.float32)
        # The block, held here, is the memory that its addresses are of.
        steps.record(
            lambda some, count: step.take(some[0].addresses, some[1], np.tile(settings, (count, 1))),
            (block, batches.start + start),
            batches.count - start,
            threads_for(run._step.module, block.rows, with_input_thread=True),
        )

    return seen


def _eager_call(steps: BareSteps) -> Callable[..., None]:
    def seen(call: Any, step: TrainStep, *batch: Any) -> None:
        steps.record(lambda one, _: call(step, *one), batch, 1, torch.get_num_threads())

    return seen
