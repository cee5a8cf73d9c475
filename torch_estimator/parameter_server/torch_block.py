"""Dense parameters that an optimizer of `torch.optim` updates, on a parameter server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from torch_estimator.parameter_server.shard import VALUE, Arrays, DenseBlock

PREFIX = "torch.optim."


class TorchBlock(DenseBlock):
    """Dense parameters of one optimizer group, updated by an optimizer of `torch.optim`."""

    def __init__(
        self,
        rule: str,
        settings: Mapping[str, Any],
        values: np.ndarray,
        shapes: Sequence[tuple[int, ...]],
        states: Sequence[Arrays],
    ) -> None:
        super().__init__(rule, settings, values, shapes, states)
        # The parameters share the memory of `values`, from which the server replies to pulls.
        self._params = [
            torch.from_numpy(values[place]).view(shape).requires_grad_()
            for place, shape in zip(self._places, shapes, strict=True)
        ]
        # JSON turns tuples, such as Adam's betas, into lists; turn them back.
        given = {key: tuple(one) if isinstance(one, list) else one for key, one in settings.items()}
        optimizer = getattr(torch.optim, rule.removeprefix(PREFIX))
        self._optimizer: torch.optim.Optimizer = optimizer([{"params": self._params, **given}], lr=given["lr"])
        layout = self._optimizer.state_dict()["param_groups"]
        state = {
            index: {key: torch.tensor(one) for key, one in given.items() if key != VALUE}
            for index, given in enumerate(states)
        }
        self._optimizer.load_state_dict(
            {"state": {index: one for index, one in state.items() if one}, "param_groups": layout}
        )

    def update(self, gradients: np.ndarray, present: np.ndarray) -> None:
        # Copy the gradients, because torch warns about read-only memory, such as that of a message.
        given = torch.from_numpy(gradients.copy())
        for param, place, is_there in zip(self._params, self._places, present.tolist(), strict=True):
            param.grad = given[place].view(param.shape) if is_there else None
        self._optimizer.param_groups[0].update(self._settings)
        self._optimizer.step()

    def states(self) -> list[dict[str, np.ndarray]]:
        return [
            {
                VALUE: param.detach().numpy(),
                **{
                    key: one.numpy()
                    for key, one in self._optimizer.state[param].items()
                    if isinstance(one, torch.Tensor)
                },
            }
            for param in self._params
        ]
