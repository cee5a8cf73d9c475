"""The parameters that one server holds, with their optimizer state, and their update with a worker's gradients.

Dense parameters of one optimizer group are stored one after the other in one array, so that one call of the update rule
is enough for all of them (`DenseBlock`). Each row of a table is stored next to its optimizer state, so that one gather
and one scatter update both (`TableShard`).
"""

from __future__ import annotations

import math
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any

import numpy as np

from torch_estimator.checkpoint.row_file import SavedRows
from torch_estimator.errors import ClusterError
from torch_estimator.parameter_server.large_table import FrozenRows, RowWriting, filled
from torch_estimator.parameter_server.plan import ServerPlan, TablePlan
from torch_estimator.parameter_server.protocol import Push
from torch_estimator.parameter_server.rules import RULES

VALUE = "value"
"""Key of a parameter among the arrays of its optimizer state."""

Arrays = Mapping[str, np.ndarray]

# Keys of optimizer state that counts updates. A counter cannot be recognised by its shape: for a scalar parameter, all
# optimizer state is a single number.
_COUNTERS = ("step",)

_FINITE_CHECK_SIZE = 1 << 16


class Shard:
    """All parameters that this server holds, with their optimizer state.

    Large tables come from `sources`; see `plan.Start`. The keys of `arrays` are ``dense/<index>/<key>`` and
    ``table/<index>/<key>``, with ``value`` for the parameter itself; a table has only the rows that are on this server.
    Raise ValueError if a parameter has another shape than in the plan; other mistakes raise whatever Python raises,
    here or when the optimizer uses them.
    """

    def __init__(
        self, plan: ServerPlan, arrays: Arrays, sources: Mapping[str, Sequence[SavedRows]] = MappingProxyType({})
    ) -> None:
        shapes = {f"dense/{index}/{VALUE}": one.shape for index, one in enumerate(plan.dense)}
        shapes |= {
            f"table/{index}/{VALUE}": (one.rows, one.dim) for index, one in enumerate(plan.tables) if one.large is None
        }
        for name, shape in shapes.items():
            if arrays[name].shape != shape:
                raise ValueError(f"{name} has the shape {arrays[name].shape}, not {shape}")
        self._settings: list[dict[str, Any]] = [dict(group.settings) for group in plan.groups]
        self._changing = [(index, key) for index, group in enumerate(plan.groups) for key in group.changing]
        self._dense = np.zeros(plan.dense_size, plan.dtype)
        self._blocks = list(self._make_blocks(plan, arrays))
        self._plan = plan
        self._tables = [
            self._make_table(table, _with_prefix(arrays, f"table/{index}"), sources)
            for index, table in enumerate(plan.tables)
        ]

    def apply(self, push: Push) -> None:
        """Update the parameters with the gradients that a worker has pushed."""
        for (index, key), number in zip(self._changing, push.settings.tolist(), strict=True):
            settings = self._settings[index]
            # A cyclic schedule of momentum changes the first of Adam's betas.
            settings[key] = (number, *settings[key][1:]) if key == "betas" else number
        for parameters, elements, block in self._blocks:
            present = push.present[parameters]
            if present.any():
                block.update(push.dense[elements], present)
        for table, (ids, gradients) in zip(self._tables, push.tables, strict=True):
            if len(ids):
                table.update(ids, gradients)

    def parameters(self, pull: Sequence[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return all dense parameters ``[dense_size]``, and for each table the requested rows ``[n, dim]``."""
        return self._dense, [table.rows(ids) for table, ids in zip(self._tables, pull, strict=True)]

    def snapshot(self) -> dict[str, np.ndarray]:
        """Return copies of all parameters and their optimizer state, under the names that the constructor takes.

        Rows of large tables are not among them: they are frozen, for `write_rows`.

        ZeroMQ reads the memory of a large message while it sends the message. Without copies, gradients that are
        applied in the meantime would mix several steps in one checkpoint.
        """
        self._frozen = [
            (plan, table.freeze(), table.lock)
            for plan, table in zip(self._plan.tables, self._tables, strict=True)
            if plan.large is not None
        ]
        return {name: np.array(one, order="C") for name, one in self._arrays().items()}

    def write_rows(self, directory: str, server: int) -> RowWriting:
        """Start to write the rows of large tables as they were when `snapshot` was called."""
        frozen, self._frozen = self._frozen, []
        return RowWriting(directory, server, frozen)

    @property
    def has_large_tables(self) -> bool:
        """Whether this server writes rows of large tables itself."""
        return any(one.large is not None for one in self._plan.tables)

    def size(self) -> int:
        """Return the number of elements of all parameters and their optimizer state."""
        return sum(one.size for one in self._arrays(with_large=True).values())

    def _arrays(self, *, with_large: bool = False) -> dict[str, np.ndarray]:
        """Return views of all parameters and their optimizer state, under the names that the constructor takes.

        Only counters are returned of large tables, unless `with_large` is set.
        """
        arrays: dict[str, np.ndarray] = {}
        for parameters, _, block in self._blocks:
            for index, state in zip(range(parameters.start, parameters.stop), block.states(), strict=True):
                arrays |= {f"dense/{index}/{key}": value for key, value in state.items()}
        for index, table in enumerate(self._tables):
            found = table.arrays()
            if self._plan.tables[index].large is not None and not with_large:
                found = {key: one for key, one in found.items() if not one.ndim}
            arrays |= {f"table/{index}/{key}": value for key, value in found.items()}
        return arrays

    def _make_table(
        self, table: TablePlan, arrays: Mapping[str, np.ndarray], sources: Mapping[str, Sequence[SavedRows]]
    ) -> TableShard:
        dtype = self._plan.dtype
        counters = {key: one.astype(dtype) for key, one in arrays.items() if not one.ndim}
        if table.large is None:
            whole = {key: one for key, one in arrays.items() if one.ndim}
            keys = [VALUE, *(key for key in whole if key != VALUE)]
            store = np.empty((table.rows, len(keys), table.dim), dtype)
            for place, key in enumerate(keys):
                store[:, place] = whole[key].reshape(-1, table.dim)
        else:
            keys = [VALUE, *(slot.key for slot in table.large.slots)]
            store = filled(table, dtype, sources)
        return TableShard(self._plan.groups[table.group].rule, self._settings[table.group], keys, store, counters)

    def _make_blocks(self, plan: ServerPlan, arrays: Arrays) -> Iterator[tuple[slice, slice, DenseBlock]]:
        """Yield a `DenseBlock` for each sequence of consecutive dense parameters that belong to one optimizer group.

        The results are the slice of its parameters, the slice of their elements in ``[dense_size]``, and the block.
        """
        start = stop = 0
        for group, indices in groupby(range(len(plan.dense)), lambda index: plan.dense[index].group):
            which = list(indices)
            shapes = [plan.dense[index].shape for index in which]
            start, stop = stop, stop + sum(plan.dense[index].size for index in which)
            states = [_with_prefix(arrays, f"dense/{index}") for index in which]
            rule = plan.groups[group].rule
            if rule in RULES:
                make: type[DenseBlock] = RuleBlock
            else:
                # A server imports torch only for an optimizer that has no rule in numpy: the import takes a second.
                from torch_estimator.parameter_server.torch_block import TorchBlock

                make = TorchBlock
            block = make(rule, self._settings[group], self._dense[start:stop], shapes, states)
            yield slice(which[0], which[-1] + 1), slice(start, stop), block


class DenseBlock(ABC):
    """Dense parameters of one optimizer group, stored one after the other in one array, `values` ``[elements]``.

    The constructor fills the memory of `values` from `states`: for each parameter its ``value`` and its optimizer
    state. The owner changes `settings` between updates.
    """

    def __init__(
        self,
        rule: str,
        settings: Mapping[str, Any],
        values: np.ndarray,
        shapes: Sequence[tuple[int, ...]],
        states: Sequence[Arrays],
    ) -> None:
        self._settings = settings
        self._values = values
        self._shapes = list(shapes)
        ends = np.cumsum([state[VALUE].size for state in states]).tolist()
        self._places = [slice(start, stop) for start, stop in zip([0, *ends], ends, strict=False)]
        for place, state in zip(self._places, states, strict=True):
            values[place] = state[VALUE].reshape(-1)

    @abstractmethod
    def update(self, gradients: np.ndarray, present: np.ndarray) -> None:
        """Update the parameters that have a gradient, which is 1 in `present` (uint8 ``[parameters]``)."""

    @abstractmethod
    def states(self) -> list[dict[str, np.ndarray]]:
        """Return for each parameter views of its ``value`` and its optimizer state."""


class RuleBlock(DenseBlock):
    """Dense parameters that are updated with numpy, by one of the functions in `rules`."""

    def __init__(
        self,
        rule: str,
        settings: Mapping[str, Any],
        values: np.ndarray,
        shapes: Sequence[tuple[int, ...]],
        states: Sequence[Arrays],
    ) -> None:
        super().__init__(rule, settings, values, shapes, states)
        self._rule = RULES[rule]
        first = {key: one for key, one in states[0].items() if key != VALUE}
        counters = [key for key in first if key in _COUNTERS]
        self._state = {
            key: np.concatenate([state[key].reshape(-1) for state in states]) for key in first if key not in counters
        }
        self._counters = {key: np.array([state[key] for state in states]) for key in counters}

    def update(self, gradients: np.ndarray, present: np.ndarray) -> None:
        # If all parameters have a gradient and the same number of updates, one call of the rule updates all of them.
        # Otherwise update each parameter separately: the rule may depend on the number of updates, which is smaller for
        # a parameter that had no gradient in some batch.
        if present.all() and all((one == one[0]).all() for one in self._counters.values()):
            self._update(slice(None), 0, gradients)
            for one in self._counters.values():
                one += 1
            return
        for index in np.flatnonzero(present).tolist():
            self._update(self._places[index], index, gradients)
            for one in self._counters.values():
                one[index] += 1

    def states(self) -> list[dict[str, np.ndarray]]:
        return [
            {
                VALUE: self._values[place].reshape(shape),
                **{key: one[place].reshape(shape) for key, one in self._state.items()},
                **{key: one[index, ...] for key, one in self._counters.items()},
            }
            for index, (place, shape) in enumerate(zip(self._places, self._shapes, strict=True))
        ]

    def _update(self, place: slice, index: int, gradients: np.ndarray) -> None:
        state = {key: one[place] for key, one in self._state.items()}
        counters = {key: one[index] for key, one in self._counters.items()}
        self._rule(self._values[place], gradients[place], {**state, **counters}, self._settings)


class TableShard:
    """The rows of an embedding table that are on this server, with their optimizer state.

    `store` is ``[rows, keys, dim]``: a row is stored next to its optimizer state, so that one gather reads both and one
    scatter writes both. The first of its `keys` is ``value``. The owner changes `settings` between updates.
    """

    def __init__(
        self,
        rule: str,
        settings: Mapping[str, Any],
        keys: Sequence[str],
        store: np.ndarray,
        counters: Mapping[str, np.ndarray],
    ) -> None:
        self.lock = threading.Lock()
        self._update = RULES[rule]
        self._settings = settings
        self._keys, self._store, self._counters = keys, store, dict(counters)
        # A weak reference, so that old rows are no longer kept when nobody is going to read them.
        self._frozen: weakref.ref[FrozenRows] | None = None

    def update(self, ids: np.ndarray, gradients: np.ndarray) -> None:
        """Update rows, whose ids are int64 ``[n]``, each once, with their gradients, ``[n, dim]``."""
        with self.lock:
            if self._frozen is not None:
                if (frozen := self._frozen()) is None:
                    self._frozen = None
                else:
                    frozen.keep(ids)
                    del frozen
            rows = self._store.take(ids, 0)
            state = {key: rows[:, index] for index, key in enumerate(self._keys)}
            self._update(state[VALUE], gradients, {**state, **self._counters}, self._settings)
            self._store[ids] = rows
        for counter in self._counters.values():
            counter += 1

    def freeze(self) -> FrozenRows:
        """Return an object from which the rows can be read as they are now, although they will change."""
        frozen = FrozenRows(self._store)
        self._frozen = weakref.ref(frozen)
        return frozen

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Return the values of the rows with these ids, ``[n, dim]``."""
        values: np.ndarray = self._store[ids, 0]
        return values

    def arrays(self) -> dict[str, np.ndarray]:
        """Return views of the rows and their optimizer state, under the keys that the constructor takes."""
        return {**{key: self._store[:, index] for index, key in enumerate(self._keys)}, **self._counters}


class NotFiniteGradientError(ClusterError):
    """The gradient of a variable is NaN or infinite."""

    def __init__(self, variable: str) -> None:
        super().__init__(f"The gradient of {variable} is NaN or infinite.")
        self.variable = variable


def check_finite(push: Push, plan: ServerPlan) -> None:
    """Raise if a gradient or setting that a worker has pushed is NaN or infinite. Called before any is applied."""
    settings = push.settings.tolist()
    if not all(map(math.isfinite, settings)):
        changing = [(group.rule, key) for group in plan.groups for key in group.changing]
        rule, key, number = next(
            (*setting, number) for setting, number in zip(changing, settings, strict=True) if not math.isfinite(number)
        )
        raise ClusterError(
            f"{key} of {rule} came as {number}, but settings of optimizers must be finite; see the schedule of {key}."
        )
    # Check all gradients at once first, which takes a few microseconds. If that fails, check each variable: a parameter
    # without a gradient has space in the array too, whose numbers do not matter.
    if push.gradients is not None and _is_finite(push.gradients):
        return
    for variable, gradient in _by_variable(push, plan):
        if not _is_finite(gradient.reshape(-1)):
            raise NotFiniteGradientError(variable)


def _is_finite(numbers: np.ndarray) -> bool:
    """Return whether all numbers are finite. Check them in chunks, so that numpy's mask fits into the CPU cache."""
    size = _FINITE_CHECK_SIZE
    return all(np.isfinite(numbers[at : at + size]).all() for at in range(0, len(numbers), size))


def _by_variable(push: Push, plan: ServerPlan) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and the gradient of each variable that a push updates."""
    at = 0
    for one, present in zip(plan.dense, push.present.tolist(), strict=True):
        if present:
            yield one.name, push.dense[at : at + one.size]
        at += one.size
    for table, (_, gradients) in zip(plan.tables, push.tables, strict=True):
        yield table.name, gradients


def _with_prefix(arrays: Arrays, prefix: str) -> dict[str, np.ndarray]:
    """Return the arrays whose names are ``<prefix>/<key>``, by ``<key>``."""
    prefix += "/"
    return {key.removeprefix(prefix): one for key, one in arrays.items() if key.startswith(prefix)}
