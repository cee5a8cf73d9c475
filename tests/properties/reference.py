"""The definition of the columns' ids: value by value in plain Python, slow, and independent of the package."""

from __future__ import annotations

import bisect
import math
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from torch_estimator import feature_column as fc

MASK = 2**64 - 1
MURMUR3_SEEDS = (0x3C6EF372, 0x1B873593)
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F

UNKNOWN = -1
MISSING = None

Row = dict[str, Any]
Value = int | None
"""An id, `UNKNOWN`, or `MISSING`."""


class Weighted(NamedTuple):
    """An id of a row and its weight."""

    id: int
    weight: float


def murmur3_32(data: bytes, seed: int) -> int:
    """Return MurmurHash3_x86_32."""

    def scrambled(block: int) -> int:
        block = block * 0xCC9E2D51 & 0xFFFFFFFF
        return (block << 15 | block >> 17) * 0x1B873593 & 0xFFFFFFFF

    h = seed
    whole = len(data) // 4 * 4
    for start in range(0, whole, 4):
        h ^= scrambled(int.from_bytes(data[start : start + 4], "little"))
        h = ((h << 13 | h >> 19) & 0xFFFFFFFF) * 5 + 0xE6546B64 & 0xFFFFFFFF
    if data[whole:]:
        h ^= scrambled(int.from_bytes(data[whole:], "little"))
    h ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = (h ^ h >> shift) * factor & 0xFFFFFFFF
    return h ^ h >> 16


def murmur3(text: str) -> int:
    """Return the hash of a string: two 32-bit hashes, the high half first."""
    high, low = (murmur3_32(text.encode(), seed) for seed in MURMUR3_SEEDS)
    return high << 32 | low


def farmhash(text: str) -> int:
    """Return TensorFlow's Fingerprint64 of a string of up to 64 bytes."""
    data = text.encode()
    size = len(data)
    assert size <= 64
    mul = _K2 + size * 2 & MASK

    def word(at: int) -> int:
        return int(struct.unpack_from("<Q", data, at)[0])

    def half(at: int) -> int:
        return int(struct.unpack_from("<I", data, at)[0])

    def mixed(u: int, v: int) -> int:
        a = _shift_mix((u ^ v) * mul & MASK)
        return _shift_mix((v ^ a) * mul & MASK) * mul & MASK

    if size == 0:
        return _K2
    if size < 4:
        y = data[0] + (data[size >> 1] << 8)
        z = size + (data[-1] << 2)
        return _shift_mix((y * _K2 ^ z * _K0) & MASK) * _K2 & MASK
    if size < 8:
        return mixed(size + (half(0) << 3), half(size - 4))
    if size <= 16:
        a, b = word(0) + _K2 & MASK, word(size - 8)
        return mixed(_rotated(b, 37) * mul + a & MASK, (_rotated(a, 25) + b) * mul & MASK)
    if size <= 32:
        a, b, c, d = word(0) * _K1 & MASK, word(8), word(size - 8) * mul & MASK, word(size - 16) * _K2
        return mixed(_rotated(a + b, 43) + _rotated(c, 30) + d & MASK, a + _rotated(b + _K2, 18) + c & MASK)
    a, b, c, d = word(0) * _K2 & MASK, word(8), word(size - 8) * mul & MASK, word(size - 16) * _K2
    y = _rotated(a + b, 43) + _rotated(c, 30) + d & MASK
    z = mixed(y, a + _rotated(b + _K2, 18) + c & MASK)
    e, f = word(16) * mul & MASK, word(24)
    g, h = (y + word(size - 32)) * mul & MASK, (z + word(size - 24)) * mul & MASK
    return mixed(_rotated(e + f, 43) + _rotated(g, 30) + h & MASK, e + _rotated(f + a, 18) + g & MASK)


def fingerprint_cat(first: int, second: int) -> int:
    """Return TensorFlow's FingerprintCat64 of two hashes."""
    mul = 0xC6A4A7935BD1E995
    h = (first ^ mul ^ (_shift_mix(second * mul & MASK) * mul & MASK)) * mul & MASK
    return _shift_mix(_shift_mix(h) * mul & MASK)


