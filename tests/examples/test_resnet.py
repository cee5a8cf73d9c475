"""The ResNet example, at a size that a laptop bears."""

from pathlib import Path

import pytest
import torch

from examples.resnet import resnet, task
from torch_estimator.checkpoint.checkpoint import load_checkpoint

SMALL = ["--image-size", "32", "--batch-size", "4", "--train-steps", "4", "--blocks", "1", "1", "1", "1"]


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_small_residual_network_trains_and_says_how_fast(
    precision: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task.main([*SMALL, "--precision", precision, "--job-dir", str(tmp_path)])

    printed = capsys.readouterr().out
    assert "reached at step 4: loss " in printed
    assert float(printed.split("; ")[1].split(" images/s")[0]) > 0
    assert all(value.dtype != torch.bfloat16 for value in load_checkpoint(str(tmp_path)).variables.values()), (
        "parameters stay float32"
    )


def test_it_is_resnet_50() -> None:
    parameters = sum(parameter.numel() for parameter in resnet.ResNet().parameters())

    assert parameters == 25_557_032, "the number of weights that He et al.'s ResNet-50 has with 1000 classes"
