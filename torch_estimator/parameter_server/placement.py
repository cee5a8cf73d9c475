"""Which parameter is on which server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.parameter_server.plan import DensePlan, GroupPlan, ServerPlan, TablePlan
from torch_estimator.parameter_server.pushed_step import PushedStep
from torch_estimator.parameter_server.rules import RULES
from torch_estimator.train.live_group import LiveGroup

_NOT_SETTINGS = ("params", "param_names")
_VALUE = "value"


class Placement:
    """Spreads the parameters of a step over servers.

    Parameters that are updated whole go to one server each, the largest first, each to the one with the least to hold;
    row r of a table goes to server ``r % servers``, where it is row ``r // servers``.

    Args:
        step: Whose parameters they are.
        servers: How many there are.

    Attributes:
        plans: By server, what it holds.
        dense: By server, which of `TrainStep.dense` it holds, in the order of its plan.

    Raises:
        InvalidTypeError: An optimizer, or a parameter's dtype, is none that servers can have.
    """

    def __init__(self, step: PushedStep, servers: int) -> None:
        self._step = step
        self._servers = servers
        self._groups = [(one, group) for one in step.optimizers for group in one.param_groups]
        self._moving = [_moving(group) for _, group in self._groups]
        self._of = {parameter: index for index, (_, group) in enumerate(self._groups) for parameter in group["params"]}
        names = {parameter: name for name, parameter in step.module.named_parameters()}
        groups = tuple(
            GroupPlan(_rule(optimizer), _settings(group), moving)
            for (optimizer, group), moving in zip(self._groups, self._moving, strict=True)
        )
        self.dense = _spread([one.numel() for one in step.dense], servers)
        self._check_dtypes(names)
        dtype = str(step.message.numpy().dtype)
        self.plans = [
            ServerPlan(
                dtype=dtype,
                groups=groups,
                dense=tuple(
                    DensePlan(names[one], tuple(one.shape), self._of[one]) for one in map(step.dense.__getitem__, mine)
                ),
                tables=tuple(
                    TablePlan(
                        names[update.table.weight],
                        len(range(server, update.table.rows, servers)),
                        update.table.dim,
                        self._of[update.table.weight],
                    )
                    for update in step.tables
                ),
            )
            for server, mine in enumerate(self.dense)
        ]

    def numbers(self) -> np.ndarray:
        """The settings that move, as they are now, float64 ``[moving]``."""
        return np.array(
            [
                float(group[key][0] if key == "betas" else group[key])
                for (_, group), moving in zip(self._groups, self._moving, strict=True)
                for key in moving
            ],
            np.float64,
        )

    def arrays(self, server: int) -> dict[str, np.ndarray]:
        """What the model and its optimizers have of that which a server is to hold."""
        arrays: dict[str, np.ndarray] = {}
        for index, place in enumerate(self.dense[server]):
            for key, tensor in self._all_of(self._step.dense[place]).items():
                arrays[f"dense/{index}/{key}"] = tensor.numpy()
        for index, update in enumerate(self._step.tables):
            for key, tensor in self._all_of(update.table.weight).items():
                arrays[f"table/{index}/{key}"] = self._rows(tensor, update.table.rows, server)
        return arrays

    def take_over(self, server: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Makes what a server holds that of the model and its optimizers."""
        for index, place in enumerate(self.dense[server]):
            prefix = f"dense/{index}/"
            for name in [name for name in arrays if name.startswith(prefix)]:
                self._put(self._step.dense[place], name.removeprefix(prefix), arrays[name])
        for index, update in enumerate(self._step.tables):
            for key, tensor in self._all_of(update.table.weight).items():
                self._rows(tensor, update.table.rows, server)[...] = arrays[f"table/{index}/{key}"]

    def _all_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        optimizer = self._groups[self._of[parameter]][0]
        state = optimizer.state.get(parameter, {})
        return {
            _VALUE: parameter.detach(),
            **{key: one for key, one in state.items() if isinstance(one, Tensor)},
        }

    def _put(self, parameter: nn.Parameter, key: str, array: np.ndarray) -> None:
        known = self._all_of(parameter).get(key)
        if known is not None:
            known.copy_(torch.tensor(array))
        else:
            self._groups[self._of[parameter]][0].state[parameter][key] = torch.tensor(array)

    def _rows(self, tensor: Tensor, rows: int, server: int) -> np.ndarray:
        whole = tensor.numpy()
        return whole[:rows][server :: self._servers] if whole.ndim else whole

    def _check_dtypes(self, names: Mapping[nn.Parameter, str]) -> None:
        for one in [*self._step.dense, *(update.table.weight for update in self._step.tables)]:
            if one.dtype not in (torch.float32, torch.float64):
                raise InvalidTypeError(
                    f"Parameter servers hold float32 and float64, but {names[one]} is {one.dtype}; use one of these."
                )


def _spread(sizes: Sequence[int], servers: int) -> list[list[int]]:
    held: list[list[int]] = [[] for _ in range(servers)]
    loads = [0] * servers
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        server = loads.index(min(loads))
        held[server].append(place)
        loads[server] += sizes[place]
    return [sorted(mine) for mine in held]


def _rule(optimizer: torch.optim.Optimizer) -> str:
    kind = type(optimizer)
    if kind.__name__ in RULES and kind.__module__.startswith("torch_estimator.optim."):
        return kind.__name__
    if getattr(torch.optim, kind.__name__, None) is kind and kind is not torch.optim.SparseAdam:
        return f"torch.optim.{kind.__name__}"
    raise InvalidTypeError(
        "Parameter servers can have the optimizers of torch_estimator.optim and torch.optim, but the model has "
        f"{kind.__module__}.{kind.__qualname__}; use one of those, or a cluster without 'ps'."
    )


def _moving(group: Mapping[str, Any]) -> tuple[str, ...]:
    cycled = ("betas", "momentum") if "max_momentum" in group else ()
    return tuple(
        key for key in LiveGroup.MOVING if key in group and (key not in ("betas", "momentum") or key in cycled)
    )


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    settings = {}
    for key, value in group.items():
        if key in _NOT_SETTINGS:
            continue
        value = value.item() if isinstance(value, Tensor) else value
        value = list(value) if isinstance(value, tuple) else value
        if not isinstance(value, int | float | str | list | None):
            raise InvalidValueError(
                f"Parameter servers take settings of optimizers that are numbers, but {key} is {value!r}; use a number."
            )
        settings[key] = value
    return settings
