"""The table of what programs use: every row of the survey is there. `test_migration` checks the names."""

from __future__ import annotations

import re

import pytest

from tests.conftest import SHARED
from tests.docs.test_migration import MIGRATE

ROW = re.compile(r"\| *(\d+) \| (.*?) \| (supported|different|missing|not needed) \| (.*?) ?\|")
LINES = [line for line in (MIGRATE / "survey.md").read_text(encoding="utf-8").splitlines() if re.match(r"\| *\d", line)]


def test_every_row_has_a_count_a_status_and_what_that_needs() -> None:
    for line in LINES:
        row = ROW.fullmatch(line)
        assert row is not None, line
        if row[3] == "different":
            assert "](" in row[4] or "`" in row[4], line


def test_every_row_of_the_survey_is_there() -> None:
    survey = SHARED / "design" / "usage_survey.md"
    if not survey.exists():
        pytest.skip(f"{survey} is not there")
    ours = [
        (row[1], row[2].replace("\\", "").removeprefix("tf.data."))
        for row in map(ROW.fullmatch, LINES)
        if row is not None
    ]
    theirs = re.findall(r"^\| *(\d+) \| *\d+ \| (.*?) \|", survey.read_text(encoding="utf-8"), re.MULTILINE)
    assert ours == theirs
