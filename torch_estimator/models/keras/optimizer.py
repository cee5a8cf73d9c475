"""A Keras optimizer as one of torch, so that the engine steps it and keeps its state."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_estimator.errors import CheckpointError


class KerasOptimizer(torch.optim.Optimizer):
    """Hands gradients to the optimizer a model was compiled with.

    `state` holds the Keras optimizer's own variables: the slots of each parameter, and with the first parameter those
    of the whole, such as the count of iterations.

    Args:
        model: Built and compiled.

    Attributes:
        kind: Name of the Keras optimizer.
    """

    def __init__(self, model: Any) -> None:
        self._variables = list(model.trainable_variables)
        self._optimizer = model.optimizer
        self.kind = f"keras.{type(model.optimizer).__name__}"
        super().__init__([variable._value for variable in self._variables], {})
        self._optimizer.build(self._variables)
        for variable in self._optimizer.variables:
            parameter, key = self._place(variable)
            slots = self.state[parameter]
            slots[_unique(key, slots)] = variable._value.detach()

    @property
    def learning_rate(self) -> float:
        """The rate of the coming step."""
        return float(self._optimizer.learning_rate)

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Applies the parameters' gradients."""
        gradients = [variable._value.grad for variable in self._variables]
        with torch.no_grad():
            scaled = [None if one is None else self._optimizer.scale_loss(one) for one in gradients]
            self._optimizer.apply(scaled, self._variables)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copies saved state into the Keras optimizer's variables.

        Raises:
            CheckpointError: Something is missing, or of another shape.
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

    def _place(self, variable: Any) -> tuple[Tensor, str]:
        """The parameter that a variable of the optimizer belongs to, and what it is called there."""
        name = variable.path.rpartition("/")[2]
        best: tuple[int, Tensor] | None = None
        for parameter in self._variables:
            prefix = parameter.path.replace("/", "_") + "_"
            fits = name.startswith(prefix) and (best is None or len(prefix) > best[0])
            if fits:
                best = (len(prefix), parameter._value)
        if best is not None:
            return best[1], name[best[0] :]
        # Keras numbers variables without a name by process.
        return self._variables[0]._value, re.sub(r"^variable_\d+$", "variable", name)


def _unique(key: str, taken: Any) -> str:
    candidate, number = key, 0
    while candidate in taken:
        number += 1
        candidate = f"{key}_{number}"
    return candidate
