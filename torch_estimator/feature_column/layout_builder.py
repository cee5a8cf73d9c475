"""Builders of layouts. A layout assigns the ids and numbers of columns their positions in a model's input tensors.

A layout is built in two steps. First every column adds its numbers, ids or vectors to a `_LinearBuilder` or
`_NetworkBuilder` (see `Column.add_to_linear` and `Column.add_to_network`). Then, in bytewise order of the columns'
names, all numbers get places in one tensor, and all ids get slots in one tensor and rows of one table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.column import CategoricalColumn, Column, NumberColumn
from torch_estimator.feature_column.embedding import EmbeddingColumn, Initializer
from torch_estimator.feature_column.layouts import (
    DNN,
    LINEAR,
    WEIGHTS_SUFFIX,
    Bag,
    EmbeddingTableLayout,
    InputLayout,
    LinearLayout,
    OutputPart,
    PlacedIds,
    PlacedNumbers,
    Variable,
)
from torch_estimator.feature_column.numeric import NumericColumn


def linear_layout(columns: Iterable[object], prefix: str = LINEAR) -> LinearLayout:
    """Return the layout of a linear model: the positions of columns in its input tensors and weights.

    The keys of its features begin with `prefix`.
    """
    builder = _LinearBuilder(prefix, "linear columns")
    for column in columns:
        if not isinstance(column, Column):
            raise InvalidTypeError(f"linear columns must be feature columns, but got {column!r}.")
        if column.is_sequence:
            raise InvalidValueError(f"linear columns cannot be sequences, but {column.name!r} is one.")
        column.add_to_linear(builder)
    return builder.linear_layout()


def input_layout(columns: Iterable[object], prefix: str = DNN) -> InputLayout:
    """Return the layout of a network's input layer: the positions of columns in its inputs and its output.

    It takes numeric, bucketized, indicator and embedding columns. The keys of its features begin with `prefix`.
    """
    builder = _NetworkBuilder(prefix, "network columns")
    for column in columns:
        if not isinstance(column, Column):
            raise InvalidTypeError(f"network columns must be feature columns, but got {column!r}.")
        if column.is_sequence:
            raise InvalidValueError(
                f"{column.name!r} is a sequence column, which only a recurrent network takes: give it to "
                "te.experimental.RNNClassifier or FeatureTransform(sequence_columns=...), or give its categorical "
                "column multivalent=True to combine the values of a row."
            )
        column.add_to_network(builder)
    return builder.layout()


def sequence_layout(columns: Iterable[Column]) -> InputLayout:
    """Return the layout of a recurrent network's input: the positions of sequence columns in each step.

    It takes numeric columns of sequences, and indicator and embedding columns of categorical ones.
    """
    builder = _NetworkBuilder("sequence", "sequence columns")
    for column in columns:
        if not column.is_sequence:
            raise InvalidValueError(
                f"{column.name!r} is not a sequence column; make it by one of the functions sequence_numeric_column "
                "and sequence_categorical_column_with_..., or give it as a context feature column."
            )
        column.add_to_network(builder)
    return builder.layout()


class _WantedIds(NamedTuple):
    """Request of a column for positions in a tensor of ids, and for rows of the table that the ids index.

    Columns with the same `variable` share their rows.
    """

    name: str
    variable: str
    column: CategoricalColumn
    initializer: Initializer | None = None


class _PlacedTable(NamedTuple):
    """Layout of a table. `fixed` are columns with a fixed number of ids per row, `bags` have lists or weights."""

    fixed: tuple[PlacedIds, ...]
    bags: tuple[Bag, ...]
    variables: tuple[Variable, ...]
    slots: int
    rows: int


class _NetworkBuilder:
    """Builder of an `InputLayout`. Columns add their inputs through the methods of `NetworkInputs`.

    The keys of features begin with `prefix`; errors call the columns `where`.
    """

    def __init__(self, prefix: str, where: str) -> None:
        self._prefix = prefix
        self._where = where
        self._numbers: list[NumberColumn] = []
        self._counts: list[_WantedIds] = []
        self._vectors: list[EmbeddingColumn] = []

    def add_numbers(self, column: NumberColumn) -> None:
        """Add a column of numbers."""
        self._numbers.append(column)

    def add_counts(self, name: str, column: CategoricalColumn) -> None:
        """Add the counts of a categorical column's ids, under the given name."""
        self._counts.append(_WantedIds(name, name, column))

    def add_vectors(self, column: EmbeddingColumn) -> None:
        """Add the vectors of an embedding column."""
        self._vectors.append(column)

    def layout(self) -> InputLayout:
        """Return the layout of all columns that were added."""
        _check_names([*self._numbers, *self._counts, *self._vectors], self._where)
        numeric_feature, indicator_feature = f"{self._prefix}/numeric", f"{self._prefix}/indicator_ids"
        numbers, numeric_width = _place_numbers(_by_name(self._numbers))
        counts = _by_name(self._counts)
        indicators = _place_ids([one for one in counts if not one.column.is_bag], indicator_feature)
        # Lay out each bag (a column with lists or weights) alone: counts need no common table, so ids start at 0.
        bags = tuple(_place_ids([one], indicator_feature).bags[0] for one in counts if one.column.is_bag)
        tables = _tables(_by_name(self._vectors), f"{self._prefix}/embedding_ids")
        found: list[tuple[str, str, int, int]] = []
        found += [(p.name, numeric_feature, i, p.stop - p.start) for i, p in enumerate(numbers)]
        found += [(p.name, indicator_feature, i, p.rows) for i, p in enumerate(indicators.fixed)]
        found += [(bag.name, bag.feature, 0, bag.rows) for bag in bags]
        for table in tables:
            found += [(p.name, table.feature, i, table.dimension) for i, p in enumerate(table.placed)]
            found += [(bag.name, bag.feature, 0, table.dimension) for bag in table.bags]
        parts = _parts(found)
        return InputLayout(
            numeric_feature=numeric_feature,
            numeric=numbers,
            numeric_width=numeric_width,
            indicator_feature=indicator_feature,
            indicators=indicators.fixed,
            indicator_width=indicators.rows,
            indicator_slots=indicators.slots,
            indicator_bags=bags,
            tables=tables,
            parts=parts,
            width=parts[-1].stop if parts else 0,
        )


