"""A program is known by the content of its files, whichever module is ``__main__``."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from torch_estimator.compile.sources import sources_of

PROGRAM = {
    "trainer/__init__.py": "",
    "trainer/task.py": """
import sys
from torch import nn
from . import layers
class Model(nn.Module):
    def forward(self, x):
        from trainer.late import SLOPE
        return layers.scaled(x) * SLOPE
def key():
    from torch_estimator.compile.key import cache_key
    import trainer.late
    return cache_key(Model()).digest
if __name__ == "__main__":
    print(key())
""",
    "trainer/layers.py": "from trainer import numbers\ndef scaled(x):\n    return x * numbers.OF_FILE[0]\n",
    "trainer/late.py": "SLOPE = 2.0\n",
    "trainer/numbers.py": "OF_FILE = [1.0]\n",
    "other.py": "from trainer.task import key\nprint(key())\n",
}

Write = Callable[[dict[str, str]], None]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes files of the program, as if long ago."""

    def write(files: dict[str, str]) -> None:
        for name, text in files.items():
            file = tmp_path / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
            os.utime(file, (1e9, 1e9 + len(text)))

    write(PROGRAM)
    return write


def run(folder: Path, *arguments: str) -> str:
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True, text=True, timeout=300
    ).stdout


def test_a_program_has_one_key_however_it_is_started(write: Write, tmp_path: Path) -> None:
    keys = {
        run(tmp_path, "-m", "trainer.task"),
        run(tmp_path, "other.py"),
        run(tmp_path, "-c", "import os, trainer.task\nif os.fork() == 0: print(trainer.task.key())\nelse: os.wait()"),
    }
    assert len(keys) == 1


@pytest.fixture
def sources(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], set[str]]:
    """Return a function that imports the program and returns its sources."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ("trainer", "trainer.task", "trainer.layers", "trainer.numbers", "trainer.late", "unrelated")

    def sources() -> set[str]:
        for name in names:
            monkeypatch.delitem(sys.modules, name, raising=False)
        task: ModuleType = importlib.import_module("trainer.task")
        importlib.import_module("trainer.late")
        return sources_of(task)

    return sources


@pytest.mark.parametrize("name", ["task", "layers", "late", "numbers", "__init__"])
def test_each_file_that_the_program_imports_counts(name: str, write: Write, sources: Callable[[], set[str]]) -> None:
    before = sources()
    assert sources() == before
    write({f"trainer/{name}.py": PROGRAM[f"trainer/{name}.py"] + "# Another line.\n"})
    assert sources() != before


def test_a_file_that_is_not_imported_does_not_count(write: Write, sources: Callable[[], set[str]]) -> None:
    before = sources()
    write({"trainer/unrelated.py": "X = 1"})
    assert sources() == before


def test_a_file_that_is_written_while_the_program_runs_is_known_to_no_other_process(
    write: Write, sources: Callable[[], set[str]], tmp_path: Path
) -> None:
    before = sources()
    # The process may have imported the version before.
    os.utime(tmp_path / "trainer" / "task.py")
    assert sources() != before
