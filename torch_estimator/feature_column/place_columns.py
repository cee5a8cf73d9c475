"""Gives every column its place: checks what is handed to a model and makes its layout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol, TypeAlias, TypeVar

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.bucketized import BucketizedColumn
from torch_estimator.feature_column.categorical import CATEGORICAL_COLUMNS, CategoricalColumn, is_bag
from torch_estimator.feature_column.embedding import EmbeddingColumn
from torch_estimator.feature_column.indicator import IndicatorColumn
from torch_estimator.feature_column.layouts import (
    DNN_EMBEDDING_IDS,
    DNN_EMBEDDING_LISTS,
    DNN_INDICATOR_IDS,
    DNN_NUMERIC,
    LINEAR_IDS,
    Bag,
    EmbeddingTableLayout,
    InputLayout,
    LinearLayout,
    OutputPart,
    PlacedIds,
    PlacedNumbers,
)
from torch_estimator.feature_column.numeric import NumericColumn
from torch_estimator.feature_column.place_ids import Wanted, place_apart, place_ids

DenseColumn: TypeAlias = BucketizedColumn | EmbeddingColumn | IndicatorColumn | NumericColumn


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Column = TypeVar("_Column", bound=_Named)


def linear_layout(columns: Iterable[object]) -> LinearLayout:
    """The layout of a linear model over categorical, bucketized and numeric columns.

    Raises:
        InvalidTypeError: Something that is no column.
        InvalidValueError: Two columns of one name, or a column of another kind.
    """
    categorical: list[CategoricalColumn] = []
    numeric: list[NumericColumn] = []
    for column in columns:
        if isinstance(column, NumericColumn):
            numeric.append(column)
        elif isinstance(column, CATEGORICAL_COLUMNS):
            categorical.append(column)
        else:
            raise _not_linear(column)
    _check_names([*categorical, *numeric], "linear columns")
    placed = place_ids([Wanted(column.name, column.name, column) for column in _by_name(categorical)], LINEAR_IDS)
    numbers, width = _place_numbers(_by_name(numeric))
    return LinearLayout(
        categorical=placed.fixed,
        bags=placed.bags,
        numeric=numbers,
        variables=placed.variables,
        rows=placed.rows,
        slots=placed.slots,
        numeric_width=width,
    )


def input_layout(columns: Iterable[object]) -> InputLayout:
    """The layout of an input layer over numeric, bucketized, indicator and embedding columns.

    Raises:
        InvalidTypeError: Something that is no column.
        InvalidValueError: Two columns of one name, or a bare categorical column.
    """
    dense: list[DenseColumn] = []
    for column in columns:
        if not isinstance(column, (BucketizedColumn, EmbeddingColumn, IndicatorColumn, NumericColumn)):
            raise _not_dense(column)
        dense.append(column)
    _check_names(dense, "network columns")
    dense = _by_name(dense)
    numeric, numeric_width = _place_numbers([c for c in dense if isinstance(c, NumericColumn)])
    indicators, indicator_bags = place_apart(
        [
            Wanted(c.name, c.name, c if isinstance(c, BucketizedColumn) else c.categorical_column)
            for c in dense
            if isinstance(c, (BucketizedColumn, IndicatorColumn))
        ],
        DNN_INDICATOR_IDS,
    )
    tables = _tables([c for c in dense if isinstance(c, EmbeddingColumn)])
    parts = _parts(dense, numeric, indicators.fixed, indicator_bags, tables)
    return InputLayout(
        numeric=numeric,
        numeric_width=numeric_width,
        indicators=indicators.fixed,
        indicator_width=indicators.rows,
        indicator_slots=indicators.slots,
        indicator_bags=indicator_bags,
        tables=tables,
        parts=parts,
        width=parts[-1].stop if parts else 0,
    )


def _not_linear(column: object) -> Exception:
    if isinstance(column, (EmbeddingColumn, IndicatorColumn)):
        return InvalidValueError(
            f"linear columns must be categorical, bucketized or numeric, but got {column.name!r}; "
            f"give the categorical column {column.categorical_column.name!r} itself."
        )
    return InvalidTypeError(f"linear columns must be feature columns, but got {column!r}.")


def _not_dense(column: object) -> Exception:
    if isinstance(column, CATEGORICAL_COLUMNS):
        return InvalidValueError(
            "network columns must be numeric, bucketized, indicator or embedding columns, but got the "
            "categorical "
            f"column {column.name!r}; wrap it in embedding_column() or indicator_column()."
        )
    return InvalidTypeError(f"network columns must be feature columns, but got {column!r}.")


def _by_name(columns: Iterable[_Column]) -> list[_Column]:
    return sorted(columns, key=lambda column: column.name.encode())


def _check_names(columns: Sequence[_Named], where: str) -> None:
    seen: set[str] = set()
    for column in columns:
        if column.name in seen:
            raise InvalidValueError(f"two {where} have the name {column.name!r}; give each column once.")
        seen.add(column.name)


def _place_numbers(columns: Iterable[NumericColumn]) -> tuple[tuple[PlacedNumbers, ...], int]:
    placed: list[PlacedNumbers] = []
    width = 0
    for column in columns:
        placed.append(PlacedNumbers(name=column.name, column=column, start=width, stop=width + column.width))
        width += column.width
    return tuple(placed), width


def _tables(columns: Sequence[EmbeddingColumn]) -> tuple[EmbeddingTableLayout, ...]:
    """One table for all columns that can have one; what they share may not differ."""
    _check_shared(columns)
    kinds = sorted({_kind(column) for column in columns}, key=lambda kind: (kind[0], kind[1], kind[2] or 0.0))
    return tuple(_table([c for c in columns if _kind(c) == kind], *kind) for kind in kinds)


def _table(
    members: Sequence[EmbeddingColumn], dimension: int, trainable: bool, max_norm: float | None
) -> EmbeddingTableLayout:
    placed = place_ids(
        [Wanted(c.name, c.variable, c.categorical_column, c.initializer) for c in members], DNN_EMBEDDING_LISTS
    )
    feature = f"{DNN_EMBEDDING_IDS}{dimension}{'' if trainable else '_frozen'}"
    return EmbeddingTableLayout(
        feature=feature if max_norm is None else f"{feature}_max_norm_{max_norm!r}",
        dimension=dimension,
        rows=placed.rows,
        slots=placed.slots,
        trainable=trainable,
        max_norm=max_norm,
        placed=placed.fixed,
        columns=tuple(c for c in members if not is_bag(c.categorical_column)),
        bags=placed.bags,
        bag_columns=tuple(c for c in members if is_bag(c.categorical_column)),
        variables=placed.variables,
    )


def _kind(column: EmbeddingColumn) -> tuple[int, bool, float | None]:
    return column.dimension, column.trainable, column.max_norm


def _check_shared(columns: Sequence[EmbeddingColumn]) -> None:
    first: dict[str, EmbeddingColumn] = {}
    for column in columns:
        known = first.setdefault(column.variable, column)
        mine = (*_kind(column), column.categorical_column.num_buckets, column.initializer)
        if mine != (*_kind(known), known.categorical_column.num_buckets, known.initializer):
            raise InvalidValueError(
                f"columns {known.name!r} and {column.name!r} share the variable {column.variable!r}, but differ in "
                "dimension, trainable, max_norm, initializer or number of ids; make them with one shared_embeddings() "
                "or give it another shared_embedding_collection_name."
            )


def _parts(
    dense: Sequence[DenseColumn],
    numeric: Sequence[PlacedNumbers],
    indicators: Sequence[PlacedIds],
    indicator_bags: Sequence[Bag],
    tables: Sequence[EmbeddingTableLayout],
) -> tuple[OutputPart, ...]:
    sources: dict[str, tuple[Literal["numeric", "indicator", "embedding"], str, int]] = {}
    sources.update({p.name: ("numeric", DNN_NUMERIC, i) for i, p in enumerate(numeric)})
    sources.update({p.name: ("indicator", DNN_INDICATOR_IDS, i) for i, p in enumerate(indicators)})
    sources.update({bag.name: ("indicator", bag.feature, 0) for bag in indicator_bags})
    for table in tables:
        sources.update({p.name: ("embedding", table.feature, i) for i, p in enumerate(table.placed)})
        sources.update({bag.name: ("embedding", bag.feature, 0) for bag in table.bags})
    parts: list[OutputPart] = []
    start = 0
    for column in dense:
        kind, source, index = sources[column.name]
        width = column.num_buckets if isinstance(column, BucketizedColumn) else column.width
        parts.append(
            OutputPart(name=column.name, kind=kind, source=source, index=index, start=start, stop=start + width)
        )
        start += width
    return tuple(parts)
