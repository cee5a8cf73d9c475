"""The checksum of TFRecord files."""

from __future__ import annotations

from functools import cache

_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8


def masked_crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli), rotated and moved as TensorFlow does with checksums that are stored beside their data.

    >>> hex(masked_crc32c(b"123456789"))
    '0xc78ab0e5'
    """
    checksum = 0xFFFFFFFF
    table = _table()
    for byte in data:
        checksum = table[(checksum ^ byte) & 0xFF] ^ (checksum >> 8)
    checksum ^= 0xFFFFFFFF
    return ((checksum >> 15 | checksum << 17) + _MASK_DELTA) & 0xFFFFFFFF


@cache
def _table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)
