"""Where each column's ids and numbers lie in the tensors between the host half and the tensor half."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch_estimator.feature_column.categorical import CategoricalColumn
from torch_estimator.feature_column.embedding import EmbeddingColumn
from torch_estimator.feature_column.numeric import NumericColumn

LINEAR_IDS = "linear/ids"
LINEAR_NUMERIC = "linear/numeric"
DNN_NUMERIC = "dnn/numeric"
DNN_INDICATOR_IDS = "dnn/indicator_ids"
DNN_EMBEDDING_IDS = "dnn/embedding_ids_"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedIds:
    """A categorical column's place among the ids and in the table they address.

    Attributes:
        name: Name of the column handed to the model, for instance ``occupation_embedding``.
        column: The categorical column that gives the ids.
        start: First slot (second axis of the ids).
        stop: End of the slots.
        offset: What is added to the column's ids.
        rows: Rows of the table that belong to the column.
    """

    name: str
    column: CategoricalColumn
    start: int
    stop: int
    offset: int
    rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedNumbers:
    """A numeric column's place among the numbers: second axis, ``start`` to ``stop``."""

    name: str
    column: NumericColumn
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearLayout:
    """Inputs of a linear model, ``"linear/ids"`` and ``"linear/numeric"``.

    Attributes:
        categorical: In name order; ``"linear/ids"`` is int64 ``[N, slots]``.
        numeric: In name order; ``"linear/numeric"`` is float32 ``[N, numeric_width]``.
        rows: Rows of the one weight table; also the id of a missing value.
        slots: Ids per row.
        numeric_width: Numbers per row.
    """

    categorical: tuple[PlacedIds, ...]
    numeric: tuple[PlacedNumbers, ...]
    rows: int
    slots: int
    numeric_width: int

    @property
    def num_columns(self) -> int:
        """Number of columns."""
        return len(self.categorical) + len(self.numeric)


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingTableLayout:
    """Embedding columns of one dimension that share a table.

    Attributes:
        feature: Key of the ids, int64 ``[N, slots]``: ``dnn/embedding_ids_<dim>``, with ``_frozen`` appended
            where the columns are not trainable.
        dimension: Length of the vectors.
        rows: Rows of the table; also the id of a missing value.
        slots: Ids per row.
        trainable: Whether training changes the vectors.
        placed: Columns in name order.
        columns: The embedding columns, in the same order.
    """

    feature: str
    dimension: int
    rows: int
    slots: int
    trainable: bool
    placed: tuple[PlacedIds, ...]
    columns: tuple[EmbeddingColumn, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputPart:
    """One column of the input layer's output.

    Attributes:
        name: Name of the column.
        kind: What it is made from: ``"numeric"``, ``"indicator"`` or ``"embedding"``.
        source: For an embedding the key of its ids (its table's `feature`), else the key of the kind's
            feature.
        index: Place of the column in the layout's `numeric` or `indicators`, or in its table's `placed`.
        start: First column of the output.
        stop: End of its columns of the output.
    """

    name: str
    kind: Literal["numeric", "indicator", "embedding"]
    source: str
    index: int
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True, slots=True)
class InputLayout:
    """Inputs and output order of a network's input layer.

    Attributes:
        numeric: Numeric columns, ``"dnn/numeric"`` float32 ``[N, numeric_width]``.
        indicators: Indicator columns and bucketized columns, ``"dnn/indicator_ids"`` int64 ``[N,
            indicator_slots]``; the id of a missing value is `indicator_width`.
        tables: Embedding columns by dimension.
        parts: All columns in the order of concatenation, bytewise by name.
        width: Numbers per row of the output.
    """

    numeric: tuple[PlacedNumbers, ...]
    numeric_width: int
    indicators: tuple[PlacedIds, ...]
    indicator_width: int
    indicator_slots: int
    tables: tuple[EmbeddingTableLayout, ...]
    parts: tuple[OutputPart, ...]
    width: int

    @property
    def num_columns(self) -> int:
        """Number of columns."""
        return len(self.parts)
