"""EventWriter writes files that TensorBoard and read_scalars can read."""

from __future__ import annotations

import concurrent.futures
import errno
import pathlib
import queue
import re
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from torch_estimator import files
from torch_estimator.errors import UserError
from torch_estimator.summary.event_reader import read_events
from torch_estimator.summary.event_writer import EventWriter, RemoteSink
from torch_estimator.summary.scalar_reader import read_scalars


@pytest.fixture(params=["local", "memory"])
def logdir(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[str]:
    if request.param == "local":
        yield str(tmp_path / "eval")
        return
    yield "memory://test_summaries"
    files.remove_tree("memory://test_summaries")


def _curve(logdir: str, tag: str) -> list[tuple[int, float]]:
    curves = read_scalars(logdir)
    return list(zip(*(part.tolist() for part in curves[tag][:2]), strict=True)) if tag in curves else []


def test_tensorboard_reads_everything(tmp_path: pathlib.Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    with EventWriter(tmp_path, clock=lambda: 1700000000.5) as writer:
        writer.session_start(0)
        writer.scalars({"loss": 0.5, "accuracy": np.float32(0.75)}, step=10)
        writer.scalar("loss", 0.25, step=20)
        writer.text("checkpoint_path", "runs/é/model.ckpt-20", step=20)
        writer.tensor("histogram", np.arange(6.0).reshape(2, 3), step=20)
    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    losses = [(event.wall_time, event.step, event.value) for event in accumulator.Scalars("loss")]
    assert losses == [(1700000000.5, 10, 0.5), (1700000000.5, 20, 0.25)]
    assert accumulator.Scalars("accuracy")[0].value == 0.75
    path = accumulator.Tensors("checkpoint_path")[0].tensor_proto
    assert make_ndarray(path).item().decode() == "runs/é/model.ckpt-20"
    assert accumulator.SummaryMetadata("checkpoint_path").plugin_data.plugin_name == "text"
    assert make_ndarray(accumulator.Tensors("histogram")[0].tensor_proto).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_no_file_is_made_before_the_first_event(logdir: str) -> None:
    writer = EventWriter(logdir)
    writer.flush()
    writer.close()
    assert not files.exists(logdir)


def test_the_file_is_named_as_tensorflow_names_it(logdir: str) -> None:
    with EventWriter(logdir, clock=lambda: 1700000000.5) as writer:
        writer.scalar("loss", 1.0, step=1)
    (name,) = files.listdir(logdir)
    assert re.fullmatch(r"events\.out\.tfevents\.1700000000\..+", name)


def test_scalars_of_several_files_are_read_in_the_order_of_writing(logdir: str) -> None:
    for seconds, step in ((1700000000.0, 1), (1700000001.0, 2)):
        with EventWriter(logdir, clock=lambda seconds=seconds: seconds) as writer:
            writer.scalar("loss", float(step), step=step)
    files.write_file(files.join(logdir, "metrics.txt"), [b"not events"])
    assert _curve(logdir, "loss") == [(1, 1.0), (2, 2.0)]
    assert read_scalars(files.join(logdir, "absent")) == {}


def test_events_of_a_killed_run_after_its_checkpoint_are_left_out(logdir: str) -> None:
    with EventWriter(logdir, clock=lambda: 1700000000.0) as writer:
        for step in (1, 2, 3):
            writer.scalar("loss", 1.0, step=step)
    with EventWriter(logdir, clock=lambda: 1700000001.0) as writer:
        writer.session_start(2)
        writer.scalar("loss", 2.0, step=2)
    assert _curve(logdir, "loss") == [(1, 1.0), (2, 2.0)]


def test_a_local_event_is_seen_at_once(tmp_path: pathlib.Path) -> None:
    with EventWriter(tmp_path) as writer:
        for step in (1, 2):
            writer.scalar("loss", 1.0, step=step)
            assert len(_curve(str(tmp_path), "loss")) == step


class Putting(MemoryFileSystem):
    """Object store that reports each put, and whose puts can be delayed or fail."""

    protocol = "putting"
    may_put = threading.Event()
    was_put: queue.SimpleQueue[int] = queue.SimpleQueue()
    failures = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("putting://", "memory://putting/")))

    def pipe_file(self, path: str, value: bytes, *args: Any, **kwargs: Any) -> None:
        self.may_put.wait()
        if Putting.failures:
            Putting.failures -= 1
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        super().pipe_file(path, value, *args, **kwargs)
        self.was_put.put(len(_curve("putting://events", "loss")))


