"""Gradient descent, plain or with momentum: the simplest optimizer of this package, and a template for new ones."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.optim.base import Group, Optimizer, ParamsT, State, check_number, filled_like, one_learning_rate


class GradientDescent(Optimizer):
    """Gradient descent with the rule ``w -= lr * g`` (`tf.compat.v1.train.GradientDescentOptimizer`).

    The rule with momentum (`tf.compat.v1.train.MomentumOptimizer`)::

        m  = momentum * m + g
        w -= lr * m                                       # with nesterov: lr * (g + momentum * m)

    In an embedding table, a step changes only the rows that the batch contains, as in TensorFlow. The momentum of the
    other rows does not decay, and does not move them.

    Args:
        params: Parameters, named parameters or groups, as for every torch optimizer; None leaves it unbound.
        lr: Learning rate, not negative.
        momentum: Decay rate of the momentum, at least 0; 0 for none.
        nesterov: Whether to use Nesterov momentum.
        learning_rate: TensorFlow's name for ``lr``.

    Raises:
        InvalidTypeError: ``nesterov`` is not a bool.
        InvalidValueError: An argument is out of range, or there is no momentum for ``nesterov``.

    >>> weight = torch.ones(2, requires_grad=True)
    >>> optimizer = te.optim.SGD([weight], lr=0.5, momentum=0.5)
    >>> for _ in range(2):
    ...     weight.grad = torch.tensor([1.0, -1.0])
    ...     optimizer.step()
    >>> weight.tolist()
    [-0.25, 2.25]
    """

    slot_names: ClassVar[dict[str, str]] = {"momentum": "Momentum"}

    def __init__(
        self,
        params: ParamsT | None = None,
        lr: float | Tensor | None = None,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        learning_rate: float | Tensor | None = None,
    ) -> None:
        lr = one_learning_rate(GradientDescent, params, lr, learning_rate)
        check_number("momentum", momentum, at_least=0.0)
        if not isinstance(nesterov, bool):
            raise InvalidTypeError(f"nesterov must be True or False, but got {nesterov!r}.")
        if nesterov and not momentum:
            raise InvalidValueError("nesterov=True needs momentum, but momentum is 0; give momentum=0.9, for instance.")
        # Without momentum leave the setting out, so that a schedule that cycles the momentum is refused.
        super().__init__(params, {"lr": lr, **({"momentum": momentum, "nesterov": nesterov} if momentum else {})})

    @staticmethod
    def init_state(param: Tensor, group: Group) -> State:
        """Return the initial momentum, zeros in the shape of `param`; no state without momentum."""
        return {"momentum": filled_like(param, 0.0)} if group.get("momentum") else {}

    @staticmethod
    def update(param: Tensor, grad: Tensor, state: State, group: Group) -> None:
        """Update `param` and the momentum in place with the gradient `grad`."""
        if "momentum" in state:
            momentum = state["momentum"].mul_(group["momentum"]).add_(grad)
            grad = grad + momentum * group["momentum"] if group.get("nesterov") else momentum
        param.sub_(grad * group["lr"])
