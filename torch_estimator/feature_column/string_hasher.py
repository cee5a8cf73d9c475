"""Hashes of one raw column's strings, remembered across chunks."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import numpy as np

from torch_estimator.feature_column.hashing import HashFunction, UInt64Array, hash_strings

_logger = logging.getLogger(__name__)

MAX_REMEMBERED = 1_000_000


class StringHasher:
    """Hashes strings of one raw column.

    Attributes:
        recording: Whether the strings are kept in `seen`. Only ``"farmhash"`` needs that: an export carries
            their hashes, since no ONNX operator computes it.
        seen: Strings met while recording, at most `limit`.
    """

    not_in_fingerprint = ("recording", "seen", "_told", "_known")

    def __init__(self, key: str, function: HashFunction, *, limit: int = MAX_REMEMBERED) -> None:
        self.key = key
        self.function = function
        self.recording = False
        self.seen: set[str] = set()
        self._limit = limit
        self._told = False
        self._known: dict[str, int] = {}

    def __call__(self, strings: Sequence[str]) -> UInt64Array:
        """Hashes, uint64 ``[len(strings)]``."""
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
        """Adds strings to `seen` until it is full, which the log then says once."""
        new = set(strings) - self.seen
        room = self._limit - len(self.seen)
        if len(new) <= room:
            self.seen |= new
            return
        self.seen |= set(sorted(new)[:room])
        if not self._told:
            self._told = True
            _logger.warning(
                "Raw column %r has more than %d distinct strings: the export will know the farmhash of the "
                "first %d only and hash others with murmur3.",
                self.key,
                self._limit,
                self._limit,
            )

    def _remember(self, hashes: dict[str, int]) -> None:
        # Replaced rather than cleared, since another thread may be reading it.
        if len(self._known) + len(hashes) > self._limit:
            self._known = {}
        self._known.update(hashes)
