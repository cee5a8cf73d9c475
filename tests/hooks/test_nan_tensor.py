"""NanTensorHook decides whether NaN is an error; a damaged model is never saved."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

import torch_estimator as te
from tests.line_jobs import WritingExporter, checkpoint_steps, line, points, variables


def poisoned() -> te.data.Dataset:
    """Return data with NaN in the seventh batch."""
    return points(rows=27).map(lambda x, y: (x, y if len(y) == 4 else y * np.nan))


@pytest.mark.parametrize("hooks", [[], [te.NanTensorHook()], [te.NanTensorHook(fail_on_nan_loss=True)]])
def test_nan_is_an_error_by_default(tmp_path: Path, hooks: list[te.Hook]) -> None:
    with pytest.raises(te.NanLossDuringTrainingError, match=r"^The loss became NaN at global step 7;"):
        line(tmp_path).train(poisoned, hooks=hooks)


@pytest.mark.parametrize("save_checkpoints_steps", [2, 7, 100])
def test_nan_may_just_end_training_and_is_never_saved(
    tmp_path: Path, save_checkpoints_steps: int, caplog: pytest.LogCaptureFixture
) -> None:
    ended = []

    class Told(te.Hook):
        def after_step(self, context: te.RunContext) -> None:
            assert np.isfinite(context.loss)

        def end(self, context: te.RunContext) -> None:
            ended.append(context.damaged)

    estimator = line(tmp_path, save_checkpoints_steps=save_checkpoints_steps)
    estimator.train(poisoned, hooks=[te.NanTensorHook(fail_on_nan_loss=False), Told()])
    (error,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert error.startswith("The loss became NaN at global step 7;")
    assert error.endswith("Training ends.")
    assert checkpoint_steps(tmp_path)[-1] < 7
    assert all(np.isfinite(value).all() for value in variables(estimator).values())
    assert ended == [True]


def test_the_last_good_model_is_evaluated_and_exported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    exporter = WritingExporter(only_final=True)
    metrics, exports = te.train_and_evaluate(
        line(tmp_path, save_checkpoints_steps=4),
        te.TrainSpec(poisoned, max_steps=100, hooks=[te.NanTensorHook(fail_on_nan_loss=False)]),
        te.EvalSpec(points, steps=1, exporters=exporter),
    )
    assert (metrics["global_step"], exports) == (4, [f"{tmp_path}/export/writing/4"])
    assert (
        "Training ended at global step 4, before max_steps=100: the loss or a trained variable became NaN or "
        "infinite. The model of this step is the final one." in caplog.messages
    )


def test_a_loss_as_argument_as_in_tf_estimator_is_one_sentence() -> None:
    with pytest.raises(TypeError, match="takes only fail_on_nan_loss, True or False, but got tensor"):
        te.NanTensorHook(torch.tensor(1.0))  # type: ignore[arg-type]
