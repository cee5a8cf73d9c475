"""Layouts: the positions of each column's ids and numbers in the tensors that `FeatureTransform` creates.

All columns with a fixed number of ids are side by side in one tensor, and their variables are rows of one table, so
that one gather serves them all. `layout_builder` makes the layouts.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_estimator.feature_column.column import CategoricalColumn, NumberColumn
from torch_estimator.feature_column.embedding import EmbeddingColumn, Initializer

LINEAR = "linear"
DNN = "dnn"
WEIGHTS_SUFFIX = "/weights"
SEQUENCE_NUMERIC = "sequence/numeric"
SEQUENCE_LENGTHS = "sequence/lengths"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedIds:
    """Position of a categorical column in a tensor of ids, and in the table that the ids index.

    The column's ids are at ``start`` to ``stop`` (exclusive) on the second axis of the tensor. `offset` is its first
    row in the table, which is added to the ids. `name` is that of the column passed to the model, for instance
    ``occupation_embedding``.
    """

    name: str
    column: CategoricalColumn
    start: int
    stop: int
    offset: int
    rows: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Bag:
    """Separate tensors of one categorical column that has lists of ids, or weights of ids.

    Attributes:
        name: Name of the column that was passed to the model.
        column: The categorical column that gives the ids.
        feature: Key of the ids, int64 ``[N, L]``; L is the same for all rows of a batch.
        weights: Key of the ids' weights, float32 ``[N, L]`` with zeros where there is no id; None if all are 1.
        offset: Number added to the column's ids; its first row in the table.
        rows: Number of its rows in the table.
        padding: Id that pads short rows; it is also the id of a missing value.
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
    """Position of a column in the tensor of numbers: ``start`` to ``stop`` (exclusive) on the second axis."""

    name: str
    column: NumberColumn
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Variable:
    """Rows ``offset`` to ``offset + rows`` of a table, which belong to one column, or to columns that share them.

    `name` is that of the column, or of the collection of shared embeddings.
    """

    name: str
    offset: int
    rows: int
    initializer: Initializer | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearLayout:
    """Layout of a linear model: the positions of its columns in the input tensors and in the weight table.

    Attributes:
        feature: Key of the ids of `categorical`, int64 ``[N, slots]``: ``"linear/ids"``.
        categorical: Columns with a fixed number of ids, in name order.
        bags: Columns with lists or weights, in name order. Their ids are the features ``"linear/ids/<name>"``.
        dense: Layout of numeric, indicator and embedding columns side by side, each of whose numbers has a weight.
        variables: Parts of the one weight table, in the order of their rows.
        rows: Rows of that table; also the id of a missing value.
        slots: Ids in each row of `feature`.

    >>> colors = fc.categorical_column_with_vocabulary_list("color", ["red", "green"])
    >>> layout = fc.FeatureTransform([colors, fc.numeric_column("x", shape=2)]).linear
    >>> layout.rows, layout.slots, layout.dense.width, layout.num_columns
    (2, 1, 2, 2)
    """

    feature: str
    categorical: tuple[PlacedIds, ...]
    bags: tuple[Bag, ...]
    dense: InputLayout
    variables: tuple[Variable, ...]
    rows: int
    slots: int

    @property
    def num_columns(self) -> int:
        """Number of feature columns of the linear model."""
        return len(self.categorical) + len(self.bags) + self.dense.num_columns


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingTableLayout:
    """Layout of one embedding table, which columns with the same dimension and settings share.

    Attributes:
        feature: Key of the ids, int64 ``[N, slots]``: ``dnn/embedding_ids_<dim>``, with ``_frozen`` appended
            if the columns are not trainable, and ``_max_norm_<norm>`` if their vectors are clipped.
        dimension: Length of the vectors.
        rows: Rows of the table; also the id of a missing value.
        slots: Ids in each row of `feature`.
        trainable: Whether training changes the vectors.
        max_norm: Length to which longer vectors are shortened, or None.
        placed: Places of the columns with a fixed number of ids, in name order.
        columns: The embedding columns of `placed`, in the same order.
        bags: Columns with lists or weights, in name order. Their ids are the features ``"dnn/embedding_ids/<name>"``.
        bag_columns: The embedding columns of `bags`, in the same order.
        variables: Parts of the table, in the order of their rows.
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
    """Position of one feature column in the input layer's output: the numbers ``start`` to ``stop`` of each row.

    `source` is the key of the feature that the column is made from, and `index` the place of the column in the layout's
    `numeric` or `indicators`, or in its table's `placed`; 0 for a bag.
    """

    name: str
    source: str
    index: int
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True, slots=True)
class InputLayout:
    """Layout of a network's input layer: the positions of columns in its input tensors and its output.

    The keys below begin with ``"dnn/"``, those of the dense columns of a linear model with ``"linear/"``, and those of
    a `DenseFeatures` with its name.

    Attributes:
        numeric_feature: Key of the numbers of `numeric`, float32 ``[N, numeric_width]``: ``"dnn/numeric"``.
        numeric: Columns of numbers, in name order.
        numeric_width: Numbers in each row of `numeric_feature`.
        indicator_feature: Key of the ids of `indicators`, int64 ``[N, indicator_slots]``: ``"dnn/indicator_ids"``.
        indicators: Columns whose ids are counted, in name order: indicator and bucketized columns with a fixed number
            of ids.
        indicator_width: Number of ids of all `indicators`; also the id of a missing value.
        indicator_slots: Ids in each row of `indicator_feature`.
        indicator_bags: Indicator columns with lists or weights, in name order. Their ids are the features
            ``"dnn/indicator_ids/<name>"``.
        tables: Embedding columns by dimension.
        parts: All columns in the order of the output, bytewise by name.
        width: Numbers in each row of the output.

    >>> layout = fc.FeatureTransform(dnn_columns=[fc.numeric_column("x", shape=2), fc.numeric_column("a")]).dnn
    >>> layout.width, layout.num_columns, [part.name for part in layout.parts]
    (3, 2, ['a', 'x'])
    """

    numeric_feature: str
    numeric: tuple[PlacedNumbers, ...]
    numeric_width: int
    indicator_feature: str
    indicators: tuple[PlacedIds, ...]
    indicator_width: int
    indicator_slots: int
    indicator_bags: tuple[Bag, ...]
    tables: tuple[EmbeddingTableLayout, ...]
    parts: tuple[OutputPart, ...]
    width: int

    @property
    def num_columns(self) -> int:
        """Number of feature columns of the network."""
        return len(self.parts)
