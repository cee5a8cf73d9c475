"""Gives categorical columns their rows of a table, and their slots or bags."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from torch_estimator.feature_column.categorical import CategoricalColumn, is_bag
from torch_estimator.feature_column.embedding import Initializer
from torch_estimator.feature_column.layouts import WEIGHTS_SUFFIX, Bag, PlacedIds, Variable
from torch_estimator.feature_column.weighted import WeightedCategoricalColumn


class Wanted(NamedTuple):
    """A column that wants a place.

    Attributes:
        name: Name of the column handed to the model.
        variable: Name of its rows; columns that share them have the same.
        column: The categorical column that gives the ids.
        initializer: Fills the rows.
    """

    name: str
    variable: str
    column: CategoricalColumn
    initializer: Initializer | None = None


class Placed(NamedTuple):
    """Where columns are: those with a fixed number of ids, the others, and the rows of the table they address."""

    fixed: tuple[PlacedIds, ...]
    bags: tuple[Bag, ...]
    variables: tuple[Variable, ...]
    slots: int
    rows: int


def place_ids(wanted: Iterable[Wanted], bag_feature: str) -> Placed:
    """Places columns of one table, in the order given; columns with lists or weights come last in it.

    Args:
        wanted: The columns.
        bag_feature: What keys of bags begin with.
    """
    given = list(wanted)
    variables = _variables(sorted(given, key=lambda one: is_bag(one.column)))
    rows = sum(variable.rows for variable in variables.values())
    fixed: list[PlacedIds] = []
    bags: list[Bag] = []
    slots = 0
    for one in given:
        variable = variables[one.variable]
        if is_bag(one.column):
            feature = f"{bag_feature}/{one.name}"
            bags.append(
                Bag(
                    name=one.name,
                    column=one.column,
                    feature=feature,
                    weights=feature + WEIGHTS_SUFFIX if isinstance(one.column, WeightedCategoricalColumn) else None,
                    offset=variable.offset,
                    rows=variable.rows,
                    padding=rows,
                )
            )
        else:
            stop = slots + one.column.slots
            fixed.append(
                PlacedIds(
                    name=one.name,
                    column=one.column,
                    start=slots,
                    stop=stop,
                    offset=variable.offset,
                    rows=variable.rows,
                )
            )
            slots = stop
    return Placed(tuple(fixed), tuple(bags), tuple(variables.values()), slots, rows)


def place_apart(wanted: Iterable[Wanted], bag_feature: str) -> tuple[Placed, tuple[Bag, ...]]:
    """Places columns that need no common table: those with a fixed number of ids together, each other one by itself."""
    given = list(wanted)
    together = place_ids([one for one in given if not is_bag(one.column)], bag_feature)
    alone = [place_ids([one], bag_feature).bags[0] for one in given if is_bag(one.column)]
    return together, tuple(alone)


def _variables(wanted: Iterable[Wanted]) -> dict[str, Variable]:
    variables: dict[str, Variable] = {}
    offset = 0
    for one in wanted:
        if one.variable not in variables:
            size = one.column.num_buckets
            variables[one.variable] = Variable(name=one.variable, offset=offset, rows=size, initializer=one.initializer)
            offset += size
    return variables
