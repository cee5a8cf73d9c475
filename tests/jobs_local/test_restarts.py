"""Which processes are started again, when, and how often."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.jobs_local.launched import Launched

SERVED = ("--distributed", "--worker-count", "1", "--parameter-server-count", "1")
IN_STEP = ("--distributed", "--worker-count", "1", "--evaluator")


def test_with_parameter_servers_only_the_dead_one_is_started_again_and_at_once(tmp_path: Path) -> None:
    program = """
    start = nth_start()
    # When the kernel made this process.
    ticks = int(pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    if role == "worker":
        with open(here / "instants", "a") as file:
            file.write(f"{ticks / os.sysconf('SC_CLK_TCK')} ")
            if start <= 3:
                print(f"{time.clock_gettime(time.CLOCK_BOOTTIME)}", file=file, flush=True)
                die()
        (here / "done").touch()
    wait_for("done")
    """
    job = Launched(tmp_path, program, *SERVED)
    assert job.end() == 0, job.err
    assert [job.starts(task) for task in ("chief 0", "worker 0", "ps 0")] == [1, 4, 1]
    instants = list(map(float, (job.package / "instants").read_text().split()))
    delays = [born - died for died, born in zip(instants[1::2], instants[2::2], strict=True)]
    # Of three, for a machine that has other things to do; the kernel tells births by the hundredth of a second.
    assert -0.02 < min(delays) < 0.05
    assert "[launcher] worker 0 was killed by SIGKILL; started worker 0 again, restart 3 of 3.\n" in job.err


@pytest.mark.parametrize(
    ("ends", "status", "said"),
    [
        ("die()", 128 + signal.SIGKILL, "was killed by SIGKILL"),
        ("sys.exit(3)", 3, "ended with status 3"),
        ("sys.exit(143)", 143, "was preempted (status 143)"),
    ],
)
def test_who_dies_too_often_ends_the_job(tmp_path: Path, ends: str, status: int, said: str) -> None:
    program = f"""
    nth_start()
    if role == "ps":
        {ends}
    wait_for("never")
    """
    job = Launched(tmp_path, program, *SERVED, "--max-restarts", "1")
    assert job.end() == status
    assert job.starts("ps 0") == 2
    assert f"[launcher] ps 0 {said}; started ps 0 again, restart 1 of 1.\n" in job.err
    assert f"[launcher] ps 0 {said}, once more than max_restarts=1 allows; ending the job.\n" in job.err


@pytest.mark.parametrize("options", [SERVED, IN_STEP])
def test_a_mistake_of_the_user_ends_everything(tmp_path: Path, options: tuple[str, ...]) -> None:
    program = """
    nth_start()
    if role == "worker":
        sys.exit(2)
    wait_for("never")
    """
    job = Launched(tmp_path, program, *options, "--stop-secs", "0.2")
    assert job.end() == 2
    assert job.starts("worker 0") == job.starts("chief 0") == 1
    assert "[launcher] worker 0 ended with status 2, which says that its user has to act; ending the job.\n" in job.err


@pytest.mark.parametrize("first", ["who died", "who noticed"])
def test_those_who_train_in_step_are_started_again_together_and_the_evaluator_stays(tmp_path: Path, first: str) -> None:
    program = f"""
    start = nth_start()
    if role == "evaluator":
        (here / "evaluating").touch()
        wait_for("done")
        sys.exit()
    if start == 1:
        wait_for("evaluating")
        if role == "worker":
            if {first == "who noticed"}:
                wait_for("noticed")
            (here / "dead").touch()
            sys.exit(1)
        if {first == "who died"}:
            wait_for("dead")
        (here / "noticed").touch()
        print("error: chief 0 has lost another process")
        sys.exit(2)
    if role == "chief":
        (here / "done").touch()
    """
    job = Launched(tmp_path, program, *IN_STEP, "--max-restarts", "1")
    assert job.end() == 0, job.err
    assert [job.starts(task) for task in ("chief 0", "worker 0", "evaluator 0")] == [2, 2, 1]
    again = "[launcher] worker 0 ended with status 1; started chief 0, worker 0 again, restart 1 of 1.\n"
    assert again in job.err
    assert "which cannot go on without it" in job.err


def test_restarts_of_those_who_train_in_step_are_counted_together(tmp_path: Path) -> None:
    program = """
    start = nth_start()
    if start == {"chief": 1, "worker": 2}[role]:
        die()
    wait_for("never")
    """
    job = Launched(
        tmp_path, program, "--distributed", "--worker-count", "1", "--max-restarts", "1", "--stop-secs", "0.1"
    )
    assert job.end() == 128 + signal.SIGKILL
    assert [job.starts("chief 0"), job.starts("worker 0")] == [2, 2]
    assert "[launcher] worker 0 had not ended in time, and was told to stop.\n" in job.err
    assert (
        "[launcher] worker 0 was killed by SIGKILL, once more than max_restarts=1 allows; ending the job.\n" in job.err
    )


def test_an_evaluator_that_dies_is_started_again_alone_also_after_the_training(tmp_path: Path) -> None:
    program = """
    start = nth_start()
    if role == "evaluator" and start == 1:
        (here / "evaluating").touch()
        while b"ended well" not in (here.parent / "stderr").read_bytes():
            time.sleep(0.005)
        sys.exit(1)
    wait_for("evaluating")
    """
    job = Launched(tmp_path, program, *IN_STEP)
    assert job.end() == 0
    assert [job.starts(task) for task in ("chief 0", "worker 0", "evaluator 0")] == [1, 1, 2]


def test_one_process_alone_is_started_again_too(tmp_path: Path) -> None:
    job = Launched(tmp_path, "nth_start() > 1 or die()")
    assert job.end() == 0
    assert job.err == "[launcher] the program was killed by SIGKILL; started the program again, restart 1 of 3.\n"
