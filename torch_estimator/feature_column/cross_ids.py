"""The host half of crossed columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from torch_estimator.feature_column.categorical import CategoricalColumn
from torch_estimator.feature_column.chunk import Chunk
from torch_estimator.feature_column.crossed import CrossedColumn
from torch_estimator.feature_column.hashing import HashFunction, UInt64Array, fingerprint_cat64
from torch_estimator.feature_column.ids import MISSING, IdEncoder, Ids
from torch_estimator.feature_column.raw_values import Codes
from torch_estimator.feature_column.string_hasher import StringHasher

Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Hashes:
    """64-bit values ``[N, slots]``, or a table of them ``[M]`` with codes ``[N, slots]``.

    `missing` has the values' shape, or is None where nothing is missing.
    """

    values: UInt64Array
    missing: Mask | None
    codes: Codes | None

    def by_row(self) -> tuple[UInt64Array, Mask | None]:
        """Values and missing, each ``[N, slots]``."""
        if self.codes is None:
            return self.values, self.missing
        return self.values.take(self.codes), None if self.missing is None else self.missing.take(self.codes)


class CrossIds:
    """Ids of a crossed column."""

    def __init__(
        self,
        column: CrossedColumn,
        encoder_of: Callable[[CategoricalColumn], IdEncoder],
        hasher_of: Callable[[str, HashFunction], StringHasher],
    ) -> None:
        self._start = np.uint64(column.start)
        self._buckets = np.uint64(column.hash_bucket_size)
        self._leaves: list[Callable[[Chunk], _Hashes]] = [
            _string_leaf(leaf, hasher_of(leaf, column.hash_function))
            if isinstance(leaf, str)
            else _column_leaf(encoder_of(leaf))
            for leaf in column.leaves
        ]

    def __call__(self, chunk: Chunk) -> Ids:
        """The chunk's ids; they stay a table as long as combinations are fewer than rows."""
        first = self._leaves[0](chunk)
        result = _Hashes(fingerprint_cat64(self._start, first.values), first.missing, first.codes)
        for leaf in self._leaves[1:]:
            result = _combine(result, leaf(chunk), chunk.rows)
        ids = (result.values % self._buckets).astype(np.int64)
        if result.missing is not None:
            ids[result.missing] = MISSING
        return Ids(ids, result.codes)


def _string_leaf(key: str, hasher: StringHasher) -> Callable[[Chunk], _Hashes]:
    def hashes(chunk: Chunk) -> _Hashes:
        distinct = chunk.values(key, "string")
        values = chunk.once(hasher, lambda: hasher(distinct.values))
        return _Hashes(values, None, distinct.codes[:, None])

    return hashes


def _column_leaf(encoder: IdEncoder) -> Callable[[Chunk], _Hashes]:
    def hashes(chunk: Chunk) -> _Hashes:
        ids = chunk.once(encoder, lambda: encoder(chunk))
        missing = ids.table == MISSING
        return _Hashes(ids.table.astype(np.uint64), missing if missing.any() else None, ids.codes)

    return hashes


def _combine(left: _Hashes, right: _Hashes, rows: int) -> _Hashes:
    """Every slot of the left with every slot of the right, the right varying fastest."""
    if left.codes is not None and right.codes is not None and len(left.values) * len(right.values) <= rows:
        values, missing = _pairs(left.values[None], left.missing, right.values[None], right.missing)
        codes = left.codes[:, :, None] * len(right.values) + right.codes[:, None, :]
        return _Hashes(
            values[0],
            None if missing is None else missing[0],
            codes.reshape(rows, left.codes.shape[1] * right.codes.shape[1]),
        )
    values, missing = _pairs(*left.by_row(), *right.by_row())
    return _Hashes(values, missing, None)


def _pairs(
    left: UInt64Array, left_missing: Mask | None, right: UInt64Array, right_missing: Mask | None
) -> tuple[UInt64Array, Mask | None]:
    """Combines ``[n, a]`` with ``[n, b]`` to ``[n, a * b]``."""
    shape = (left.shape[0], left.shape[1] * right.shape[1])
    values = fingerprint_cat64(left[:, :, None], right[:, None, :]).reshape(shape)
    if left_missing is None and right_missing is None:
        return values, None
    missing = np.zeros((*left.shape, right.shape[1]), dtype=np.bool_)
    if left_missing is not None:
        missing |= left_missing.reshape(left.shape)[:, :, None]
    if right_missing is not None:
        missing |= right_missing.reshape(right.shape)[:, None, :]
    return values, missing.reshape(shape)
