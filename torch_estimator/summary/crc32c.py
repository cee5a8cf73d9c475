"""The checksum of TFRecord files."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

_POLYNOMIAL = 0x82F63B78
_BLOCK = 256

_Numbers = np.ndarray[Any, np.dtype[Any]]


def masked_crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli) of `data`, rotated and offset as TFRecord files have it.

    >>> hex(masked_crc32c(b"123456789"))
    '0xc78ab0e5'
    """
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli) of `data`.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    table = _table()
    state = 0xFFFFFFFF
    for start in range(0, len(data), _BLOCK):
        # The checksum is linear: each byte contributes by itself, as if zeros followed it.
        block = np.frombuffer(data, np.uint8, min(_BLOCK, len(data) - start), start).astype(np.intp)
        size = len(block)
        block[:4] ^= np.frombuffer(state.to_bytes(4, "little"), np.uint8)[:size]
        block += _offsets()[-size:]
        state = int(np.bitwise_xor.reduce(table[block])) ^ (state >> 8 * size)
    return state ^ 0xFFFFFFFF


@cache
def _table() -> _Numbers:
    """At ``256 * n + byte`` what a byte contributes that `n` more follow."""
    first: _Numbers = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = (first >> 1) ^ np.where(first & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    rows = [first]
    for _ in range(_BLOCK - 1):
        rows.append((rows[-1] >> 8) ^ first[rows[-1] & 255])
    return np.concatenate(rows)


@cache
def _offsets() -> _Numbers:
    return np.arange(_BLOCK - 1, -1, -1, dtype=np.intp) * 256
