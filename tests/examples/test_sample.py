"""The generated census sample."""

from pathlib import Path

import numpy as np
import pytest

from examples.census.trainer import columns, people, sample
from torch_estimator import files


def test_the_same_seed_makes_the_same_files(tmp_path: Path) -> None:
    one = sample.write(str(tmp_path / "one"), train_rows=300, eval_rows=100)
    two = sample.write(str(tmp_path / "two"), train_rows=300, eval_rows=100)
    other = sample.write(str(tmp_path / "other"), seed=2, train_rows=300, eval_rows=100)

    assert files.read_bytes(one.train_file) == files.read_bytes(two.train_file)
    assert files.read_bytes(one.train_file) != files.read_bytes(other.train_file)
    assert files.read_bytes(one.eval_file) != files.read_bytes(one.train_file)


def test_a_sample_that_is_there_is_left_as_it_is() -> None:
    first = sample.write("memory://census-sample-kept", train_rows=20, eval_rows=10)
    files.write_atomic(first.eval_file, b"changed")

    assert sample.write("memory://census-sample-kept", train_rows=20, eval_rows=10) == first
    assert files.read_bytes(first.eval_file) == b"changed"

    sample.write("memory://census-sample-kept", train_rows=20, eval_rows=11)
    assert files.read_text(first.eval_file).count("\n") == 11


def test_rows_have_the_fifteen_columns_and_known_values() -> None:
    population, chance = people.draw(5000, np.random.default_rng(3))

    assert set(population) == set(columns.CSV_COLUMNS)
    assert population["age"].min() >= 17
    assert population["age"].max() <= 90
    for name, known in (
        ("gender", columns.GENDER),
        ("race", columns.RACE),
        ("education", columns.EDUCATION),
        ("marital_status", columns.MARITAL_STATUS),
        ("relationship", columns.RELATIONSHIP),
        ("workclass", columns.WORKCLASS),
        ("income_bracket", columns.LABELS),
    ):
        assert set(population[name]) <= set(known)
    educations = np.asarray(columns.EDUCATION)[population["education_num"] - 1]
    assert (educations == population["education"]).all()
    assert 0.15 < (population["income_bracket"] == ">50K").mean() < 0.35
    assert ((chance > 0) & (chance < 1)).all()


def test_best_reachable_is_what_the_true_probabilities_score() -> None:
    chance = np.array([0.9, 0.6, 0.4, 0.2])

    assert sample.best_reachable(chance, np.array([True, False, True, False])) == pytest.approx(
        {"best_accuracy": 0.5, "best_auc": 0.75}
    )


def test_the_command_prints_the_best_reachable_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample.main(["--out", str(tmp_path), "--train-rows", "200", "--eval-rows", "100"])

    assert "best reachable on it: accuracy 0." in capsys.readouterr().out


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(SystemExit) as ended:
        sample.main(["--out", str(tmp_path / "file" / "sample"), "--train-rows", "2", "--eval-rows", "2"])

    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {tmp_path}/file/sample: Not a directory.\n"


@pytest.mark.parametrize("option", ["--train-rows", "--eval-rows"])
def test_a_sample_without_rows_is_refused(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        sample.main(["--out", str(tmp_path / "sample"), option, "0"])

    assert ended.value.code == 2
    assert f"argument {option}: must be an integer of at least 1, but got '0'" in capsys.readouterr().err
    assert not (tmp_path / "sample").exists()
