"""Plain gradient descent: the simplest optimizer of this package, and a template for new optimizers."""

from __future__ import annotations

from torch import Tensor

from torch_estimator.optim.base import Group, Optimizer, ParamsT, State, one_learning_rate


class GradientDescent(Optimizer):
    """Gradient descent with the rule ``w -= lr * g`` (`tf.compat.v1.train.GradientDescentOptimizer`).

    Args:
        params: Parameters, named parameters or groups, as for every torch optimizer; None leaves it unbound.
        lr: Learning rate, not negative.
        learning_rate: TensorFlow's name for ``lr``.

    Raises:
        InvalidValueError: An argument is out of range.

    >>> weight = torch.ones(2, requires_grad=True)
    >>> weight.grad = torch.tensor([1.0, -1.0])
    >>> te.optim.SGD([weight], lr=0.5).step()
    >>> weight.tolist()
    [0.5, 1.5]
    """

    def __init__(
        self,
        params: ParamsT | None = None,
        lr: float | Tensor | None = None,
        *,
        learning_rate: float | Tensor | None = None,
    ) -> None:
        super().__init__(params, {"lr": one_learning_rate(GradientDescent, params, lr, learning_rate)})

    @staticmethod
    def update(param: Tensor, grad: Tensor, state: State, group: Group) -> None:
        """Update `param` in place with the gradient `grad`."""
        param.sub_(grad * group["lr"])
