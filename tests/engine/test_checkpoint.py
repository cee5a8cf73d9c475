"""Reading checkpoints, and what is said about those that cannot be read."""

from __future__ import annotations

import json
import pathlib

import pytest
import torch

from torch_estimator.engine.checkpoint import (
    Checkpoint,
    check_compatible,
    checkpoint_paths,
    latest_checkpoint,
    load_checkpoint,
)
from torch_estimator.engine.checkpoint_writer import CheckpointWriter
from torch_estimator.errors import CheckpointError


@pytest.fixture
def model_dir(tmp_path: pathlib.Path) -> pathlib.Path:
    directory = tmp_path / "model"
    with CheckpointWriter(directory) as writer:
        for step in (9, 10):
            writer.save(step, {"w": torch.full((3,), float(step))}, {"w/Adagrad": torch.ones(3)}, {"position": step})
    return directory


def test_the_latest_is_loaded_from_a_directory_and_any_by_its_path(model_dir: pathlib.Path) -> None:
    latest = load_checkpoint(model_dir)
    assert (latest.path, latest.step, latest.state) == (
        str(model_dir / "model.ckpt-10"),
        10,
        {"position": 10},
    )
    assert latest.variables["w"].tolist() == [10.0] * 3
    assert latest.slots["w/Adagrad"].tolist() == [1.0] * 3
    assert load_checkpoint(model_dir / "model.ckpt-9").variables["w"].tolist() == [9.0] * 3


def test_paths_are_in_the_order_of_steps(model_dir: pathlib.Path) -> None:
    assert checkpoint_paths(model_dir) == [str(model_dir / f"model.ckpt-{step}") for step in (9, 10)]
    assert latest_checkpoint(str(model_dir) + "/") == str(model_dir / "model.ckpt-10")


def test_without_the_checkpoint_file_there_is_none(model_dir: pathlib.Path) -> None:
    (model_dir / "checkpoint").unlink()
    assert latest_checkpoint(model_dir) is None
    assert checkpoint_paths(model_dir) == []
    assert latest_checkpoint(model_dir / "absent") is None


def test_a_model_dir_may_be_moved(model_dir: pathlib.Path) -> None:
    moved = model_dir.rename(model_dir.parent / "moved")
    assert load_checkpoint(moved).path == str(moved / "model.ckpt-10")


def test_the_file_may_be_edited_to_go_back(model_dir: pathlib.Path) -> None:
    (model_dir / "checkpoint").write_text('{"model_checkpoint_path": "model.ckpt-9"}')
    assert load_checkpoint(model_dir).step == 9


@pytest.mark.parametrize("size", [0, 7, 60, -1])
@pytest.mark.parametrize("name", ["variables.safetensors", "slots.safetensors"])
def test_truncated_tensors(model_dir: pathlib.Path, name: str, size: int) -> None:
    path = model_dir / "model.ckpt-10" / name
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CheckpointError, match=f"{path} is truncated or damaged: .*; use an older checkpoint"):
        load_checkpoint(model_dir)


@pytest.mark.parametrize("name", ["variables.safetensors", "slots.safetensors"])
def test_missing_tensors(model_dir: pathlib.Path, name: str) -> None:
    path = model_dir / "model.ckpt-10" / name
    path.unlink()
    with pytest.raises(CheckpointError, match=f"{path} is missing"):
        load_checkpoint(model_dir)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "else"}', '{"format": "torch_estimator.checkpoint/1"}'])
def test_bad_state(model_dir: pathlib.Path, text: str) -> None:
    path = model_dir / "model.ckpt-10" / "state.json"
    path.write_text(text)
    with pytest.raises(CheckpointError, match=f"{path} is (damaged|not of the format)"):
        load_checkpoint(model_dir)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"model_checkpoint_path": 3}', "hello", "\udcff"])
def test_a_foreign_checkpoint_file(model_dir: pathlib.Path, text: str) -> None:
    (model_dir / "checkpoint").write_bytes(text.encode("utf-8", "surrogateescape"))
    for read in (latest_checkpoint, load_checkpoint, CheckpointWriter):
        with pytest.raises(CheckpointError, match="checkpoint is damaged or was not written by torch_estimator"):
            read(model_dir)


def test_a_checkpoint_of_tensorflow(tmp_path: pathlib.Path) -> None:
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-100"\n')
    (tmp_path / "model.ckpt-100.index").write_text("")
    with pytest.raises(CheckpointError, match=r"checkpoint was written by TensorFlow, .* use another model_dir\."):
        load_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"model.ckpt-100 is a checkpoint of TensorFlow"):
        load_checkpoint(tmp_path / "model.ckpt-100")


def test_no_checkpoint_at_all(model_dir: pathlib.Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no checkpoint at .*absent; if .*checkpoint names it"):
        load_checkpoint(model_dir / "absent")
    with pytest.raises(CheckpointError, match=r"there is no checkpoint in .*: it holds neither"):
        load_checkpoint(model_dir.parent)
    (model_dir / "checkpoint").write_text(json.dumps({"model_checkpoint_path": "model.ckpt-77"}))
    with pytest.raises(CheckpointError, match=r"there is no checkpoint at .*model\.ckpt-77; if "):
        load_checkpoint(model_dir)


def test_a_file_where_the_directory_must_be(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="cannot be a directory: a file is in the way"):
        load_checkpoint(tmp_path / "file")


def _checkpoint(**shapes: tuple[int, ...]) -> Checkpoint:
    variables = {name: torch.zeros(shape) for name, shape in shapes.items()}
    return Checkpoint(path="runs/x/model.ckpt-1", step=1, variables=variables, slots={"s": torch.zeros(2)})


def test_a_fitting_model_is_compatible() -> None:
    check_compatible(_checkpoint(a=(2, 3)), {"a": torch.zeros(2, 3)}, {"s": (2,)})


def test_another_model_is_told_by_its_variables() -> None:
    with pytest.raises(CheckpointError) as caught:
        check_compatible(_checkpoint(a=(2, 3), b=(1,), d=()), {"a": (2, 4), "c": torch.zeros(1), "d": ()})
    assert str(caught.value) == (
        "checkpoint runs/x/model.ckpt-1 was made by another model: 1 variable only in the model: 'c'; "
        "1 variable only in the checkpoint: 'b'; "
        "1 variable of another shape: 'a' ([2, 3] in the checkpoint, [2, 4] in the model); "
        "use another model_dir for this model."
    )


def test_many_differences_are_counted() -> None:
    expected = {f"v{i}": (1,) for i in range(8)}
    with pytest.raises(CheckpointError, match=r"8 variables only in the model: 'v0', .*, 'v4' and 3 more; use"):
        check_compatible(_checkpoint(), expected)


def test_another_optimizer_is_told_by_its_slots() -> None:
    with pytest.raises(CheckpointError, match="1 optimizer variable only in the model: 't'"):
        check_compatible(_checkpoint(), {}, {"s": (2,), "t": (2,)})
