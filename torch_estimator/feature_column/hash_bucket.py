"""Categorical column whose ids are hashes of strings or integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torch_estimator.errors import InvalidValueError
from torch_estimator.feature_column.checks import is_count, plain, set_fields, value_dtype_name
from torch_estimator.feature_column.column import CategoricalColumn, Encoders, IdsOfValues, KeyColumn
from torch_estimator.feature_column.hashing import HashFunction, check_hash_function
from torch_estimator.feature_column.ids import MISSING, Int64Array
from torch_estimator.feature_column.lowering import HashChain, HashedKey, Lowering


@dataclass(frozen=True, slots=True)
class HashedCategoricalColumn(KeyColumn):
    """Categorical column that gives each value the id ``hash(value) % hash_bucket_size``.

    Integers are hashed as decimal strings. Missing values (``''``, or -1 for integers) have no id.

    Args:
        key: Name of the raw column.
        hash_bucket_size: Number of ids, at least 1.
        dtype: String or an integer type.
        hash_function: ``"murmur3"``, or ``"farmhash"`` for TensorFlow's ids.
        multivalent: Whether rows hold lists of values; ``''`` and -1 in a list are missing values.

    Raises:
        InvalidTypeError: `multivalent` is not True or False.
        InvalidValueError: `hash_bucket_size` is below 1, or `dtype` is neither string nor integer.

    >>> job = fc.categorical_column_with_hash_bucket("job", 100)
    >>> ids = fc.FeatureTransform([job])({"job": np.array(["clerk", "farmer", "clerk"])})["linear/ids"].ravel()
    >>> bool(ids[0] == ids[2]), bool((ids < job.num_buckets).all())
    (True, True)
    """

    hash_bucket_size: int
    dtype: Any = "string"
    hash_function: HashFunction = "murmur3"
    multivalent: bool = False

    def __post_init__(self) -> None:
        set_fields(self, hash_bucket_size=plain(self.hash_bucket_size), dtype=value_dtype_name(self.dtype))
        self.check_key_column()
        check_hash_function(self.hash_function)
        check_hash_bucket_size(self.hash_bucket_size, f"column {self.key!r}")
        if self.dtype not in ("string", "int64"):
            raise InvalidValueError(
                f"dtype of column {self.key!r} must be string or an integer type, but got {self.dtype!r}."
            )

    @property
    def num_buckets(self) -> int:
        """Number of ids, which is the number of hash buckets."""
        return self.hash_bucket_size

    def cross_leaves(self) -> Sequence[str | CategoricalColumn]:
        """Raise InvalidValueError, because a cross that hashes a hash has more collisions."""
        raise InvalidValueError(
            f"hash bucket column {self.name!r} cannot be crossed, since hashing twice adds collisions; "
            f"cross the raw column instead by giving the string {self.key!r}."
        )

    def ids_of_values(self, encoders: Encoders) -> IdsOfValues:
        """Return a function from strings or integers to their ids."""
        hasher = encoders.hasher(self.key, self.hash_function)
        buckets, missing = np.uint64(self.hash_bucket_size), self.missing_value

        def ids_of(values: Sequence[Any]) -> Int64Array:
            strings = values if self.dtype == "string" else list(map(str, values))
            ids = (hasher(strings) % buckets).astype(np.int64)
            ids[[place for place, value in enumerate(values) if value == missing]] = MISSING
            return ids

        return ids_of

    def lower(self, lowering: Lowering) -> list[HashChain]:
        """Return a `HashChain`: a description of the hash, from which the exporter builds ONNX operators."""
        value = HashedKey(key=self.key, function=self.hash_function)
        return [HashChain(start=None, values=(value,), buckets=self.hash_bucket_size, missing=(self.key,))]


categorical_column_with_hash_bucket = HashedCategoricalColumn


def check_hash_bucket_size(size: object, where: str) -> None:
    """Raise InvalidValueError unless `size` is an integer of at least 1; `where` names the column."""
    if not is_count(size, 1):
        raise InvalidValueError(f"hash_bucket_size of {where} must be an integer of at least 1, but got {size!r}.")
