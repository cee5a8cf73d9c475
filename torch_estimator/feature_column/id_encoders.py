"""The host halves of the categorical columns: raw values to ids, vectorised over distinct values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from torch_estimator.feature_column.bucketized import BucketizedColumn
from torch_estimator.feature_column.categorical import CategoricalColumn
from torch_estimator.feature_column.chunk import Chunk
from torch_estimator.feature_column.cross_ids import CrossIds
from torch_estimator.feature_column.crossed import CrossedColumn
from torch_estimator.feature_column.hash_bucket import HashedCategoricalColumn
from torch_estimator.feature_column.hashing import HashFunction
from torch_estimator.feature_column.ids import MISSING, NOT_IN_VOCABULARY, IdEncoder, Ids, Int64Array
from torch_estimator.feature_column.string_hasher import StringHasher
from torch_estimator.feature_column.vocabulary_list import VocabularyListCategoricalColumn


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
        codes = np.searchsorted(self._boundaries, chunk.numbers(self._source), side="right")
        return Ids(self._ids, codes + self._first if len(self._first) > 1 else codes)


class VocabularyIds:
    """Ids of a vocabulary list column."""

    def __init__(self, column: VocabularyListCategoricalColumn, hasher: StringHasher) -> None:
        self._column = column
        self._hasher = hasher
        self._places: dict[Any, int] = {value: place for place, value in enumerate(column.vocabulary_list)}
        self._places[_missing_value(column.dtype)] = MISSING
        self._other = column.default_value if column.default_value >= 0 else NOT_IN_VOCABULARY

    def __call__(self, chunk: Chunk) -> Ids:
        """The chunk's ids."""
        distinct = chunk.values(self._column.key, self._column.dtype)
        return Ids(self._ids(distinct.values), distinct.codes[:, None])

    def _ids(self, values: Sequence[Any]) -> Int64Array:
        ids = np.fromiter((self._places.get(v, self._other) for v in values), np.int64, len(values))
        if not self._column.num_oov_buckets:
            return ids
        unknown = np.flatnonzero(ids == NOT_IN_VOCABULARY).tolist()
        if unknown:
            hashes = self._hasher([str(values[place]) for place in unknown])
            buckets = (hashes % np.uint64(self._column.num_oov_buckets)).astype(np.int64)
            ids[unknown] = len(self._column.vocabulary_list) + buckets
        return ids


class HashIds:
    """Ids of a hash bucket column."""

    def __init__(self, column: HashedCategoricalColumn, hasher: StringHasher) -> None:
        self._column = column
        self._hasher = hasher

    def __call__(self, chunk: Chunk) -> Ids:
        """The chunk's ids."""
        distinct = chunk.values(self._column.key, self._column.dtype)
        strings = distinct.values if self._column.dtype == "string" else list(map(str, distinct.values))
        ids = (self._hasher(strings) % np.uint64(self._column.hash_bucket_size)).astype(np.int64)
        missing = _missing_value(self._column.dtype)
        ids[[place for place, value in enumerate(distinct.values) if value == missing]] = MISSING
        return Ids(ids, distinct.codes[:, None])


def make_encoder(
    column: CategoricalColumn,
    encoder_of: Callable[[CategoricalColumn], IdEncoder],
    hasher_of: Callable[[str, HashFunction], StringHasher],
) -> IdEncoder:
    """The host half of a column.

    Args:
        column: Any categorical column.
        encoder_of: Gives the encoder of another column, for the leaves of a cross.
        hasher_of: Gives the hasher of a raw column and hash function.
    """
    if isinstance(column, BucketizedColumn):
        return BucketIds(column)
    if isinstance(column, VocabularyListCategoricalColumn):
        return VocabularyIds(column, hasher_of(column.key, column.hash_function))
    if isinstance(column, HashedCategoricalColumn):
        return HashIds(column, hasher_of(column.key, column.hash_function))
    assert isinstance(column, CrossedColumn)
    return CrossIds(column, encoder_of, hasher_of)


def _missing_value(dtype: str) -> Any:
    return "" if dtype == "string" else -1
