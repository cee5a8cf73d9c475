"""Adam."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from torch_estimator.optim.base import Group, Optimizer, ParamsT, State, check_number, one_learning_rate
from torch_estimator.optim.moments import (
    advance_step,
    bias_corrections,
    check_betas,
    moments_like,
    of_dtype,
    update_moments,
)


class Adam(Optimizer):
    """Adam in the form with "epsilon hat" (`tf.compat.v1.train.AdamOptimizer`)::

        rate = lr * sqrt(1 - beta2**t) / (1 - beta1**t)
        m   += (g - m) * (1 - beta1)
        v   += (g² - v) * (1 - beta2)
        w   -= rate * m / (sqrt(v) + epsilon)

    `torch.optim.Adam` adds epsilon to the bias-corrected root instead, so the two differ where gradients are
    tiny. Of a row-sparse table only the touched rows move; TensorFlow lets the momentum of the others go on.

    Args:
        params: Parameters, named parameters or groups, as for every torch optimizer; see `Optimizer` for None.
        lr: Learning rate, not negative; 0.001 by default.
        beta1: Decay of the first moment, in [0, 1).
        beta2: Decay of the second moment, in [0, 1).
        epsilon: Greater than 0.
        learning_rate: TensorFlow's name for ``lr``.

    Raises:
        InvalidValueError: An argument is out of range.
    """

    slot_names: ClassVar[dict[str, str]] = {"m": "Adam", "v": "Adam_1", "step": "step"}

    def __init__(
        self,
        params: ParamsT | None = None,
        lr: float | Tensor | None = None,
        *,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        learning_rate: float | Tensor | None = None,
    ) -> None:
        lr = one_learning_rate(Adam, params, lr, learning_rate, default=0.001)
        check_betas(beta1, beta2)
        check_number("epsilon", epsilon, above=0.0)
        super().__init__(params, {"lr": lr, "betas": (beta1, beta2), "epsilon": epsilon})

    @staticmethod
    def init_state(param: Tensor, group: Group) -> State:
        """Returns both moments, of the shape of `param`, and the 0-dimensional count of finished steps."""
        return moments_like(param)

    @staticmethod
    def update(param: Tensor, grad: Tensor, state: State, group: Group) -> None:
        """Applies `grad` to `param` and the moments, in place; reads `step`."""
        beta1, beta2 = group["betas"]
        first, second = bias_corrections(state["step"], beta1, beta2)
        rate = of_dtype(group["lr"] * (second**0.5 / first), param)
        m, v = update_moments(grad, state, beta1, beta2)
        param.sub_(rate * m / (v.sqrt() + group["epsilon"]))

    @staticmethod
    def advance(state: State, group: Group) -> None:
        """Counts one more finished step."""
        advance_step(state)
