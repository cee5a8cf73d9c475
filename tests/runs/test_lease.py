"""The lease of a model directory: one training at a time, and a restart never waits for a process that has ended."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import torch_estimator as te
from tests.line_jobs import line, points
from torch_estimator import files
from torch_estimator.errors import ModelDirInUseError
from torch_estimator.runs.lease import NAME, leased
from torch_estimator.runs.locks import EXPIRES_SECS, FileLock, Holder, ObjectLock

OBJECT = "memory://test_lease/training.lease"

TRAINING = """
    import os, sys, time
    import torch_estimator as te
    from tests.line_jobs import line, points

    class Pauses(te.Hook):
        def after_step(self, context):
            names = os.listdir(sys.argv[1])
            while "checkpoint" not in names or any(name.startswith(".tmp-") for name in names):
                time.sleep(0.01)  # The first checkpoint is written in the background.
                names = os.listdir(sys.argv[1])
            print("trains", flush=True)
            sys.stdin.readline()

    with te.errors.exit_on_user_error():
        spec = te.TrainSpec(points, max_steps=2, hooks=[Pauses()])
        te.train_and_evaluate(line(sys.argv[1], compile=False), spec, te.EvalSpec(points, steps=1))
        print("ended")
"""


@pytest.fixture(autouse=True)
def _no_object() -> Iterator[None]:
    yield
    files.remove_tree("memory://test_lease")


@pytest.fixture(params=["local", "memory"])
def model_dir(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "job") if request.param == "local" else "memory://test_lease"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Return a function that starts a program; it trains in `tmp_path` and waits for an input line after each step."""
    processes: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        program = [sys.executable, "-c", textwrap.dedent(TRAINING), str(tmp_path)]
        pipe = subprocess.PIPE
        processes.append(subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
        return processes[-1]

    yield start
    for one in processes:
        one.kill()
        one.communicate()


def _line_of(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline().strip()


def test_a_second_training_ends_with_an_error_that_names_the_first_which_continues(
    start: Callable[[], subprocess.Popen[str]], tmp_path: Path
) -> None:
    first = start()
    assert _line_of(first.stdout) == "trains"
    before = sorted(os.listdir(tmp_path))
    second = start()
    _, errors = second.communicate()
    assert second.returncode == 2
    assert f"error: model_dir {tmp_path} is in use: -c (process {first.pid} on " in errors.splitlines()[-1]
    assert sorted(os.listdir(tmp_path)) == before
    # Evaluations and predictions need no lease.
    reader = line(tmp_path)
    assert reader.evaluate(points, steps=1)["global_step"] == 0
    next(reader.predict(points))
    assert first.communicate("\n\n")[0].splitlines() == ["trains", "ended"]
    assert NAME not in os.listdir(tmp_path)


def test_a_training_that_was_killed_leaves_the_directory_free(
    start: Callable[[], subprocess.Popen[str]], tmp_path: Path
) -> None:
    killed = start()
    assert _line_of(killed.stdout) == "trains"
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert NAME in os.listdir(tmp_path)
    line(tmp_path).train(points, max_steps=2)
    assert NAME not in os.listdir(tmp_path)


def test_a_link_in_the_place_of_the_lease_is_not_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = tmp_path / "other.txt"
    other.write_text("precious")
    model_dir = tmp_path / "job"
    model_dir.mkdir()
    (model_dir / NAME).symlink_to(other)
    line(model_dir).train(points, max_steps=1)
    assert other.read_text() == "precious"
    assert "Another training in model_dir" in caplog.text


def test_processes_that_a_killed_training_has_forked_do_not_hold_its_lease(tmp_path: Path) -> None:
    program = """
        import os, signal, sys, time
        from torch_estimator.runs.lease import leased
        with leased(sys.argv[1]):
            if os.fork():
                os.kill(os.getpid(), signal.SIGKILL)
            print("lives", flush=True)
            sys.stdin.readline()
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert _line_of(parent.stdout) == "lives"
        assert parent.wait() == -signal.SIGKILL
        with leased(str(tmp_path)):
            assert json.loads((tmp_path / NAME).read_text())["pid"] == os.getpid()
            assert parent.stdin is not None
            parent.stdin.close()
            # The forked process has left the block by now, and has not removed the lease of this process.
            assert _line_of(parent.stdout) == ""
            assert (tmp_path / NAME).exists()


def test_a_file_in_the_place_of_a_removed_lease_stays(tmp_path: Path) -> None:
    with leased(str(tmp_path)):
        (tmp_path / NAME).unlink()
        second = FileLock(str(tmp_path / NAME))
    assert (tmp_path / NAME).exists()
    second.release(remove=True)
    assert not (tmp_path / NAME).exists()


def test_another_thread_is_another_training(model_dir: str) -> None:
    errors: list[str] = []

    def train() -> None:
        try:
            line(model_dir).train(points, steps=1)
        except ModelDirInUseError as error:
            errors.append(str(error))

    with leased(model_dir):
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        assert len(errors) == 1
        assert f"model_dir {model_dir} is in use: " in errors[0]
        assert f"(process {os.getpid()} on " in errors[0]
    train()
    assert len(errors) == 1


def test_trainings_one_after_the_other_get_the_lease(model_dir: str) -> None:
    estimator = line(model_dir)
    for steps in (1, 2):
        estimator.train(points, steps=steps)
    spec = te.TrainSpec(points, max_steps=5)
    for _ in range(2):
        te.train_and_evaluate(estimator, spec, te.EvalSpec(points, steps=1))
    assert estimator.get_variable_value("global_step") == 5
    assert NAME not in files.listdir(model_dir)


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), ValueError("bad")])
def test_a_training_that_raises_frees_its_directory(model_dir: str, error: BaseException) -> None:
    class Raises(te.Hook):
        def after_step(self, context: te.RunContext) -> None:
            raise error

    with pytest.raises(type(error)):
        line(model_dir).train(points, steps=1, hooks=[Raises()])
    assert NAME not in files.listdir(model_dir)
    line(model_dir).train(points, steps=1)


def test_without_support_for_leases_a_warning_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Plain(MemoryFileSystem):
        protocol = "plain"
        pipe_file = fsspec.AbstractFileSystem.pipe_file

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return str(super()._strip_protocol(path.replace("plain://", "memory://plain/")))

    fsspec.register_implementation("plain", Plain, clobber=True)
    (tmp_path / NAME).mkdir()
    for model_dir in ("plain://job", str(tmp_path)):
        caplog.clear()
        with leased(model_dir) as check:
            assert check is None
        assert len(caplog.messages) == 1
        assert f"Another training in model_dir {model_dir} at the same time would not be noticed" in caplog.text


def in_use(holder: Holder) -> ModelDirInUseError:
    return ModelDirInUseError(str(holder))


class Elsewhere:
    """Process on another host that holds the lease; while this process waits for it, a given function runs."""

    def __init__(self, acts: Callable[[], object] = lambda: None, **more: object) -> None:
        self.now = 0.0
        self._acts = acts
        self.renewals = 0
        self._about = {"host": "elsewhere", "pid": 7, "since": "noon", "program": "train.py", "lease": "its", **more}
        self.write()

    def write(self) -> None:
        self.renewals += 1
        files.write_atomic(OBJECT, json.dumps({**self._about, "renewals": self.renewals}).encode())

    def clock(self) -> float:
        return self.now

    def sleep(self, secs: float) -> None:
        self.now += secs
        self._acts()


def test_a_lease_that_is_renewed_on_another_host_is_respected() -> None:
    other = Elsewhere(lambda: other.write() if other.now == 15 else None)
    with pytest.raises(ModelDirInUseError, match=r"train\.py \(process 7 on elsewhere, since noon\)"):
        ObjectLock(OBJECT, in_use, other.clock, other.sleep)
    assert other.now == 15


def test_a_lease_that_another_host_stops_renewing_is_taken_over() -> None:
    other = Elsewhere()
    lease = ObjectLock(OBJECT, in_use, other.clock, other.sleep)
    assert other.now == EXPIRES_SECS
    lease.check()
    lease.renew()
    # The other process resumes after it was suspended for long.
    other.write()
    for use in (lease.check, lease.renew):
        with pytest.raises(ModelDirInUseError, match="process 7 on elsewhere"):
            use()
    lease.release()
    assert files.exists(OBJECT)


def test_a_renewed_lease_still_describes_its_holder_as_of_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    lease = ObjectLock(OBJECT, in_use)
    begun = json.loads(files.read_text(OBJECT))
    # If a renewal described the process again, it would contain this program, and another time.
    monkeypatch.setattr(sys, "argv", ["another.py"])
    lease.renew()
    renewed = json.loads(files.read_text(OBJECT))
    lease.release()
    assert renewed == {**begun, "renewals": 1}


@pytest.mark.skipif(not os.path.exists("/proc/self/ns/pid"), reason="needs Linux to tell who has ended")
def test_a_lease_of_a_process_of_this_host_that_has_ended_is_taken_over_at_once() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    lease = ObjectLock(OBJECT, in_use)
    place = json.loads(files.read_text(OBJECT))["place"]
    lease.release()
    with subprocess.Popen([sys.executable, "-c", ""]) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        # In a restarted container, a process has the pid of its predecessor.
        for pid in (ended.pid, zombie.pid, os.getpid()):
            other = Elsewhere(pid=pid, place=place)
            ObjectLock(OBJECT, in_use, other.clock, other.sleep).release()
            assert other.now == 0


def test_a_training_that_has_lost_its_lease_does_not_save() -> None:
    class Stops(te.Hook):
        def after_step(self, context: te.RunContext) -> None:
            if context.global_step == 2:
                Elsewhere()

    estimator = line("memory://test_lease", save_checkpoints_steps=1)
    with pytest.raises(ModelDirInUseError, match="process 7 on elsewhere"):
        estimator.train(points, max_steps=5, hooks=[Stops()])
    assert files.basename(str(estimator.latest_checkpoint())) == "model.ckpt-1"


def test_a_lease_whose_text_nests_too_deep_still_counts(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / NAME, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.write(descriptor, b"[" * 4000)
        with pytest.raises(ModelDirInUseError, match="another process trains in it"), leased(str(tmp_path)):
            pass
    finally:
        os.close(descriptor)