class _LinearBuilder(_NetworkBuilder):
    """Builder of a `LinearLayout`. Columns add their inputs through the methods of `LinearInputs`."""

    def __init__(self, prefix: str, where: str) -> None:
        super().__init__(prefix, where)
        self._ids: list[_WantedIds] = []

    def add_ids(self, column: CategoricalColumn) -> None:
        """Add the ids of a categorical column to the linear model."""
        self._ids.append(_WantedIds(column.name, column.name, column))

    def linear_layout(self) -> LinearLayout:
        """Return the layout of all columns that were added."""
        _check_names([*self._ids, *self._numbers, *self._counts, *self._vectors], self._where)
        feature = f"{self._prefix}/ids"
        table = _place_ids(_by_name(self._ids), feature)
        return LinearLayout(
            feature=feature,
            categorical=table.fixed,
            bags=table.bags,
            dense=self.layout(),
            variables=table.variables,
            rows=table.rows,
            slots=table.slots,
        )


def _by_name(columns: Iterable[Any]) -> list[Any]:
    return sorted(columns, key=lambda column: column.name.encode())


def _check_names(columns: Sequence[Any], where: str) -> None:
    seen: set[str] = set()
    for column in columns:
        if column.name in seen:
            cure = ", or one of two numeric columns a name" if isinstance(column, NumericColumn) else ""
            raise InvalidValueError(f"two {where} have the name {column.name!r}; give each column once{cure}.")
        seen.add(column.name)


def _place_numbers(columns: Iterable[NumberColumn]) -> tuple[tuple[PlacedNumbers, ...], int]:
    """Assign columns of numbers consecutive positions; return the positions and the total width."""
    placed: list[PlacedNumbers] = []
    width = 0
    for column in columns:
        placed.append(PlacedNumbers(name=column.name, column=column, start=width, stop=width + column.width))
        width += column.width
    return tuple(placed), width


