"""What is told of a training, and which training is the one that a worker belongs to."""

from __future__ import annotations

import re
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from torch_estimator.cluster.process_start import JOB_BEGAN, process_start
from torch_estimator.executors.evaluation_record import EvaluatorState
from torch_estimator.runs.locks import Holder
from torch_estimator.runs.training_status import EndOfTraining, TrainingStatus, read_status, write_status

TRAINING = TrainingStatus(run="one", max_steps=None)


def test_the_end_of_an_earlier_training_is_not_that_of_the_next(tmp_path: Path) -> None:
    model_dir = str(tmp_path)
    write_status(model_dir, replace(TRAINING, over_at=process_start() - 1, ended=True))
    is_over = EndOfTraining(model_dir)
    assert not is_over()
    write_status(model_dir, replace(TRAINING, run="two"))
    assert not is_over()
    write_status(model_dir, replace(TRAINING, run="two", over_at=time.time()))
    assert is_over()


def test_a_training_that_ended_while_this_process_was_starting_is_its_own(tmp_path: Path) -> None:
    write_status(str(tmp_path), replace(TRAINING, over_at=time.time()))
    assert EndOfTraining(str(tmp_path))()


def test_what_has_ended_since_the_job_began_is_over_for_one_that_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over_at = process_start() - 5
    write_status(str(tmp_path), replace(TRAINING, run="of this job", over_at=over_at))
    assert not EndOfTraining(str(tmp_path))()
    monkeypatch.setenv(JOB_BEGAN, str(over_at - 1))
    assert EndOfTraining(str(tmp_path))()


def test_a_training_that_this_process_has_seen_to_the_end_is_not_over_again(tmp_path: Path) -> None:
    model_dir = str(tmp_path)
    write_status(model_dir, replace(TRAINING, run="seen"))
    with EndOfTraining(model_dir) as is_over:
        write_status(model_dir, replace(TRAINING, run="seen", over_at=time.time()))
        assert is_over()
    with EndOfTraining(model_dir) as is_over:
        assert not is_over()
        write_status(model_dir, replace(TRAINING, run="next", over_at=time.time()))
        assert is_over()


def test_an_end_is_seen_where_the_clock_of_the_chief_is_behind(tmp_path: Path) -> None:
    is_over = EndOfTraining(str(tmp_path))
    write_status(str(tmp_path), replace(TRAINING, over_at=process_start() - 60))
    assert is_over()


def test_without_a_word_nothing_is_over(tmp_path: Path) -> None:
    assert not EndOfTraining(str(tmp_path / "absent"))()


def test_the_file_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    (tmp_path / "training.json").write_text('{"run": "one", "max_steps": 5, "evaluates": false, "over_at": 1.5}')
    assert read_status(str(tmp_path)) == TrainingStatus(run="one", max_steps=5, over_at=1.5)


@pytest.mark.parametrize(
    ("kind", "section"),
    [(TrainingStatus, "training.json"), (EvaluatorState, "evaluator.json"), (Holder, "training.lease")],
)
def test_the_page_of_the_files_of_a_model_directory_has_all_keys(kind: Any, section: str) -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "model_directory.md"
    table = page.read_text(encoding="utf-8").partition(f"## `{section}`\n")[2].partition("\n## ")[0]
    first_cells = re.findall(r"^\|([^|]*)", table, flags=re.MULTILINE)
    keys = set(re.findall(r"`(\w+)`", " ".join(first_cells)))
    assert keys == {field.name for field in fields(kind)}
