"""`scripts/tune-storm`, in a small version; and what it would find."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.census.trainer import sample
from scripts.storms import tune
from scripts.storms.common import StormError
from scripts.storms.tune_rows import check_steps


def test_studies_hold_what_is_promised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = sample.write(str(tmp_path / "data"), train_rows=2000, eval_rows=200)
    files = ("--train-file", data.train_file, "--eval-file", data.eval_file)
    # Of the other two, one thing at a time is in tests/tuning.
    rows = ["one", "pauses"]

    status = tune.main(["--quick", "--rows", *rows, "--work-dir", str(tmp_path / "storm"), *files])

    printed = capsys.readouterr().out
    assert status == 0, printed
    table = printed.partition("at least or at most")[2].splitlines()[1:]
    assert [line.endswith("  holds") for line in table] == [True] * len(rows)
    assert "3 kills in" in printed and "1 pauses" in printed


def test_steps_that_were_lost_with_a_process_are_trained_again() -> None:
    assert check_steps([[(1, 0), (2, 0), (3, 2)], [(3, 2), (4, 4)]], 4, "trial 1") == 1


@pytest.mark.parametrize(
    ("processes", "found"),
    [
        ([[(1, 0), (2, 0), (3, 2)], [(2, 2), (3, 2), (4, 4)]], "trained step 2 again, though checkpoint 2 was there"),
        ([[(1, 0), (2, 2)], [(4, 4)]], "at step 4, but trained 3 steps up to 4"),
        ([[(1, 0), (2, 2)]], "at step 4, but trained 2 steps up to 2"),
        ([], "at step 4, but trained 0 steps up to 0"),
    ],
)
def test_a_step_that_is_missing_or_was_saved_and_is_trained_again_is_found(
    processes: list[list[tuple[int, int]]], found: str
) -> None:
    with pytest.raises(StormError, match=found):
        check_steps(processes, 4, "trial 1")
