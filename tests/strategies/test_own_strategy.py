"""A complete strategy in one file: two copies of the model in one process, each with a batch of its own per step."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

import torch_estimator as te
from tests.line_jobs import line, points
from tests.strategies.contract import Job, check_strategy
from torch_estimator.hooks.hook import RunContext
from torch_estimator.run_config import RunConfig
from torch_estimator.strategy import CheckpointContent, Session, Strategy
from torch_estimator.train.sparse_update import SparseGrad
from torch_estimator.train.step import TrainStep
from torch_estimator.train.training import Training, own_state


class TwoCopies(Strategy):
    """Trains two copies of the model in this process, on the sum of their gradients."""

    @contextmanager
    def join(self, config: RunConfig) -> Iterator[Session]:
        yield TwoCopiesSession(config, config.task)


class TwoCopiesSession(Session):
    """The part of this process, which is all of it."""

    def begin(self, training: Training) -> None:
        training.warm_start()
        training.make_optimizers()
        state = {} if training.checkpoint is None else training.checkpoint.state
        training.restore(own_state(state, rank=0, size=1))

    @contextmanager
    def steps(self, training: Training, context: RunContext) -> Iterator[TwoCopiesSteps]:
        training.restore_input(training.saved_state)
        self._training = training
        yield TwoCopiesSteps(training)

    def snapshot(self, reserve: Callable[[], str]) -> CheckpointContent:
        training = self._training
        return CheckpointContent(variables=training.model.variables(), slots=training.slots(), state=training.state())


class TwoCopiesSteps:
    """Takes a step on two batches; where the input has only one left, on that one."""

    steps_per_call = 1

    def __init__(self, training: Training) -> None:
        module, loss_fn, optimizers = training.step_arguments
        self._training = training
        self._first = training.whole_step()
        # Copied together, the optimizers hold the parameters of the copy.
        self._second = TrainStep(*_copied(module, optimizers, loss_fn))

    def stops(self, context: RunContext) -> bool:
        return context.stop_requested

    def take(self, most: int) -> Sequence[Tensor]:
        given = []
        for step in (self._first, self._second):
            batches = self._training.next_batches(1)
            if batches is not None:
                given.append(step.differentiate(*batches.batch(0)[:3]))
        if not given:
            return ()
        scale = 1 / len(given) if self._training.averages_losses else 1.0
        losses, dense, mentions = zip(*given, strict=True)
        with torch.no_grad():
            left = self._first.apply(
                [_sum([one * scale for one in each if one is not None]) for each in zip(*dense, strict=True)],
                [_joined(each, scale) for each in zip(*mentions, strict=True)],
            )
            loss = self._first.finish(scale * torch.stack(losses).detach().sum(), left)
            for mine, copied in zip(self._first.module.parameters(), self._second.module.parameters(), strict=True):
                copied.copy_(mine)
        return [loss]

    def invalidate(self) -> None:
        self._first.warn_of_thawed()


def _copied(module: object, optimizers: object, loss_fn: object) -> tuple[object, object, object]:
    module, optimizers = copy.deepcopy((module, optimizers))
    return module, loss_fn, optimizers


def _sum(gradients: Sequence[Tensor]) -> Tensor | None:
    return torch.stack(list(gradients)).sum(0) if gradients else None


def _joined(mentions: Sequence[SparseGrad | None], scale: float) -> SparseGrad | None:
    """Return the rows that either batch mentions, and their gradients; a row may come twice."""
    given = [one for one in mentions if one is not None]
    if not given:
        return None
    return torch.cat([rows for rows, _ in given]), torch.cat([scale * gradients for _, gradients in given])


@pytest.mark.parametrize("program", ["census", "births"])
def test_a_strategy_in_one_file_keeps_the_contract(contract_jobs: dict[str, Job], program: str) -> None:
    check_strategy(contract_jobs[program], "tests.strategies.test_own_strategy:TwoCopies()", 2, {})


def test_it_resumes_where_it_stood(tmp_path: Path) -> None:
    whole = line(tmp_path / "whole", train_distribute=TwoCopies()).train(points, steps=10)
    for steps in (4, 6):
        again = line(tmp_path / "resumed", train_distribute=TwoCopies()).train(points, steps=steps)
    assert again.get_variable_value("global_step") == whole.get_variable_value("global_step") == 10
    for name in whole.get_variable_names():
        assert (again.get_variable_value(name) == whole.get_variable_value(name)).all(), name


def test_what_is_no_strategy_is_refused() -> None:
    with pytest.raises(te.errors.InvalidTypeError, match="train_distribute must be"):
        te.RunConfig(train_distribute=TwoCopies)  # type: ignore[arg-type]
