"""Categorical column of integers that already are ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torch_estimator.errors import InvalidValueError
from torch_estimator.feature_column.checks import is_count, plain, set_fields
from torch_estimator.feature_column.chunk import Chunk
from torch_estimator.feature_column.column import Encoders, IdEncoder, IdsOfValues, KeyColumn, ListEncoder
from torch_estimator.feature_column.ids import MISSING, NOT_IN_VOCABULARY, IdLists, Ids, Int64Array
from torch_estimator.feature_column.lowering import Lowering
from torch_estimator.feature_column.raw_feature import MISSING_INTEGER, RawDtype


@dataclass(frozen=True, slots=True)
class IdentityCategoricalColumn(KeyColumn):
    """Categorical column of integers that already are ids, from 0 to ``num_buckets - 1``.

    A value outside that range gets `default_value`. Without a `default_value`, such a value has no id: it adds nothing
    to an indicator, an embedding or a linear model, and counts as -1 in a cross, like a value that is not in a
    vocabulary. -1 is a missing value, which never has an id.

    Args:
        key: Name of the raw column, of integers.
        num_buckets: Number of ids.
        default_value: Id of values outside the range.
        multivalent: Whether rows hold lists of values.

    Raises:
        InvalidTypeError: `multivalent` is not True or False.
        InvalidValueError: `num_buckets` is not positive, or `default_value` is not an id.

    >>> rating = fc.categorical_column_with_identity("rating", num_buckets=6, default_value=0)
    >>> fc.FeatureTransform([rating])({"rating": np.array([3, 5, 7])})["linear/ids"].ravel()
    array([3, 5, 0])
    """

    num_buckets: int
    default_value: int | None = None
    multivalent: bool = False

    def __post_init__(self) -> None:
        set_fields(self, num_buckets=plain(self.num_buckets), default_value=plain(self.default_value))
        self.check_key_column()
        if not is_count(self.num_buckets, 1):
            raise InvalidValueError(
                f"num_buckets of column {self.key!r} must be an integer of at least 1, but got {self.num_buckets!r}."
            )
        default = self.default_value
        if default is not None and not (is_count(default, 0) and default < self.num_buckets):
            raise InvalidValueError(
                f"default_value of column {self.key!r} must be None or an id below {self.num_buckets}, "
                f"but got {default!r}."
            )

    @property
    def dtype(self) -> RawDtype:
        """Type of the values, which is always ``"int64"``."""
        return "int64"

    def encoder(self, encoders: Encoders) -> IdEncoder:
        """Return a function that computes the ids of a chunk without looking for distinct values, to save time."""
        return lambda chunk: Ids(self._ids(chunk.integers(self.key))[:, None], None)

    def list_encoder(self, encoders: Encoders) -> ListEncoder:
        """Return a function that computes the ids of a chunk's lists, as `encoder` does for single values."""
        if not self.multivalent:
            return KeyColumn.list_encoder(self, encoders)

        def encode(chunk: Chunk) -> IdLists:
            lists = chunk.list_integers(self.key)
            return IdLists(self._ids(lists.values), lists.offsets)

        return encode

    def ids_of_values(self, encoders: Encoders) -> IdsOfValues:
        """Return a function from integers to their ids."""
        return self._ids

    def _ids(self, values: Sequence[int] | Int64Array) -> Int64Array:
        given = np.asarray(values, dtype=np.int64)
        inside = (given >= 0) & (given < self.num_buckets)
        ids = np.where(inside, given, NOT_IN_VOCABULARY if self.default_value is None else self.default_value)
        ids[given == MISSING_INTEGER] = MISSING
        return ids

    def lower(self, lowering: Lowering) -> str:
        """Add the check of the range to an ONNX graph; return the name of the tensor of ids."""
        graph, given = lowering.graph, lowering.raw[self.key].tensor
        below = graph.op("Less", given, graph.constant(0, np.int64))
        above = graph.op("GreaterOrEqual", given, graph.constant(self.num_buckets, np.int64))
        other = graph.constant(-1 if self.default_value is None else self.default_value, np.int64)
        ids = graph.op("Where", graph.op("Or", below, above), other, given)
        if self.default_value is None:
            return ids
        missing = graph.op("Equal", given, graph.constant(MISSING_INTEGER, np.int64))
        return graph.op("Where", missing, graph.constant(-1, np.int64), ids)


categorical_column_with_identity = IdentityCategoricalColumn
