"""The baby-weight example as its user runs it."""

import json
from pathlib import Path

import numpy as np
import pytest

import torch_estimator as te
from examples.babyweight import sample, task

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT.parent / "shared" / "data" / "babyweight"
BABIES = [
    json.loads(line)
    for line in (ROOT / "examples" / "babyweight" / "test.json").read_text(encoding="utf-8").splitlines()
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return sample.write(str(tmp_path_factory.mktemp("births")), train_rows=3000, eval_rows=600)


def _arguments(data: list[str], job_dir: Path, *more: str) -> list[str]:
    small = ["--train-steps", "60", "--save-checkpoints-steps", "20", "--train-batch-size", "64"]
    return ["--train-files", data[0], "--eval-files", data[1], "--job-dir", str(job_dir), *small, *more]


def _export(job_dir: Path) -> te.ExportedModel:
    return te.ExportedModel.load(str(max((job_dir / "export" / "exporter").iterdir())))


def _columns(rows: list[dict[str, object]]) -> dict[str, list[object]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def test_the_job_reports_its_own_metric_and_exports_keys_and_the_embedding(
    data: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task.main(_arguments(data, tmp_path, "--export-embedding"))

    assert "reached at step 60: root mean squared error " in capsys.readouterr().out
    predictions = _export(tmp_path).predict(_columns(BABIES))
    assert predictions["key"].ravel().tolist() == [baby["key"] for baby in BABIES]
    assert predictions["embedding"].shape == (len(BABIES), 3)
    assert predictions["predictions"].shape == (len(BABIES), 1)


def test_a_request_may_leave_the_key_out(data: list[str], tmp_path: Path) -> None:
    task.main(_arguments(data, tmp_path))

    anonymous = [{name: value for name, value in baby.items() if name != "key"} for baby in BABIES]
    predictions = _export(tmp_path).predict(_columns(anonymous))
    assert predictions["key"].ravel().tolist() == ["nokey"] * len(BABIES)


def test_batch_prediction_gives_every_row_its_key(data: list[str], tmp_path: Path) -> None:
    task.main(_arguments(data, tmp_path))
    estimator = task.build_estimator(task.parse(_arguments(data, tmp_path)))

    rows = list(estimator.predict(lambda: task.read_csv(data[1:], with_key=True).batch(100)))

    assert [str(np.ravel(row["key"])[0]) for row in rows] == [f"{number:08d}" for number in range(600)]


def test_without_files_births_are_made_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task.main(["--job-dir", str(tmp_path), "--train-steps", "5"])

    printed = capsys.readouterr().out
    assert f"training on the generated {tmp_path}/sample/train.csv" in printed
    assert "best reachable, by the process that made the sample: 1.000 pounds" in printed


@pytest.mark.skipif(not REAL.is_dir(), reason=f"needs the real births in {REAL}")
def test_on_the_real_births_it_is_off_by_at_most_1_10_pounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--train-files", str(REAL / "train.csv"), "--eval-files", str(REAL / "eval.csv")]

    task.main([*files, "--job-dir", str(tmp_path)])

    printed = capsys.readouterr().out
    reached = float(printed.split("root mean squared error ")[1].split(" pounds")[0])
    assert reached <= 1.10
