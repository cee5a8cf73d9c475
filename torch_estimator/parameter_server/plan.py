"""Content of START, with which the chief gives a server its parameters: their plan, and settings of the training."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

CURSOR, SINCE, INCARNATION = "position", "since", "incarnation"
"""Keys of the reply to HELLO, in addition to those of `Start.about`: the last input cursor of the rank, the number of
batches that the rank has trained on since that cursor, and the incarnation of its latest process."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One parameter group of one optimizer.

    Attributes:
        rule: Name of the optimizer: one of `rules.RULES`, or ``torch.optim.<name>``.
        settings: Settings of the group, as JSON.
        changing: Names of the settings that a schedule may change. Every push carries their values, in this order.
    """

    rule: str
    settings: Mapping[str, Any]
    changing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DensePlan:
    """A parameter that every step updates as a whole.

    Attributes:
        name: Name of the variable, for messages.
        shape: Shape of the parameter.
        group: Index of its group.
    """

    name: str
    shape: tuple[int, ...]
    group: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The rows of a table that one server holds; a step updates only the rows that its batch looks up.

    Attributes:
        name: Name of the variable, for messages.
        rows: Number of rows on this server.
        dim: Length of a row.
        group: Index of its group.
    """

    name: str
    rows: int
    dim: int
    group: int


@dataclass(frozen=True, kw_only=True)
class ServerPlan:
    """Everything that one server holds.

    Attributes:
        dtype: Dtype of all parameters: ``float32`` or ``float64``.
        groups: Parameter groups of all optimizers.
        dense: The dense parameters, in the order of messages.
        tables: The tables, in the order of messages.
    """

    dtype: str
    groups: tuple[GroupPlan, ...]
    dense: tuple[DensePlan, ...]
    tables: tuple[TablePlan, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the plan as JSON."""
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ServerPlan:
        """Read a plan from the result of `as_json`.

        Raises:
            KeyError, TypeError, ValueError: The value is not a plan.
        """
        if value["dtype"] not in ("float32", "float64"):
            raise ValueError(value["dtype"])
        return cls(
            dtype=value["dtype"],
            groups=tuple(GroupPlan(one["rule"], one["settings"], tuple(one["changing"])) for one in value["groups"]),
            dense=tuple(
                DensePlan(one["name"], tuple(map(_whole_number, one["shape"])), _whole_number(one["group"]))
                for one in value["dense"]
            ),
            tables=tuple(
                TablePlan(one["name"], *(_whole_number(one[key]) for key in ("rows", "dim", "group")))
                for one in value["tables"]
            ),
        )

    @cached_property
    def changing_count(self) -> int:
        """Number of settings whose values every push carries."""
        return sum(len(group.changing) for group in self.groups)

    @cached_property
    def dense_size(self) -> int:
        """Number of elements of all dense parameters."""
        return sum(one.size for one in self.dense)

    @cached_property
    def most_exchange_bytes(self) -> int:
        """Size of the largest possible exchange without its header: one that pushes and pulls everything."""
        itemsize = 8 if self.dtype == "float64" else 4
        of_tables = sum(16 + one.rows * (16 + one.dim * itemsize) for one in self.tables)
        return of_tables + 8 * self.changing_count + self.dense_size * itemsize + len(self.dense)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """JSON content of the chief's START. The parameters are in the same message, as arrays.

    Attributes:
        plan: The plan of the server's parameters.
        about: Properties that must be identical in all workers; the reply to HELLO repeats them.
        step: The global step of the parameters.
        last_step: Global step at which training ends, or None.
        names: Names of all workers, by rank.
        silence_secs: Seconds without a message after which a worker is considered to hang; None for never.
        max_staleness: How many steps a worker may be ahead of the slowest one, or None for any number.
        cursors: The input cursors of workers by rank. Under the key `SINCE`, each holds the number of batches that the
            worker has trained on after it.
    """

    plan: ServerPlan
    about: Mapping[str, Any]
    step: int
    last_step: int | None
    names: Sequence[str]
    silence_secs: float | None
    max_staleness: int | None
    cursors: Mapping[str, Mapping[str, Any]]

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Start:
        """Read the JSON that the chief has sent.

        Raises:
            KeyError, TypeError, ValueError: The content is malformed.
        """
        silence_secs = content["silence_secs"]
        names = [str(name) for name in content["names"]]
        cursors = {str(int(rank)): dict(cursor) for rank, cursor in content["cursors"].items()}
        for cursor in cursors.values():
            _whole_number(cursor.get(SINCE, 0))
        if not names:
            raise ValueError("names")
        return cls(
            plan=ServerPlan.from_json(content["plan"]),
            about=dict(content["about"]),
            step=_whole_number(content["step"]),
            last_step=_whole_number_or_none(content["last_step"]),
            names=names,
            silence_secs=None if silence_secs is None else float(silence_secs),
            max_staleness=_whole_number_or_none(content["max_staleness"]),
            cursors=cursors,
        )


def _whole_number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise ValueError(value)
    return value


def _whole_number_or_none(value: Any) -> int | None:
    return None if value is None else _whole_number(value)
