"""Optimizers Adam (with TensorFlow's formula) and AdamW (with torch's formula)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from torch_estimator.optim.base import Group, Optimizer, ParamsT, State, check_number, filled_like, one_learning_rate

Scalar = float | Tensor


class Adam(Optimizer):
    """Adam with the formula of `tf.compat.v1.train.AdamOptimizer`: epsilon is the "epsilon hat" of the Adam paper.

    The rule in step t::

        rate = lr * sqrt(1 - beta2**t) / (1 - beta1**t)
        m   += (g - m) * (1 - beta1)
        v   += (g² - v) * (1 - beta2)
        w   -= rate * m / (sqrt(v) + epsilon)

    `torch.optim.Adam` adds epsilon to the bias-corrected root instead, so the two differ if gradients are tiny.

    In an embedding table, a step changes only the rows that the batch contains. TensorFlow also updates the other rows,
    with their momentum.

    Args:
        params: Parameters, named parameters or groups, as for every torch optimizer; None leaves it unbound.
        lr: Learning rate, not negative; 0.001 by default.
        beta1: Decay rate of the first moment, in [0, 1).
        beta2: Decay rate of the second moment, in [0, 1).
        epsilon: Number that is added to the divisor, greater than 0.
        learning_rate: TensorFlow's name for ``lr``.

    Raises:
        InvalidValueError: An argument is out of range.

    >>> weight = torch.zeros(2, requires_grad=True)
    >>> optimizer = te.optim.Adam(lr=0.1)([weight])
    >>> weight.grad = torch.tensor([0.01, -100.0])
    >>> optimizer.step()
    >>> weight.detach().round(decimals=4)
    tensor([-0.1000,  0.1000])
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
        _check_betas(beta1, beta2)
        check_number("epsilon", epsilon, above=0.0)
        super().__init__(params, {"lr": lr, "betas": (beta1, beta2), "epsilon": epsilon})

    @staticmethod
    def init_state(param: Tensor, group: Group) -> State:
        """Return two moments of zeros in the shape of `param`, and the step counter, a 0-dimensional zero."""
        return _moments_like(param)

    @staticmethod
    def update(param: Tensor, grad: Tensor, state: State, group: Group) -> None:
        """Update `param` and both moments in place. Only read the step counter, which `advance` increments."""
        beta1, beta2 = group["betas"]
        first, second = _bias_corrections(state["step"], beta1, beta2)
        rate = _of_dtype(group["lr"] * (second**0.5 / first), param)
        m, v = _update_moments(grad, state, beta1, beta2)
        param.sub_(rate * m / (v.sqrt() + group["epsilon"]))

    @staticmethod
    def advance(state: State, group: Group) -> None:
        """Increment the step counter."""
        state["step"].add_(1.0)


