"""Reading checkpoints, and the errors for those that cannot be read."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
from typing import Any

import pytest
import safetensors.torch
import torch

from torch_estimator.checkpoint.checkpoint import (
    Checkpoint,
    check_compatible,
    checkpoint_paths,
    latest_checkpoint,
    load_checkpoint,
)
from torch_estimator.checkpoint.writer import CheckpointWriter
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


def test_a_checkpoint_that_training_removes_while_it_is_read_is_replaced_by_the_newest(
    model_dir: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_file = safetensors.torch.load_file

    with CheckpointWriter(model_dir, keep_checkpoint_max=1) as writer:

        def load(path: str) -> Any:
            # safetensors opens a file twice, the second time through torch.
            if "model.ckpt-10/" in path:
                writer.save(11, {"w": torch.full((3,), 11.0)})
                writer.wait()
                torch.UntypedStorage.from_file(path, False, 8)
            return load_file(path)

        monkeypatch.setattr(safetensors.torch, "load_file", load)
        assert load_checkpoint(model_dir).variables["w"].tolist() == [11.0] * 3
    with pytest.raises(CheckpointError, match=r"there is no checkpoint at .*model\.ckpt-10"):
        load_checkpoint(model_dir / "model.ckpt-10")


def test_tensors_that_torch_cannot_open_are_named(model_dir: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors.torch, "load_file", lambda path: torch.UntypedStorage.from_file("/", False, 8))
    path = model_dir / "model.ckpt-10" / "variables.safetensors"
    with pytest.raises(CheckpointError, match=f"{path} cannot be read: "):
        load_checkpoint(model_dir)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "else"}', '{"format": "torch_estimator.checkpoint/1"}'])
def test_bad_state(model_dir: pathlib.Path, text: str) -> None:
    path = model_dir / "model.ckpt-10" / "state.json"
    path.write_text(text)
    with pytest.raises(CheckpointError, match=f"{path} is (damaged|not of the format)"):
        load_checkpoint(model_dir)


@pytest.mark.parametrize("name", ["variables.safetensors", "slots.safetensors", "state.json"])
def test_every_damaged_byte_is_noticed(model_dir: pathlib.Path, name: str) -> None:
    path = model_dir / "model.ckpt-10" / name
    whole = path.read_bytes()
    unnoticed = []
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x02]) + whole[place + 1 :])
        try:
            checkpoint = load_checkpoint(model_dir)
            read = {**checkpoint.variables, **checkpoint.slots}
        except CheckpointError as error:
            assert str(path) in str(error) or "written by another program" in str(error)
        else:
            # Damage in the name of the checksum's key, or in unused metadata, has no effect.
            unnoticed.append(whole[place : place + 1])
            assert {key: value.tolist() for key, value in read.items()} == {"w": [10.0] * 3, "w/Adagrad": [1.0] * 3}
            assert (checkpoint.step, checkpoint.state) == (10, {"position": 10})
    assert len(unnoticed) < 40


def test_a_damaged_tensor_is_named_and_the_others_can_be_read(model_dir: pathlib.Path) -> None:
    with CheckpointWriter(model_dir) as writer:
        writer.save(11, {"good": torch.ones(3), "worse": torch.ones(3)})
    path = model_dir / "model.ckpt-11" / "variables.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    variables = load_checkpoint(model_dir).variables
    assert list(variables) == ["good", "worse"]
    assert variables["good"].tolist() == [1.0] * 3
    for _ in range(2):
        with pytest.raises(CheckpointError, match=f"{path} is damaged: the checksum of 'worse' differs; put back"):
            variables["worse"]


def test_a_checkpoint_of_an_earlier_version_without_checksums_loads(tmp_path: pathlib.Path) -> None:
    shutil.copytree(pathlib.Path(__file__).parent / "before_checksums", tmp_path, dirs_exist_ok=True)
    checkpoint = load_checkpoint(tmp_path)
    assert (checkpoint.step, checkpoint.state) == (3, {"position": [3]})
    assert checkpoint.variables["w"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert checkpoint.variables["step"].tolist() == 3
    assert checkpoint.slots["w/Adagrad"].tolist() == [[0.5, 0.5], [0.5, 0.5]]
    with CheckpointWriter(tmp_path) as writer:
        writer.amend(3, {"position": [4]})
    assert load_checkpoint(tmp_path).state == {"position": [4]}


def test_an_edited_state_is_read_once_its_checksum_is_removed(model_dir: pathlib.Path) -> None:
    path = model_dir / "model.ckpt-10" / "state.json"
    content = {**json.loads(path.read_text()), "state": {"position": 4}}
    path.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"its checksum differs; .* remove the entry 'crc32' from a file"):
        load_checkpoint(model_dir)
    del content["crc32"]
    path.write_text(json.dumps(content))
    assert load_checkpoint(model_dir).state == {"position": 4}


@pytest.mark.parametrize("step", [-1, 2**70, 1.5, None])
def test_a_step_that_cannot_be_is_damage(model_dir: pathlib.Path, step: object) -> None:
    content = {"format": "torch_estimator.checkpoint/1", "step": step, "state": {}}
    (model_dir / "model.ckpt-10" / "state.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"state\.json is damaged: it lacks 'step' or 'state'"):
        load_checkpoint(model_dir)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"model_checkpoint_path": 3}', "hello", "\udcff"])
def test_a_foreign_checkpoint_file(model_dir: pathlib.Path, text: str) -> None:
    (model_dir / "checkpoint").write_bytes(text.encode("utf-8", "surrogateescape"))
    for read in (latest_checkpoint, load_checkpoint, CheckpointWriter):
        with pytest.raises(CheckpointError, match="checkpoint is damaged or was not written by torch_estimator"):
            read(model_dir)


@pytest.mark.parametrize("name", ["../victim", "model.ckpt-0/../../victim", ".", "..", "/tmp/model.ckpt-5", "eval"])
def test_an_index_that_names_anything_but_checkpoints_is_refused(model_dir: pathlib.Path, name: str) -> None:
    victim = model_dir.parent / "victim"
    victim.mkdir()
    content = json.loads((model_dir / "checkpoint").read_text())
    content["all_model_checkpoint_paths"].insert(0, name)
    content["all_model_checkpoint_timestamps"].insert(0, 0.0)
    for changed in (content, {"model_checkpoint_path": name}):
        (model_dir / "checkpoint").write_text(json.dumps(changed))
        for read in (latest_checkpoint, checkpoint_paths, load_checkpoint, CheckpointWriter):
            with pytest.raises(CheckpointError, match=rf"checkpoint names {re.escape(repr(name))}, but may only name"):
                read(model_dir)
    assert victim.is_dir()


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_an_index_whose_times_are_no_numbers_is_damaged(model_dir: pathlib.Path, value: float) -> None:
    content = json.loads((model_dir / "checkpoint").read_text())
    for changed in ({"all_model_checkpoint_timestamps": [1.0, value]}, {"last_preserved_timestamp": value}):
        (model_dir / "checkpoint").write_text(json.dumps({**content, **changed}))
        with pytest.raises(CheckpointError, match="checkpoint is damaged or was not written by torch_estimator"):
            CheckpointWriter(model_dir)


def test_a_checkpoint_of_tensorflow(tmp_path: pathlib.Path) -> None:
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-100"\n')
    (tmp_path / "model.ckpt-100.index").write_text("")
    with pytest.raises(CheckpointError, match=r"checkpoint was written by TensorFlow; use another model_dir, into"):
        latest_checkpoint(tmp_path)
    for path in (tmp_path, tmp_path / "model.ckpt-100"):
        with pytest.raises(CheckpointError, match=r"model.ckpt-100.index is damaged at byte 0"):
            load_checkpoint(path)


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
        latest_checkpoint(tmp_path / "file")
    with pytest.raises(CheckpointError, match="is one file"):
        load_checkpoint(tmp_path / "file")


def _checkpoint(**shapes: tuple[int, ...]) -> Checkpoint:
    variables = {name: torch.zeros(shape) for name, shape in shapes.items()}
    return Checkpoint(path="runs/x/model.ckpt-1", step=1, variables=variables, slots={"s": torch.zeros(2)})


def test_a_fitting_model_is_compatible() -> None:
    check_compatible(_checkpoint(a=(2, 3)), {"a": torch.zeros(2, 3)}, {"s": (2,)})


def test_another_model_is_reported_by_its_variables() -> None:
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


def test_another_optimizer_is_reported_by_its_slots() -> None:
    with pytest.raises(CheckpointError, match="1 optimizer variable only in the model: 't'"):
        check_compatible(_checkpoint(), {}, {"s": (2,), "t": (2,)})
