"""The MNIST example as its user runs it."""

import gzip
from pathlib import Path

import numpy as np
import pytest

import torch_estimator as te
from examples.mnist import digits, task
from tests.examples import killed

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT.parent / "shared" / "data" / "mnist"


def _accuracy(printed: str) -> float:
    return float(printed.split("accuracy ")[1].split(" on ")[0])


@pytest.fixture(scope="module")
def few_digits(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """IDX files of 640 digits, and the options that name them."""
    directory = tmp_path_factory.mktemp("digits")
    made = digits.generate(640, seed=1)
    _write_idx(directory / "images.gz", made.images)
    _write_idx(directory / "labels.gz", made.labels.astype(np.uint8))
    names = ["--images", str(directory / "images.gz"), "--labels", str(directory / "labels.gz")]
    return [*names, "--held-out", "128", "--batch-size", "32", "--num-epochs", "2", "--save-checkpoints-steps", "8"]


def _write_idx(path: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes()))


def test_the_network_learns_and_its_export_tells_digits(
    few_digits: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task.main([*few_digits, "--num-epochs", "6", "--job-dir", str(tmp_path)])

    assert _accuracy(capsys.readouterr().out) > 0.8
    model = te.ExportedModel.load(str(next((tmp_path / "export" / "digits").iterdir())))
    unseen = digits.generate(50, seed=2)
    told = model.predict({"image": unseen.images.astype(np.float32) / 255.0})
    assert told["probabilities"].shape == (50, 10)
    assert np.mean(np.ravel(told["class_ids"]) == unseen.labels) > 0.7


def test_a_killed_job_ends_bit_for_bit_like_an_undisturbed_one(few_digits: list[str], tmp_path: Path) -> None:
    killed.run("examples.mnist.task", [*few_digits, "--job-dir", str(tmp_path / "whole")])
    arguments = [*few_digits, "--job-dir", str(tmp_path / "killed")]
    killed.run_killed("examples.mnist.task", arguments, when_saving=16)
    killed.run("examples.mnist.task", arguments)

    killed.assert_same_checkpoints(tmp_path / "whole", tmp_path / "killed")


def test_an_input_pipeline_reads_its_shard(few_digits: list[str]) -> None:
    made = task.parser("examples.mnist.task", "", job_dir="unused", learning_rate=0.1, rate_help="")
    args, train, held_out = task.parse(made, few_digits)
    input_fn = task.input_fn_of(train, held_out, args)

    shards = [
        [label for _, labels in input_fn(te.ModeKeys.EVAL, te.InputContext(2, place, 2)) for label in labels]
        for place in range(2)
    ]

    assert shards == [held_out.labels[0::2].tolist(), held_out.labels[1::2].tolist()]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GIF89a", "is not an IDX file of unsigned bytes"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 9]) + b"12", "is it cut off?"),
    ],
)
def test_a_file_that_holds_no_digits_is_told_in_one_sentence(
    data: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "images"
    path.write_bytes(data)

    with pytest.raises(SystemExit) as ended:
        task.main(["--images", str(path), "--labels", str(path)])

    assert ended.value.code == 2
    complaint = capsys.readouterr().err
    assert said in complaint
    assert str(path) in complaint


@pytest.mark.skipif(not REAL.is_dir(), reason=f"needs the real digits in {REAL}")
def test_on_the_real_digits_97_in_100_are_told_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["--images", str(REAL / "images-idx3-ubyte.gz"), "--labels", str(REAL / "labels-idx1-ubyte.gz")]

    task.main([*names, "--job-dir", str(tmp_path)])

    assert _accuracy(capsys.readouterr().out) >= 0.97
