"""The census example as its user runs it, on a small generated sample."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import torch_estimator as te
from examples.census.trainer import model, sample, task
from torch_estimator import cli, files
from torch_estimator.checkpoint.checkpoint import load_checkpoint

ROOT = Path(__file__).resolve().parents[2]
CENSUS = ROOT / "examples" / "census"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> sample.Sample:
    return sample.write(str(tmp_path_factory.mktemp("census")), train_rows=3000, eval_rows=600)


def _arguments(data: sample.Sample, job_dir: str | Path, **settings: object) -> list[str]:
    settings = {
        "train_files": data.train_file,
        "eval_files": data.eval_file,
        "job_dir": job_dir,
        "train_steps": 60,
        "eval_steps": 0,
        "save_checkpoints_steps": 20,
        **settings,
    }
    return [word for name, value in settings.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def _exports(job_dir: str) -> list[str]:
    base = files.join(job_dir, "export", "census")
    return [files.join(base, name) for name in files.listdir(base)]


@pytest.mark.parametrize("place", ["local", "memory"])
def test_the_job_trains_evaluates_exports_and_predicts(
    place: str, data: sample.Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job_dir = str(tmp_path / "job") if place == "local" else "memory://census-job"

    task.main(_arguments(data, job_dir))

    assert "reached at step 60 on the whole evaluation file: accuracy 0." in capsys.readouterr().out
    assert load_checkpoint(job_dir).step == 60
    assert any("tfevents" in name for name in files.listdir(files.join(job_dir, "eval_census-eval")))
    (export,) = _exports(job_dir)
    people = [json.loads(line) for line in (CENSUS / "test.json").read_text(encoding="utf-8").splitlines()]
    inputs = {name: [person[name] for person in people] for name in people[0]}
    assert {info.shape for info in te.ExportedModel.load(export).signatures["predict"].inputs.values()} == {(-1,)}
    predictions = te.ExportedModel.load(export).predict(inputs)
    assert predictions["probabilities"].shape == (5, 2)
    assert predictions["probabilities"].sum(axis=1) == pytest.approx(1.0)


def test_an_export_for_csv_requests_takes_rows_and_agrees_with_the_one_for_json(
    data: sample.Sample, tmp_path: Path
) -> None:
    for export_format in ("JSON", "CSV"):
        task.main(_arguments(data, tmp_path / export_format, train_steps=20, export_format=export_format))
    models = {name: te.ExportedModel.load(_exports(str(tmp_path / name))[0]) for name in ("JSON", "CSV")}
    people = [json.loads(line) for line in (CENSUS / "test.json").read_text(encoding="utf-8").splitlines()]
    rows = (CENSUS / "test.csv").read_text(encoding="utf-8").splitlines()

    from_json = models["JSON"].predict({name: [person[name] for person in people] for name in people[0]})
    (csv_input,) = models["CSV"].signatures["predict"].inputs
    from_csv = models["CSV"].predict({csv_input: rows})

    assert from_csv["probabilities"] == pytest.approx(from_json["probabilities"], abs=1e-6)


def test_a_job_that_is_started_again_goes_on_as_if_it_had_never_stopped(
    data: sample.Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task.main(_arguments(data, tmp_path / "whole"))
    task.main(_arguments(data, tmp_path / "halves", train_steps=30))
    task.main(_arguments(data, tmp_path / "halves"))

    whole, halves = (load_checkpoint(tmp_path / name) for name in ("whole", "halves"))
    assert whole.step == halves.step == 60
    assert {name: value.numpy().tobytes() for name, value in whole.variables.items()} == {
        name: value.numpy().tobytes() for name, value in halves.variables.items()
    }

    capsys.readouterr()
    task.main(_arguments(data, tmp_path / "halves"))
    assert "already has step 60" in capsys.readouterr().out


def test_without_files_a_sample_is_generated_and_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task.main(["--job-dir", str(tmp_path), "--train-steps", "20", "--eval-steps", "5"])

    printed = capsys.readouterr().out
    assert f"training on the generated {tmp_path}/sample/train.csv" in printed
    assert "reached at step 20 on 5 batches" in printed
    assert "best reachable, by the process that made the sample: accuracy 0." in printed


def test_hidden_layers_shrink_by_the_scale_factor_down_to_two() -> None:
    assert model.hidden_units(100, 4, 0.7) == [100, 70, 48, 34]
    assert model.hidden_units(4, 4, 0.5) == [4, 2, 2, 2]


def _first_line(change: Callable[[list[str]], list[str]]) -> Callable[[str], str]:
    def apply(text: str) -> str:
        first, *others = text.splitlines(keepends=True)
        return ",".join(change(first.rstrip("\n").split(","))) + "\n" + "".join(others)

    return apply


def _on_line_3(change: Callable[[str], str]) -> Callable[[str], str]:
    def apply(text: str) -> str:
        first, second, third, *others = text.splitlines(keepends=True)
        return first + second + change(third) + "".join(others)

    return apply


BAD_FILES = {
    "a field too few": (_on_line_3(_first_line(lambda fields: fields[:-1])), ["bad.csv", "3", "14", "15"]),
    "a field too many": (
        _on_line_3(_first_line(lambda fields: [*fields, "x"])),
        ["bad.csv", "3", "16", "15"],
    ),
    "text in a number": (
        _on_line_3(_first_line(lambda fields: ["young", *fields[1:]])),
        ["bad.csv", "3", "age", "young"],
    ),
    "an unknown label": (
        _on_line_3(_first_line(lambda fields: [*fields[:-1], "maybe"])),
        ["bad.csv", "3", "maybe", "<=50K", ">50K"],
    ),
    "an empty file": (lambda text: "", ["bad.csv", "empty"]),
}


@pytest.mark.parametrize("which", ["train_files", "eval_files"])
@pytest.mark.parametrize("bad", BAD_FILES)
def test_a_bad_file_ends_the_job_with_one_sentence_and_status_2(
    bad: str, which: str, data: sample.Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, words = BAD_FILES[bad]
    file = tmp_path / "bad.csv"
    file.write_text(spoil(Path(data.eval_file).read_text()))

    with pytest.raises(SystemExit) as ended:
        task.main(_arguments(data, tmp_path / "job", **{which: file}))

    assert ended.value.code == 2
    _assert_one_sentence(capsys.readouterr().err, words)


def test_a_missing_file_ends_the_job_with_one_sentence_and_status_2(
    data: sample.Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        task.main(_arguments(data, tmp_path / "job", train_files=tmp_path / "nowhere.csv"))

    assert ended.value.code == 2
    _assert_one_sentence(capsys.readouterr().err, ["nowhere.csv"])


def test_only_one_kind_of_files_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        task.parse(["--train-files", "a.csv"])

    assert ended.value.code == 2
    assert "--train-files and --eval-files go together" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("--train-batch-size", "0", "an integer of at least 1"),
        ("--eval-batch-size", "0", "an integer of at least 1"),
        ("--embedding-size", "0", "an integer of at least 1"),
        ("--first-layer-size", "0", "an integer of at least 1"),
        ("--num-layers", "0", "an integer of at least 1"),
        ("--num-epochs", "0", "an integer of at least 1"),
        ("--train-steps", "0", "an integer of at least 1"),
        ("--train-steps", "many", "an integer of at least 1"),
        ("--save-checkpoints-steps", "0", "an integer of at least 1"),
        ("--eval-steps", "-1", "an integer of at least 0"),
        ("--eval-throttle-secs", "-1", "an integer of at least 0"),
        ("--seed", "-1", "an integer of at least 0"),
        ("--scale-factor", "-1", "a number above 0"),
        ("--scale-factor", "nan", "a number above 0"),
        ("--scale-factor", "big", "a number above 0"),
    ],
)
def test_a_number_out_of_range_is_refused_before_anything_is_written(
    option: str, value: str, wanted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        task.main(["--job-dir", str(tmp_path / "job"), option, value])

    assert ended.value.code == 2
    assert f"error: argument {option}: must be {wanted}, but got '{value}'\n" in capsys.readouterr().err
    assert not (tmp_path / "job").exists()


def test_a_job_directory_that_cannot_hold_the_sample_ends_the_job_with_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    job_dir = tmp_path / "file" / "job"

    with pytest.raises(SystemExit) as ended:
        task.main(["--job-dir", str(job_dir)])

    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: job directory {job_dir} cannot be written: Not a directory.\n"


def test_estimator_predict_takes_the_example_people(
    data: sample.Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task.main(_arguments(data, tmp_path, train_steps=5))
    capsys.readouterr()

    status = cli.main(
        [
            *("predict", "--model-dir", f"{tmp_path}/export/census"),
            *("--json-instances", str(CENSUS / "test.json")),
        ]
    )

    assert status == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 5


def test_the_command_reports_a_job_directory_of_another_model(data: sample.Sample, tmp_path: Path) -> None:
    task.main(_arguments(data, tmp_path / "job", train_steps=5))
    other = _arguments(data, tmp_path / "job", first_layer_size=50)

    ended = subprocess.run(
        [sys.executable, "-m", "examples.census.trainer.task", *other, "--verbosity", "ERROR"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 2
    _assert_one_sentence(ended.stderr, ["dnn/hiddenlayer_0/kernel"])


def _assert_one_sentence(printed: str, words: list[str]) -> None:
    (line,) = [line for line in printed.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in printed
    for word in words:
        assert word in line


def test_the_trainer_is_submitted_without_what_is_around_it(
    data: sample.Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CENSUS)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TORCH_ESTIMATOR_JOBS", str(tmp_path / "jobs"))
    line = (
        f"jobs submit training census_1 --scale-tier BASIC --runtime-version 1.4 --job-dir {tmp_path}/out "
        "--module-name trainer.task --package-path trainer/ --region us-central1 --stream-logs --polling-interval 0.1 "
        f"-- --train-files {data.train_file} --eval-files {data.eval_file} --train-steps 20 --compile never"
    )
    assert cli.main(line.split()) == 0
    assert len(_exports(str(tmp_path / "out"))) == 1
