"""The digits benchmark runs."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import mnist_train
from benchmarks.peers import convnet, mnist_digits
from examples.mnist import digits, model


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with generated digits in files like the real ones."""
    made = digits.generate(300, seed=1)
    for name, values in ((mnist_digits.IMAGES, made.images), (mnist_digits.LABELS, made.labels.astype(np.uint8))):
        header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
        (tmp_path / name).write_bytes(gzip.compress(header + values.tobytes()))
    return tmp_path


@pytest.mark.slow
def test_a_quick_run_without_peers_prints_the_table(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = mnist_train.main(["--quick", "--peers", "--ours", "ours-eager", "--threads", "1", "--data", str(data)])

    lines = capsys.readouterr().out.splitlines()
    assert status == 0
    assert "MNIST, 20 steps of 64" in lines
    (ours,) = [line for line in lines if line.startswith("torch-estimator, compile=False ")]
    assert float(ours.split()[2]) > 0
    assert "A quick run, too short to judge by:" in lines


def test_peers_read_the_digits_that_ours_reads(data: Path) -> None:
    train, held_out = mnist_digits.read(data)
    ours = digits.read(str(data / mnist_digits.IMAGES), str(data / mnist_digits.LABELS))

    np.testing.assert_array_equal(np.concatenate([train.labels, held_out.labels]), ours.labels)
    np.testing.assert_array_equal(train.images, ours.images[:240].astype(np.float32) / 255.0)
    assert len(held_out.labels) == 60


def test_peers_train_the_examples_network() -> None:
    theirs, ours = convnet.ConvNet(), model.ConvolutionalNetwork()
    for parameter, wanted in zip(theirs.parameters(), ours.parameters(), strict=True):
        parameter.data.copy_(wanted)
    images = torch.rand(3, 28, 28)

    torch.testing.assert_close(theirs(images), ours({"image": images}))


def test_without_the_digits_one_line_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        mnist_train.parse(["--data", str(tmp_path)])

    assert "name the folder of the digits with --data" in capsys.readouterr().err
