"""`scripts/job-storm`, in a small version on this machine; and what it would find."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from examples.census.trainer import sample
from scripts.storms import jobs
from scripts.storms.common import StormError
from scripts.storms.job_rows import ONLY_ON, ROWS, Storm, lines_of, row
from scripts.storms.places import PLACES


def test_jobs_on_this_machine_hold_what_is_promised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = sample.write(str(tmp_path / "data"), train_rows=2000, eval_rows=200)
    files = ("--train-file", data.train_file, "--eval-file", data.eval_file)
    # The other rows are in tests/jobs; these are of whole trainings.
    rows = ["programs", "kills", "launcher", "cancel", "status"]

    status = jobs.main(["--quick", "--rows", *rows, "--work-dir", str(tmp_path / "storm"), *files])

    printed = capsys.readouterr().out
    assert status == 0, printed
    table = printed.partition("at least or at most")[2].splitlines()[1:]
    assert [line.endswith("  holds") for line in table] == [True] * len(rows)
    assert "3 of 3 kills" in printed


@pytest.mark.slow
def test_what_roles_record_holds_against_kills(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = jobs.main(["--quick", "--lanes", "--work-dir", str(tmp_path / "storm")])
    printed = capsys.readouterr().out
    assert status == 0, printed
    assert "5 kills; at most" in printed


def test_each_target_has_its_rows() -> None:
    assert ONLY_ON.keys() < ROWS.keys()
    counts = {place: sum(place in ONLY_ON.get(name, PLACES) for name in ROWS) for place in PLACES}
    assert counts == {"local": 10, "slurm": 10, "ray": 8, "kubernetes": 8}


def _line(number: int) -> str:
    return f"line 7 {number} xxxx end"


def test_lines_of_a_killed_process_may_be_one_more_than_it_has_noted() -> None:
    log = "\n".join(["INFO: starts", _line(0), _line(1), "line 9 0 xxxx end"])
    assert lines_of(log, {"7": 2, "9": 0}) == 3
    assert lines_of(log, {"7": 5, "9": 0}, may_lack_last=True) == 3


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([_line(0), _line(2)], "2 lines, 2 of them different, of 3"),
        ([_line(0), _line(1), _line(1)], "3 lines, 2 of them different, of 3"),
        ([_line(0), _line(1)], "2 lines, 2 of them different, of 3"),
        ([_line(0), "line 7 1 xxline 7 2 xxxx end"], "a torn line"),
        ([], "0 lines, 0 of them different, of 3"),
    ],
)
def test_a_line_that_is_missing_twice_or_torn_is_found(lines: list[str], found: str) -> None:
    with pytest.raises(StormError, match=found):
        lines_of("\n".join(lines), {"7": 3})


def test_a_row_in_which_something_happens_that_must_not_does_not_hold() -> None:
    @row("what", "bar")
    def measure(storm: Storm) -> tuple[str, bool]:
        raise StormError("a process is left.")

    run: Callable[..., object] = measure
    (found,) = run(None)  # type: ignore[attr-defined]
    assert (found.measured, found.verdict) == ("a process is left.", "DOES NOT HOLD")
