"""Saving checkpoints: the files after a save, and after a failed one."""

from __future__ import annotations

import json
import os
import pathlib
import resource
import subprocess
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import fsspec
import pytest
import safetensors.torch
import torch
from fsspec.implementations.memory import MemoryFileSystem

from torch_estimator import files
from torch_estimator.checkpoint.checkpoint import checkpoint_paths, latest_checkpoint, load_checkpoint
from torch_estimator.checkpoint.writer import CheckpointWriter
from torch_estimator.errors import CheckpointError, InvalidTypeError


@pytest.fixture(params=["local", "memory"])
def model_dir(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[str]:
    if request.param == "local":
        yield str(tmp_path / "model")
        return
    yield "memory://test_checkpoint_writer"
    files.remove_tree("memory://test_checkpoint_writer")


def _variables(step: int, size: int = 8) -> dict[str, torch.Tensor]:
    return {"w": torch.full((size,), float(step))}


def _steps(model_dir: files.PathLike) -> list[int]:
    return [load_checkpoint(path).step for path in checkpoint_paths(model_dir)]


def test_the_newest_checkpoints_are_kept_and_nothing_else(model_dir: str) -> None:
    with CheckpointWriter(model_dir, keep_checkpoint_max=2) as writer:
        for step in (0, 4, 8, 10):
            assert writer.save(step, _variables(step)) == f"{model_dir}/model.ckpt-{step}"
    assert files.listdir(model_dir) == ["checkpoint", "model.ckpt-10", "model.ckpt-8"]
    assert _steps(model_dir) == [8, 10]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs Linux to tell a descriptor's file")
def test_each_file_of_a_checkpoint_is_synced_once_before_it_gets_its_name(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync
    synced: list[str] = []

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    with CheckpointWriter(tmp_path) as writer:
        path = writer.save(4, _variables(4), {"m": torch.zeros(8)})
    inside = [os.path.basename(one) for one in synced if "/.tmp-model.ckpt-4-" in one]
    # The last one is the directory itself.
    assert sorted(inside[:-1]) == sorted(os.listdir(path))


def test_retention_continues_after_a_restart(model_dir: str) -> None:
    for step in range(8):
        clock = iter([step * 1800.0])
        with CheckpointWriter(
            model_dir, keep_checkpoint_max=2, keep_checkpoint_every_n_hours=1, clock=clock.__next__
        ) as writer:
            writer.save(step, _variables(step))
    assert _steps(model_dir) == [3, 5, 6, 7]
    content = json.loads(files.read_text(files.join(model_dir, "checkpoint")))
    assert content["model_checkpoint_path"] == "model.ckpt-7"
    assert content["pinned"] == ["model.ckpt-3", "model.ckpt-5"]


def test_save_returns_before_it_is_written_and_has_copied() -> None:
    gate = threading.Event()

    class Gated(MemoryFileSystem):
        protocol = "gated"

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return str(super()._strip_protocol(path.replace("gated://", "memory://gated/")))

        def _open(self, *args: Any, **kwargs: Any) -> Any:
            gate.wait()
            return super()._open(*args, **kwargs)

    fsspec.register_implementation("gated", Gated, clobber=True)
    gate.set()
    with CheckpointWriter("gated://model") as writer:
        gate.clear()
        variables = _variables(1)
        state = {"position": [1]}
        writer.save(1, variables, state=state)
        variables["w"].zero_()
        state["position"].append(2)
        gate.set()
    checkpoint = load_checkpoint("gated://model")
    assert checkpoint.variables["w"].tolist() == [1.0] * 8
    assert checkpoint.state == {"position": [1]}


def test_memory_allocated_before_does_not_change_what_is_saved(model_dir: str) -> None:
    with CheckpointWriter(model_dir) as writer:
        writer.save(0, _variables(0))
        writer.prepare(_variables(1), {"w/slot": torch.ones(2)})
        writer.save(1, _variables(1), {"w/slot": torch.full((2,), 5.0)})
    checkpoint = load_checkpoint(model_dir)
    assert checkpoint.variables["w"].tolist() == [1.0] * 8
    assert checkpoint.slots["w/slot"].tolist() == [5.0, 5.0]
    assert load_checkpoint(files.join(model_dir, "model.ckpt-0")).variables["w"].tolist() == [0.0] * 8


def test_an_error_of_the_preparation_is_raised_by_the_save(tmp_path: pathlib.Path) -> None:
    with CheckpointWriter(tmp_path) as writer:
        sparse = {"w": torch.eye(2).to_sparse()}
        writer.prepare(sparse)
        with pytest.raises(InvalidTypeError, match="'w' must be a dense tensor"):
            writer.save(1, sparse)
        writer.save(1, _variables(1))
    assert load_checkpoint(tmp_path).step == 1


def test_a_step_saved_again_replaces_its_checkpoint(model_dir: str) -> None:
    for value in (1, 2, 3):
        with CheckpointWriter(model_dir) as writer:
            writer.save(7, _variables(value))
        assert load_checkpoint(model_dir).variables["w"].tolist() == [float(value)] * 8
        assert _steps(model_dir) == [7]
        assert len(files.listdir(model_dir)) == 2
    assert latest_checkpoint(model_dir) == f"{model_dir}/model.ckpt-7"


def test_leftovers_of_a_killed_process_are_removed(model_dir: str) -> None:
    with CheckpointWriter(model_dir) as writer:
        writer.save(1, _variables(1))
    for name in (".tmp-model.ckpt-5-123", "model.ckpt-5", "model.ckpt-best", "eval"):
        files.makedirs(files.join(model_dir, name))
        files.write_file(files.join(model_dir, name, "variables.safetensors"), [b"half"])
    files.write_file(files.join(model_dir, ".tmp-checkpoint-123-4"), [b"half"])
    CheckpointWriter(model_dir).close()
    assert files.listdir(model_dir) == ["checkpoint", "eval", "model.ckpt-1", "model.ckpt-best"]


def test_complete_checkpoints_that_are_not_named_stay_and_are_named_in_the_log(
    model_dir: str, caplog: pytest.LogCaptureFixture
) -> None:
    with CheckpointWriter(model_dir) as writer:
        for step in (1, 2, 3):
            writer.save(step, _variables(step))
    # The user goes back to an older one.
    files.write_file(files.join(model_dir, "checkpoint"), [b'{"model_checkpoint_path": "model.ckpt-1"}'])
    with CheckpointWriter(model_dir, keep_checkpoint_max=1) as writer:
        assert files.basename(writer.save(2, _variables(20))) == "model.ckpt-2.1"
    assert [record.message for record in caplog.records] == [
        f"{model_dir} holds model.ckpt-2, model.ckpt-3, which 'checkpoint' does not name: training neither uses nor "
        "removes them."
    ]
    assert files.listdir(model_dir) == ["checkpoint", "model.ckpt-2", "model.ckpt-2.1", "model.ckpt-3"]
    values = [load_checkpoint(files.join(model_dir, name)).variables["w"][0] for name in files.listdir(model_dir)[1:]]
    assert values == [2.0, 20.0, 3.0]


def test_checkpoints_without_a_checkpoint_file_are_an_error_that_says_how_to_go_on(model_dir: str) -> None:
    with CheckpointWriter(model_dir) as writer:
        for step in (9, 10):
            writer.save(step, _variables(step))
    files.remove_tree(files.join(model_dir, "checkpoint"))
    with pytest.raises(CheckpointError) as caught:
        CheckpointWriter(model_dir)
    cure = '{"model_checkpoint_path": "model.ckpt-10"}'
    assert str(caught.value) == (
        f"{model_dir} holds model.ckpt-9, model.ckpt-10, but no file 'checkpoint' that says which of them to go on "
        f"from; put that file back, or make one that holds {cure}, or use another model_dir to begin anew."
    )
    files.write_file(files.join(model_dir, "checkpoint"), [cure.encode()])
    CheckpointWriter(model_dir).close()
    assert load_checkpoint(model_dir).step == 10
    assert files.listdir(model_dir) == ["checkpoint", "model.ckpt-10", "model.ckpt-9"]


@pytest.mark.parametrize("names", [b"../victim\nmodel.ckpt-1", b"\xff", b"model.ckpt-5/../../victim"])
def test_a_note_of_a_killed_process_removes_neither_what_is_named_nor_anything_else(
    tmp_path: pathlib.Path, names: bytes
) -> None:
    model_dir = tmp_path / "model"
    with CheckpointWriter(model_dir) as writer:
        writer.save(1, _variables(1))
    (tmp_path / "victim").mkdir()
    (model_dir / ".tmp-unnamed-checkpoints").write_bytes(names)
    CheckpointWriter(model_dir).close()
    assert (tmp_path / "victim").is_dir()
    assert load_checkpoint(model_dir).step == 1


def test_without_a_checkpoint_file_no_checkpoint_is_removed_but_a_name_is_taken_over(model_dir: str) -> None:
    for step in (5, 6):
        files.makedirs(files.join(model_dir, f"model.ckpt-{step}"))
        files.write_file(files.join(model_dir, f"model.ckpt-{step}", "junk"), [b"half"])
    with CheckpointWriter(model_dir) as writer:
        writer.save(5, _variables(5))
    assert files.listdir(model_dir) == ["checkpoint", "model.ckpt-5", "model.ckpt-6"]
    assert "junk" not in files.listdir(files.join(model_dir, "model.ckpt-5"))


def test_a_file_where_the_model_dir_must_be(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    with pytest.raises(CheckpointError, match=f"model_dir {path} cannot be made: File exists; use another"):
        CheckpointWriter(path)
    with pytest.raises(CheckpointError, match="cannot be made: Not a directory"):
        CheckpointWriter(path / "below")


def test_a_failed_save_is_raised_chained_by_the_next_call(tmp_path: pathlib.Path) -> None:
    for resurface in ("wait", "close", "save"):
        model_dir = tmp_path / resurface
        writer = CheckpointWriter(model_dir)
        model_dir.rmdir()
        model_dir.write_text("in the way")
        writer.save(1, _variables(1))
        with pytest.raises(CheckpointError, match=r"model.ckpt-1 cannot be saved: Not a directory") as caught:
            writer.save(2, _variables(2)) if resurface == "save" else getattr(writer, resurface)()
        assert isinstance(caught.value.__cause__, OSError)


def test_after_a_failed_save_the_next_may_succeed(tmp_path: pathlib.Path) -> None:
    writer = CheckpointWriter(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer.save(1, _variables(1))
    writer.wait()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        writer.save(2, _variables(2, size=1 << 20))
        with pytest.raises(CheckpointError, match=r"model.ckpt-2 cannot be saved: File too large; .* before it stays"):
            writer.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert files.listdir(tmp_path) == ["checkpoint", "model.ckpt-1"]
    assert load_checkpoint(tmp_path).step == 1
    writer.save(3, _variables(3))
    writer.close()
    assert load_checkpoint(tmp_path).step == 3


def test_a_full_disk(tmp_path: pathlib.Path) -> None:
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], capture_output=True)
    if mount.returncode:
        pytest.skip("may not mount a tmpfs")
    try:
        writer = CheckpointWriter(tmp_path, keep_checkpoint_max=None)
        with pytest.raises(CheckpointError, match=r"cannot be saved: No space left on device") as caught:
            for step in range(10):
                writer.save(step, _variables(step, size=50_000))
                writer.wait()
        assert isinstance(caught.value.__cause__, OSError)
        writer.close()
        steps = _steps(tmp_path)
        assert steps == list(range(len(steps))) and steps
        assert files.listdir(tmp_path) == ["checkpoint", *(f"model.ckpt-{step}" for step in steps)]
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_state_that_is_not_json_is_refused_at_once(tmp_path: pathlib.Path) -> None:
    with CheckpointWriter(tmp_path) as writer, pytest.raises(InvalidTypeError, match="state saved at step 3"):
        writer.save(3, {}, state={"x": object()})


class RecordingFileSystem(MemoryFileSystem):
    """File system that records its content before and after every change: what a kill at that moment leaves behind."""

    protocol = "recording"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    history: ClassVar[list[dict[str, bytes]]] = []

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("recording://", "memory://")))

    @classmethod
    def record(cls) -> None:
        cls.history.append({path: file.getvalue() for path, file in cls.store.items()})

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        file = super()._open(path, mode, **kwargs)
        if mode != "rb":
            self.record()
            plain = file.write

            def write_in_halves(data: Any) -> int:
                data = bytes(data)
                for part in (data[: len(data) // 2], data[len(data) // 2 :]):
                    plain(part)
                    self.record()
                return len(data)

            file.write = write_in_halves
        return file

    def pipe_file(self, path: str, value: bytes, **kwargs: Any) -> None:
        # A put is atomic: no reader sees a part of the object.
        self.record()
        super()._open(path, "wb", data=value)
        self.record()

    def rm_file(self, path: str) -> None:
        self.record()
        super().rm_file(path)

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        for file in self.find(path):
            self.rm_file(file)
        super().rm(path, recursive=recursive, maxdepth=maxdepth)


def test_on_a_file_system_without_rename_every_instant_has_a_readable_checkpoint() -> None:
    fsspec.register_implementation("recording", RecordingFileSystem, clobber=True)
    with CheckpointWriter("recording://model", keep_checkpoint_max=1) as writer:
        for step in (1, 2, 2, 3):
            writer.save(step, _variables(step), {"s": torch.ones(2)})
    history = [*RecordingFileSystem.history]
    assert len(history) > 40
    seen = []
    for stored in history:
        RecordingFileSystem.store.clear()
        for path, content in stored.items():
            RecordingFileSystem.store[path] = MemoryFileSystem()._open("/scratch", "wb", data=content)
        seen.append(load_checkpoint("recording://model").step if latest_checkpoint("recording://model") else 0)
        # A process that is started again goes on, and its successor finds nothing left over.
        with CheckpointWriter("recording://model", keep_checkpoint_max=1) as writer:
            writer.save(100, _variables(100))
        CheckpointWriter("recording://model").close()
        assert files.listdir("recording://model") == ["checkpoint", "model.ckpt-100"]
    assert seen == sorted(seen)
    assert set(seen) == {0, 1, 2, 3}


def test_the_state_of_the_latest_checkpoint_can_be_amended(model_dir: str) -> None:
    with CheckpointWriter(model_dir) as writer:
        writer.save(1, _variables(1), {"w/slot": torch.ones(2)}, {"a": 1})
        writer.save(2, _variables(2), {"w/slot": torch.ones(3)}, {"a": 1})
        writer.amend(2, {"a": 1, "b": [2]})
    checkpoint = load_checkpoint(model_dir)
    assert (checkpoint.step, checkpoint.state) == (2, {"a": 1, "b": [2]})
    assert torch.equal(checkpoint.variables["w"], _variables(2)["w"])
    assert torch.equal(checkpoint.slots["w/slot"], torch.ones(3))
    assert load_checkpoint(files.join(model_dir, "model.ckpt-1")).state == {"a": 1}


def test_amending_may_be_all_that_a_writer_does(model_dir: str) -> None:
    with CheckpointWriter(model_dir) as writer:
        writer.save(1, _variables(1))
    with CheckpointWriter(model_dir) as writer:
        writer.amend(1, {"a": 1})
        with pytest.raises(InvalidTypeError, match="the state saved at step 1 must be JSON"):
            writer.amend(1, {"a": object()})
    assert load_checkpoint(model_dir).state == {"a": 1}


def test_a_reader_can_wait_for_a_save_without_taking_its_error(tmp_path: pathlib.Path) -> None:
    with CheckpointWriter(tmp_path) as writer:
        writer.settle()
        writer.save(1, _variables(1, size=1 << 20))
        writer.settle()
        assert _steps(tmp_path) == [1]
        (tmp_path / "checkpoint").unlink()
        (tmp_path / "checkpoint").mkdir()
        writer.save(2, _variables(2))
        writer.settle()
        with pytest.raises(CheckpointError, match="cannot be saved"):
            writer.wait()


def test_files_of_other_processes_become_part_of_the_checkpoint(model_dir: str) -> None:
    with CheckpointWriter(model_dir) as writer:
        directory = writer.reserve(3)
        for name in ("variables", "slots"):
            others = safetensors.torch.save({"w": torch.tensor([2.0])})
            files.write_file(files.join(directory, f"{name}-00002-of-00002.safetensors"), [others])
        # The index does not name the checkpoint before the chief has written its own shard.
        assert latest_checkpoint(model_dir) is None
        whole = {"w": torch.tensor([0.0, 1.0])}
        path = writer.save(3, whole, whole, {"position": 1}, shards=2)
        writer.amend(3, {"position": 2})
    with CheckpointWriter(model_dir) as another:
        another.amend(3, {"position": 4})
    checkpoint = load_checkpoint(path)
    assert checkpoint.state == {"position": 4}
    assert checkpoint.variables["w"].tolist() == checkpoint.slots["w"].tolist() == [0.0, 1.0, 2.0]
    files.remove_tree(files.join(path, "slots-00002-of-00002.safetensors"))
    with pytest.raises(CheckpointError, match=r"slots-00002-of-00002\.safetensors is missing, so its"):
        load_checkpoint(path)
