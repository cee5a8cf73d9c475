"""The hash functions, and the cache of hashed strings."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import mmh3
import numpy as np
import pytest

from torch_estimator.errors import InvalidValueError
from torch_estimator.feature_column.hashing import (
    MURMUR3_SEED_HIGH,
    MURMUR3_SEED_LOW,
    StringHasher,
    check_hash_function,
    fingerprint_cat64,
    hash_strings,
)

Golden = Callable[[str], Any]


def test_farmhash_equals_fingerprint64_of_tensorflow(golden: Golden) -> None:
    reference = golden("hash")["fingerprint64"]
    hashes = hash_strings(list(reference), "farmhash")
    assert [str(value) for value in hashes] == list(reference.values())


def test_farmhash_buckets_equal_those_of_tensorflow(golden: Golden) -> None:
    reference = golden("hash")["hash_bucket_97"]
    buckets = hash_strings(list(reference), "farmhash") % np.uint64(97)
    assert buckets.tolist() == list(reference.values())


def test_murmur3_joins_two_seeded_hashes_of_the_utf8_bytes() -> None:
    strings = ["", "a", "Škoda", "日本", "x" * 5000]
    expected = [
        mmh3.hash(s.encode(), MURMUR3_SEED_HIGH, signed=False) << 32
        | mmh3.hash(s.encode(), MURMUR3_SEED_LOW, signed=False)
        for s in strings
    ]
    assert hash_strings(strings, "murmur3").tolist() == expected


def test_hashing_nothing_gives_nothing() -> None:
    assert hash_strings([], "murmur3").tolist() == []


def test_fingerprint_cat64_wraps_like_unsigned_64_bit_integers() -> None:
    def reference(first: int, second: int) -> int:
        mask, multiplier = 2**64 - 1, 0xC6A4A7935BD1E995

        def mix(value: int) -> int:
            return value ^ (value >> 47)

        result = first ^ multiplier ^ (mix(second * multiplier & mask) * multiplier & mask)
        return mix(mix(result * multiplier & mask) * multiplier & mask)

    values = np.random.default_rng(0).integers(0, 2**64, size=(2, 50), dtype=np.uint64)
    expected = [reference(int(a), int(b)) for a, b in values.T]
    assert fingerprint_cat64(values[0], values[1]).tolist() == expected


@pytest.mark.parametrize("name", ["md5", None, "Murmur3"])
def test_unknown_hash_functions_are_refused(name: object) -> None:
    with pytest.raises(InvalidValueError, match=f"must be 'murmur3' or 'farmhash', but got {name!r}"):
        check_hash_function(name)


def test_remembered_and_new_strings_hash_alike() -> None:
    hasher = StringHasher("k", "murmur3", limit=3)
    for strings in (["a", "b"], ["b", "c", "a"], ["d", "e", "a", "a"], ["a", "f"], []):
        assert hasher(strings).tolist() == hash_strings(strings, "murmur3").tolist()


def test_strings_are_seen_only_while_recording() -> None:
    hasher = StringHasher("k", "farmhash")
    hasher(["a"])
    assert hasher.seen == set()
    hasher.recording = True
    hasher(["a", "b"])
    assert hasher.seen == {"a", "b"}


def test_seen_strings_are_bounded_and_a_warning_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    hasher = StringHasher("city", "farmhash", limit=3)
    with caplog.at_level(logging.WARNING):
        hasher.record(["a", "b", "c"])
        assert not caplog.records
        hasher.record(["a", "b"])
        hasher.record(["d"])
        hasher.record(["e"])
    assert hasher.seen == {"a", "b", "c"}
    assert ["'city'" in record.getMessage() for record in caplog.records] == [True]
