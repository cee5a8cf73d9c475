"""The rules in numpy compute what the optimizers of torch_estimator.optim compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from torch_estimator import optim
from torch_estimator.parameter_server.rules import RULES

MADE: list[Callable[[Any], optim.Optimizer]] = [
    lambda params: optim.Adagrad(params, lr=0.1),
    lambda params: optim.Adam(params, lr=0.01, beta1=0.8),
    lambda params: optim.AdamW(params, lr=0.01, weight_decay=0.1),
    lambda params: optim.AdamW(params, lr=0.01, weight_decay=0.0),
    lambda params: optim.Ftrl(params, lr=0.2),
    lambda params: optim.Ftrl(
        params,
        lr=0.2,
        learning_rate_power=-0.3,
        initial_accumulator_value=0.0,
        l1_regularization_strength=0.05,
        l2_regularization_strength=0.1,
        l2_shrinkage_regularization_strength=0.02,
        beta=0.5,
    ),
    lambda params: optim.GradientDescent(params, lr=0.3),
    lambda params: optim.GradientDescent(params, lr=0.3, momentum=0.9),
    lambda params: optim.GradientDescent(params, lr=0.3, momentum=0.9, nesterov=True),
    lambda params: optim.RMSProp(params, lr=0.01, decay=0.8, momentum=0.5),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("made", MADE, ids=lambda made: type(made([torch.zeros(1)])).__name__)
def test_rules_compute_what_the_optimizers_compute(made: Callable[[Any], optim.Optimizer], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight = torch.randn(5, 7, dtype=dtype, requires_grad=True)
    optimizer = made([weight])
    state = {key: one.numpy().copy() for key, one in optimizer.state[weight].items()}
    ours = weight.detach().numpy().copy()
    settings = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
    for step in range(20):
        gradient = torch.randn(5, 7, dtype=dtype) * (step != 3)
        weight.grad = gradient
        optimizer.step()
        RULES[type(optimizer).__name__](ours, gradient.numpy(), state, settings)
        if "step" in state:
            state["step"] += 1
    assert ours.dtype == weight.detach().numpy().dtype
    tolerance = 2e-6 if dtype == torch.float32 else 1e-13
    np.testing.assert_allclose(ours, weight.detach().numpy(), rtol=tolerance, atol=tolerance)
    for key, one in optimizer.state[weight].items():
        np.testing.assert_allclose(state[key], one.numpy(), rtol=tolerance, atol=tolerance, err_msg=key)


def test_every_optimizer_has_a_rule() -> None:
    classes = [one for one in vars(optim).values() if isinstance(one, type) and issubclass(one, optim.Optimizer)]
    assert set(RULES) == {one.__name__ for one in classes} - {"Optimizer"}
