"""Whole programs: those of the documentation are ported, get the few lines that are left, and run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT, blocks, side
from torch_estimator.port.program import PortedFile, port

MIGRATE = ROOT / "docs" / "migrate"
COUNTS = (MIGRATE / "port.md").read_text(encoding="utf-8").split("## Five programs")[1]

# What a user writes in place of code that is left: from the first text up to the second one, and the new lines.
PEOPLE = [
    ("import tensorflow as tf\n", "import", ""),
    ("    def parse(line)", "    rows = rows.map", '    rows = te.data.Dataset.from_csv(file, label="rich")\n'),
    ("    rows = rows.map", "    rows = rows.shuffle", ""),
]
BABYWEIGHT = [
    ("import tensorflow as tf\n", "import", ""),
    ("    def parse(lines)", "    def input_fn", ""),
    (
        "        rows = tf.data",
        "        rows = rows.shuffle",
        "        rows = te.data.Dataset.from_csv(\n"
        "            pattern, column_names=COLUMNS, defaults=DEFAULTS, label=LABEL\n"
        "        )\n",
    ),
    (
        "    def placeholder(dtype)",
        "def rmse",
        '    wide, deep = wide_and_deep()\n    return te.serving_input.json(wide + deep, defaults={KEY: "nokey"})\n',
    ),
]


def code_of(page: str, language: str) -> list[str]:
    return [block.code for block in blocks(MIGRATE / page) if block.language == language]


def finished(ported: PortedFile, edits: list[tuple[str, str, str]]) -> str:
    """Return a ported program after a user's edits."""
    code = ported.after
    for start, end, lines in edits:
        begin = code.index(start)
        stop = code.index(end, begin + len(start))
        code = code[:begin] + lines + code[stop:]
    return code


@pytest.mark.parametrize(
    ("before", "edits", "row"),
    [
        (code_of("tf2.md", "tensorflow")[0], PEOPLE, r"From TensorFlow 2\.x"),
        (
            side((block for block in blocks(MIGRATE / "example.md") if block.language == "diff"), "-"),
            BABYWEIGHT,
            r"Baby weight",
        ),
    ],
    ids=["people", "babyweight"],
)
def test_a_ported_program_runs_after_a_few_lines(
    before: str, edits: list[tuple[str, str, str]], row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (ported,), generation = port({"program.py": before})
    assert generation.number == (1 if edits is BABYWEIGHT else 2)
    program = finished(ported, edits)

    (again,), _ = port({"program.py": program}, generation.number)
    assert (again.after, [one for one in again.findings if not one.is_note]) == (program, [])

    scope: dict[str, Any] = {}
    if edits is PEOPLE:
        exec(code_of("tf2.md", "python")[0], scope)  # writes the two files
        exec(program, scope)
        assert scope["metrics"]["global_step"] == 300
    else:
        exec(program, scope)
        exec(code_of("example.md", "python")[1], scope)  # writes the files, and runs the program
        assert scope["metrics"]["rmse"] > 0 and scope["exports"]

    lines = sum(bool(line.strip()) for line in before.splitlines())
    written = sum(new.count("\n") for _, _, new in edits)
    (counted,) = [line for line in COUNTS.splitlines() if re.search(row, line)]
    cells = [cell.strip() for cell in counted.strip("|").split("|")]
    assert cells[1:] == [str(lines), str(ported.rewritten), str(written)]