def _place_ids(wanted: Sequence[_WantedIds], bag_feature: str) -> _PlacedTable:
    """Assign each column its rows of one table, and positions in the common tensor of ids or a separate tensor."""
    # Put the rows of columns with lists or weights last, so that the rows of all other columns are consecutive.
    variables: dict[str, Variable] = {}
    rows = 0
    for one in sorted(wanted, key=lambda one: one.column.is_bag):
        if one.variable not in variables:
            size = one.column.num_buckets
            variables[one.variable] = Variable(name=one.variable, offset=rows, rows=size, initializer=one.initializer)
            rows += size
    fixed: list[PlacedIds] = []
    bags: list[Bag] = []
    slots = 0
    for one in wanted:
        variable = variables[one.variable]
        if one.column.is_bag:
            feature = f"{bag_feature}/{one.name}"
            bag = Bag(
                name=one.name,
                column=one.column,
                feature=feature,
                weights=None if one.column.weight_feature is None else feature + WEIGHTS_SUFFIX,
                offset=variable.offset,
                rows=variable.rows,
                padding=rows,
            )
            bags.append(bag)
        else:
            stop = slots + one.column.slots
            place = PlacedIds(
                name=one.name,
                column=one.column,
                start=slots,
                stop=stop,
                offset=variable.offset,
                rows=variable.rows,
            )
            fixed.append(place)
            slots = stop
    return _PlacedTable(tuple(fixed), tuple(bags), tuple(variables.values()), slots, rows)


def _tables(columns: Sequence[EmbeddingColumn], feature: str) -> tuple[EmbeddingTableLayout, ...]:
    """Return the layouts of embedding tables. Columns with equal dimension and settings share a table."""
    _check_shared(columns)
    kinds = sorted({_table_kind(column) for column in columns}, key=lambda kind: (kind[0], kind[1], kind[2] or 0.0))
    return tuple(_table([c for c in columns if _table_kind(c) == kind], feature, *kind) for kind in kinds)


def _table(
    members: Sequence[EmbeddingColumn], prefix: str, dimension: int, trainable: bool, max_norm: float | None
) -> EmbeddingTableLayout:
    placed = _place_ids([_WantedIds(c.name, c.variable, c.categorical_column, c.initializer) for c in members], prefix)
    feature = f"{prefix}_{dimension}{'' if trainable else '_frozen'}"
    return EmbeddingTableLayout(
        feature=feature if max_norm is None else f"{feature}_max_norm_{max_norm!r}",
        dimension=dimension,
        rows=placed.rows,
        slots=placed.slots,
        trainable=trainable,
        max_norm=max_norm,
        placed=placed.fixed,
        columns=tuple(c for c in members if not c.categorical_column.is_bag),
        bags=placed.bags,
        bag_columns=tuple(c for c in members if c.categorical_column.is_bag),
        variables=placed.variables,
    )


def _table_kind(column: EmbeddingColumn) -> tuple[int, bool, float | None]:
    return column.dimension, column.trainable, column.max_norm


def _check_shared(columns: Sequence[EmbeddingColumn]) -> None:
    """Raise InvalidValueError if two columns share an embedding variable, but differ in its shape or settings."""
    first: dict[str, EmbeddingColumn] = {}
    for column in columns:
        known = first.setdefault(column.variable, column)
        mine = (*_table_kind(column), column.categorical_column.num_buckets, column.initializer)
        if mine != (*_table_kind(known), known.categorical_column.num_buckets, known.initializer):
            raise InvalidValueError(
                f"columns {known.name!r} and {column.name!r} share the variable {column.variable!r}, but differ in "
                "dimension, trainable, max_norm, initializer or number of ids; make them with one shared_embeddings() "
                "or give it another shared_embedding_collection_name."
            )


def _parts(found: Iterable[tuple[str, str, int, int]]) -> tuple[OutputPart, ...]:
    """Return the position of each column in the input layer's output, in bytewise order of names.

    `found` gives for each column its name, the key of its source tensor, its index among that tensor's columns, and its
    width.
    """
    parts: list[OutputPart] = []
    start = 0
    for name, source, index, width in sorted(found, key=lambda one: one[0].encode()):
        parts.append(OutputPart(name=name, source=source, index=index, start=start, stop=start + width))
        start += width
    return tuple(parts)
