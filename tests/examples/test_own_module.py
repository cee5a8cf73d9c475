"""The example of a module from the literature, as its user runs it."""

import json
from pathlib import Path

import pytest
import torch

import torch_estimator as te
from examples.census.trainer import sample
from examples.own_module import tabm, task

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT.parent / "shared" / "data" / "census"


def _reached(printed: str) -> tuple[float, float]:
    accuracy, auc = printed.split("accuracy ")[1].split("\n")[0].split(", AUC ")
    return float(accuracy), float(auc)


def test_tabm_learns_and_its_export_takes_raw_features(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = sample.write(str(tmp_path / "data"), train_rows=4000, eval_rows=1000)
    files = ["--train-file", data.train_file, "--eval-file", data.eval_file]

    small = ["--num-epochs", "5", "--members", "4", "--learning-rate", "0.01"]
    task.main([*files, *small, "--job-dir", str(tmp_path / "job")])

    accuracy, auc = _reached(capsys.readouterr().out)
    assert accuracy > 0.77
    assert auc > 0.82
    model = te.ExportedModel.load(str(next((tmp_path / "job" / "export" / "tabm").iterdir())))
    lines = (ROOT / "examples" / "census" / "test.json").read_text(encoding="utf-8").splitlines()
    people = [json.loads(line) for line in lines]
    task.main([*files, *small, "--job-dir", str(tmp_path / "job")])
    assert "already has step 79; evaluating it once more" in capsys.readouterr().out
    chances = model.predict({name: [person[name] for person in people] for name in people[0]})["probability"]
    assert chances.shape == (len(people), 1)
    assert ((chances > 0) & (chances < 1)).all()


def test_members_start_apart_and_share_their_weights() -> None:
    torch.manual_seed(0)
    layer = tabm.EnsembleLinear(5, 3, members=4, first=True)

    outputs = layer(torch.randn(7, 1, 5).expand(-1, 4, -1))

    assert outputs.shape == (7, 4, 3)
    assert not torch.equal(outputs[:, 0], outputs[:, 1])
    assert layer.weight.shape == (3, 5)


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason=f"needs the real census files in {REAL}")
def test_on_the_real_census_two_epochs_rank_people_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--train-file", str(REAL / "adult.data.csv"), "--eval-file", str(REAL / "adult.test.csv")]

    task.main([*files, "--job-dir", str(tmp_path), "--num-epochs", "2"])

    accuracy, auc = _reached(capsys.readouterr().out)
    assert accuracy > 0.865
    assert auc > 0.915
