"""What a parameter server holds, as the chief tells it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One group of parameters of one optimizer.

    Attributes:
        rule: The optimizer: a name of `rules.RULES`, or ``torch.optim.<name>``.
        settings: Of the group, as JSON.
        moving: Which of the settings come with every push, in their order.
    """

    rule: str
    settings: Mapping[str, Any]
    moving: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DensePlan:
    """A parameter that is updated whole.

    Attributes:
        name: For messages.
        shape: Of the parameter.
        group: Index of its group.
    """

    name: str
    shape: tuple[int, ...]
    group: int

    @property
    def size(self) -> int:
        """Numbers in it."""
        size = 1
        for length in self.shape:
            size *= length
        return size


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The part of a table that a server holds.

    Attributes:
        name: For messages.
        rows: How many rows are here.
        dim: Numbers in a row.
        group: Index of its group.
    """

    name: str
    rows: int
    dim: int
    group: int


@dataclass(frozen=True, kw_only=True)
class ServerPlan:
    """All that one server holds.

    Attributes:
        dtype: Of all parameters: ``float32`` or ``float64``.
        groups: Of all optimizers.
        dense: In the order of messages.
        tables: In the order of messages.
    """

    dtype: str
    groups: tuple[GroupPlan, ...]
    dense: tuple[DensePlan, ...]
    tables: tuple[TablePlan, ...]

    def as_json(self) -> dict[str, Any]:
        """Returns what `from_json` takes."""
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ServerPlan:
        """Returns what `as_json` was called on.

        Raises:
            KeyError, TypeError, ValueError: It was not called on a plan.
        """
        if value["dtype"] not in ("float32", "float64"):
            raise ValueError(value["dtype"])
        return cls(
            dtype=value["dtype"],
            groups=tuple(GroupPlan(one["rule"], one["settings"], tuple(one["moving"])) for one in value["groups"]),
            dense=tuple(
                DensePlan(one["name"], tuple(map(whole_number, one["shape"])), whole_number(one["group"]))
                for one in value["dense"]
            ),
            tables=tuple(
                TablePlan(one["name"], *(whole_number(one[key]) for key in ("rows", "dim", "group")))
                for one in value["tables"]
            ),
        )

    @cached_property
    def moving_count(self) -> int:
        """How many numbers of settings come with every push."""
        return sum(len(group.moving) for group in self.groups)

    @cached_property
    def dense_size(self) -> int:
        """Numbers in all dense parameters."""
        return sum(one.size for one in self.dense)

    @cached_property
    def most_exchange_bytes(self) -> int:
        """How much an exchange takes, header aside, that pushes and pulls everything."""
        of_number = 8 if self.dtype == "float64" else 4
        of_tables = sum(16 + one.rows * (16 + one.dim * of_number) for one in self.tables)
        return of_tables + 8 * self.moving_count + self.dense_size * of_number + len(self.dense)


def whole_number(value: Any) -> int:
    """Returns a value of JSON that has to count something.

    Raises:
        ValueError: It does not.
    """
    if type(value) is not int or not 0 <= value < 1 << 53:
        raise ValueError(value)
    return value
