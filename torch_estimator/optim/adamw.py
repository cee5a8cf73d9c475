"""AdamW."""

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


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter), as `torch.optim.AdamW` has it::

        w   -= lr * weight_decay * w
        m   += (g - m) * (1 - beta1)
        v   += (g² - v) * (1 - beta2)
        w   -= lr / (1 - beta1**t) * m / (sqrt(v / (1 - beta2**t)) + epsilon)

    It is lazy on tables of ids: only the rows that a batch touches are decayed and updated, where a dense optimizer
    would decay all of them and let their momentum go on; ``t`` counts the steps of the whole table.

    Args:
        params: Parameters, named parameters or groups, as for every torch optimizer; see `Optimizer` for None.
        lr: Learning rate, not negative; 0.001 by default.
        weight_decay: At least 0.
        beta1: Decay of the first moment, in [0, 1).
        beta2: Decay of the second moment, in [0, 1).
        epsilon: Greater than 0.
        learning_rate: TensorFlow's name for ``lr``.

    Raises:
        InvalidValueError: An argument is out of range.
    """

    slot_names: ClassVar[dict[str, str]] = {"m": "AdamW", "v": "AdamW_1", "step": "step"}

    def __init__(
        self,
        params: ParamsT | None = None,
        lr: float | Tensor | None = None,
        *,
        weight_decay: float = 0.01,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        learning_rate: float | Tensor | None = None,
    ) -> None:
        lr = one_learning_rate(AdamW, params, lr, learning_rate, default=0.001)
        check_number("weight_decay", weight_decay, at_least=0.0)
        check_betas(beta1, beta2)
        check_number("epsilon", epsilon, above=0.0)
        super().__init__(params, {"lr": lr, "betas": (beta1, beta2), "epsilon": epsilon, "weight_decay": weight_decay})

    @staticmethod
    def init_state(param: Tensor, group: Group) -> State:
        """Returns both moments, of the shape of `param`, and the 0-dimensional count of finished steps."""
        return moments_like(param)

    @staticmethod
    def update(param: Tensor, grad: Tensor, state: State, group: Group) -> None:
        """Applies the decay and `grad` to `param` and the moments, in place; reads `step`."""
        beta1, beta2 = group["betas"]
        first, second = bias_corrections(state["step"], beta1, beta2)
        decay = group["weight_decay"]
        if isinstance(decay, Tensor) or decay:
            param.mul_(of_dtype(1.0 - group["lr"] * decay, param))
        m, v = update_moments(grad, state, beta1, beta2)
        deviation = v.sqrt() / of_dtype(second**0.5, param) + group["epsilon"]
        param.sub_(of_dtype(group["lr"] / first, param) * m / deviation)

    @staticmethod
    def advance(state: State, group: Group) -> None:
        """Counts one more finished step."""
        advance_step(state)
