import math

import numpy as np
import pytest
import torch

from torch_estimator.errors import InvalidValueError
from torch_estimator.optim import Ftrl


def reference(weights, gradients, *, lr, power=-0.5, start=0.1, l1=0.0, l2=0.0, shrinkage=0.0, beta=0.0):
    """The formula in float64, one weight after the other."""
    result = []
    for w, column in zip(weights.ravel(), gradients.reshape(len(gradients), -1).T, strict=True):
        accumulator, linear = start, 0.0
        for g in column:
            new = accumulator + g * g
            linear += g + 2 * shrinkage * w - (new**-power - accumulator**-power) / lr * w
            quadratic = new**-power / lr + 2 * (l2 + beta / (2 * lr))
            w = (math.copysign(l1, linear) - linear) / quadratic if abs(linear) > l1 else 0.0
            accumulator = new
        result.append(w)
    return np.reshape(result, weights.shape)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({}, {}),
        ({"power": -0.3}, {"learning_rate_power": -0.3}),
        ({"power": 0.0}, {"learning_rate_power": 0.0}),
        ({"l1": 0.7, "l2": 0.2}, {"l1_regularization_strength": 0.7, "l2_regularization_strength": 0.2}),
        ({"shrinkage": 0.1}, {"l2_shrinkage_regularization_strength": 0.1}),
        ({"beta": 0.5, "start": 0.0}, {"beta": 0.5, "initial_accumulator_value": 0.0}),
    ],
)
def test_it_follows_tensorflows_formula(short, long):
    rng = np.random.default_rng(0)
    weights, gradients = rng.normal(size=(4, 3)), rng.normal(size=(20, 4, 3))
    param = torch.nn.Parameter(torch.tensor(weights, dtype=torch.float32))
    optimizer = Ftrl([param], lr=0.2, **long)
    for grad in gradients:
        param.grad = torch.tensor(grad, dtype=torch.float32)
        optimizer.step()
    expected = reference(weights, gradients, lr=0.2, **short)
    np.testing.assert_allclose(param.detach().numpy(), expected, atol=5e-6)


def test_l1_makes_weights_exactly_zero():
    param = torch.nn.Parameter(torch.zeros(2))
    optimizer = Ftrl([param], lr=0.1, l1_regularization_strength=1.0)
    param.grad = torch.tensor([0.5, 2.0])
    optimizer.step()
    assert param[0] == 0.0
    assert param[1] < 0.0


def test_a_weight_without_gradient_or_accumulator_is_zero():
    param = torch.nn.Parameter(torch.zeros(2))
    optimizer = Ftrl([param], lr=0.1, initial_accumulator_value=0.0)
    param.grad = torch.tensor([0.0, 1.0])
    optimizer.step()
    assert param[0] == 0.0
    assert torch.isfinite(param).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": 0.0}, "lr must be greater than 0, but got 0"),
        ({"learning_rate_power": 0.5}, "learning_rate_power must be at most 0, but got 0.5"),
        ({"l1_regularization_strength": -1.0}, "l1_regularization_strength must be at least 0, but got -1"),
        ({"initial_accumulator_value": -0.1}, "initial_accumulator_value must be at least 0, but got -0.1"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments, message):
    with pytest.raises(InvalidValueError, match=message):
        Ftrl([torch.zeros(1, requires_grad=True)], **{"lr": 0.1, **arguments})
