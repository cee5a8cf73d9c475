"""Adam."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from torch_estimator.optim.base import Group, Optimizer, ParamsT, State, check_learning_rate, check_number


class Adam(Optimizer):
    """Adam in the form with "epsilon hat" (`tf.compat.v1.train.AdamOptimizer`)::

        rate = lr * sqrt(1 - beta2**t) / (1 - beta1**t)
        m   += (g - m) * (1 - beta1)
        v   += (g² - v) * (1 - beta2)
        w   -= rate * m / (sqrt(v) + epsilon)

    `torch.optim.Adam` adds epsilon to the bias-corrected root instead, so the two differ where gradients are
    tiny. Of a row-sparse table only the touched rows move; TensorFlow lets the momentum of the others go on.

    Args:
        params: Parameters, named parameters or groups, as for every torch optimizer.
        lr: Learning rate, not negative.
        beta1: Decay of the first moment, in [0, 1).
        beta2: Decay of the second moment, in [0, 1).
        epsilon: Greater than 0.

    Raises:
        InvalidValueError: An argument is out of range.
    """

    slot_names: ClassVar[dict[str, str]] = {"m": "Adam", "v": "Adam_1", "step": "step"}

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.001,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
    ) -> None:
        check_learning_rate(lr)
        check_number("beta1", beta1, at_least=0.0, below=1.0)
        check_number("beta2", beta2, at_least=0.0, below=1.0)
        check_number("epsilon", epsilon, above=0.0)
        super().__init__(params, {"lr": lr, "beta1": beta1, "beta2": beta2, "epsilon": epsilon})

    @staticmethod
    def init_state(param: Tensor, group: Group) -> State:
        """Returns both moments, of the shape of `param`, and the 0-dimensional count of finished steps."""
        weights = param.detach()
        return {
            "m": torch.zeros_like(weights),
            "v": torch.zeros_like(weights),
            # torch keeps the dtype of a state called "step" when it loads one, whatever the parameter's.
            "step": torch.zeros((), dtype=torch.float32, device=weights.device),
        }

    @staticmethod
    def update(param: Tensor, grad: Tensor, state: State, group: Group) -> None:
        """Applies `grad` to `param` and the moments, in place; reads `step`."""
        beta1, beta2 = group["beta1"], group["beta2"]
        # In float32 1 - 0.999 is off by 1e-5.
        t = state["step"].double() + 1.0
        rate = group["lr"] * ((1.0 - beta2**t).sqrt() / (1.0 - beta1**t)).to(param.dtype)
        m = state["m"].lerp_(grad, 1.0 - beta1)
        v = state["v"].lerp_(grad * grad, 1.0 - beta2)
        param.sub_(rate * m / (v.sqrt() + group["epsilon"]))

    @staticmethod
    def advance(state: State, group: Group) -> None:
        """Counts one more finished step."""
        state["step"].add_(1.0)
