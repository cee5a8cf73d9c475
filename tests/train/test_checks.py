"""What is NaN or infinite in a trained variable is never saved, whichever process of a training holds it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te
from tests.cluster_jobs import Cluster
from tests.line_jobs import WritingExporter, checkpoint_steps, points, variables
from torch_estimator.hooks.nan_tensor import NotFinite, check_finite


class Steep(nn.Module):
    """Its second row gets a gradient of NaN, while the loss of the first step is finite."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.frozen = nn.Parameter(torch.full((2, 1), -torch.inf), requires_grad=False)
        self.register_buffer("least", torch.full((2, 1), torch.inf))

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        first, second = self.linear(features["x"]).split(1, dim=1)
        return first + torch.sqrt((second * 0).abs())


def steep(model_dir: object, **config: Any) -> te.Estimator:
    return te.Estimator.from_module(
        Steep(),
        loss=nn.MSELoss(),
        optimizer=lambda named: torch.optim.SGD([one for _, one in named], lr=0.01),
        model_dir=str(model_dir),
        config=te.RunConfig(**{"random_seed": 1, "compile": False, "save_checkpoints_steps": 1, **config}),
    )


def test_a_trained_variable_that_is_nan_is_named_and_not_saved(tmp_path: Path) -> None:
    message = r"^The trained variable 'linear\.weight' is NaN at global step 1, so this step is not saved; .* The "
    for _ in range(2):
        with pytest.raises(te.NanLossDuringTrainingError, match=message):
            steep(tmp_path).train(points, steps=3)
        assert checkpoint_steps(tmp_path) == [0]
    assert np.isfinite(steep(tmp_path).get_variable_value("linear.weight")).all()
    with pytest.raises(te.NanLossDuringTrainingError, match=message):
        steep(tmp_path / "at the end", save_checkpoints_steps=100).train(points, steps=1)


def test_a_trained_variable_that_is_infinite_before_the_first_step_has_a_cure_of_its_own(tmp_path: Path) -> None:
    module = Steep()
    module.frozen.requires_grad_()
    masked = te.Estimator.from_module(
        module,
        loss=nn.MSELoss(),
        optimizer=lambda named: torch.optim.SGD([one for _, one in named], lr=0.01),
        model_dir=str(tmp_path),
    )
    message = r"^The trained variable 'frozen' is infinite before the first step; .* or freeze it with requires_grad_"
    with pytest.raises(te.NanLossDuringTrainingError, match=message):
        masked.train(points, steps=1)


def test_it_can_be_just_the_end_and_the_checkpoint_before_is_the_final_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    metrics, exports = te.train_and_evaluate(
        steep(tmp_path),
        te.TrainSpec(points, max_steps=3, hooks=[te.NanTensorHook(fail_on_nan_loss=False)]),
        te.EvalSpec(points, steps=1, exporters=WritingExporter(only_final=True)),
    )
    assert (metrics["global_step"], exports) == (0, [f"{tmp_path}/export/writing/0"])
    (error,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert error.startswith("The trained variable 'linear.weight' is NaN at global step 1") and error.endswith(" ends.")
    message = "Not saved: a loss or variable is not finite. The checkpoint of global step 0 remains the latest."
    assert message in caplog.messages


def test_an_infinite_loss_ends_training_as_nan_does(tmp_path: Path) -> None:
    def overflowing() -> te.data.Dataset:
        return points(rows=27).map(lambda x, y: (x, y if len(y) == 4 else y * np.float32(np.inf)))

    net = nn.Linear(2, 1)
    ours = te.Estimator.from_module(
        net, loss=nn.L1Loss(), optimizer="SGD", model_dir=str(tmp_path), config=te.RunConfig(compile=False)
    )
    flat = lambda: overflowing().map(lambda x, y: (x["x"], y))  # noqa: E731
    with pytest.raises(te.NanLossDuringTrainingError, match=r"step 7; in its batch, the labels are infinite in"):
        ours.train(flat)
    assert all(np.isfinite(value).all() for value in variables(ours).values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_any_element_of_any_dtype_is_found(dtype: torch.dtype, bad: float) -> None:
    good = {"empty": torch.zeros(0, 3, dtype=dtype), "large": torch.full((7,), 3e38, dtype=dtype)}
    check_finite(good)
    for place in range(7):
        numbers = good["large"].clone()
        numbers[place] = bad
        with pytest.raises(NotFinite) as found:
            check_finite({**good, "bad": numbers})
        assert (found.value.name, found.value.is_nan) == ("bad", bool(np.isnan(bad)))


CLUSTER = """
import sys
import torch_estimator as te
from tests.train.test_checks import points, steep

job = steep(sys.argv[1], train_distribute=te.distribute.FullyShardedStrategy())
with te.errors.exit_on_user_error():
    te.train_and_evaluate(job, te.TrainSpec(points, max_steps=3), te.EvalSpec(points, steps=1))
"""


def test_a_row_that_another_process_holds_is_not_saved_either(tmp_path: Path) -> None:
    # The worker holds the second row.
    cluster = Cluster(CLUSTER)
    processes = [cluster.start(task, tmp_path) for task in cluster.tasks]
    try:
        told = processes[0].wait()
    finally:
        for process in processes:
            process.kill()
    assert "error: The trained variable 'linear.weight' is NaN at global step 1, so this step is not saved;" in told
    assert processes[0].status == 2
    assert checkpoint_steps(tmp_path) == [0]


def test_a_label_beyond_the_outputs_is_explained(tmp_path: Path) -> None:
    estimator = te.Estimator.from_module(
        nn.Linear(2, 3), loss=nn.CrossEntropyLoss(), optimizer="SGD", model_dir=str(tmp_path)
    )
    data = te.data.Dataset.from_arrays(np.ones((6, 2), np.float32), np.array([0, 1, 2, 3, 1, 1])).batch(3)
    with pytest.raises(IndexError, match="Target 3 is out of bounds") as raised:
        estimator.train(lambda: data)
    assert raised.value.__notes__[-1].endswith("from 0 to the number of the module's outputs less one.")


def test_a_model_dir_that_is_a_file_is_one_error_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "f").write_text("x")
    with pytest.raises(te.UserError, match=r"model_dir .*f cannot be a directory: a file is in the way\."):
        te.BaselineRegressor(str(tmp_path / "f")).train(lambda: ({"x": [1.0]}, [1.0]), steps=1)
    assert not [one for one in caplog.records if one.levelname == "WARNING"]
