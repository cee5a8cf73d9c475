"""Predicting: hooks are told as often as they ask, and may end it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn
from torch.nn import functional

import torch_estimator as te
from tests.line_jobs import line, points


class Noting(te.Hook):
    def __init__(self, **schedule: Any) -> None:
        self.told: list[str] = []
        vars(self).update(schedule)

    def begin(self, context: te.RunContext) -> None:
        self.told.append(f"begin at {context.global_step}")

    def before_step(self, context: te.RunContext) -> None:
        self.told.append("before")

    def after_step(self, context: te.RunContext) -> None:
        self.told.append("after")

    def end(self, context: te.RunContext) -> None:
        self.told.append("end")


class Dropping(nn.Module):
    def __init__(self, *, always: bool) -> None:
        super().__init__()
        self.always, self.last = always, nn.Linear(1, 1)

    def forward(self, features: Any) -> Tensor:
        return functional.dropout(self.last(features), training=self.training or self.always)


@pytest.mark.parametrize("always", [False, True])
def test_random_numbers_outside_of_training_are_noticed(always: bool, caplog: pytest.LogCaptureFixture) -> None:
    x = np.ones((8, 1), np.float32)
    rows = te.data.Dataset.from_arrays(x, x).batch(4)
    estimator = te.Estimator.from_module(
        Dropping(always=always),
        head=te.RegressionHead(),
        optimizer=te.optim.SGD(lr=0.01),
        model_dir=f"memory://Dropping/{always}",
        config=te.RunConfig(compile=False),
    )
    estimator.train(lambda: rows)
    assert "random numbers" not in caplog.text
    estimator.evaluate(lambda: rows)
    list(estimator.predict(lambda: rows))
    for mode in ("evaluation", "prediction"):
        assert caplog.text.count(f"draws random numbers in {mode}") == int(always)


def test_hooks_are_told_at_the_batches_they_ask_for(tmp_path: Path) -> None:
    estimator = line(tmp_path).train(points, steps=1)
    every, some, none = Noting(), Noting(first_step=2, every_n_steps=3), Noting(first_step=9)
    predictions = list(estimator.predict(partial(points, rows=32), hooks=[every, some, none]))
    assert len(predictions) == 32
    assert every.told == ["begin at 1", *["before", "after"] * 8, "end"]
    assert some.told == ["begin at 1", *["before", "after"] * 3, "end"]
    assert none.told == ["begin at 1", "end"]


def test_a_hook_may_end_it_after_a_batch(tmp_path: Path) -> None:
    class Stopping(Noting):
        def after_step(self, context: te.RunContext) -> None:
            context.request_stop()

    estimator = line(tmp_path).train(points, steps=1)
    hook = Stopping(first_step=2)
    assert len(list(estimator.predict(partial(points, rows=32), hooks=[hook]))) == 8
    assert hook.told[-1] == "end"