class AdamW(Optimizer):
    """Adam with decoupled weight decay (Loshchilov and Hutter), with the formula of `torch.optim.AdamW`.

    The rule in step t::

        w   -= lr * weight_decay * w
        m   += (g - m) * (1 - beta1)
        v   += (g² - v) * (1 - beta2)
        w   -= lr / (1 - beta1**t) * m / (sqrt(v / (1 - beta2**t)) + epsilon)

    In an embedding table, a step decays and updates only the rows that the batch contains. A dense optimizer would also
    decay the other rows and update them with their momentum. ``t`` counts the steps of the whole table.

    Args:
        params: Parameters, named parameters or groups, as for every torch optimizer; None leaves it unbound.
        lr: Learning rate, not negative; 0.001 by default.
        weight_decay: Factor of the decay, at least 0.
        beta1: Decay rate of the first moment, in [0, 1).
        beta2: Decay rate of the second moment, in [0, 1).
        epsilon: Number that is added to the divisor, greater than 0.
        learning_rate: TensorFlow's name for ``lr``.

    Raises:
        InvalidValueError: An argument is out of range.

    >>> weight = torch.ones(2, requires_grad=True)
    >>> optimizer = te.optim.AdamW(lr=0.1, weight_decay=0.5)([weight])
    >>> weight.grad = torch.tensor([0.0, 3.0])
    >>> optimizer.step()
    >>> weight.detach().round(decimals=4)
    tensor([0.9500, 0.8500])
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
        _check_betas(beta1, beta2)
        check_number("epsilon", epsilon, above=0.0)
        super().__init__(params, {"lr": lr, "betas": (beta1, beta2), "epsilon": epsilon, "weight_decay": weight_decay})

    @staticmethod
    def init_state(param: Tensor, group: Group) -> State:
        """Return two moments of zeros in the shape of `param`, and the step counter, a 0-dimensional zero."""
        return _moments_like(param)

    @staticmethod
    def update(param: Tensor, grad: Tensor, state: State, group: Group) -> None:
        """Apply weight decay to `param`, then update `param` and both moments in place. Only read the step counter."""
        beta1, beta2 = group["betas"]
        first, second = _bias_corrections(state["step"], beta1, beta2)
        decay = group["weight_decay"]
        if isinstance(decay, Tensor) or decay:
            param.mul_(_of_dtype(1.0 - group["lr"] * decay, param))
        m, v = _update_moments(grad, state, beta1, beta2)
        deviation = v.sqrt() / _of_dtype(second**0.5, param) + group["epsilon"]
        param.sub_(_of_dtype(group["lr"] / first, param) * m / deviation)

    @staticmethod
    def advance(state: State, group: Group) -> None:
        """Increment the step counter."""
        state["step"].add_(1.0)


def _check_betas(beta1: float, beta2: float) -> None:
    """Raise InvalidValueError unless both decay rates are in [0, 1)."""
    check_number("beta1", beta1, at_least=0.0, below=1.0)
    check_number("beta2", beta2, at_least=0.0, below=1.0)


def _moments_like(param: Tensor) -> State:
    """Return two moments of zeros in the shape of `param`, and the step counter, a 0-dimensional zero."""
    return {
        "m": filled_like(param, 0.0),
        "v": filled_like(param, 0.0),
        # Call this entry "step", because load_state_dict casts all other state to the dtype of the parameter.
        # It is a number even where parameter servers hold the weights, which are on the device "meta" then.
        "step": torch.zeros((), dtype=torch.float32, device="cpu" if param.is_meta else param.device),
    }


def _update_moments(grad: Tensor, state: State, beta1: Scalar, beta2: Scalar) -> tuple[Tensor, Tensor]:
    """Update the first moment with `grad` and the second with its square, in place, and return both moments."""
    m = state["m"].lerp_(grad, _of_dtype(1.0 - beta1, grad))
    v = state["v"].lerp_(grad * grad, _of_dtype(1.0 - beta2, grad))
    return m, v


def _bias_corrections(step: Tensor, beta1: Scalar, beta2: Scalar) -> tuple[Scalar, Scalar]:
    """Return ``1 - beta1**t`` and ``1 - beta2**t`` in double precision, where t is `step` + 1.

    The results are Python numbers if `step` can be read at no cost. In a compiled graph reading `step` would break the
    graph, and on a GPU it would wait for the device, so there the results are 0-dimensional tensors.
    """
    if step.device.type == "cpu" and not torch.compiler.is_compiling():
        t = step.item() + 1.0
        return 1.0 - float(beta1) ** t, 1.0 - float(beta2) ** t
    # Compute in double precision, because the relative error of 1 - 0.999 is 1e-5 in float32.
    after = step.double() + 1.0
    return 1.0 - beta1**after, 1.0 - beta2**after


def _of_dtype(scalar: Scalar, tensor: Tensor) -> Scalar:
    """Convert `scalar` so that an operation on it and `tensor` keeps the dtype of `tensor`."""
    return scalar.to(tensor.dtype) if isinstance(scalar, Tensor) else scalar
