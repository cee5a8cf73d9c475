"""Reading evaluations from event files; a file that has not changed is read once."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from torch_estimator import files
from torch_estimator.summary.event_writer import EventWriter
from torch_estimator.summary.scalar_reader import ScalarReader, read_scalars


@pytest.fixture(params=["local", "memory"])
def eval_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    directory = str(tmp_path / "eval") if request.param == "local" else f"memory://{uuid.uuid4().hex}/eval"
    yield directory
    files.remove_tree(directory)


def write(eval_dir: str, step: int, loss: float) -> None:
    with EventWriter(eval_dir) as events:
        events.scalar("loss", loss, step)


def test_new_files_and_those_that_have_grown_are_read(eval_dir: str) -> None:
    reader = ScalarReader(eval_dir)
    assert reader.results() == {}
    write(eval_dir, 2, 0.5)
    assert reader.results() == {2: {"loss": 0.5}}
    growing = EventWriter(eval_dir)
    for step in (4, 6):
        growing.scalar("loss", 0.25, step)
        growing.flush()
        assert list(reader.results())[-1] == step
    growing.close()
    write(eval_dir, 2, 0.75)
    assert reader.results() == {2: {"loss": 0.75}, 4: {"loss": 0.25}, 6: {"loss": 0.25}}


def test_a_file_read_once_is_not_read_again(tmp_path: Path) -> None:
    write(str(tmp_path), 2, 0.5)
    reader = ScalarReader(tmp_path)
    expected = reader.results()
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"\0" * path.stat().st_size)
    assert reader.results() == expected
    assert ScalarReader(tmp_path).results() == {}


def test_events_of_a_killed_run_after_its_checkpoint_are_left_out(eval_dir: str) -> None:
    for step in (2, 4, 6):
        write(eval_dir, step, 0.5)
    with EventWriter(eval_dir) as events:
        events.session_start(4)
        events.scalar("loss", 0.75, 8)
    assert ScalarReader(eval_dir).results() == {2: {"loss": 0.5}, 8: {"loss": 0.75}}


def test_other_files_and_texts_do_not_count(eval_dir: str) -> None:
    files.makedirs(files.join(eval_dir, "folder.tfevents"))
    files.write_file(files.join(eval_dir, "notes.txt"), [b"x"])
    with EventWriter(eval_dir) as events:
        events.text("checkpoint_path", "model.ckpt-3", 3)
    assert ScalarReader(eval_dir).results() == {}


def test_scalars_that_tensorflow_2_wrote_as_tensors_are_read(eval_dir: str) -> None:
    with EventWriter(eval_dir) as events:
        metadata = {"plugin_data": {"plugin_name": "scalars"}}
        bytes_of_half = {"dtype": "DT_FLOAT", "tensor_shape": {}, "tensor_content": b"\0\0\0\x3f"}
        numbers = {"dtype": "DT_DOUBLE", "tensor_shape": {}, "double_val": [0.25]}
        for step, tensor in enumerate((bytes_of_half, numbers), 1):
            events._write(step, {"value": [{"tag": "epoch_auc", "tensor": tensor, "metadata": metadata}]})
        events.text("note", "no number", 2)
    curves = read_scalars(eval_dir)
    assert curves.pop("epoch_auc").by_step() == {1: 0.5, 2: 0.25}
    assert curves == {}
