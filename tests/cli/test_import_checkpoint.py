from __future__ import annotations

from pathlib import Path

import pytest

import torch_estimator as te
from tests.checkpoint.tensorflow_checkpoints import FOLDER
from torch_estimator.cli import main


def test_it_prints_what_became_of_each_tensor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import-checkpoint", str(FOLDER / "v2_baseline"), "--into", str(tmp_path)]) == 0
    assert capsys.readouterr().out == (
        f"""\
IN TENSORFLOW                             HERE                  SHAPE
baseline/bias                             baseline/bias         1
global_step                               (setting: 20)         number
training/Ftrl/baseline/bias/accumulator   baseline/bias/Ftrl    1
training/Ftrl/baseline/bias/linear        baseline/bias/Ftrl_1  1
training/Ftrl/beta                        (setting: 0)          number
training/Ftrl/decay                       (setting: 0)          number
training/Ftrl/l1_regularization_strength  (setting: 0)          number
training/Ftrl/l2_regularization_strength  (setting: 0)          number
training/Ftrl/learning_rate               (setting: 0.3)        number
training/Ftrl/learning_rate_power         (setting: -0.5)       number

Imported weights: 1, slots: 2, global step: 20, as {tmp_path}/model.ckpt-20.
"""
    )
    assert te.latest_checkpoint(tmp_path) == f"{tmp_path}/model.ckpt-20"


@pytest.mark.parametrize("file", ["v1_adam.index", "v1_adam.data-00000-of-00001"])
def test_a_file_of_the_checkpoint_names_it(file: str, tmp_path: Path) -> None:
    assert main(["import-checkpoint", str(FOLDER / file), "--into", str(tmp_path), "--weights-only"]) == 0
    checkpoint = te.load_checkpoint(tmp_path)
    assert len(checkpoint.variables) == 5 and not checkpoint.slots


def test_mistakes_are_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def error(source: Path, into: Path) -> str:
        assert main(["import-checkpoint", str(source), "--into", str(into)]) == 2
        text = capsys.readouterr().err
        assert text.startswith("estimator: error: ") and text.count("\n") == 1
        return text

    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    assert main(["import-checkpoint", str(FOLDER / "v1_adam"), "--into", str(ours)]) == 0
    capsys.readouterr()
    theirs.mkdir()
    (theirs / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-1"\n')
    assert "model.ckpt-20 is in the way; give a directory that has no checkpoint yet." in error(
        FOLDER / "v1_adam", ours
    )
    assert "holds checkpoints of TensorFlow; give another directory" in error(FOLDER / "v1_adam", theirs)
    assert "there is nothing to import" in error(ours, tmp_path / "new")
    assert "there is no checkpoint of TensorFlow at" in error(tmp_path / "none", tmp_path / "new")
    assert "there is no checkpoint of TensorFlow at" in error(theirs, tmp_path / "new")
    assert "names the newest checkpoint; name one of them" in error(FOLDER, tmp_path / "new")
