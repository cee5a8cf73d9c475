"""The process that compiles, and what it shares with the one that trains."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from torch_estimator.engine.compiled import compilation
from torch_estimator.engine.compiled.cache import StepCache
from torch_estimator.engine.compiled.compilation import Compilation
from torch_estimator.engine.compiled.tracing import CannotBeCompiled

# Far longer than it takes, and only waited for where the test fails.
SOON = 20.0


def started(folder: Path, reserved: BinaryIO) -> Compilation:
    folder.mkdir()
    none: Any = None
    return Compilation(none, (), none, folder, machine=None, reserved=reserved, keep=None, fingerprint=none, threads=1)


@pytest.fixture
def pipe() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """For reading, for writing."""
    reading, writing = os.pipe()
    with open(reading, "rb") as for_reading, open(writing, "wb") as for_writing:
        yield for_reading, for_writing


def reserved_in(directory: Path) -> BinaryIO:
    reserved = StepCache(directory).reserve("key")
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
        assert StepCache(tmp_path).reserve("key") is None
    finally:
        running.stop()
    reserved_in(tmp_path).close()


def test_a_compilation_has_only_its_own_files_open_and_may_close_what_the_training_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pipe: tuple[BinaryIO, BinaryIO]
) -> None:
    def tell(*_: Any) -> None:
        # As when it is collected; it must not be a file of the compilation's own by then.
        pipe[0].close()
        links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
        raise CannotBeCompiled(" ".join({os.readlink(link) for link in links if link.is_symlink()}))

    monkeypatch.setattr(compilation, "trace", tell)
    running = started(tmp_path / "built", reserved_in(tmp_path))
    running.wait()
    files = set(str(running.result()).split())
    running.remove()
    assert files == {os.devnull, str(tmp_path / "steps" / ".key.lock"), str(running._work / "compilation.log")}
