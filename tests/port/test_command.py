"""The command ``estimator port``: which files it reads and writes, what it prints, and its errors."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from torch_estimator.cli import main

BEFORE = "import tensorflow as tf\n\nspec = tf.estimator.TrainSpec(tf.cast)\n"
AFTER = "import tensorflow as tf\nimport torch_estimator as te\n\nspec = te.TrainSpec(tf.cast)\n"
TODO = "tf.cast: input functions compute with numpy, modules and losses with torch."


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("trainer", "task.py")
    path.parent.mkdir()
    path.write_text(BEFORE, encoding="utf-8")
    return path


def test_it_rewrites_a_file_and_names_its_new_lines(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["port", str(program)]) == 0
    assert program.read_text(encoding="utf-8") == AFTER
    assert capsys.readouterr().out.splitlines() == [
        "trainer/task.py: to do",
        f"  4: {TODO}",
        "1 name in 1 file has a counterpart; 1 place is left to you.",
    ]


def test_links_permissions_and_line_ends_stay(program: Path) -> None:
    program.write_bytes(b"\xef\xbb\xbf" + BEFORE.replace("\n", "\r\n").encode())
    program.chmod(0o755)
    link = Path("task.py")
    link.symlink_to(program)
    assert main(["port", str(link)]) == 0
    assert link.is_symlink() and program.stat().st_mode & 0o777 == 0o755
    assert program.read_bytes() == AFTER.replace("\n", "\r\n").encode()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_cannot_be_written_is_an_error(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program.parent.chmod(0o500)
    assert main(["port", str(program)]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_check_and_diff_change_nothing(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["port", "--check", "trainer"]) == 0
    assert capsys.readouterr().out.splitlines()[:2] == ["trainer/task.py: to do", f"  3: {TODO}"]
    assert main(["port", "--diff", "trainer"]) == 0
    printed = capsys.readouterr().out
    assert "+import torch_estimator as te\n" in printed and "-spec = tf.estimator.TrainSpec(tf.cast)\n" in printed
    assert program.read_text(encoding="utf-8") == BEFORE


def test_the_files_of_a_directory_are_one_program(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hidden = program.parent / ".venv" / "site.py"
    hidden.parent.mkdir()
    hidden.write_text("import tensorflow as tf\ntf.contrib\n", encoding="utf-8")
    (program.parent / "model.py").write_text(
        "import tensorflow as tf\nmodel = tf.estimator.LinearRegressor\nseed = tf.random.set_seed\n", encoding="utf-8"
    )
    assert main(["port", "trainer"]) == 0
    assert "te.v2.LinearRegressor" in (program.parent / "model.py").read_text(encoding="utf-8")
    assert capsys.readouterr().out.splitlines()[-1] == (
        "Premade models have the defaults of TF 2.x: trainer/model.py uses tf.random.set_seed. "
        "--tf 1 takes those of TF 1.x."
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.py", None, "There is no file missing.py."),
        ("old.py", b"print 'hello'\n", "old.py:1: the file is not in the syntax of Python 3"),
        ("latin.py", b"# \xe9\n", "latin.py is not a text in UTF-8"),
        ("book.ipynb", b"{}", "jupyter nbconvert --to script book.ipynb."),
        ("empty", "directory", "The directory empty holds no Python files."),
    ],
)
@pytest.mark.usefixtures("program")
def test_what_cannot_be_read_is_an_error_and_nothing_is_written(
    name: str, content: bytes | str | None, message: str, program: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content == "directory":
        Path(name).mkdir()
    elif isinstance(content, bytes):
        Path(name).write_bytes(content)
    assert main(["port", str(program), name]) == 2
    error = capsys.readouterr().err
    assert error.startswith("estimator: error: ") and message in error
    assert program.read_text(encoding="utf-8") == BEFORE


def test_it_says_what_to_install(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "libcst", None)
    assert main(["port", str(program)]) == 2
    assert 'estimator port needs LibCST: pip install "torch-estimator[port]".' in capsys.readouterr().err
