"""Adapter from a Keras optimizer to `torch.optim.Optimizer`, so that training can step, save and restore it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_estimator.errors import CheckpointError


class KerasOptimizer(torch.optim.Optimizer):
    """Torch optimizer that lets the optimizer of a compiled Keras model update the parameters.

    `state` contains the Keras optimizer's variables: slots such as the momentum of each parameter and, under the first
    parameter, variables of the whole optimizer, such as the number of iterations. `kind` is the name of the Keras
    optimizer; `builds_lazily` is True because Keras builds parts of a model in its first step.
    """

    builds_lazily = True

    def __init__(self, model: Any) -> None:
        self._variables = list(model.trainable_variables)
        self._optimizer = model.optimizer
        # Keras writes addresses of its objects into others, so that no two processes have the same model. A generator
        # is of one process for the cache key as well, so that compiled steps are not kept in vain.
        self._of_this_process = (one for one in ("",))
        self.kind = f"keras.{type(model.optimizer).__name__}"
        super().__init__([variable._value for variable in self._variables], {})
        self._optimizer.build(self._variables)
        for variable in self._optimizer.variables:
            parameter, key = self._slot(variable)
            slots = self.state[parameter]
            slots[_unique(key, slots)] = variable._value

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step."""
        return float(self._optimizer.learning_rate)

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Let the Keras optimizer update the parameters with their gradients."""
        gradients = [variable._value.grad for variable in self._variables]
        with torch.no_grad():
            scaled = [None if one is None else self._optimizer.scale_loss(one) for one in gradients]
            self._optimizer.apply(scaled, self._variables)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy saved state into the Keras optimizer's variables.

        Raise a CheckpointError if a variable is missing or has another shape.
        """
        for index, variable in enumerate(self._variables):
            saved = state_dict["state"].get(index, {})
            for key, tensor in self.state[variable._value].items():
                if key not in saved or saved[key].shape != tensor.shape:
                    raise CheckpointError(
                        f"The checkpoint's {key!r} of the Keras optimizer for {variable.path} is missing or of another "
                        "shape; compile the model as before, or use another model_dir."
                    )
                tensor.copy_(saved[key])

    def _slot(self, variable: Any) -> tuple[Tensor, str]:
        """Return the parameter to which a variable of the Keras optimizer belongs, and its slot, such as ``momentum``.

        Keras names a slot ``<path of the parameter>_<slot>``; the longest matching path counts.
        """
        name = variable.path.rpartition("/")[2]
        best: tuple[int, Tensor] | None = None
        for parameter in self._variables:
            prefix = parameter.path.replace("/", "_") + "_"
            fits = name.startswith(prefix) and (best is None or len(prefix) > best[0])
            if fits:
                best = (len(prefix), parameter._value)
        if best is not None:
            return best[1], name[best[0] :]
        # Remove the number from an automatic name, because Keras numbers unnamed variables per process.
        return self._variables[0]._value, re.sub(r"^variable_\d+$", "variable", name)


def _unique(key: str, taken: Any) -> str:
    candidate, number = key, 0
    while candidate in taken:
        number += 1
        candidate = f"{key}_{number}"
    return candidate
