"""Categorical column with a weight for each id. Another raw column holds the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torch_estimator.errors import InvalidValueError, RowError
from torch_estimator.feature_column.checks import check_key, check_number_dtype, dtype_name, is_integer, set_fields
from torch_estimator.feature_column.chunk import Chunk
from torch_estimator.feature_column.column import (
    CategoricalColumn,
    Encoders,
    ListEncoder,
    NumberColumn,
    column_error,
)
from torch_estimator.feature_column.ids import IdLists
from torch_estimator.feature_column.lowering import Lowering
from torch_estimator.feature_column.raw_feature import LISTS, RawFeature
from torch_estimator.feature_column.raw_values import Lists, even_offsets


@dataclass(frozen=True, slots=True)
class WeightedCategoricalColumn(CategoricalColumn):
    """Categorical column with a weight for each value. Another raw column holds the weights, in the same order.

    An indicator adds up the weights of each id. A linear model multiplies its own weight of an id by the weight in the
    data. An embedding combines vectors with these weights; with ``"mean"`` and ``"sqrtn"``, values whose weight is not
    positive are ignored. A weight of NaN counts as 0. A weight that is missing in the data is an error, unless the
    Dataset has a default for it.

    Args:
        categorical_column: A vocabulary, hash bucket, identity, bucketized or crossed column. With
            ``multivalent=True`` every row's list of weights must be as long as its list of values.
        weight_feature_key: Name of the raw column of weights.
        dtype: Type as which the weights are parsed. The model always gets float32.

    Raises:
        InvalidTypeError: `categorical_column` is not a column.
        InvalidValueError: `categorical_column` has weights already, is a cross of lists or is not categorical; or the
            dtype is not numeric.

    >>> words = fc.categorical_column_with_vocabulary_list("words", ["good", "bad"])
    >>> column = fc.indicator_column(fc.weighted_categorical_column(words, "counts"))
    >>> transform = fc.FeatureTransform(dnn_columns=[column])
    >>> features = transform.padded(transform({"words": np.array(["bad", "good"]), "counts": np.array([0.5, 2.0])}))
    >>> fc.InputLayer(transform.dnn)({key: torch.as_tensor(value) for key, value in features.items()})
    tensor([[0.0000, 0.5000],
            [2.0000, 0.0000]])
    """

    categorical_column: CategoricalColumn
    weight_feature_key: str
    dtype: Any = "float32"

    def __post_init__(self) -> None:
        set_fields(self, dtype=dtype_name(self.dtype))
        column = self.categorical_column
        if not isinstance(column, CategoricalColumn):
            raise column_error(column, _not_weighable(column))
        column.check_weighable()
        check_key(self.weight_feature_key)
        check_number_dtype(self.dtype, f"the weights {self.weight_feature_key!r}")
        if self.weight_feature_key in [feature.key for feature in column.raw_features]:
            raise InvalidValueError(
                f"raw column {self.weight_feature_key!r} cannot be both the values and the weights of a column."
            )

    @property
    def name(self) -> str:
        """Name of the column: ``<column>_weighted_by_<key>``."""
        return f"{self.categorical_column.name}_weighted_by_{self.weight_feature_key}"

    @property
    def num_buckets(self) -> int:
        """Number of ids of the categorical column."""
        return self.categorical_column.num_buckets

    @property
    def slots(self) -> int:
        """Number of ids that the categorical column has in each row."""
        return self.categorical_column.slots

    @property
    def multivalent(self) -> bool:
        """Whether rows hold lists of values and of weights."""
        return self.categorical_column.multivalent

    @property
    def weight_feature(self) -> RawFeature:
        """The raw column of weights, with one weight per value in each row."""
        return RawFeature(
            key=self.weight_feature_key,
            dtype="int64" if is_integer(self.dtype) else "float32",
            shape=LISTS if self.multivalent else (self.slots,),
        )

    @property
    def raw_features(self) -> tuple[RawFeature, ...]:
        """The raw columns that the categorical column reads, and the raw column of weights."""
        return (*self.categorical_column.raw_features, self.weight_feature)

    @property
    def unweighted(self) -> CategoricalColumn:
        """The categorical column without the weights."""
        return self.categorical_column

    @property
    def number_columns(self) -> tuple[NumberColumn, ...]:
        """The numeric columns whose numbers the categorical column turns into ids."""
        return self.categorical_column.number_columns

    def cross_leaves(self) -> Sequence[str | CategoricalColumn]:
        """Raise InvalidValueError, because a cross cannot have weights."""
        raise InvalidValueError(f"weighted column {self.name!r} cannot be crossed; cross its categorical column.")

    def check_weighable(self) -> None:
        """Raise InvalidValueError, because this column has weights already."""
        raise InvalidValueError(_not_weighable(self))

    def list_encoder(self, encoders: Encoders) -> ListEncoder:
        """Return a function that computes lists of ids and of weights for a chunk. A missing weight is 0."""
        encoder = encoders.lists(self.categorical_column)

        def encode(chunk: Chunk) -> IdLists:
            ids = chunk.encoded(encoder)
            if self.multivalent:
                weights = chunk.list_numbers(self.weight_feature_key)
            else:
                numbers = chunk.numbers(self.weight_feature_key, (self.slots,))
                weights = Lists(numbers.reshape(-1), even_offsets(len(numbers), self.slots))
            wrong = np.flatnonzero(np.diff(ids.offsets) != np.diff(weights.offsets))
            if len(wrong):
                row = int(wrong[0])
                values, given = (int(np.diff(offsets)[row]) for offsets in (ids.offsets, weights.offsets))
                raise RowError(
                    f"{given} weights for the {values} values of {self.categorical_column.name!r}; "
                    "every value needs one weight",
                    row=row,
                    column=self.weight_feature_key,
                )
            return IdLists(ids.ids, ids.offsets, np.where(np.isnan(weights.values), np.float32(0), weights.values))

        return encode

    def lower_lists(self, lowering: Lowering) -> str:
        """Add the ids of the categorical column to an ONNX graph. The exporter adds the weights."""
        return self.categorical_column.lower_lists(lowering)


weighted_categorical_column = WeightedCategoricalColumn


def _not_weighable(column: object) -> str:
    return f"weighted_categorical_column takes a categorical column without weights, but got {column!r}."
