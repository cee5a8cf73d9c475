"""A file lock is held by one process, and is free as soon as that process has ended, also after forks and kills."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from torch_estimator.runs.locks import FileLock


@pytest.fixture(params=["file", "directory"])
def lock(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, bool]:
    """Return the path of a lock, and whether it is a directory."""
    return (str(tmp_path), True) if request.param == "directory" else (str(tmp_path / "lock"), False)


def test_a_lock_has_one_holder(lock: tuple[str, bool]) -> None:
    path, directory = lock
    with FileLock(path, directory=directory) as held:
        assert held.is_held
        with pytest.raises(BlockingIOError):
            FileLock(path, directory=directory, wait_secs=0.01)
    assert not held.is_held
    held.release()
    FileLock(path, directory=directory).release()


def test_a_forked_process_neither_holds_the_lock_nor_releases_it(lock: tuple[str, bool]) -> None:
    path, directory = lock
    held = FileLock(path, directory=directory)
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        held.release(remove=True)
        os.write(writer, b"1" if held.is_held else b"0")
        signal.pause()
    try:
        assert os.read(reader, 1) == b"0"
        with pytest.raises(BlockingIOError):
            FileLock(path, directory=directory)
        held.release()
        FileLock(path, directory=directory).release()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)


def test_a_file_that_took_the_place_of_the_locked_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = FileLock(str(path))
    path.unlink()
    second = FileLock(str(path))
    first.release(remove=True)
    assert path.exists()
    second.release(remove=True)
    assert not path.exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic link"):
        FileLock(str(tmp_path / "lock"))
    assert not (tmp_path / "other").exists()
