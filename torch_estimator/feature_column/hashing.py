"""64-bit hashes of strings: two hash functions, a function that combines hashes, and a cache of hashes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import mmh3
import numpy as np
import numpy.typing as npt

from torch_estimator.errors import InvalidValueError

HashFunction = Literal["murmur3", "farmhash"]
UInt64Array: TypeAlias = npt.NDArray[np.uint64]

# Seeds of the two 32-bit halves of a hash. An export passes them to onnxruntime's operator com.microsoft.MurmurHash3.
MURMUR3_SEED_HIGH = 0x3C6EF372
MURMUR3_SEED_LOW = 0x1B873593

FINGERPRINT_MULTIPLIER = 0xC6A4A7935BD1E995
FINGERPRINT_SHIFT = 47

MAX_REMEMBERED = 1_000_000
"""Number of strings of one raw column that a `StringHasher` remembers."""

_MULTIPLIER = np.uint64(FINGERPRINT_MULTIPLIER)
_SHIFT = np.uint64(FINGERPRINT_SHIFT)

_logger = logging.getLogger(__name__)


def check_hash_function(name: object) -> None:
    """Raise InvalidValueError unless `name` is ``"murmur3"``, or ``"farmhash"`` and pyfarmhash is installed."""
    if not isinstance(name, str) or name not in get_args(HashFunction):
        raise InvalidValueError(f"hash_function must be 'murmur3' or 'farmhash', but got {name!r}.")
    if name == "farmhash":
        _farmhash()


def hash_strings(strings: Sequence[str], function: HashFunction) -> UInt64Array:
    """Return the hashes of the UTF-8 bytes of strings, uint64 ``[len(strings)]``.

    ``"murmur3"`` joins two 32-bit MurmurHash3 with different seeds, the high half first. ``"farmhash"`` is TensorFlow's
    Fingerprint64.

    >>> hash_strings(["foo"], "farmhash") % 97
    array([14], dtype=uint64)
    """
    one = _farmhash() if function == "farmhash" else _murmur3
    return np.fromiter(map(one, strings), dtype=np.uint64, count=len(strings))


def fingerprint_cat64(first: Any, second: UInt64Array) -> UInt64Array:
    """Combine two arrays of hashes elementwise into one, as TensorFlow's FingerprintCat64 does."""
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
    """Return the hash function of the optional package pyfarmhash; raise InvalidValueError without the package."""
    try:
        import farmhash
    except ImportError as error:
        raise InvalidValueError(
            "hash_function='farmhash' needs the package pyfarmhash; install it with pip install "
            "'torch-estimator[farmhash]'."
        ) from error
    function: Callable[[str], int] = farmhash.fingerprint64
    return function


class StringHasher:
    """Callable that hashes the strings of one raw column, and caches up to `limit` hashes from one chunk to the next.

    While `recording` is set, it adds the strings to `seen` (at most `limit`). Only an export of ``"farmhash"`` needs
    them: no ONNX operator computes that hash, so the export carries the hashes of the strings seen in training.
    """

    not_in_fingerprint = ("recording", "seen", "_warned", "_known")

    def __init__(self, key: str, function: HashFunction, *, limit: int = MAX_REMEMBERED) -> None:
        self.key = key
        self.function = function
        self.recording = False
        self.seen: set[str] = set()
        self._limit = limit
        self._warned = False
        self._known: dict[str, int] = {}

    def __call__(self, strings: Sequence[str]) -> UInt64Array:
        """Return the hashes of strings, uint64 ``[len(strings)]``."""
        if self.recording:
            self.record(strings)
        hashes = list(map(self._known.get, strings))
        new = [position for position, known in enumerate(hashes) if known is None]
        if not new:
            return np.array(hashes, dtype=np.uint64)
        found = hash_strings([strings[position] for position in new], self.function).tolist()
        for position, value in zip(new, found, strict=True):
            hashes[position] = value
        self._remember({strings[position]: value for position, value in zip(new, found, strict=True)})
        return np.array(hashes, dtype=np.uint64)

    def record(self, strings: Iterable[str]) -> None:
        """Add strings to `seen`. When `seen` is full, ignore further strings and log one warning."""
        new = set(strings) - self.seen
        free = self._limit - len(self.seen)
        if len(new) <= free:
            self.seen |= new
            return
        self.seen |= set(sorted(new)[:free])
        if not self._warned:
            self._warned = True
            _logger.warning(
                "Raw column %r has more than %d distinct strings: the export will contain the farmhash of "
                "only the first %d, and hash others with murmur3.",
                self.key,
                self._limit,
                self._limit,
            )

    def _remember(self, hashes: dict[str, int]) -> None:
        # Replace a full cache instead of clearing it, because another thread may be reading it.
        if len(self._known) + len(hashes) > self._limit:
            self._known = {}
        self._known.update(hashes)
