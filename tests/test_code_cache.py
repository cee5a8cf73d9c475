"""The cache of compiled steps, and directories that it cannot or must not use."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from torch_estimator.code_cache import DIGESTS, DIRECTORY_VARIABLE, CodeCache

NOBODY = 65534


def failing(number: int) -> Callable[..., NoReturn]:
    def fail(*arguments: object, **settings: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fail


def assert_holds_nothing(cache: CodeCache) -> None:
    """Check that nothing is found and nothing kept, and that a step can be built for one run all the same."""
    assert cache.find("key") is None
    reserved = cache.reserve("key")
    assert reserved is not None
    reserved.close()
    built = cache.make_build_folder()
    assert not cache.can_keep(built)
    assert cache.keep(built, "key") == built
    cache.remove(built)


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """Return a directory that this user may not search."""
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


def test_in_a_directory_of_another_user_nothing_is_found_and_one_line_says_so(
    closed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    cache = CodeCache(closed)
    assert_holds_nothing(cache)
    assert_holds_nothing(cache)
    (logged,) = caplog.messages
    assert logged.startswith("Compiled steps are not kept for later runs: Permission denied (")
    assert logged.endswith("TORCH_ESTIMATOR_CACHE_DIR may name another directory.")


def test_without_a_home_directory_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (DIRECTORY_VARIABLE, "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    # A user id that is not in /etc/passwd.
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    assert_holds_nothing(CodeCache())


def test_an_entry_on_a_read_only_file_system_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CodeCache(tmp_path)
    kept = cache.keep(cache.make_build_folder(), "key")
    monkeypatch.setattr(os, "utime", failing(errno.EROFS))
    assert cache.find("key") == kept


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL])
def test_if_files_cannot_be_locked_every_process_may_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(fcntl, "flock", failing(number))
    reserved = CodeCache(tmp_path).reserve("key")
    assert reserved is not None
    reserved.close()


def kept(cache: CodeCache) -> Path:
    """Make an entry for the key "key"."""
    built = cache.make_build_folder()
    (built / "step.so").write_bytes(bytes(range(256)) * 16)
    (built / "step.json").write_text("{}")
    return cache.keep(built, "key")


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")


def give_away(path: Path) -> None:
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


UNSAFE: dict[str, tuple[str, Callable[[Path], object]]] = {
    "writable": ("cache/steps", lambda path: path.chmod(0o777)),
    "writable parent": ("cache", lambda path: path.chmod(0o777)),
    "of another user": ("cache/steps", give_away),
    "parent of another user": ("cache", give_away),
    "sticky, and planted": ("cache/steps", lambda path: (path.parent.chmod(0o1777), give_away(path))),
}


@needs_root
@pytest.mark.parametrize("case", UNSAFE)
def test_a_cache_that_other_users_can_change_is_not_used_and_one_warning_names_the_directory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    named, change = UNSAFE[case]
    kept(CodeCache(tmp_path / "cache"))
    change(tmp_path / named)
    cache = CodeCache(tmp_path / "cache")
    assert_holds_nothing(cache)
    assert_holds_nothing(cache)
    (logged,) = caplog.messages
    assert f"because other users can change {tmp_path / named} (owner " in logged


def test_inside_a_sticky_directory_such_as_tmp_the_cache_is_used(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    cache = CodeCache(tmp_path / "cache")
    assert cache.find("key") is None
    assert kept(cache) == cache.find("key") == tmp_path / "cache" / "steps" / "key"


def test_files_of_the_cache_are_accessible_to_this_user_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        entry = kept(CodeCache(tmp_path / "new" / "cache"))
    finally:
        os.umask(before)
    made = [entry, *entry.parents[:3], *entry.iterdir()]
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in made} == {0}
    assert CodeCache(tmp_path / "new" / "cache").find("key") == entry


def test_a_lock_is_not_opened_through_a_link(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    cache = CodeCache(tmp_path)
    cache.remove(kept(cache))
    (tmp_path / "steps" / ".key.lock").symlink_to(precious)
    reserved = cache.reserve("key")
    assert reserved is not None
    reserved.close()
    assert precious.read_text() == "precious"


def zeros_at_the_end(entry: Path) -> None:
    content = (entry / "step.so").read_bytes()
    (entry / "step.so").write_bytes(content[:2000] + bytes(len(content) - 2000))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": lambda entry: os.truncate(entry / "step.so", 100),
    "blocks that were never written": zeros_at_the_end,
    "empty description": lambda entry: os.truncate(entry / "step.json", 0),
    "file missing": lambda entry: (entry / "step.so").unlink(),
    "file too many": lambda entry: (entry / "more").touch(),
    "no digests": lambda entry: (entry / DIGESTS).unlink(),
    "empty digests": lambda entry: os.truncate(entry / DIGESTS, 0),
    "deep digests": lambda entry: (entry / DIGESTS).write_text("[" * 100_000),
    "other digests": lambda entry: (entry / DIGESTS).write_text(json.dumps({"step.so": 1})),
    "all may write": lambda entry: entry.chmod(0o777),
    "all may write to a file": lambda entry: (entry / "step.so").chmod(0o666),
    "a link": lambda entry: entry.symlink_to(entry.rename(entry.with_name("away"))),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_removed_with_one_warning_and_can_be_built_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    cache = CodeCache(tmp_path)
    entry = kept(cache)
    assert cache.find("key") == entry
    DAMAGES[damage](entry)
    assert cache.find("key") is None
    assert not os.path.lexists(entry)
    (logged,) = caplog.messages
    assert logged == f"The compiled step in {entry} is damaged or of another user; it is compiled again."
    assert kept(cache) == entry == cache.find("key")


@needs_root
def test_an_entry_of_another_user_is_not_used(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path)
    for given in (lambda entry: entry, lambda entry: entry / "step.so"):
        give_away(given(kept(cache)))
        assert cache.find("key") is None


def test_an_entry_is_synced_to_disk_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", note)
    cache = CodeCache(tmp_path)
    built = cache.make_build_folder()
    (built / "step.so").write_bytes(b"code")
    cache.keep(built, "key")
    assert {*map(str, (built / "step.so", built / DIGESTS))} == {*synced[:2]}
    assert synced[2:] == [str(built), str(tmp_path / "steps")]


def test_a_key_is_reserved_until_every_copy_of_the_lock_is_closed(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path)
    reserved = cache.reserve("key")
    assert reserved is not None
    assert cache.reserve("key") is None
    child = os.fork()
    if child == 0:
        time.sleep(600)
    reserved.close()
    assert cache.reserve("key") is None
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    again = cache.reserve("key")
    assert again is not None
    again.close()


def test_what_a_killed_compiler_has_left_is_no_entry_and_is_removed_by_the_next_one(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path)
    reserved = cache.reserve("key")
    assert reserved is not None
    left, other = cache.make_build_folder("key"), cache.make_build_folder("another key")
    (left / "step.so").write_bytes(b"half of a librar")
    assert cache.reserve("key") is None
    assert left.is_dir()
    # The lock of a process ends with the process.
    reserved.close()
    assert cache.find("key") is None
    again = cache.reserve("key")
    assert again is not None
    again.close()
    assert not left.exists()
    assert other.is_dir()


def test_a_cache_that_others_may_write_to_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = CodeCache(tmp_path)
    kept = cache.keep(cache.make_build_folder(), "key")
    assert cache.find("key") == kept == tmp_path / "steps" / "key"
    (tmp_path / "steps").chmod(0o777)
    assert cache.find("key") is None
    assert "because other users can change" in caplog.text
    elsewhere = cache.make_build_folder()
    assert cache.keep(elsewhere, "other") == elsewhere
    elsewhere.rmdir()


def test_the_oldest_steps_are_removed(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path)
    os.utime(cache.make_build_folder(), (0, 0))
    for number in range(70):
        os.utime(cache.keep(cache.make_build_folder(), f"{number}"), (number, number))
    assert {one.name for one in (tmp_path / "steps").iterdir()} == {f"{number}" for number in range(6, 70)}
