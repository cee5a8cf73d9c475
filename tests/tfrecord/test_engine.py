"""The parser on a machine without a C compiler."""

from __future__ import annotations

import logging

import pytest

from torch_estimator.tfrecord import in_python
from torch_estimator.tfrecord.engine import engine


def test_without_a_c_compiler_records_are_read_in_python(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with caplog.at_level(logging.INFO, "torch_estimator"):
        assert engine.__wrapped__() is in_python
    assert caplog.messages[0].startswith("TFRecords are read in Python, which is slow, because no-such-compiler failed")
