"""The functions of `files`, on local paths and on URLs."""

from __future__ import annotations

import errno
import os
import pathlib
import resource
from collections.abc import Iterator
from typing import IO, Any

import pytest

from torch_estimator import files
from torch_estimator.errors import InvalidTypeError, InvalidValueError


@pytest.fixture(params=["local", "memory"])
def base(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[str]:
    if request.param == "local":
        yield str(tmp_path / "base")
        return
    yield "memory://test_files/base"
    files.remove_tree("memory://test_files")


def test_written_content_is_read_back(base: str) -> None:
    files.makedirs(base)
    files.write_file(files.join(base, "f"), [b"ab", memoryview(b"cd")])
    files.write_atomic(files.join(base, "g"), "é".encode())
    assert files.read_bytes(files.join(base, "f")) == b"abcd"
    assert files.read_text(files.join(base, "g")) == "é"
    assert files.listdir(base) == ["f", "g"]


def test_write_atomic_replaces(base: str) -> None:
    files.makedirs(base)
    for content in (b"old and long", b"new"):
        files.write_atomic(files.join(base, "f"), content)
    assert files.read_bytes(files.join(base, "f")) == b"new"
    assert files.listdir(base) == ["f"]


def test_directories_are_made_listed_and_removed(base: str) -> None:
    below = files.join(base, "a", "b")
    files.makedirs(below)
    files.makedirs(below)
    files.write_file(files.join(below, "f"), [b""])
    assert files.is_dir(below)
    assert files.exists(files.join(below, "f")) and not files.is_dir(files.join(below, "f"))
    assert files.listdir(base) == ["a"]
    files.remove_tree(files.join(base, "a"))
    assert not files.exists(below)


def test_a_missing_path_lists_as_empty_and_can_be_removed(base: str) -> None:
    assert files.listdir(files.join(base, "absent")) == []
    files.remove_tree(files.join(base, "absent"))


def test_a_missing_file_is_a_file_not_found_error(base: str) -> None:
    with pytest.raises(FileNotFoundError):
        files.read_bytes(files.join(base, "absent"))


def test_a_file_replaced_while_read_is_read_again(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write_atomic(tmp_path / "a", b"new")
    monkeypatch.setattr(files, "open", StaleHandle(1), raising=False)
    assert files.read_bytes(tmp_path / "a") == b"new"
    monkeypatch.setattr(files, "open", StaleHandle(2), raising=False)
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
        files.read_bytes(tmp_path / "a")


class StaleHandle:
    """Replacement of `open` that fails at the first call, as on a network file system."""

    def __init__(self, times: int) -> None:
        self._left = times

    def __call__(self, path: str, mode: str) -> IO[Any]:
        if self._left:
            self._left -= 1
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return open(path, mode)


def test_sizes_are_those_of_the_files_in_a_directory(base: str) -> None:
    assert files.sizes(files.join(base, "absent")) == {}
    files.makedirs(files.join(base, "folder", "below"))
    files.write_file(files.join(base, "folder", "a"), [b"abc", b"de"])
    files.write_file(files.join(base, "folder", "below", "b"), [b"x"])
    assert files.sizes(files.join(base, "folder")) == {"a": 5}
    assert files.all_files(files.join(base, "folder")) == {"a": 5, "below/b": 1}
    assert files.all_files(files.join(base, "absent")) == {}


def test_a_file_that_is_removed_while_a_folder_is_read_is_not_in_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept").write_text("a")
    walked = [(str(tmp_path), [], ["kept", "removed"])]
    monkeypatch.setattr(os, "walk", lambda top: walked)
    assert files.all_files(tmp_path) == {"kept": 1}
    (tmp_path / "removed").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError):
        files.all_files(tmp_path)


def test_a_large_file_is_read_in_pieces(base: str) -> None:
    content = b"0123456789abcdef" * 2**20 + b"end"
    files.makedirs(base)
    files.write_file(files.join(base, "f"), [content])
    pieces = list(files.read_chunks(files.join(base, "f")))
    assert [len(piece) for piece in pieces] == [2**24, 3]
    assert b"".join(pieces) == content


class Disk:
    """Record of syncs and renames in order, with the names at that time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        fsync, rename = os.fsync, os.rename

        def recorded_fsync(descriptor: int) -> None:
            self.events.append(os.path.realpath(f"/proc/self/fd/{descriptor}"))
            fsync(descriptor)

        def recorded_rename(source: str, target: str) -> None:
            self.events.append(f"rename to {target}")
            rename(source, target)

        monkeypatch.setattr(os, "fsync", recorded_fsync)
        monkeypatch.setattr(os, "rename", recorded_rename)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs Linux to tell a descriptor's file")
def test_commit_dir_syncs_all_that_is_in_it_before_the_name(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary, final = tmp_path / "temporary", tmp_path / "final"
    (temporary / "assets").mkdir(parents=True)
    (temporary / "model.onnx").write_bytes(b"written by another library")
    (temporary / "assets" / "words").write_bytes(b"a")
    disk = Disk(monkeypatch)
    files.commit_dir(temporary, final)
    *before, rename, last = disk.events
    inside = [temporary, temporary / "assets", temporary / "assets" / "words", temporary / "model.onnx"]
    assert sorted(before) == [str(path) for path in inside]
    assert (rename, last) == (f"rename to {final}", str(tmp_path))


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs Linux to tell a descriptor's file")
@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EIO])
@pytest.mark.parametrize("of_files", [False, True])
def test_only_directories_may_be_on_a_file_system_that_does_not_sync_them(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, number: int, of_files: bool
) -> None:
    fsync = os.fsync

    def refusing(descriptor: int) -> None:
        if os.path.isfile(f"/proc/self/fd/{descriptor}") is of_files:
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    temporary = tmp_path / ".tmp-model"
    (temporary / "below").mkdir(parents=True)
    (temporary / "below" / "file").write_bytes(b"ab")
    monkeypatch.setattr(os, "fsync", refusing)
    if of_files or number == errno.EIO:
        for call in (
            lambda: files.write_atomic(tmp_path / "index", b"new"),
            lambda: files.commit_dir(temporary, tmp_path / "model"),
        ):
            with pytest.raises(OSError, match=os.strerror(number)):
                call()
        return
    files.write_atomic(tmp_path / "index", b"new")
    files.commit_dir(temporary, tmp_path / "model")
    assert (tmp_path / "index").read_bytes() == b"new"
    assert (tmp_path / "model" / "below" / "file").read_bytes() == b"ab"


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs Linux to tell a descriptor's file")
def test_the_parents_of_directories_that_are_made_are_synced(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    files.makedirs(tmp_path / "a" / "b")
    assert disk.events == [str(tmp_path), str(tmp_path / "a")]
    files.makedirs(tmp_path / "a" / "b")
    monkeypatch.chdir(tmp_path)
    files.makedirs("a/c/")
    assert disk.events[2:] == [str(tmp_path / "a")]


def test_commit_dir_gives_the_final_name(tmp_path: pathlib.Path) -> None:
    (tmp_path / "temporary").mkdir()
    (tmp_path / "temporary" / "f").write_text("x")
    files.commit_dir(tmp_path / "temporary", tmp_path / "final")
    assert files.listdir(tmp_path) == ["final"]


def test_a_failed_atomic_write_leaves_the_old_content_and_nothing_else(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(OSError):
            files.write_atomic(path, bytes(2 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"old"
    assert files.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize(
    ("path", "url"),
    [
        ("runs/x/", "runs/x"),
        ("/", "/"),
        (pathlib.Path("/a/b"), "/a/b"),
        ("file:///a/b", "/a/b"),
        ("~/x", os.path.join(os.path.expanduser("~"), "x")),
        ("s3://bucket/x/", "s3://bucket/x"),
        ("memory://", "memory://"),
    ],
)
def test_as_url(path: files.PathLike, url: str) -> None:
    assert files.as_url(path) == url


def test_join_basename_and_parent() -> None:
    assert files.join("/", "a", "b/") == "/a/b"
    assert files.join("memory://", "a") == "memory://a"
    assert files.join("s3://bucket/x/", "a", "b") == "s3://bucket/x/a/b"
    assert files.basename("s3://bucket/x/") == "x"
    assert files.parent("s3://bucket/x/") == "s3://bucket"
    assert files.parent("x") == "."
    assert files.parent("/a/b") == "/a"


def test_bad_paths_are_refused() -> None:
    with pytest.raises(InvalidTypeError, match="got 3"):
        files.as_url(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="must not be empty"):
        files.as_url("")
    with pytest.raises(InvalidValueError, match="nosuch://x cannot be used: Protocol not known"):
        files.exists("nosuch://x")


def test_reason_is_short() -> None:
    assert files.reason(FileNotFoundError(2, "No such file or directory", "/x")) == "No such file or directory"
    assert files.reason(ValueError("a.\nb")) == "a"
    assert files.reason(ValueError()) == "ValueError"
