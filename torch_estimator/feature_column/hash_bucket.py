"""Strings or integers numbered by their hash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch_estimator.errors import InvalidValueError
from torch_estimator.feature_column.checks import check_flag, is_count, plain
from torch_estimator.feature_column.hashing import HashFunction, check_hash_function
from torch_estimator.feature_column.raw_feature import (
    RawDtype,
    RawFeature,
    categorical_feature,
    check_key,
    dtype_name,
    is_integer,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class HashedCategoricalColumn:
    """A categorical column numbered by hash; made by `categorical_column_with_hash_bucket`."""

    key: str
    hash_bucket_size: int
    dtype: RawDtype = "string"
    hash_function: HashFunction = "murmur3"
    multivalent: bool = False

    def __post_init__(self) -> None:
        check_key(self.key)
        check_hash_function(self.hash_function)
        check_hash_bucket_size(self.hash_bucket_size, f"column {self.key!r}")
        check_flag(self.multivalent, f"multivalent of column {self.key!r}")
        if self.dtype not in ("string", "int64"):
            raise InvalidValueError(
                f"dtype of column {self.key!r} must be string or an integer type, but got {self.dtype!r}."
            )

    @property
    def name(self) -> str:
        """The key."""
        return self.key

    @property
    def num_buckets(self) -> int:
        """The number of buckets."""
        return self.hash_bucket_size

    @property
    def slots(self) -> int:
        """Ids per row: one, unless rows hold lists."""
        return 1

    @property
    def raw_features(self) -> tuple[RawFeature, ...]:
        """The one raw column it reads."""
        return (categorical_feature(self.key, self.dtype, multivalent=self.multivalent),)


def categorical_column_with_hash_bucket(
    key: str,
    hash_bucket_size: int,
    dtype: Any = "string",
    hash_function: HashFunction = "murmur3",
    multivalent: bool = False,
) -> HashedCategoricalColumn:
    """A categorical column whose value's id is ``hash(value) % hash_bucket_size``.

    Integers are hashed as decimal strings. Missing values (``''``, or -1 for integers) have no id.

    Args:
        key: Name of the raw column.
        hash_bucket_size: Number of buckets, at least 1.
        dtype: String or an integer type.
        hash_function: ``"murmur3"``, or ``"farmhash"`` for TensorFlow's ids.
        multivalent: Whether rows hold lists of values; ``''`` and -1 in a list are missing values.

    Raises:
        InvalidValueError: A bucket count below 1 or a dtype that is neither string nor integer.

    >>> categorical_column_with_hash_bucket("occupation", 100).num_buckets
    100
    """
    name = dtype_name(dtype)
    kind: Any = "int64" if is_integer(name) else name
    return HashedCategoricalColumn(
        key=key,
        hash_bucket_size=plain(hash_bucket_size),
        dtype=kind,
        hash_function=hash_function,
        multivalent=multivalent,
    )


def check_hash_bucket_size(size: object, where: str) -> None:
    """Raises InvalidValueError unless `size` is an integer of at least 1."""
    if not is_count(size, 1):
        raise InvalidValueError(f"hash_bucket_size of {where} must be an integer of at least 1, but got {size!r}.")
