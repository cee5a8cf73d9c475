"""Where the metric of a trial is found, and what is said if it is not."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from torch_estimator.errors import InvalidValueError
from torch_estimator.executors.evaluation_record import EvaluatorState, SpecRecord
from torch_estimator.runs.state_file import StateFile
from torch_estimator.summary.event_writer import EventWriter
from torch_estimator.tuning.metrics import read_metric


def write(folder: Path, step: int, **values: float) -> None:
    with EventWriter(folder) as events:
        events.scalars(values, step)


def read(job_dir: Path, metric: str) -> dict[int, float]:
    return read_metric(str(job_dir), metric, str(job_dir / "reported")).values


def test_an_evaluation_comes_before_the_curve_of_the_training(tmp_path: Path) -> None:
    write(tmp_path, 1, loss=9.0)
    write(tmp_path / "eval", 2, loss=0.5)
    write(tmp_path / "eval_census-eval", 2, loss=0.25, auc=0.75)
    assert read(tmp_path, "loss") == {2: 0.5}
    assert read(tmp_path, "auc") == read(tmp_path, "census-eval/auc") == {2: 0.75}
    assert read(tmp_path, "census-eval/loss") == {2: 0.25}


def test_the_record_of_an_evaluator_has_the_exact_number(tmp_path: Path) -> None:
    write(tmp_path / "model" / "eval", 2, auc=0.1)
    write(tmp_path / "model" / "eval", 4, auc=0.3)
    record = SpecRecord(step=4, checkpoint_path="model.ckpt-4", metrics={"auc": 0.3}, batches=1, final=True)
    state = EvaluatorState(finished=None, specs={"": record})
    StateFile(str(tmp_path / "model" / "evaluator.json"), EvaluatorState).write(state)
    assert read(tmp_path, "auc") == {2: pytest.approx(0.1), 4: 0.3}


def test_event_files_of_others_and_hypertune_are_read(tmp_path: Path) -> None:
    lines = [{"global_step": "3", "trial": "1", "reported": "0.5", "timestamp": 1.0}, {"reported": "nan"}]
    (tmp_path / "reported").write_text("\n".join(map(json.dumps, lines)) + '\n{"repor')
    values = read(tmp_path, "reported")
    assert (values[3], math.isnan(values[0])) == (0.5, True)
    write(tmp_path / "logs" / "validation", 1, epoch_auc=0.5, reported=0.75)
    assert read(tmp_path, "validation/epoch_auc") == read(tmp_path, "epoch_auc") == {1: 0.5}
    assert read(tmp_path, "reported") == {1: 0.75}


def test_values_that_a_restarted_training_replaced_do_not_count(tmp_path: Path) -> None:
    write(tmp_path / "eval", 2, loss=1.0)
    write(tmp_path / "eval", 4, loss=2.0)
    with EventWriter(tmp_path / "eval") as events:
        events.session_start(3)
        events.scalars({"loss": 3.0}, 3)
    assert read(tmp_path, "loss") == {2: 1.0, 3: 3.0}


def test_what_is_missing_or_ambiguous_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"'auc' never appeared; nothing was measured in .*--job-dir"):
        read(tmp_path, "auc")
    write(tmp_path / "eval_a", 2, loss=1.0)
    write(tmp_path / "eval_b", 2, loss=2.0, error=0.5)
    with pytest.raises(InvalidValueError, match=r"'auc' never appeared; these did: a/loss, b/error, b/loss"):
        read(tmp_path, "auc")
    with pytest.raises(InvalidValueError, match="several places have the metric 'loss'; name one of a/loss, b/loss"):
        read(tmp_path, "loss")
    with pytest.raises(InvalidValueError, match=r"these did: a/loss, b/error, b/loss; hyperparameterMetricTag names"):
        read(tmp_path, "training/hptuning/metric")


def test_folders_with_one_name_in_different_places_are_different(tmp_path: Path) -> None:
    write(tmp_path / "first" / "eval", 2, auc=0.5, loss=1.0)
    write(tmp_path / "second" / "eval", 4, auc=0.75)
    record = SpecRecord(step=4, checkpoint_path="model.ckpt-4", metrics={"auc": 0.7}, batches=1, final=True)
    state = EvaluatorState(finished=None, specs={"": record})
    StateFile(str(tmp_path / "second" / "evaluator.json"), EvaluatorState).write(state)
    with pytest.raises(
        InvalidValueError, match="several places have the metric 'auc'; name one of first/eval/auc, second/eval/auc"
    ):
        read(tmp_path, "auc")
    assert read(tmp_path, "first/eval/auc") == {2: 0.5}
    assert read(tmp_path, "second/eval/auc") == {4: 0.7}
    assert read(tmp_path, "loss") == read(tmp_path, "first/eval/loss") == {2: 1.0}
    with pytest.raises(InvalidValueError, match="these did: first/eval/auc, second/eval/auc, loss"):
        read(tmp_path, "error")


def test_a_metric_that_is_a_text_is_said_to_be_one(tmp_path: Path) -> None:
    with EventWriter(tmp_path / "eval") as events:
        events.text("verdict", "fine", 2)
        events.scalars({"loss": 1.0}, 2)
    record = SpecRecord(step=2, checkpoint_path="model.ckpt-2", metrics={"grade": "good"}, batches=1, final=True)
    StateFile(str(tmp_path / "evaluator.json"), EvaluatorState).write(EvaluatorState(finished=None, specs={"": record}))
    (tmp_path / "reported").write_text(json.dumps({"global_step": 1, "opinion": "bad", "score": "0.5"}))
    for metric, value in (("verdict", "fine"), ("grade", "good"), ("opinion", "bad")):
        with pytest.raises(InvalidValueError, match=f"the metric '{metric}' is a text, such as .{value}., but"):
            read(tmp_path, metric)
    assert read(tmp_path, "score") == {1: 0.5}
