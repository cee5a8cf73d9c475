"""The compiling process: its files, its priority and its end."""

from __future__ import annotations

import gc
import os
import re
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from torch_estimator.code_cache import CodeCache
from torch_estimator.compile import compilation
from torch_estimator.compile.compilation import Compilation
from torch_estimator.compile.precompiled_headers import PrecompiledHeaders
from torch_estimator.compile.trace_checks import CannotBeCompiled

# Seconds. This is far longer than needed; the test waits so long only if it fails.
SOON = 20.0


def started(
    folder: Path,
    reserved: BinaryIO,
    *,
    is_background: bool = False,
    keep: Callable[[Path], Path] | None = None,
) -> Compilation:
    folder.mkdir()
    none: Any = None
    return Compilation(
        none,
        (),
        none,
        folder,
        reserved=reserved,
        keep=keep,
        compute_key=none,
        threads=1,
        headers=PrecompiledHeaders((), folder),
        is_background=is_background,
    )


@pytest.fixture
def pipe() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Return the two ends of a pipe, for reading and for writing."""
    reading, writing = os.pipe()
    with open(reading, "rb") as for_reading, open(writing, "wb") as for_writing:
        yield for_reading, for_writing


def reserved_in(directory: Path) -> BinaryIO:
    reserved = CodeCache(directory).reserve("key")
    assert reserved is not None
    return reserved


def test_a_compilation_holds_its_reservation_and_no_pipe_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pipe: tuple[BinaryIO, BinaryIO]
) -> None:
    monkeypatch.setattr(compilation, "trace", lambda *_: time.sleep(600))
    reading, writing = pipe
    running = started(tmp_path / "built", reserved_in(tmp_path))
    writing.close()
    try:
        at_its_end, _, _ = select.select([reading], [], [], SOON)
        assert at_its_end
        assert CodeCache(tmp_path).reserve("key") is None
    finally:
        running.stop()
    reserved_in(tmp_path).close()


def test_a_compilation_has_only_its_own_files_open_and_may_close_descriptors_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pipe: tuple[BinaryIO, BinaryIO]
) -> None:
    def report(*_: Any) -> None:
        # Python does this when it collects the object. The descriptor must not belong to a new file by then.
        pipe[0].close()
        links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
        raise CannotBeCompiled(" ".join({os.readlink(link) for link in links if link.is_symlink()}))

    monkeypatch.setattr(compilation, "trace", report)
    running = started(tmp_path / "built", reserved_in(tmp_path))
    running.wait()
    files = set(str(running.result()).split())
    running.remove()
    assert files == {os.devnull, str(tmp_path / "steps" / ".key.lock"), str(running._work / "compilation.log")}


@pytest.mark.parametrize("is_background", [False, True])
def test_a_compilation_in_the_background_has_a_lower_priority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_background: bool
) -> None:
    def report(*_: Any) -> None:
        raise CannotBeCompiled(str(os.nice(0)))

    monkeypatch.setattr(compilation, "trace", report)
    running = started(tmp_path / "built", reserved_in(tmp_path), is_background=is_background)
    running.wait()
    priority = str(running.result())
    running.remove()
    # The kernel knows no lower priority than 19, which this process may have already.
    assert int(priority) == min(os.nice(0) + (compilation._NICENESS if is_background else 0), 19)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory in which compilations make their temporary directories."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


def wait_for_exit(running: Compilation) -> None:
    """Wait until a process has ended, without collecting its status."""
    os.waitid(os.P_PID, running._child.pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize("ends_first", [True, False])
def test_a_compilation_left_behind_leaves_no_files_and_no_process(
    ends_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    # The child has none of the open files of this process, but it can open one by its name.
    os.mkfifo(tmp_path / "go")

    def wait(*_: Any) -> None:
        (tmp_path / "go").read_bytes()
        raise CannotBeCompiled("as it should")

    monkeypatch.setattr(compilation, "trace", wait)
    running = started(tmp_path / "built", reserved_in(tmp_path), keep=lambda built: built)
    if ends_first:
        (tmp_path / "go").write_bytes(b"")
        wait_for_exit(running)
    running.leave()
    if not ends_first:
        (tmp_path / "go").write_bytes(b"")
        wait_for_exit(running)
    assert not [*temporary.iterdir()]
    assert not (tmp_path / "built").exists()
    monkeypatch.setattr(compilation, "trace", lambda *_: None)
    started(tmp_path / "next", reserved_in(tmp_path)).stop()
    with pytest.raises(ChildProcessError):
        os.waitpid(running._child.pid, os.WNOHANG)


def endless(monkeypatch: pytest.MonkeyPatch, folder: Path, keep: Callable[[Path], Path] | None = None) -> Compilation:
    """Start a compilation that does not end within ten minutes."""
    monkeypatch.setattr(compilation, "trace", lambda *_: time.sleep(600))
    with open(os.devnull, "rb") as reserved:
        return started(folder, reserved, keep=keep)


def test_a_compilation_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = endless(monkeypatch, tmp_path / "work")
    assert not running.is_over()
    running.stop()
    assert running.is_over()
    assert not (tmp_path / "work").exists()


def test_a_compilation_goes_on_only_if_later_runs_can_use_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = endless(monkeypatch, tmp_path / "kept", keep=lambda folder: folder)
    left.leave()
    assert not left.is_over()
    left.stop()
    ended = endless(monkeypatch, tmp_path / "of no use")
    ended.leave()
    assert ended.is_over()


def test_a_compilation_that_fails_unexpectedly_gives_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise AttributeError("module 'torch' has no attribute 'x'\nmore")

    monkeypatch.setattr(compilation, "trace", fail)
    running = started(tmp_path / "built", reserved_in(tmp_path))
    running.wait()
    assert running.result() == "AttributeError: module 'torch' has no attribute 'x'"
    running.remove()


def test_a_compilation_that_is_killed_or_takes_too_long_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = endless(monkeypatch, tmp_path / "killed")
    os.kill(running._child.pid, signal.SIGKILL)
    running.wait()
    assert running.result() == "the compiling process died of SIGKILL"
    running.remove()
    monkeypatch.setattr(compilation, "_MAX_SECS", 2.0)
    running = endless(monkeypatch, tmp_path / "slow")
    running.wait()
    said = rf"compiling took more than 2 seconds \(last in <lambda>, {re.escape(__file__)}, line \d+\)"
    assert re.fullmatch(said, str(running.result()))


def test_a_compilation_that_does_nothing_is_stopped_and_one_that_works_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "_CHECK_SECS", 0.1)
    monkeypatch.setattr(compilation, "_STUCK_CHECKS", 5)

    def wait_for_a_thread(*_: Any) -> None:
        threading.Event().wait()

    def compute(*_: Any) -> None:
        until = time.monotonic() + 2
        while time.monotonic() < until:
            pass
        subprocess.run(["sleep", "2"], check=True)
        raise CannotBeCompiled("the work is done")

    monkeypatch.setattr(compilation, "trace", compute)
    working = started(tmp_path / "working", reserved_in(tmp_path))
    working.wait()
    assert working.result() == "the work is done"
    working.remove()
    monkeypatch.setattr(compilation, "trace", wait_for_a_thread)
    stuck = started(tmp_path / "stuck", reserved_in(tmp_path))
    stuck.wait()
    assert stuck.is_stuck
    assert re.fullmatch(
        r"the compiling process did nothing .*\(last in wait, .*threading.py, line \d+\)", stuck.result()
    )


def test_a_compilation_does_not_destroy_the_garbage_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    destroyed = []

    class Owner:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            destroyed.append(os.getpid())

    def collect(*_: Any) -> None:
        gc.collect()
        raise CannotBeCompiled(f"{len(destroyed)} destroyed")

    monkeypatch.setattr(compilation, "trace", collect)
    gc.disable()
    try:
        Owner()
        running = started(tmp_path / "built", reserved_in(tmp_path))
    finally:
        gc.enable()
    running.wait()
    assert running.result() == "0 destroyed"
    running.remove()
