"""Strings or integers numbered by a given list."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch_estimator.errors import InvalidValueError
from torch_estimator.feature_column.checks import as_items, check_flag, check_text, is_count, plain
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
class VocabularyListCategoricalColumn:
    """A categorical column with known values; made by `categorical_column_with_vocabulary_list`."""

    key: str
    vocabulary_list: tuple[str, ...] | tuple[int, ...]
    dtype: RawDtype = "string"
    default_value: int = -1
    num_oov_buckets: int = 0
    hash_function: HashFunction = "murmur3"
    multivalent: bool = False

    def __post_init__(self) -> None:
        check_key(self.key)
        check_hash_function(self.hash_function)
        if not self.vocabulary_list:
            raise InvalidValueError(f"vocabulary_list of column {self.key!r} must not be empty.")
        repeated = _first_repeated(self.vocabulary_list)
        if repeated is not None:
            raise InvalidValueError(f"vocabulary_list of column {self.key!r} has {repeated!r} more than once.")
        check_flag(self.multivalent, f"multivalent of column {self.key!r}")
        if not is_count(self.num_oov_buckets, 0):
            raise InvalidValueError(
                f"num_oov_buckets of column {self.key!r} must be an integer that is not negative, but got "
                f"{self.num_oov_buckets!r}."
            )
        if self.num_oov_buckets and self.default_value != -1:
            raise InvalidValueError(
                f"column {self.key!r} has num_oov_buckets={self.num_oov_buckets} and "
                f"default_value={self.default_value!r}, "
                "but can have only one of them."
            )
        if not (is_count(self.default_value, -1) and self.default_value < len(self.vocabulary_list)):
            raise InvalidValueError(
                f"default_value of column {self.key!r} must be -1 or an id below "
                f"{len(self.vocabulary_list)}, "
                f"but got {self.default_value!r}."
            )

    @property
    def name(self) -> str:
        """The key."""
        return self.key

    @property
    def num_buckets(self) -> int:
        """Size of the vocabulary and of the buckets for what is not in it."""
        return len(self.vocabulary_list) + self.num_oov_buckets

    @property
    def slots(self) -> int:
        """Ids per row: one, unless rows hold lists."""
        return 1

    @property
    def raw_features(self) -> tuple[RawFeature, ...]:
        """The one raw column it reads."""
        return (categorical_feature(self.key, self.dtype, multivalent=self.multivalent),)


def categorical_column_with_vocabulary_list(
    key: str,
    vocabulary_list: Iterable[Any],
    dtype: Any = None,
    default_value: int = -1,
    num_oov_buckets: int = 0,
    hash_function: HashFunction = "murmur3",
    multivalent: bool = False,
) -> VocabularyListCategoricalColumn:
    """A categorical column whose value's id is its place in a list.

    Missing values (``''``, or -1 for integers) have no id. A value that is not in the list gets
    `default_value` (-1: no id), or with `num_oov_buckets` the id ``len(list) + hash(value) %
    num_oov_buckets``.

    Args:
        key: Name of the raw column.
        vocabulary_list: Distinct strings or distinct integers.
        dtype: String or an integer type; by default that of the list.
        default_value: Id of a value that is not in the list.
        num_oov_buckets: Number of ids for values that are not in the list; excludes `default_value`.
        hash_function: ``"murmur3"``, or ``"farmhash"`` for TensorFlow's ids; only `num_oov_buckets` uses it.
        multivalent: Whether rows hold lists of values; ``''`` and -1 in a list are missing values.

    Raises:
        InvalidValueError: An empty list, repeated values, floats, a dtype that is not the list's, a bad id or
            count.

    >>> categorical_column_with_vocabulary_list("gender", ["Female", "Male"]).num_buckets
    2
    """
    values, kind = _vocabulary(key, vocabulary_list)
    if dtype is not None:
        wanted = "int64" if is_integer(dtype_name(dtype)) else dtype_name(dtype)
        if wanted != kind:
            raise InvalidValueError(
                f"dtype of column {key!r} is {dtype_name(dtype)}, but its vocabulary_list holds {kind} values."
            )
    return VocabularyListCategoricalColumn(
        key=key,
        vocabulary_list=values,
        dtype=kind,
        default_value=plain(default_value),
        num_oov_buckets=plain(num_oov_buckets),
        hash_function=hash_function,
        multivalent=multivalent,
    )


def _vocabulary(key: str, values: Iterable[Any]) -> tuple[tuple[str, ...] | tuple[int, ...], RawDtype]:
    check_key(key)
    items = [plain(value) for value in as_items(values, f"vocabulary_list of column {key!r}")]
    if not items:
        raise InvalidValueError(f"vocabulary_list of column {key!r} must not be empty.")
    if all(isinstance(item, (str, bytes)) for item in items):
        return tuple(_text(item, key) for item in items), "string"
    if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        for item in items:
            if not is_count(item, -(2**63)):
                raise InvalidValueError(f"vocabulary_list of column {key!r} has {item}, which 64 bits do not hold.")
        return tuple(items), "int64"
    kinds = sorted({type(item).__name__ for item in items})
    raise InvalidValueError(
        f"vocabulary_list of column {key!r} must be all strings or all integers, "
        f"but holds {', '.join(kinds)}: {items[:3]!r}."
    )


def _text(item: str | bytes, key: str) -> str:
    try:
        text = item.decode() if isinstance(item, bytes) else item
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"vocabulary_list of column {key!r} has {item!r}, which is not UTF-8 text.") from error
    check_text(text, f"a word in vocabulary_list of column {key!r}")
    return text


def _first_repeated(values: tuple[Any, ...]) -> Any:
    if len(set(values)) == len(values):
        return None
    seen: set[Any] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
