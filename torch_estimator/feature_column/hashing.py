"""64-bit hashes of strings and their combination."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import mmh3
import numpy as np
import numpy.typing as npt

from torch_estimator.errors import InvalidValueError

HashFunction = Literal["murmur3", "farmhash"]
UInt64Array: TypeAlias = npt.NDArray[np.uint64]

# onnxruntime's com.microsoft MurmurHash3 with these seeds gives the same two halves.
MURMUR3_SEED_HIGH = 0x3C6EF372
MURMUR3_SEED_LOW = 0x1B873593

_MULTIPLIER = np.uint64(0xC6A4A7935BD1E995)
_SHIFT = np.uint64(47)


def check_hash_function(name: object) -> None:
    """Raises InvalidValueError unless it is ``"murmur3"``, or ``"farmhash"`` with pyfarmhash installed."""
    if not isinstance(name, str) or name not in get_args(HashFunction):
        raise InvalidValueError(f"hash_function must be 'murmur3' or 'farmhash', but got {name!r}.")
    if name == "farmhash":
        _farmhash()


def hash_strings(strings: Sequence[str], function: HashFunction) -> UInt64Array:
    """Hashes of the UTF-8 bytes of each string, uint64 ``[len(strings)]``.

    ``"murmur3"`` joins two seeded 32-bit MurmurHash3, high half first; ``"farmhash"`` is TensorFlow's
    Fingerprint64.

    >>> hash_strings(["foo"], "farmhash") % 97
    array([14], dtype=uint64)
    """
    one = _farmhash() if function == "farmhash" else _murmur3
    return np.fromiter(map(one, strings), dtype=np.uint64, count=len(strings))


def fingerprint_cat64(first: Any, second: UInt64Array) -> UInt64Array:
    """TensorFlow's FingerprintCat64, elementwise with broadcasting, modulo 2**64."""
    mixed = _shift_mix(second * _MULTIPLIER) * _MULTIPLIER
    result = (first ^ _MULTIPLIER ^ mixed) * _MULTIPLIER
    return _shift_mix(_shift_mix(result) * _MULTIPLIER)


def _shift_mix(value: UInt64Array) -> UInt64Array:
    return value ^ (value >> _SHIFT)


def _murmur3(string: str) -> int:
    data = string.encode()
    high: int = mmh3.hash(data, MURMUR3_SEED_HIGH, signed=False)
    low: int = mmh3.hash(data, MURMUR3_SEED_LOW, signed=False)
    return high << 32 | low


def _farmhash() -> Callable[[str], int]:
    try:
        import farmhash
    except ImportError as error:
        raise InvalidValueError(
            "hash_function='farmhash' needs the package pyfarmhash; install it with pip install "
            "'torch-estimator[farmhash]'."
        ) from error
    function: Callable[[str], int] = farmhash.fingerprint64
    return function
