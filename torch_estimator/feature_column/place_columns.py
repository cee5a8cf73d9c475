"""Gives every column its place: checks what is handed to a model and makes its layout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol, TypeAlias, TypeVar

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.bucketized import BucketizedColumn
from torch_estimator.feature_column.categorical import CATEGORICAL_COLUMNS, CategoricalColumn
from torch_estimator.feature_column.embedding import EmbeddingColumn
from torch_estimator.feature_column.indicator import IndicatorColumn
from torch_estimator.feature_column.layouts import (
    DNN_EMBEDDING_IDS,
    DNN_INDICATOR_IDS,
    DNN_NUMERIC,
    EmbeddingTableLayout,
    InputLayout,
    LinearLayout,
    OutputPart,
    PlacedIds,
    PlacedNumbers,
)
from torch_estimator.feature_column.numeric import NumericColumn

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
    placed, slots, rows = _place_ids([(column.name, column) for column in _by_name(categorical)])
    numbers, width = _place_numbers(_by_name(numeric))
    return LinearLayout(categorical=placed, numeric=numbers, rows=rows, slots=slots, numeric_width=width)


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
    indicators, indicator_slots, indicator_width = _place_ids(
        [
            (c.name, c if isinstance(c, BucketizedColumn) else c.categorical_column)
            for c in dense
            if isinstance(c, (BucketizedColumn, IndicatorColumn))
        ]
    )
    tables = _tables([c for c in dense if isinstance(c, EmbeddingColumn)])
    parts = _parts(dense, numeric, indicators, tables)
    return InputLayout(
        numeric=numeric,
        numeric_width=numeric_width,
        indicators=indicators,
        indicator_width=indicator_width,
        indicator_slots=indicator_slots,
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


def _place_ids(named: Iterable[tuple[str, CategoricalColumn]]) -> tuple[tuple[PlacedIds, ...], int, int]:
    placed: list[PlacedIds] = []
    slots = rows = 0
    for name, column in named:
        size = column.num_buckets
        placed.append(
            PlacedIds(name=name, column=column, start=slots, stop=slots + column.slots, offset=rows, rows=size)
        )
        slots += column.slots
        rows += size
    return tuple(placed), slots, rows


def _place_numbers(columns: Iterable[NumericColumn]) -> tuple[tuple[PlacedNumbers, ...], int]:
    placed: list[PlacedNumbers] = []
    width = 0
    for column in columns:
        placed.append(PlacedNumbers(name=column.name, column=column, start=width, stop=width + column.width))
        width += column.width
    return tuple(placed), width


def _tables(columns: Sequence[EmbeddingColumn]) -> tuple[EmbeddingTableLayout, ...]:
    tables = []
    for dimension, trainable in sorted({(c.dimension, c.trainable) for c in columns}):
        members = tuple(c for c in columns if (c.dimension, c.trainable) == (dimension, trainable))
        placed, slots, rows = _place_ids([(c.name, c.categorical_column) for c in members])
        tables.append(
            EmbeddingTableLayout(
                feature=f"{DNN_EMBEDDING_IDS}{dimension}{'' if trainable else '_frozen'}",
                dimension=dimension,
                rows=rows,
                slots=slots,
                trainable=trainable,
                placed=placed,
                columns=members,
            )
        )
    return tuple(tables)


def _parts(
    dense: Sequence[DenseColumn],
    numeric: Sequence[PlacedNumbers],
    indicators: Sequence[PlacedIds],
    tables: Sequence[EmbeddingTableLayout],
) -> tuple[OutputPart, ...]:
    sources: dict[str, tuple[Literal["numeric", "indicator", "embedding"], str, int]] = {}
    sources.update({p.name: ("numeric", DNN_NUMERIC, i) for i, p in enumerate(numeric)})
    sources.update({p.name: ("indicator", DNN_INDICATOR_IDS, i) for i, p in enumerate(indicators)})
    for table in tables:
        sources.update({p.name: ("embedding", table.feature, i) for i, p in enumerate(table.placed)})
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
