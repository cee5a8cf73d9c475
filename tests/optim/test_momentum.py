"""Momentum is TensorFlow's, on dense parameters and on rows of tables."""

from __future__ import annotations

import pytest
import torch

from tests.compile.test_tracing import Traced
from tests.optim import golden
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.optim import SGD

CASES = {"momentum": SGD(lr=0.1, momentum=0.9), "nesterov": SGD(lr=0.1, momentum=0.9, nesterov=True)}


@pytest.mark.parametrize("name", CASES)
def test_variables_and_slots_are_those_of_tensorflow(name: str) -> None:
    golden.check(name, CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_a_traced_step_computes_the_same(name: str) -> None:
    eager, other = golden.step_of(CASES[name]), golden.step_of(CASES[name])
    traced = Traced(other, golden.batches()[0])
    for batch in golden.batches():
        eager(batch.features, None, None)
        traced(batch, [0.1])
    expected = golden.found(eager)
    for key, tensor in golden.found(other).items():
        torch.testing.assert_close(tensor, expected[key])


def test_dense_momentum_is_that_of_torch_also_by_group() -> None:
    ours, theirs = (torch.ones(3, requires_grad=True) for _ in range(2))
    optimizers = [
        SGD([{"params": [ours], "momentum": 0.5}], lr=0.1),
        torch.optim.SGD([theirs], lr=0.1, momentum=0.5),
    ]
    for _ in range(4):
        for weight, optimizer in zip((ours, theirs), optimizers, strict=True):
            weight.grad = 2 * weight.detach()
            optimizer.step()
    torch.testing.assert_close(ours, theirs)


def test_mistakes_are_sentences() -> None:
    with pytest.raises(InvalidValueError, match=r"momentum must be at least 0, but got -0\.5"):
        SGD(lr=0.1, momentum=-0.5)
    with pytest.raises(InvalidValueError, match="nesterov=True needs momentum, but momentum is 0"):
        SGD(lr=0.1, nesterov=True)
    with pytest.raises(InvalidTypeError, match="nesterov must be True or False, but got 1"):
        SGD(lr=0.1, momentum=0.9, nesterov=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cycle_momentum"):
        torch.optim.lr_scheduler.OneCycleLR(SGD([torch.ones(1, requires_grad=True)], lr=0.1), 0.1, total_steps=9)