def ids_of(column: Any, row: Row) -> list[Weighted]:
    """Return the ids of a categorical column in a row, without values that have no id."""
    if isinstance(column, fc.WeightedCategoricalColumn):
        weights = _listed(row[column.weight_feature_key])
        values = _values(column.categorical_column, row)
        assert len(weights) == len(values)
        pairs = zip(values, weights, strict=True)
        return [Weighted(v, 0.0 if w is None or math.isnan(w) else w) for v, w in pairs if v is not None and v >= 0]
    return [Weighted(value, 1.0) for value in _values(column, row) if value is not None and value >= 0]


def numbers_of(column: fc.NumericColumn, row: Row) -> list[float]:
    """Return a numeric column's numbers in a row. The only normalizer that the tests use subtracts 1 and halves."""
    numbers = np.array(_listed(row[column.key]), np.float32)
    if column.default_value is not None:
        numbers = np.where(np.isnan(numbers), np.array(column.default_value, np.float32), numbers)
    if column.normalizer_fn is not None:
        numbers = (numbers - np.float32(1)) * np.float32(0.5)
    return [float(number) for number in numbers]


HASHES: dict[str, Callable[[str], int]] = {"murmur3": murmur3, "farmhash": farmhash}


def _values(column: Any, row: Row) -> list[Value]:
    if isinstance(column, fc.CrossedColumn):
        return list(_cross(column, row))
    if isinstance(column, fc.BucketizedColumn):
        size = len(column.boundaries) + 1
        boundaries = [float(np.float32(one)) for one in column.boundaries]
        return [
            place * size + (size - 1 if math.isnan(one) else bisect.bisect_right(boundaries, one))
            for place, one in enumerate(numbers_of(column.source_column, row))
        ]
    return [_value(column, value) for value in _listed(row[column.key])]


def _value(column: Any, value: Any) -> Value:
    if value in (None, "", -1):
        return MISSING
    if isinstance(column, fc.IdentityCategoricalColumn):
        if 0 <= value < column.num_buckets:
            return int(value)
        return UNKNOWN if column.default_value is None else column.default_value
    if isinstance(column, fc.HashedCategoricalColumn):
        return HASHES[column.hash_function](str(value)) % column.hash_bucket_size
    words = list(column.vocabulary_list)
    if value in words:
        return words.index(value)
    if column.num_oov_buckets:
        return len(words) + HASHES[column.hash_function](str(value)) % column.num_oov_buckets
    return int(column.default_value)


def _cross(column: Any, row: Row) -> Iterator[Value]:
    lists = _lists(column)
    flat = list(_flat(column))
    sparse = [leaf for leaf in flat if not isinstance(leaf, str) or leaf in lists]
    dense = [leaf for leaf in flat if isinstance(leaf, str) and leaf not in lists]
    states = [column.hash_key or 0xDECAFCAFFE]
    for leaf in sparse + dense:
        if isinstance(leaf, str):
            hashed = HASHES[column.hash_function]
            texts = [value or "" for value in _listed(row[leaf])]
            values = [hashed(text) for text in texts if text or leaf in dense]
        else:
            values = [value % 2**64 for value in _values(leaf, row) if value is not None]
        states = [fingerprint_cat(state, value) for state in states for value in values]
    for state in states:
        yield state % column.hash_bucket_size


def _flat(column: Any) -> Iterator[Any]:
    for key in column.keys:
        if isinstance(key, fc.CrossedColumn):
            yield from _flat(key)
        else:
            yield key


def _lists(column: Any) -> set[str]:
    return set(column.list_keys).union(*(_lists(key) for key in column.keys if isinstance(key, fc.CrossedColumn)))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _shift_mix(value: int) -> int:
    return value ^ value >> 47


def _rotated(value: int, by: int) -> int:
    value &= MASK
    return (value >> by | value << 64 - by) & MASK
