"""Which processes count as hanging, and what the launcher does with one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.launched import Launched
from torch_estimator.activity import Record, Records
from torch_estimator.cluster.task import Task
from torch_estimator.launch.hangs import Hangs

WORKER = Task(type="worker", cluster={"chief": ("a:1",), "worker": ("b:1",)})


class Watched:
    """A worker whose record the test writes, and the launcher's looks, five seconds apart."""

    def __init__(self, folder: Path) -> None:
        self.records = Records(str(folder), hang_secs=60.0)
        self.now = 1000.0
        self.hangs = Hangs(self.records, lambda: self.now)
        self.hangs.begin(WORKER)
        self.writes = 0

    def write(self, **content: object) -> None:
        self.writes += 1
        self.records.of("worker-0").write(Record(writes=self.writes, **content))  # type: ignore[arg-type]

    def looks(self, count: int, **content: object) -> Iterator[str | None]:
        """Yield what each look finds; with content, the worker writes its record before each of them."""
        for _ in range(count):
            self.now += 5.0
            if content:
                self.write(**content)
            yield self.hangs.reason(WORKER)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_a_worker_without_a_step_hangs(watched: Watched) -> None:
    assert list(watched.looks(3, doing="training", progress=412, idle_secs=55.0)) == [None] * 3
    said = "made no step for 60 s (last: step 412, training)"
    assert list(watched.looks(1, doing="training", progress=412, idle_secs=60.0)) == [said]
    said = "made no batch for 61 s (last: batch 3, evaluating)"
    assert list(watched.looks(1, doing="evaluating", progress=3, idle_secs=61.0)) == [said]
    assert list(watched.looks(1, doing="saving", idle_secs=70.0)) == ["made no progress for 70 s (last: saving)"]


def test_a_worker_that_waits_for_another_or_runs_code_of_its_own_does_not_hang(watched: Watched) -> None:
    waits = {"doing": "training", "waits_for": ["chief 0"], "progress": 412, "idle_secs": 1000.0}
    assert not any(watched.looks(20, **waits))
    assert not any(watched.looks(20, idle_secs=1000.0))


def test_a_process_that_stands_still_hangs_whatever_it_waited_for(watched: Watched) -> None:
    watched.write(doing="training", waits_for=["chief 0"], progress=412)
    found = list(watched.looks(13))
    assert found[:12] == [None] * 12
    assert found[12] == "did not even write its record for 60 s (last: step 412, training, waiting for chief 0)"
    watched.write()
    assert list(watched.looks(13))[12] == "did not even write its record for 60 s (last: the program itself)"


def test_a_program_that_writes_no_record_is_left_alone(watched: Watched) -> None:
    assert not any(watched.looks(100))


def test_the_record_of_an_earlier_process_says_nothing_about_the_next(watched: Watched) -> None:
    assert any(watched.looks(1, doing="training", progress=412, idle_secs=90.0))
    watched.hangs.begin(WORKER)
    assert not any(watched.looks(20))
    watched.writes = 0
    watched.write(doing="starting")
    assert not any(watched.looks(12))


def test_a_launcher_that_stood_still_itself_blames_nobody(watched: Watched) -> None:
    watched.write(doing="training", progress=412)
    assert list(watched.looks(1)) == [None]
    watched.now += 3600.0
    assert list(watched.looks(1)) == [None]


def test_a_file_that_cannot_be_read_says_nothing(watched: Watched) -> None:
    watched.write(doing="training", progress=412, idle_secs=90.0)
    Path(watched.records.of("worker-0").path).write_bytes(b"\xff")
    assert list(watched.looks(1)) == [None]


TRAINS = """
import logging
# A busy machine takes long for the imports at the start of a training.
import torch._dynamo, torch.distributed.tensor
import torch_estimator as te
from tests.line_jobs import line, points

logging.basicConfig(level=logging.INFO, format="%(message)s")
start = nth_start()


class Hangs(te.Hook):
    def after_step(self, context):
        if role != "chief" and start == 1 and context.global_step == 12:
            HANG


with te.errors.exit_on_user_error():
    te.train_and_evaluate(
        line(sys.argv[sys.argv.index("--job-dir") + 1], save_checkpoints_steps=5, compile=False),
        te.TrainSpec(lambda: points().repeat(), max_steps=20, hooks=[Hangs()]),
        te.EvalSpec(points, steps=2),
    )
print(me, "is done")
"""
LIMITS = ("--hang-secs", "15", "--stop-secs", "0.5")


def test_a_hook_that_never_returns_is_ended_and_its_job_succeeds(tmp_path: Path) -> None:
    program = TRAINS.replace("HANG", "time.sleep(1000)")
    job = Launched(tmp_path, program, *LIMITS, "--job-dir", str(tmp_path / "job"))
    assert job.end() == 0, job.out + job.err
    assert job.starts("alone 0") == 2
    assert "s (last: step 12, training); sent SIGTERM.\n" in job.err
    assert "[launcher] the program made no step for " in job.err
    assert job.err_without_pids.count("started the program again, restart 1 of 3.\n") == 1
    assert "alone 0 is done" in job.out


def test_only_the_worker_that_was_stopped_is_ended_and_not_those_that_wait_for_it(tmp_path: Path) -> None:
    program = TRAINS.replace("HANG", "os.kill(os.getpid(), signal.SIGSTOP)")
    options = ("--distributed", "--worker-count", "2", "--job-dir", str(tmp_path / "job"))
    job = Launched(tmp_path, program.replace('role != "chief"', 'me == "worker 1"'), *LIMITS, *options)
    assert job.end() == 0, job.out + job.err
    assert [job.starts(task) for task in ("chief 0", "worker 0", "worker 1")] == [1, 1, 2]
    assert "[launcher] worker 1 did not even write its record for " in job.err
    assert "worker 1 did not exit within 0.5 s of SIGTERM; sent SIGKILL.\n" in job.err
    assert " and was killed by SIGKILL; started worker 1 again, restart 1 of 3.\n" in job.err_without_pids


def test_a_program_of_another_kind_may_sleep(tmp_path: Path) -> None:
    job = Launched(tmp_path, "nth_start(); time.sleep(1.0)", "--hang-secs", "0.2")
    assert job.end() == 0
    assert (job.starts("alone 0"), job.err) == (1, "")