@pytest.fixture
def putting() -> Iterator[type[Putting]]:
    fsspec.register_implementation("putting", Putting, clobber=True)
    Putting.may_put.set()
    Putting.was_put = queue.SimpleQueue()
    yield Putting
    Putting.may_put.set()
    files.remove_tree("putting://events")


def test_a_remote_event_is_seen_after_a_while_or_a_flush(putting: type[Putting]) -> None:
    now = [0.0]
    with EventWriter("putting://events", flush_secs=30, clock=lambda: now[0]) as writer:
        writer.scalar("loss", 1.0, step=1)
        now[0] = 31.0
        writer.scalar("loss", 1.0, step=2)
        assert putting.was_put.get(timeout=60) == 2
        writer.scalar("loss", 1.0, step=3)
        assert len(_curve("putting://events", "loss")) == 2
        writer.flush()
        assert putting.was_put.get_nowait() == 3
        writer.scalar("loss", 1.0, step=4)
    assert putting.was_put.get_nowait() == 4


def test_remote_events_are_uploaded_in_the_background(putting: type[Putting]) -> None:
    now = [0.0]
    with EventWriter("putting://events", flush_secs=30, clock=lambda: now[0]) as writer:
        putting.may_put.clear()
        for step in range(5):
            now[0] += 31.0
            writer.scalar("loss", 1.0, step=step)
        assert putting.was_put.empty()
        putting.may_put.set()
    assert len(_curve("putting://events", "loss")) == 5


def test_an_error_in_the_background_is_raised_by_a_later_event_or_repaired_by_a_flush(
    putting: type[Putting],
) -> None:
    now = [0.0]
    with EventWriter("putting://events", flush_secs=30, clock=lambda: now[0]) as writer:
        writer.scalar("loss", 1.0, step=1)
        for flushed in (False, True):
            putting.failures = 1
            now[0] += 31.0
            writer.scalar("loss", 1.0, step=2)
            if flushed:
                writer.flush()
                assert putting.was_put.get_nowait() == 4
            else:
                assert isinstance(writer._sink, RemoteSink) and writer._sink._upload is not None
                concurrent.futures.wait([writer._sink._upload])
                with pytest.raises(UserError, match=r"summaries cannot be written .* Connection reset by peer"):
                    writer.scalar("loss", 1.0, step=3)


def test_an_unfinished_record_ends_the_file(tmp_path: pathlib.Path) -> None:
    with EventWriter(tmp_path) as writer:
        writer.scalar("loss", 1.0, step=1)
        writer.scalar("loss", 2.0, step=2)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    counts = []
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        counts.append(len(list(read_events(tmp_path))))
    assert counts == sorted(counts)
    assert set(counts) == {0, 1, 2, 3}


def test_a_damaged_record_is_logged_and_ends_the_file(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    with EventWriter(tmp_path) as writer:
        writer.scalar("loss", 1.0, step=1)
    (path,) = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[12:20] = b"\xff" * 8
    path.write_bytes(content)
    assert read_scalars(tmp_path) == {}
    assert "is damaged at byte 12" in caplog.text


def test_an_unwritable_directory_and_a_full_disk_are_one_sentence(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match=r"summaries cannot be written into .*file: File exists; make room"):
        EventWriter(tmp_path / "file").scalar("loss", 1.0, step=1)
    writer = EventWriter(tmp_path / "full")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(UserError, match="File too large") as caught:
            writer.tensor("big", np.zeros(1 << 17), step=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert isinstance(caught.value.__cause__, OSError)
    with writer:
        writer.scalar("loss", 1.0, step=2)
    assert _curve(str(tmp_path / "full"), "loss") == [(2, 1.0)]


def test_tensorboard_is_not_imported_before_the_first_event() -> None:
    root = pathlib.Path(__file__).parents[2]
    script = (
        "import sys, torch_estimator.summary.event_writer as s; s.EventWriter('x').close(); "
        "assert not [m for m in sys.modules if m.split('.')[0] in ('tensorboard', 'tensorflow')]"
    )
    subprocess.run([sys.executable, "-c", script], cwd=root, check=True)
