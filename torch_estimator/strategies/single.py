"""Training in one process.

`SingleSession` is the simplest `Session`, and the one to read first: `begin` prepares the training, `steps` takes its
steps, and `snapshot` returns the content of a checkpoint. Strategies for several processes use it if the cluster has
only one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from torch_estimator.hooks.hook import RunContext
from torch_estimator.strategy import CheckpointContent, Session
from torch_estimator.train.loop import Steps
from torch_estimator.train.runner import StepRunner
from torch_estimator.train.training import Training, own_state

_COMPILED = "compiled"


class SingleSession(Session):
    """Session (see `torch_estimator.strategy`) of a training in one process."""

    _training: Training
    _runner: StepRunner

    def begin(self, training: Training) -> None:
        training.warm_start()
        training.make_optimizers()
        state = {} if training.checkpoint is None else training.checkpoint.state
        training.restore(own_state(state, rank=0, size=1))

    @contextmanager
    def steps(self, training: Training, context: RunContext) -> Iterator[Steps]:
        training.restore_input(training.saved_state)
        self._training = training
        self._runner = training.runner(training.whole_step(), training.saved_state.get(_COMPILED))
        with self._runner:
            yield RunnerSteps(training, self._runner, context)

    def snapshot(self, reserve: Callable[[], str]) -> CheckpointContent:
        state: dict[str, Any] = {**self._training.state(), _COMPILED: self._runner.state()}
        return CheckpointContent(variables=self._training.model.variables(), slots=self._training.slots(), state=state)


class RunnerSteps:
    """Training steps in one process, each with the next batch of the input; see `torch_estimator.train.loop.Steps`."""

    def __init__(self, training: Training, runner: StepRunner, context: RunContext) -> None:
        self._training = training
        self._runner = runner
        self._context = context

    @property
    def steps_per_call(self) -> int:
        return self._runner.steps_per_call

    def stops(self, context: RunContext) -> bool:
        return context.stop_requested

    def take(self, most: int) -> Sequence[Tensor | float]:
        batches = self._training.next_batches(most)
        return () if batches is None else self._runner.take(batches, self._context)

    def invalidate(self) -> None:
        self._runner.invalidate()
