"""The parser in C: compiled once for all processes, by nobody else, or replaced by Python."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from torch_estimator.code_cache import DIRECTORY_VARIABLE
from torch_estimator.tfrecord import in_python
from torch_estimator.tfrecord.engine import engine

Compilations = Callable[[], int]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def compilations(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Compilations:
    """Return how often a compiler that notes its output files has compiled."""
    compiler, noted = tmp_path / "cc", tmp_path / "noted"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *" -o "*) echo >>"{noted}";; esac\nexec {shutil.which("cc")} "$@"\n')
    compiler.chmod(0o755)
    noted.touch()
    monkeypatch.setenv("CC", str(compiler))
    return lambda: len(noted.read_text().splitlines())


def load() -> None:
    """Load the parser as a new process does."""
    loaded = engine.__wrapped__()
    assert loaded is not in_python
    assert loaded.scan(loaded.frame([b"a", b"bc"]), 0, 99).lengths.tolist() == [1, 2]


def test_the_parser_is_compiled_once_for_each_compiler_and_flags(
    compilations: Compilations, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load()
    load()
    assert compilations() == 1
    monkeypatch.setenv("CC", f"{cache.parent / 'cc'} -O1")
    load()
    assert compilations() == 2
    assert len(list((cache / "tfrecord").iterdir())) == 2


def test_a_parser_that_another_user_could_have_written_is_not_loaded(compilations: Compilations, cache: Path) -> None:
    load()
    (library,) = cache.glob("tfrecord/*/examples.so")
    library.chmod(0o666)
    load()
    assert compilations() == 2
    (cache / "tfrecord").chmod(0o777)
    load()
    assert compilations() == 3


def test_without_a_c_compiler_records_are_read_in_python(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with caplog.at_level(logging.INFO, "torch_estimator"):
        assert engine.__wrapped__() is in_python
    assert caplog.messages[0].startswith("TFRecords are read in Python, which is slow, because no-such-compiler failed")
