"""Placement of parameters on servers: which server holds which parameter, and how requests are split by server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.initial_values import Distribution
from torch_estimator.parameter_server.lookups import UniqueRows
from torch_estimator.parameter_server.plan import (
    DensePlan,
    GroupPlan,
    LargePlan,
    ServerPlan,
    SlotPlan,
    TablePlan,
    VariablePlan,
)
from torch_estimator.parameter_server.protocol import Push
from torch_estimator.parameter_server.rules import RULES
from torch_estimator.train.live_group import LiveGroup
from torch_estimator.train.sparse_update import SparseUpdate
from torch_estimator.train.step import TrainStep

_NOT_SETTINGS = ("params", "param_names")
_VALUE = "value"


class Placement:
    """Assignment of a model's parameters to servers; `plans` says for each server what it holds.

    Each dense parameter is on one server. Parameters are assigned from the largest to the smallest, each to the server
    that holds the fewest elements so far. Row r of a table is on server ``r % servers``, as row ``r // servers``.
    Gradients are sent with numpy's `dtype`.
    """

    def __init__(self, step: TrainStep, servers: int, dtype: str) -> None:
        self._step = step
        self._servers = servers
        self._groups = [(one, group) for one in step.optimizers for group in one.param_groups]
        self._changing = [_changing_settings(group) for _, group in self._groups]
        self._group_of = {
            parameter: index for index, (_, group) in enumerate(self._groups) for parameter in group["params"]
        }
        names = {parameter: name for name, parameter in step.module.named_parameters()}
        groups = tuple(
            GroupPlan(_rule(optimizer), _settings(group), changing)
            for (optimizer, group), changing in zip(self._groups, self._changing, strict=True)
        )
        self._check_dtypes(names)
        # For each server, the indices in `TrainStep.dense` of the parameters that it holds, in the order of its plan.
        self._dense = _spread([one.numel() for one in step.dense], servers)
        self.plans = [
            ServerPlan(
                dtype=dtype,
                groups=groups,
                dense=tuple(
                    DensePlan(names[one], tuple(one.shape), self._group_of[one])
                    for one in map(step.dense.__getitem__, places)
                ),
                tables=tuple(
                    TablePlan(
                        names[update.table.weight],
                        len(range(server, update.table.rows, servers)),
                        update.table.dim,
                        self._group_of[update.table.weight],
                        _large_plan(update, server, servers),
                    )
                    for update in step.tables
                ),
            )
            for server, places in enumerate(self._dense)
        ]
        # Views of the model's dense parameters, as flat arrays.
        self._values = [one.detach().numpy().reshape(-1) for one in step.dense]
        ends = np.cumsum([0, *map(len, self._values)]).tolist()
        self._slices = [slice(start, stop) for start, stop in pairwise(ends)]

    def changing_settings(self) -> np.ndarray:
        """Return the current values of the optimizer settings that are sent with gradients, float64 ``[changing]``."""
        return np.array(
            [
                float(group[key][0] if key == "betas" else group[key])
                for (_, group), changing in zip(self._groups, self._changing, strict=True)
                for key in changing
            ],
            np.float64,
        )

    def push_for(self, server: int, push: Push | None) -> Push | None:
        """Return one server's part of the gradients of all parameters, which come with the model's row ids."""
        if push is None or self._servers == 1:
            return push
        places = self._dense[server]
        dense = np.concatenate([push.dense[self._slices[place]] for place in places] or [push.dense[:0]])
        tables = []
        for rows, gradients in push.tables:
            here = rows % self._servers == server
            tables.append((rows[here] // self._servers, gradients[here]))
        return Push(push.settings, push.present[places], dense, tables)

    def pull_for(self, server: int, rows: Sequence[UniqueRows] | None) -> list[np.ndarray]:
        """Return for each table the rows to request from a server, as row ids of that server; no rows for None."""
        if rows is None:
            return [np.empty(0, np.int64)] * len(self._step.tables)
        if self._servers == 1:
            return [one.rows for one in rows]
        return [one.rows[one.rows % self._servers == server] // self._servers for one in rows]

    def write_pulled(
        self, server: int, wanted: Sequence[UniqueRows], dense: np.ndarray, rows: Sequence[np.ndarray]
    ) -> None:
        """Write a server's reply to a pull into the model: dense parameters, ``[dense_size]``, and rows, ``[n, dim]``.

        `wanted` are the rows of the batch, of which `pull_for` has requested this server's. Those of a table on servers
        are written into its block, whose rows are in the order of `wanted`.
        """
        at = 0
        for place in self._dense[server]:
            values = self._values[place]
            values[:] = dense[at : at + len(values)]
            at += len(values)
        for update, unique, values in zip(self._step.tables, wanted, rows, strict=True):
            block = update.table.block
            weight = (update.table.weight if block is None else block.values).detach().numpy()
            if self._servers == 1:
                here: Any = slice(None)
            else:
                here = unique.rows % self._servers == server
            weight[unique.rows[here] if block is None else np.arange(len(unique.rows))[here]] = values

    def read_state(self, server: int) -> dict[str, np.ndarray]:
        """Return one server's part of the model's parameters and optimizer state, under the names of `shard.Shard`."""
        arrays: dict[str, np.ndarray] = {}
        for index, place in enumerate(self._dense[server]):
            for key, tensor in self._state_of(self._step.dense[place]).items():
                arrays[f"dense/{index}/{key}"] = tensor.numpy()
        for index, update in enumerate(self._step.tables):
            for key, tensor in self._held(update.table.weight).items():
                arrays[f"table/{index}/{key}"] = self._rows_of(tensor, update.table.rows, server)
        return arrays

    def _held(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return a parameter and its optimizer state, by key, without what only servers hold."""
        return {key: one for key, one in self._state_of(parameter).items() if not one.is_meta}

    def write_state(self, server: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Write the parameters and optimizer state that a server has sent into the model and its optimizers."""
        for index, place in enumerate(self._dense[server]):
            prefix = f"dense/{index}/"
            for name in [name for name in arrays if name.startswith(prefix)]:
                self._write(self._step.dense[place], name.removeprefix(prefix), arrays[name])
        for index, update in enumerate(self._step.tables):
            for key, tensor in self._held(update.table.weight).items():
                self._rows_of(tensor, update.table.rows, server)[...] = arrays[f"table/{index}/{key}"]

    def _state_of(self, parameter: nn.Parameter) -> dict[str, Tensor]:
        """Return a parameter and its optimizer state, by key."""
        optimizer = self._groups[self._group_of[parameter]][0]
        state = optimizer.state.get(parameter, {})
        return {
            _VALUE: parameter.detach(),
            **{key: one for key, one in state.items() if isinstance(one, Tensor)},
        }

    def _write(self, parameter: nn.Parameter, key: str, array: np.ndarray) -> None:
        known = self._state_of(parameter).get(key)
        if known is not None:
            known.copy_(torch.tensor(array))
        else:
            # An optimizer of torch creates its state at its first update. That happened on the server, so here the
            # state does not exist yet.
            self._groups[self._group_of[parameter]][0].state[parameter][key] = torch.tensor(array)

    def _rows_of(self, tensor: Tensor, rows: int, server: int) -> np.ndarray:
        """Return a view of the rows of a table, or of its optimizer state, that are on a server.

        The last row of the model's table stands for missing values, and is on no server.
        """
        whole = tensor.numpy()
        return whole[:rows][server :: self._servers] if whole.ndim else whole

    def _check_dtypes(self, names: Mapping[nn.Parameter, str]) -> None:
        for one in [*self._step.dense, *(update.table.weight for update in self._step.tables)]:
            if one.dtype not in (torch.float32, torch.float64):
                raise InvalidTypeError(
                    f"Parameter servers hold float32 and float64, but {names[one]} is {one.dtype}; use one of these."
                )


def _large_plan(update: SparseUpdate, server: int, servers: int) -> LargePlan | None:
    """Return what a server has to know of its rows of a table that no worker holds; None for another table."""
    table, optimizer = update.table, update.optimizer
    if table.initial is None:
        return None
    seed, pieces = table.initial
    variables = []
    for placed, piece in zip(table.pieces, pieces, strict=True):
        made = piece.initializer
        # Of a function the server reads what the chief has written (`own_initializers`).
        name, scale = (made.quantiles.__name__, made.scale) if isinstance(made, Distribution) else (None, 0.0)
        variables.append(VariablePlan(placed.name, placed.offset, placed.rows, name, scale, seed))
    # The state of a single number shows what the numbers of a table's state are at first.
    one = optimizer.init_state(torch.zeros(1, 1, dtype=table.weight.dtype), update.group)
    slots = [
        SlotPlan(key, optimizer.slot_names.get(key, key), float(state)) for key, state in one.items() if state.ndim
    ]
    return LargePlan(server, servers, tuple(variables), tuple(slots))


def _spread(sizes: Sequence[int], servers: int) -> list[list[int]]:
    """Distribute parameters, given by size, evenly over servers; return for each server their indices."""
    held: list[list[int]] = [[] for _ in range(servers)]
    loads = [0] * servers
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        server = loads.index(min(loads))
        held[server].append(place)
        loads[server] += sizes[place]
    return [sorted(places) for places in held]


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


def _changing_settings(group: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the settings of a parameter group that schedules may change."""
    # Only a cyclic schedule changes ``betas`` or ``momentum``, and it adds ``max_momentum`` to the group.
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
