"""Where each column's ids and numbers lie in the tensors between the host half and the tensor half."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch_estimator.feature_column.categorical import CategoricalColumn
from torch_estimator.feature_column.embedding import EmbeddingColumn, Initializer
from torch_estimator.feature_column.numeric import NumericColumn

LINEAR_IDS = "linear/ids"
LINEAR_NUMERIC = "linear/numeric"
DNN_NUMERIC = "dnn/numeric"
DNN_INDICATOR_IDS = "dnn/indicator_ids"
DNN_EMBEDDING_IDS = "dnn/embedding_ids_"
DNN_EMBEDDING_LISTS = "dnn/embedding_ids"
WEIGHTS_SUFFIX = "/weights"


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
class Bag:
    """A categorical column with lists of ids or with weights: it has tensors of its own.

    Attributes:
        name: Name of the column handed to the model.
        column: The categorical column that gives the ids.
        feature: Key of the ids, int64 ``[N, L]``; L is the same for all rows of a batch.
        weights: Key of their weights, float32 ``[N, L]`` with zeros where there is no id; None where all are 1.
        offset: What is added to the column's ids.
        rows: Rows of the table that belong to the column.
        padding: The id where there is none.
    """

    name: str
    column: CategoricalColumn
    feature: str
    weights: str | None
    offset: int
    rows: int
    padding: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedNumbers:
    """A numeric column's place among the numbers: second axis, ``start`` to ``stop``."""

    name: str
    column: NumericColumn
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Variable:
    """A part of a table: rows ``offset`` to ``offset + rows``.

    Attributes:
        name: Name of the column, or of the collection of shared embeddings.
        offset: First row.
        rows: Number of rows.
        initializer: Fills the rows; None for the default.
    """

    name: str
    offset: int
    rows: int
    initializer: Initializer | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearLayout:
    """Inputs of a linear model, ``"linear/ids"`` and ``"linear/numeric"``, and those of its `bags`.

    Attributes:
        categorical: In name order; ``"linear/ids"`` is int64 ``[N, slots]``.
        bags: Columns with lists or weights, in name order; ``"linear/ids/<name>"``.
        numeric: In name order; ``"linear/numeric"`` is float32 ``[N, numeric_width]``.
        variables: The rows of the one weight table, in order.
        rows: Rows of that table; also the id of a missing value.
        slots: Ids per row.
        numeric_width: Numbers per row.
    """

    categorical: tuple[PlacedIds, ...]
    bags: tuple[Bag, ...]
    numeric: tuple[PlacedNumbers, ...]
    variables: tuple[Variable, ...]
    rows: int
    slots: int
    numeric_width: int

    @property
    def num_columns(self) -> int:
        """Number of columns."""
        return len(self.categorical) + len(self.bags) + len(self.numeric)


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingTableLayout:
    """Embedding columns of one dimension that share a table.

    Attributes:
        feature: Key of the ids, int64 ``[N, slots]``: ``dnn/embedding_ids_<dim>``, with ``_frozen`` appended
            where the columns are not trainable and ``_max_norm_<norm>`` where their vectors are clipped.
        dimension: Length of the vectors.
        rows: Rows of the table; also the id of a missing value.
        slots: Ids per row.
        trainable: Whether training changes the vectors.
        max_norm: What longer vectors are shortened to, or None.
        placed: Columns in name order.
        columns: The embedding columns, in the same order.
        bags: Columns with lists or weights, in name order; ``"dnn/embedding_ids/<name>"``.
        bag_columns: The embedding columns of `bags`.
        variables: The rows of the table, in order.
    """

    feature: str
    dimension: int
    rows: int
    slots: int
    trainable: bool
    max_norm: float | None
    placed: tuple[PlacedIds, ...]
    columns: tuple[EmbeddingColumn, ...]
    bags: tuple[Bag, ...]
    bag_columns: tuple[EmbeddingColumn, ...]
    variables: tuple[Variable, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputPart:
    """One column of the input layer's output.

    Attributes:
        name: Name of the column.
        kind: What it is made from: ``"numeric"``, ``"indicator"`` or ``"embedding"``.
        source: The key of its bag's ids; or for an embedding the key of its ids (its table's `feature`), else the key
            of the kind's feature.
        index: Place of the column in the layout's `numeric` or `indicators`, or in its table's `placed`; 0 for a bag.
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
        indicator_bags: Indicator columns with lists or weights, ``"dnn/indicator_ids/<name>"``.
        tables: Embedding columns by dimension.
        parts: All columns in the order of concatenation, bytewise by name.
        width: Numbers per row of the output.
    """

    numeric: tuple[PlacedNumbers, ...]
    numeric_width: int
    indicators: tuple[PlacedIds, ...]
    indicator_width: int
    indicator_slots: int
    indicator_bags: tuple[Bag, ...]
    tables: tuple[EmbeddingTableLayout, ...]
    parts: tuple[OutputPart, ...]
    width: int

    @property
    def num_columns(self) -> int:
        """Number of columns."""
        return len(self.parts)
