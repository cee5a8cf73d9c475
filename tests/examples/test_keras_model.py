"""The Keras example as its user runs it."""

from pathlib import Path

import numpy as np
import pytest

import torch_estimator as te
from examples.keras_model import task
from examples.mnist import digits
from tests.examples import killed

SMALL = ["--num-epochs", "1", "--save-checkpoints-steps", "20"]


def test_the_keras_model_learns_and_its_export_tells_digits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task.main([*SMALL, "--job-dir", str(tmp_path)])

    assert float(capsys.readouterr().out.split("accuracy ")[1].split(" on ")[0]) > 0.9
    model = te.ExportedModel.load(str(next((tmp_path / "export" / "digits").iterdir())))
    unseen = digits.generate(50, seed=2)
    (logits,) = model.predict({"image": unseen.images.astype(np.float32) / 255.0}).values()
    assert np.mean(logits.argmax(1) == unseen.labels) > 0.8


@pytest.mark.slow
def test_a_killed_job_ends_bit_for_bit_like_an_undisturbed_one(tmp_path: Path) -> None:
    killed.run("examples.keras_model.task", [*SMALL, "--job-dir", str(tmp_path / "whole")])
    arguments = [*SMALL, "--job-dir", str(tmp_path / "killed")]
    killed.run_killed("examples.keras_model.task", arguments, when_saving=20)
    killed.run("examples.keras_model.task", arguments)

    killed.assert_same_checkpoints(tmp_path / "whole", tmp_path / "killed")
