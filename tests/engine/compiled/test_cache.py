"""Directories of compiled steps that cannot be used as they should be."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from torch_estimator.engine.compiled.cache import DIRECTORY_VARIABLE, StepCache

NOBODY = 65534


def failing(number: int) -> Callable[..., NoReturn]:
    def fail(*arguments: object, **settings: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fail


def assert_holds_nothing(cache: StepCache) -> None:
    """Nothing is found and nothing kept, and yet a step can be compiled, for one run."""
    assert cache.folder("key") is None
    assert cache.of_machine() is None
    reserved = cache.reserve("key")
    assert reserved is not None
    reserved.close()
    built = cache.workplace()
    assert not cache.can_keep(built)
    assert cache.keep(built, "key") == built
    cache.remove(built)


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """A directory that this user may not look into."""
    directory = tmp_path / "of another user"
    directory.mkdir()
    directory.chmod(0)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    yield directory
    if is_root:
        os.seteuid(0)
    directory.chmod(0o700)


def test_a_directory_of_another_user_holds_nothing_which_is_told_once(
    closed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    cache = StepCache(closed)
    assert_holds_nothing(cache)
    assert_holds_nothing(cache)
    (told,) = caplog.messages
    assert told.startswith("Compiled steps are not kept for later runs: Permission denied (")
    assert told.endswith("TORCH_ESTIMATOR_CACHE_DIR may name another directory.")


def test_the_cache_of_a_user_without_a_home_directory_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (DIRECTORY_VARIABLE, "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    # Whom no file of users names.
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert_holds_nothing(StepCache())


def test_what_lies_on_a_read_only_file_system_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = StepCache(tmp_path)
    kept = cache.keep(cache.workplace(), "key")
    monkeypatch.setattr(os, "utime", failing(errno.EROFS))
    assert cache.folder("key") == kept


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL])
def test_where_files_cannot_be_locked_nobody_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(number))
    reserved = StepCache(tmp_path).reserve("key")
    assert reserved is not None
    reserved.close()
