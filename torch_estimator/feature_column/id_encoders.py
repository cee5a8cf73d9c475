"""The host halves of the categorical columns with a fixed number of ids per row, vectorised over distinct values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from torch_estimator.feature_column.bucketized import BucketizedColumn
from torch_estimator.feature_column.categorical import CategoricalColumn
from torch_estimator.feature_column.chunk import Chunk
from torch_estimator.feature_column.cross_ids import CrossIds
from torch_estimator.feature_column.crossed import CrossedColumn
from torch_estimator.feature_column.hash_bucket import HashedCategoricalColumn
from torch_estimator.feature_column.hashing import HashFunction
from torch_estimator.feature_column.identity import IdentityCategoricalColumn
from torch_estimator.feature_column.ids import MISSING, NOT_IN_VOCABULARY, IdEncoder, Ids, Int64Array
from torch_estimator.feature_column.string_hasher import StringHasher
from torch_estimator.feature_column.vocabulary_list import VocabularyListCategoricalColumn

HasherOf: TypeAlias = Callable[[str, HashFunction], StringHasher]
KeyColumn: TypeAlias = HashedCategoricalColumn | IdentityCategoricalColumn | VocabularyListCategoricalColumn

_FEW_BOUNDARIES = 64


class BucketIds:
    """Ids of a bucketized column: number i of a row uses ids from ``i * (len(boundaries) + 1)``."""

    def __init__(self, column: BucketizedColumn) -> None:
        self._source = column.source_column
        self._boundaries = np.array(column.boundaries, dtype=np.float32)
        buckets = len(column.boundaries) + 1
        self._first = np.arange(column.slots, dtype=np.intp) * buckets
        self._ids = np.arange(buckets * column.slots, dtype=np.int64)

    def __call__(self, chunk: Chunk) -> Ids:
        """The chunk's ids; NaN, which numpy sorts last, is in the last bucket."""
        codes = _buckets(self._boundaries, chunk.numbers(self._source))
        return Ids(self._ids, codes + self._first if len(self._first) > 1 else codes)


def _buckets(boundaries: npt.NDArray[np.float32], numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.intp]:
    """How many boundaries are not above each number, NaN being above all."""
    if len(boundaries) > _FEW_BOUNDARIES:
        return np.searchsorted(boundaries, numbers, side="right")
    # Several times faster than looking for the place of each number.
    codes = np.full(numbers.shape, len(boundaries), dtype=np.uint8)
    for boundary in boundaries:
        codes -= (numbers < boundary).view(np.uint8)
    return codes.astype(np.intp)


class KeyIds:
    """Ids of a column that reads one raw column of strings or integers with one value per row."""

    def __init__(self, column: KeyColumn, ids_of: IdsOfValues) -> None:
        self._key = column.key
        self._dtype = value_dtype(column)
        self._ids_of = ids_of

    def __call__(self, chunk: Chunk) -> Ids:
        """The chunk's ids."""
        if isinstance(self._ids_of, IdentityValues):
            return Ids(self._ids_of(chunk.integers(self._key))[:, None], None)
        distinct = chunk.values(self._key, self._dtype)
        return Ids(self._ids_of(distinct.values), distinct.codes[:, None])


class VocabularyValues:
    """The ids of values of a vocabulary column."""

    def __init__(self, column: VocabularyListCategoricalColumn, hasher: StringHasher) -> None:
        self._column = column
        self._hasher = hasher
        self._places: dict[Any, int] = {value: place for place, value in enumerate(column.vocabulary_list)}
        self._places[missing_value(column.dtype)] = MISSING
        self._other = column.default_value if column.default_value >= 0 else NOT_IN_VOCABULARY

    def __call__(self, values: Sequence[Any]) -> Int64Array:
        """The id of each value."""
        ids = np.fromiter((self._places.get(v, self._other) for v in values), np.int64, len(values))
        if not self._column.num_oov_buckets:
            return ids
        unknown = np.flatnonzero(ids == NOT_IN_VOCABULARY).tolist()
        if unknown:
            hashes = self._hasher([str(values[place]) for place in unknown])
            buckets = (hashes % np.uint64(self._column.num_oov_buckets)).astype(np.int64)
            ids[unknown] = len(self._column.vocabulary_list) + buckets
        return ids


class HashValues:
    """The ids of values of a hash bucket column."""

    def __init__(self, column: HashedCategoricalColumn, hasher: StringHasher) -> None:
        self._column = column
        self._hasher = hasher

    def __call__(self, values: Sequence[Any]) -> Int64Array:
        """The id of each value."""
        strings = values if self._column.dtype == "string" else list(map(str, values))
        ids = (self._hasher(strings) % np.uint64(self._column.hash_bucket_size)).astype(np.int64)
        missing = missing_value(self._column.dtype)
        ids[[place for place, value in enumerate(values) if value == missing]] = MISSING
        return ids


class IdentityValues:
    """The ids of values of an identity column."""

    def __init__(self, column: IdentityCategoricalColumn) -> None:
        self._column = column

    def __call__(self, values: Sequence[int] | Int64Array) -> Int64Array:
        """The id of each value."""
        given = np.asarray(values, dtype=np.int64)
        default = self._column.default_value
        inside = (given >= 0) & (given < self._column.num_buckets)
        ids = np.where(inside, given, NOT_IN_VOCABULARY if default is None else default)
        ids[given == missing_value("int64")] = MISSING
        return ids


IdsOfValues: TypeAlias = HashValues | IdentityValues | VocabularyValues


def ids_of_values(column: KeyColumn, hasher_of: HasherOf) -> IdsOfValues:
    """What gives the ids of a column's values."""
    if isinstance(column, VocabularyListCategoricalColumn):
        return VocabularyValues(column, hasher_of(column.key, column.hash_function))
    if isinstance(column, HashedCategoricalColumn):
        return HashValues(column, hasher_of(column.key, column.hash_function))
    return IdentityValues(column)


def make_encoder(
    column: CategoricalColumn, encoder_of: Callable[[CategoricalColumn], IdEncoder], hasher_of: HasherOf
) -> IdEncoder:
    """The host half of a column with a fixed number of ids per row.

    Args:
        column: Any categorical column without weights and lists.
        encoder_of: Gives the encoder of another column, for the leaves of a cross.
        hasher_of: Gives the hasher of a raw column and hash function.
    """
    if isinstance(column, BucketizedColumn):
        return BucketIds(column)
    if isinstance(column, CrossedColumn):
        return CrossIds(column, encoder_of, hasher_of)
    assert isinstance(column, KeyColumn)
    return KeyIds(column, ids_of_values(column, hasher_of))


def value_dtype(column: KeyColumn) -> str:
    """What a column's values are: ``"string"`` or ``"int64"``."""
    return "int64" if isinstance(column, IdentityCategoricalColumn) else column.dtype


def missing_value(dtype: str) -> Any:
    """What stands for a missing value: ``''`` or -1."""
    return "" if dtype == "string" else -1
