"""Activation functions that see every number by itself."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

_FUNCTIONS = (
    *(torch.relu, torch.tanh, torch.sigmoid, torch.selu, torch.celu),
    *(functional.relu, functional.tanh, functional.sigmoid, functional.selu, functional.celu),
    *(functional.relu6, functional.leaky_relu, functional.elu, functional.gelu, functional.silu, functional.mish),
    *(functional.softplus, functional.softsign, functional.hardtanh, functional.hardswish, functional.hardsigmoid),
)
_MODULES = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Identity),
)


def is_elementwise(activation: Any) -> bool:
    """Whether an activation is known to see every number by itself; a user's own function is not."""
    if isinstance(activation, partial) and not activation.args:
        activation = activation.func
    return activation is None or type(activation) in _MODULES or any(activation is one for one in _FUNCTIONS)
