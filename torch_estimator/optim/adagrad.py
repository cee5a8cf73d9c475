"""Adagrad as in TensorFlow: the sum of squared gradients starts above zero, and there is no epsilon."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from torch_estimator.optim.base import Group, Optimizer, ParamsT, State, check_number, filled_like, one_learning_rate


class Adagrad(Optimizer):
    """Adagrad with the rule ``acc += g²; w -= lr * g / sqrt(acc)`` (`tf.compat.v1.train.AdagradOptimizer`).

    Unlike `torch.optim.Adagrad`, the rule has no epsilon. Instead, the accumulator starts above zero.

    Args:
        params: Parameters, named parameters or groups, as for every torch optimizer; None leaves it unbound.
        lr: Learning rate, not negative.
        initial_accumulator_value: Initial value of the accumulator, greater than 0.
        learning_rate: TensorFlow's name for ``lr``.

    Raises:
        InvalidValueError: An argument is out of range.

    >>> weight = torch.zeros(2, requires_grad=True)
    >>> optimizer = te.optim.Adagrad([weight], lr=1.0, initial_accumulator_value=0.25)
    >>> weight.grad = torch.tensor([0.0, 0.75**0.5])
    >>> optimizer.step()
    >>> weight
    tensor([ 0.0000, -0.8660], requires_grad=True)
    """

    slot_names: ClassVar[dict[str, str]] = {"accumulator": "Adagrad"}

    def __init__(
        self,
        params: ParamsT | None = None,
        lr: float | Tensor | None = None,
        *,
        initial_accumulator_value: float = 0.1,
        learning_rate: float | Tensor | None = None,
    ) -> None:
        lr = one_learning_rate(Adagrad, params, lr, learning_rate)
        check_number("initial_accumulator_value", initial_accumulator_value, above=0.0)
        super().__init__(params, {"lr": lr, "initial_accumulator_value": initial_accumulator_value})

    @staticmethod
    def init_state(param: Tensor, group: Group) -> State:
        """Return the initial accumulator of squared gradients, in the shape of `param`."""
        return {"accumulator": filled_like(param, group["initial_accumulator_value"])}

    @staticmethod
    def update(param: Tensor, grad: Tensor, state: State, group: Group) -> None:
        """Update `param` and the accumulator in place."""
        accumulator = state["accumulator"].addcmul_(grad, grad)
        param.sub_(grad * group["lr"] * accumulator.rsqrt())
