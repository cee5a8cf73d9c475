"""The census recipe as its user runs it: on a small generated sample, and in full on the real files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torch_estimator as te
from examples.census import recipe
from examples.census.recipe import Settings
from examples.census.trainer import sample
from examples.census.trainer.input import read_csv
from torch_estimator import feature_column as fc
from torch_estimator import files


def _run(train_file: str, eval_file: str, job_dir: Path) -> None:
    recipe.main(["--train-file", train_file, "--eval-file", eval_file, "--job-dir", str(job_dir)])


def _estimator(train_file: str, job_dir: Path) -> te.Estimator:
    """The estimator of a finished run, made anew."""
    numbers = recipe.numeric_values(train_file)
    columns = recipe.wide_and_deep_columns(numbers, Settings())
    steps = Settings().steps(len(numbers["age"]))
    return recipe.build_estimator(te.RunConfig(model_dir=str(job_dir)), *columns, steps, Settings())


def _assert_export_equals_predict(estimator: te.Estimator, eval_file: str, job_dir: Path) -> None:
    (name,) = files.listdir(str(job_dir / "export" / "census"))
    exported = te.ExportedModel.load(str(job_dir / "export" / "census" / name))
    batches = estimator.predict(
        lambda: read_csv([eval_file], batch_size=4096),
        predict_keys="probabilities",
        yield_single_examples=False,
    )
    rows = [features for features, _ in read_csv([eval_file], batch_size=4096)]
    for predicted, raw in zip(batches, rows, strict=True):
        answer = exported.predict(raw)["probabilities"]
        assert np.abs(answer - predicted["probabilities"]).max() <= 1e-5


def test_on_a_sample_it_trains_evaluates_and_exports_what_it_predicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = sample.write(str(tmp_path / "data"), train_rows=3000, eval_rows=600)

    _run(data.train_file, data.eval_file, tmp_path / "job")

    printed = capsys.readouterr().out
    assert f"trained on {data.train_file}: up to step 58, " in printed
    assert f"reached on {data.eval_file}: accuracy 0." in printed
    estimator = _estimator(data.train_file, tmp_path / "job")
    assert estimator.latest_checkpoint() == str(tmp_path / "job" / "model.ckpt-58")
    _assert_export_equals_predict(estimator, data.eval_file, tmp_path / "job")


def test_on_the_real_files_it_reaches_what_its_readme_says(shared_data: Path, tmp_path: Path) -> None:
    train_file, eval_file = (str(shared_data / "census" / f"adult.{part}.csv") for part in ("data", "test"))

    _run(train_file, eval_file, tmp_path)

    estimator = _estimator(train_file, tmp_path)
    metrics = estimator.evaluate(lambda: read_csv([eval_file], batch_size=4096))
    assert metrics["auc"] >= 0.926
    assert metrics["accuracy"] >= 0.872
    _assert_export_equals_predict(estimator, eval_file, tmp_path)


def test_amounts_are_cut_apart_from_zero_and_where_there_are_none_only_there() -> None:
    gains = np.array([0] * 90 + [100, 200, 300, 400, 500])

    assert recipe.boundaries("capital_gain", gains, Settings(amount_buckets=5)) == [1.0, 150.0, 250.0, 350.0, 450.0]
    assert recipe.boundaries("capital_gain", np.zeros(5), Settings()) == [1.0]


def test_numbers_are_standardized_and_amounts_by_their_logarithm() -> None:
    ages, gains = np.array([20, 40, 60]), np.array([0, 0, 1000])

    for name, values, plain in (("age", ages, ages), ("capital_gain", gains, np.log1p(gains))):
        column = recipe.standardized(name, values)
        (seen,) = fc.FeatureTransform([], [column])({name: values}).values()
        expected: Any = (plain - plain.mean()) / plain.std(ddof=1)
        assert seen.ravel() == pytest.approx(expected, abs=1e-6)


def test_one_file_without_the_other_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        recipe.main(["--eval-file", "a.csv"])

    assert ended.value.code == 2
    assert "--train-file and --eval-file go together" in capsys.readouterr().err


def test_a_missing_file_ends_it_with_one_sentence_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        _run(str(tmp_path / "nowhere.csv"), str(tmp_path / "nowhere.csv"), tmp_path / "job")

    assert ended.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert "nowhere.csv" in line
