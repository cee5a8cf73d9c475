"""What the optimizers of Adam's family share: two moments, a count of steps, and the correction of their start."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_estimator.optim.base import State, check_number

Scalar = float | Tensor


def check_betas(beta1: float, beta2: float) -> None:
    """Raises unless both are in [0, 1)."""
    check_number("beta1", beta1, at_least=0.0, below=1.0)
    check_number("beta2", beta2, at_least=0.0, below=1.0)


def moments_like(param: Tensor) -> State:
    """Returns both moments, of the shape of `param`, and the 0-dimensional count of finished steps."""
    weights = param.detach()
    return {
        "m": torch.zeros_like(weights),
        "v": torch.zeros_like(weights),
        # torch keeps the dtype of a state called "step" when it loads one, whatever the parameter's.
        "step": torch.zeros((), dtype=torch.float32, device=weights.device),
    }


def update_moments(grad: Tensor, state: State, beta1: Scalar, beta2: Scalar) -> tuple[Tensor, Tensor]:
    """Moves both moments towards `grad` and its square, in place, and returns them."""
    m = state["m"].lerp_(grad, of_dtype(1.0 - beta1, grad))
    v = state["v"].lerp_(grad * grad, of_dtype(1.0 - beta2, grad))
    return m, v


def bias_corrections(step: Tensor, beta1: Scalar, beta2: Scalar) -> tuple[Scalar, Scalar]:
    """Returns ``1 - beta1**t`` and ``1 - beta2**t`` in double precision for the step after `step`.

    They are numbers where reading `step` costs nothing, and 0-dimensional tensors in a compiled graph or on a GPU.
    """
    if step.device.type == "cpu" and not torch.compiler.is_compiling():
        t = step.item() + 1.0
        return 1.0 - float(beta1) ** t, 1.0 - float(beta2) ** t
    # In float32 1 - 0.999 is off by 1e-5.
    after = step.double() + 1.0
    return 1.0 - beta1**after, 1.0 - beta2**after


def of_dtype(scalar: Scalar, tensor: Tensor) -> Scalar:
    """Returns `scalar` as an operand that leaves the dtype of `tensor` as it is."""
    return scalar.to(tensor.dtype) if isinstance(scalar, Tensor) else scalar


def advance_step(state: State) -> None:
    """Counts one more finished step."""
    state["step"].add_(1.0)
