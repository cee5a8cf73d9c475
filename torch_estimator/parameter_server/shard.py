"""The parameters that one server holds, with the state of their optimizers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from torch_estimator.parameter_server.messages import Push
from torch_estimator.parameter_server.plan import ServerPlan
from torch_estimator.parameter_server.rules import RULES
from torch_estimator.parameter_server.runs import VALUE, Arrays, RuleRun, Run


class Shard:
    """All that a plan names.

    Args:
        plan: What there is.
        arrays: By ``dense/<index>/<key>`` and ``table/<index>/<key>`` the parameters (key ``value``) and the
            optimizers' state; of a table the rows that are here.

    Raises:
        ValueError: Parameters have other shapes than the plan's. Whatever else there is that makes no sense raises as
            Python does, here or where the optimizers use it.
    """

    def __init__(self, plan: ServerPlan, arrays: Arrays) -> None:
        shapes = {f"dense/{index}/{VALUE}": one.shape for index, one in enumerate(plan.dense)}
        shapes |= {f"table/{index}/{VALUE}": (one.rows, one.dim) for index, one in enumerate(plan.tables)}
        for name, shape in shapes.items():
            if arrays[name].shape != shape:
                raise ValueError(f"{name} has the shape {arrays[name].shape}, not {shape}")
        self._settings: list[dict[str, Any]] = [dict(group.settings) for group in plan.groups]
        self._moving = [(index, key) for index, group in enumerate(plan.groups) for key in group.moving]
        self._dense = np.zeros(plan.dense_size, plan.dtype)
        self._runs = list(self._made_runs(plan, arrays))
        self._tables = [
            TableShard(
                plan.groups[table.group].rule,
                self._settings[table.group],
                {key: one.astype(plan.dtype) for key, one in _of(arrays, f"table/{index}").items()},
                table.dim,
            )
            for index, table in enumerate(plan.tables)
        ]

    def apply(self, push: Push) -> None:
        """Lets the optimizers see gradients."""
        for (index, key), number in zip(self._moving, push.numbers.tolist(), strict=True):
            settings = self._settings[index]
            settings[key] = (number, *settings[key][1:]) if key == "betas" else number
        for which, place, run in self._runs:
            present = push.present[which]
            if present.any():
                run.update(push.dense[place], present)
        for table, (ids, gradients) in zip(self._tables, push.tables, strict=True):
            if len(ids):
                table.update(ids, gradients)

    def parameters(self, pull: Sequence[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
        """All dense parameters, and by table the rows asked for."""
        return self._dense, [table.rows(ids) for table, ids in zip(self._tables, pull, strict=True)]

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return copies of all parameters and of the whole state, as the constructor takes them.

        They are copies since ZeroMQ reads a large message while it is sent, during which `apply` goes on.
        """
        return {name: np.array(one, order="C") for name, one in self._arrays().items()}

    def size(self) -> int:
        """Return how many numbers are here, state included."""
        return sum(one.size for one in self._arrays().values())

    def _arrays(self) -> dict[str, np.ndarray]:
        """Return views of all parameters and of the whole state."""
        arrays: dict[str, np.ndarray] = {}
        for which, _, run in self._runs:
            for index, part in zip(range(which.start, which.stop), run.parts(), strict=True):
                arrays |= {f"dense/{index}/{key}": value for key, value in part.items()}
        for index, table in enumerate(self._tables):
            arrays |= {f"table/{index}/{key}": value for key, value in table.arrays().items()}
        return arrays

    def _made_runs(self, plan: ServerPlan, arrays: Arrays) -> Iterator[tuple[slice, slice, Run]]:
        """Those that follow each other in one group are updated together: which, where, and what does it."""
        start = stop = 0
        for group, indices in groupby(range(len(plan.dense)), lambda index: plan.dense[index].group):
            which = list(indices)
            shapes = [plan.dense[index].shape for index in which]
            start, stop = stop, stop + sum(plan.dense[index].size for index in which)
            parts = [_of(arrays, f"dense/{index}") for index in which]
            rule = plan.groups[group].rule
            if rule in RULES:
                made: type[Run] = RuleRun
            else:
                from torch_estimator.parameter_server.torch_run import TorchRun

                made = TorchRun
            run = made(rule, self._settings[group], self._dense[start:stop], shapes, parts)
            yield slice(which[0], which[-1] + 1), slice(start, stop), run


class TableShard:
    """The rows of a table that are here, each with its state beside it.

    Args:
        rule: Name of the optimizer's.
        settings: Of its group, as they are at each update.
        arrays: ``value`` ``[rows, dim]`` and the state.
        dim: Numbers in a row.
    """

    def __init__(self, rule: str, settings: Mapping[str, Any], arrays: Arrays, dim: int) -> None:
        self._update = RULES[rule]
        self._settings = settings
        whole = {key: one for key, one in arrays.items() if one.ndim}
        self._scalars = {key: one.copy() for key, one in arrays.items() if not one.ndim}
        self._keys = [VALUE, *(key for key in whole if key != VALUE)]
        # Value and state of a row lie together, so that one gather and one scatter serve all of them.
        self._store = np.stack([whole[key].reshape(-1, dim) for key in self._keys], axis=1)

    def update(self, ids: np.ndarray, gradients: np.ndarray) -> None:
        """Updates rows, int64 ``[n]``, each once, by their gradients ``[n, dim]``."""
        rows = self._store.take(ids, 0)
        state = {key: rows[:, index] for index, key in enumerate(self._keys)}
        self._update(state[VALUE], gradients, {**state, **self._scalars}, self._settings)
        self._store[ids] = rows
        for step in self._scalars.values():
            step += 1

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Values of rows, ``[n, dim]``."""
        values: np.ndarray = self._store[ids, 0]
        return values

    def arrays(self) -> dict[str, np.ndarray]:
        """Return views, by the names that the constructor takes."""
        return {**{key: self._store[:, index] for index, key in enumerate(self._keys)}, **self._scalars}


def _of(arrays: Arrays, prefix: str) -> dict[str, np.ndarray]:
    prefix += "/"
    return {key.removeprefix(prefix): one for key, one in arrays.items() if key.startswith(prefix)}
