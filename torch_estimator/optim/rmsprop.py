"""RMSProp with momentum, without centering, as in TensorFlow."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from torch_estimator.optim.base import Group, Optimizer, ParamsT, State, check_number, filled_like, one_learning_rate


class RMSProp(Optimizer):
    """RMSProp with momentum, without centering (`tf.compat.v1.train.RMSPropOptimizer`).

    The rule::

        ms  += (g² - ms) * (1 - decay)                    # starts at one
        mom  = momentum * mom + lr * g / sqrt(ms + epsilon)
        w   -= mom

    Args:
        params: Parameters, named parameters or groups, as for every torch optimizer; None leaves it unbound.
        lr: Learning rate, not negative.
        decay: Decay rate of the mean square, in [0, 1].
        momentum: Decay rate of the momentum, at least 0.
        epsilon: Number that is added inside the root, greater than 0.
        learning_rate: TensorFlow's name for ``lr``.

    Raises:
        InvalidValueError: An argument is out of range.

    >>> weight = torch.zeros(1, requires_grad=True)
    >>> optimizer = te.optim.RMSProp([weight], lr=0.1, momentum=0.9)
    >>> for _ in range(2):
    ...     weight.grad = torch.tensor([1.0])
    ...     optimizer.step()
    >>> weight.detach().round(decimals=2)
    tensor([-0.2900])
    """

    slot_names: ClassVar[dict[str, str]] = {"mean_square": "RMSProp", "momentum": "RMSProp_1"}

    def __init__(
        self,
        params: ParamsT | None = None,
        lr: float | Tensor | None = None,
        *,
        decay: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-10,
        learning_rate: float | Tensor | None = None,
    ) -> None:
        lr = one_learning_rate(RMSProp, params, lr, learning_rate)
        check_number("decay", decay, at_least=0.0, at_most=1.0)
        check_number("momentum", momentum, at_least=0.0)
        check_number("epsilon", epsilon, above=0.0)
        super().__init__(params, {"lr": lr, "decay": decay, "momentum": momentum, "epsilon": epsilon})

    @staticmethod
    def init_state(param: Tensor, group: Group) -> State:
        """Return the initial mean square (ones) and momentum (zeros), each in the shape of `param`."""
        return {"mean_square": filled_like(param, 1.0), "momentum": filled_like(param, 0.0)}

    @staticmethod
    def update(param: Tensor, grad: Tensor, state: State, group: Group) -> None:
        """Update `param`, the mean square and the momentum in place."""
        mean_square = state["mean_square"].lerp_(grad * grad, 1.0 - group["decay"])
        change = group["lr"] * grad * (mean_square + group["epsilon"]).rsqrt()
        param.sub_(state["momentum"].mul_(group["momentum"]).add_(change))
