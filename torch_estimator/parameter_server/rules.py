"""The update rules of the optimizers of `torch_estimator.optim`, in numpy, so that a server need not import torch.

A rule updates a parameter and its optimizer state in place. It takes the parameter, its gradient, the state by name,
and the settings of the parameter group. Every element is updated independently of the others, so the arrays may be rows
of a table. The step count in the state is a single number. Rules only read it; the caller increments it after the
update.

Each rule has to compute what its class in `torch_estimator.optim` computes. tests/parameter_server/test_rules.py
compares them, and fails if a class has no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

State = Mapping[str, Any]
Settings = Mapping[str, Any]
Rule = Callable[[np.ndarray, np.ndarray, State, Settings], None]


def adagrad(param: np.ndarray, grad: np.ndarray, state: State, settings: Settings) -> None:
    """Apply one Adagrad step to a parameter and its accumulator, in place."""
    accumulator = state["accumulator"]
    change = grad * grad
    accumulator += change
    np.sqrt(accumulator, out=change)
    np.divide(grad, change, out=change)
    change *= settings["lr"]
    param -= change


def adam(param: np.ndarray, grad: np.ndarray, state: State, settings: Settings) -> None:
    """Apply one Adam step to a parameter and its moments, in place. Epsilon is added before the bias correction."""
    beta1, beta2 = settings["betas"]
    first, second = _bias_corrections(state["step"], beta1, beta2)
    m, v = _update_moments(grad, state, beta1, beta2)
    param -= settings["lr"] * (second**0.5 / first) * m / (np.sqrt(v) + settings["epsilon"])


def adamw(param: np.ndarray, grad: np.ndarray, state: State, settings: Settings) -> None:
    """Apply one AdamW step (Adam with decoupled weight decay) to a parameter and its moments, in place."""
    beta1, beta2 = settings["betas"]
    first, second = _bias_corrections(state["step"], beta1, beta2)
    if settings["weight_decay"]:
        param *= 1.0 - settings["lr"] * settings["weight_decay"]
    m, v = _update_moments(grad, state, beta1, beta2)
    param -= settings["lr"] / first * m / (np.sqrt(v) / second**0.5 + settings["epsilon"])


def ftrl(param: np.ndarray, grad: np.ndarray, state: State, settings: Settings) -> None:
    """Apply one FTRL-Proximal step to a parameter, its accumulator and its linear term, in place."""
    lr, l1 = settings["lr"], settings["l1_regularization_strength"]
    shrinkage = settings["l2_shrinkage_regularization_strength"]
    constant = settings["beta"] / lr + 2.0 * settings["l2_regularization_strength"]
    accumulator, linear = state["accumulator"], state["linear"]
    old_power = _power(accumulator, settings)
    accumulator += grad * grad
    quadratic = _power(accumulator, settings)
    old_power -= quadratic
    old_power /= lr
    old_power *= param
    linear += old_power
    linear += grad + 2.0 * shrinkage * param if shrinkage else grad
    quadratic /= lr
    if constant:
        quadratic += constant
    elif not quadratic.all():
        # An accumulator that starts at zero stays zero until its first gradient. Divide by 1 there, so that the result
        # is 0 and not 0 / 0.
        quadratic[quadratic == 0.0] = 1.0
    shrunk = np.clip(linear, -l1, l1) - linear if l1 else np.negative(linear)
    np.divide(shrunk, quadratic, out=param)


def gradient_descent(param: np.ndarray, grad: np.ndarray, state: State, settings: Settings) -> None:
    """Apply one step of gradient descent to a parameter and, if there is any, to its momentum, in place."""
    momentum = state.get("momentum")
    if momentum is not None:
        momentum *= settings["momentum"]
        momentum += grad
        grad = grad + settings["momentum"] * momentum if settings.get("nesterov") else momentum
    param -= grad * settings["lr"]


def rmsprop(param: np.ndarray, grad: np.ndarray, state: State, settings: Settings) -> None:
    """Apply one RMSProp step with momentum to a parameter and its state, in place."""
    mean_square, momentum = state["mean_square"], state["momentum"]
    mean_square += (grad * grad - mean_square) * (1.0 - settings["decay"])
    momentum *= settings["momentum"]
    momentum += settings["lr"] * grad / np.sqrt(mean_square + settings["epsilon"])
    param -= momentum


RULES: Mapping[str, Rule] = {
    "Adagrad": adagrad,
    "Adam": adam,
    "AdamW": adamw,
    "Ftrl": ftrl,
    "GradientDescent": gradient_descent,
    "RMSProp": rmsprop,
}
"""The rules, by the name of their class in `torch_estimator.optim`."""


def _bias_corrections(step: float, beta1: float, beta2: float) -> tuple[float, float]:
    after = float(step) + 1.0
    return 1.0 - beta1**after, 1.0 - beta2**after


def _update_moments(grad: np.ndarray, state: State, beta1: float, beta2: float) -> tuple[np.ndarray, np.ndarray]:
    m, v = state["m"], state["v"]
    m += (grad - m) * (1.0 - beta1)
    v += (grad * grad - v) * (1.0 - beta2)
    return m, v


def _power(accumulator: np.ndarray, settings: Settings) -> np.ndarray:
    exponent = -settings["learning_rate_power"]
    powered: np.ndarray = np.sqrt(accumulator) if exponent == 0.5 else accumulator**exponent
    return powered
