from __future__ import annotations

import logging

import pytest

from torch_estimator.feature_column.hashing import StringHasher, hash_strings


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


def test_seen_strings_are_bounded_and_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    hasher = StringHasher("city", "farmhash", limit=3)
    with caplog.at_level(logging.WARNING):
        hasher.record(["a", "b", "c"])
        assert not caplog.records
        hasher.record(["a", "b"])
        hasher.record(["d"])
        hasher.record(["e"])
    assert hasher.seen == {"a", "b", "c"}
    assert ["'city'" in record.getMessage() for record in caplog.records] == [True]
