"""The host half of crossed columns some of whose leaves hold lists."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from torch_estimator.feature_column.chunk import Chunk
from torch_estimator.feature_column.crossed import CrossedColumn
from torch_estimator.feature_column.hashing import HashFunction, UInt64Array, fingerprint_cat64
from torch_estimator.feature_column.ids import MISSING, IdLists, Int64Array, ListEncoder
from torch_estimator.feature_column.raw_lists import one_per_row
from torch_estimator.feature_column.string_hasher import StringHasher

if TYPE_CHECKING:
    from torch_estimator.feature_column.categorical import CategoricalColumn


@dataclass(frozen=True, slots=True)
class _HashLists:
    """64-bit values, those of row i from ``offsets[i]`` to ``offsets[i + 1]``."""

    values: UInt64Array
    offsets: Int64Array


class CrossLists:
    """Ids of a crossed column: every combination of the values of a row, the last leaf varying fastest."""

    def __init__(
        self,
        column: CrossedColumn,
        list_encoder_of: Callable[[CategoricalColumn], ListEncoder],
        hasher_of: Callable[[str, HashFunction], StringHasher],
    ) -> None:
        self._start = np.uint64(column.start)
        self._buckets = np.uint64(column.hash_bucket_size)
        self._leaves: list[Callable[[Chunk], _HashLists]] = [
            _string_leaf(leaf, hasher_of(leaf, column.hash_function), lists=leaf in column.lists)
            if isinstance(leaf, str)
            else _column_leaf(list_encoder_of(leaf))
            for leaf in column.leaves
        ]

    def __call__(self, chunk: Chunk) -> IdLists:
        """The chunk's ids."""
        first = self._leaves[0](chunk)
        result = _HashLists(fingerprint_cat64(self._start, first.values), first.offsets)
        for leaf in self._leaves[1:]:
            result = _combine(result, leaf(chunk))
        return IdLists((result.values % self._buckets).astype(np.int64), result.offsets)


def _string_leaf(key: str, hasher: StringHasher, *, lists: bool) -> Callable[[Chunk], _HashLists]:
    def one(chunk: Chunk) -> _HashLists:
        distinct = chunk.values(key, "string")
        values = chunk.once(hasher, lambda: hasher(distinct.values))
        return _HashLists(values.take(distinct.codes), one_per_row(chunk.rows))

    def many(chunk: Chunk) -> _HashLists:
        found = chunk.list_values(key, "string")
        values = chunk.once(hasher, lambda: hasher(found.values.values)).take(found.values.codes)
        empty = np.array([value == "" for value in found.values.values], dtype=np.bool_)
        missing = empty.take(found.values.codes) if len(empty) else np.zeros(0, np.bool_)
        kept = IdLists(values.view(np.int64), found.offsets).keep(~missing)
        return _HashLists(kept.ids.view(np.uint64), kept.offsets)

    return many if lists else one


def _column_leaf(encoder: ListEncoder) -> Callable[[Chunk], _HashLists]:
    def hashes(chunk: Chunk) -> _HashLists:
        found = chunk.once(encoder, lambda: encoder(chunk))
        kept = found.keep(found.ids != MISSING)
        return _HashLists(kept.ids.astype(np.uint64), kept.offsets)

    return hashes


def _combine(left: _HashLists, right: _HashLists) -> _HashLists:
    """Every value of a row's left with every value of its right."""
    left_counts, right_counts = np.diff(left.offsets), np.diff(right.offsets)
    row_of_left = np.repeat(np.arange(len(left_counts)), left_counts)
    repeats = right_counts[row_of_left]
    ends = np.cumsum(repeats)
    within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - repeats, repeats)
    rights = np.repeat(right.offsets[:-1][row_of_left], repeats) + within
    values = fingerprint_cat64(np.repeat(left.values, repeats), right.values[rights])
    offsets = np.zeros(len(left_counts) + 1, dtype=np.int64)
    np.cumsum(left_counts * right_counts, out=offsets[1:])
    return _HashLists(values, offsets)
