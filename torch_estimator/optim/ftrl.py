"""Optimizer FTRL-Proximal ("follow the regularized leader")."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from torch_estimator.optim.base import Group, Optimizer, ParamsT, State, check_number, filled_like, one_learning_rate


class Ftrl(Optimizer):
    """FTRL-Proximal of McMahan et al., "Ad click prediction" (`tf.compat.v1.train.FtrlOptimizer`).

    With ``p = -learning_rate_power`` and ``l2' = l2 + beta / (2 * lr)``::

        acc'    = acc + g²
        linear += g + 2 * l2_shrinkage * w - (acc'**p - acc**p) / lr * w
        w       = (l1 * sign(linear) - linear) / (acc'**p / lr + 2 * l2')   where |linear| > l1, else 0

    Args:
        params: Parameters, named parameters or groups, as for every torch optimizer; None leaves it unbound.
        lr: Learning rate, greater than 0 because the rule divides by it.
        learning_rate_power: Power of the accumulator in the learning rate, at most 0. -0.5 decreases the rate as
            Adagrad does, and 0 keeps it constant.
        initial_accumulator_value: Initial value of the accumulator, at least 0.
        l1_regularization_strength: Strength of the L1 penalty, at least 0. It makes small weights exactly zero.
        l2_regularization_strength: Strength of the L2 penalty, at least 0. It stabilizes the weights.
        l2_shrinkage_regularization_strength: Strength of an L2 penalty that is part of the gradient, at least 0. It
            shrinks the weights.
        beta: The paper's beta, at least 0. A greater one lowers the learning rate of the first steps.
        learning_rate: TensorFlow's name for ``lr``.

    Raises:
        InvalidValueError: An argument is out of range.

    >>> weight = torch.zeros(2, requires_grad=True)
    >>> optimizer = te.optim.Ftrl([weight], lr=1.0, l1_regularization_strength=0.5)
    >>> weight.grad = torch.tensor([0.4, 2.0])
    >>> optimizer.step()
    >>> weight.detach().round(decimals=2)
    tensor([ 0.0000, -0.7400])
    """

    slot_names: ClassVar[dict[str, str]] = {"accumulator": "Ftrl", "linear": "Ftrl_1"}

    def __init__(
        self,
        params: ParamsT | None = None,
        lr: float | Tensor | None = None,
        *,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: float = 0.0,
        learning_rate: float | Tensor | None = None,
    ) -> None:
        lr = one_learning_rate(Ftrl, params, lr, learning_rate)
        check_number("lr", lr, above=0.0)
        check_number("learning_rate_power", learning_rate_power, at_most=0.0)
        not_negative = {
            "initial_accumulator_value": initial_accumulator_value,
            "l1_regularization_strength": l1_regularization_strength,
            "l2_regularization_strength": l2_regularization_strength,
            "l2_shrinkage_regularization_strength": l2_shrinkage_regularization_strength,
            "beta": beta,
        }
        for name, value in not_negative.items():
            check_number(name, value, at_least=0.0)
        super().__init__(params, {"lr": lr, "learning_rate_power": learning_rate_power, **not_negative})

    @staticmethod
    def init_state(param: Tensor, group: Group) -> State:
        """Return the initial accumulator and linear term, each in the shape of `param`."""
        return {
            "accumulator": filled_like(param, group["initial_accumulator_value"]),
            "linear": filled_like(param, 0.0),
        }

    @staticmethod
    def update(param: Tensor, grad: Tensor, state: State, group: Group) -> None:
        """Update `param`, the accumulator and the linear term in place."""
        lr, l1 = group["lr"], group["l1_regularization_strength"]
        shrinkage = group["l2_shrinkage_regularization_strength"]
        accumulator, linear = state["accumulator"], state["linear"]
        old_power = _power(accumulator, group)
        accumulator.addcmul_(grad, grad)
        new_power = _power(accumulator, group)
        shrunk = grad + 2.0 * shrinkage * param if shrinkage else grad
        linear.add_(shrunk - (new_power - old_power) / lr * param)
        quadratic = (new_power + group["beta"]) / lr + 2.0 * group["l2_regularization_strength"]
        # Divide by 1 instead of 0, so that the weight is 0 instead of NaN.
        # An accumulator that starts at zero stays zero until the first gradient.
        quadratic = torch.where(quadratic == 0.0, 1.0, quadratic)
        param.copy_((linear.clamp(-l1, l1) - linear) / quadratic)


def _power(accumulator: Tensor, group: Group) -> Tensor:
    """Return ``accumulator ** -learning_rate_power``."""
    exponent = -group["learning_rate_power"]
    return accumulator.sqrt() if exponent == 0.5 else accumulator.pow(exponent)
