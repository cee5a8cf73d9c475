"""Which processes are started again, when, and how often."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.launch.launched import Launched

TWO = ("--distributed", "--worker-count", "1")
IN_STEP = ("--distributed", "--worker-count", "1", "--evaluator")


def test_only_the_killed_process_is_restarted_and_at_once(tmp_path: Path) -> None:
    program = """
    start = nth_start()
    # When the kernel created this process.
    ticks = int(pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    if role == "worker":
        with open(here / "instants", "a") as file:
            file.write(f"{ticks / os.sysconf('SC_CLK_TCK')} ")
            (here / "pid").write_text(str(os.getpid()))
            if start <= 3:
                print(f"{time.clock_gettime(time.CLOCK_BOOTTIME)}", file=file, flush=True)
                die()
        (here / "done").touch()
    wait_for("done")
    """
    job = Launched(tmp_path, program, *IN_STEP)
    assert job.end() == 0, job.err
    assert [job.starts(task) for task in ("chief 0", "worker 0", "evaluator 0")] == [1, 4, 1]
    instants = list(map(float, (job.package / "instants").read_text().split()))
    delays = [born - died for died, born in zip(instants[1::2], instants[2::2], strict=True)]
    # The shortest of three, since the machine may be busy. The kernel gives start times in hundredths of a second.
    assert -0.02 < min(delays) < 0.05
    assert (
        "[launcher] worker 0 was killed by SIGKILL; started worker 0 again, restart 3 of 3.\n" in job.err_without_pids
    )
    assert f"started worker 0 (pid {(job.package / 'pid').read_text()}) again, restart 3 of 3.\n" in job.err


@pytest.mark.parametrize(
    ("ends", "status", "said"),
    [
        ("die()", 128 + signal.SIGKILL, "was killed by SIGKILL"),
        ("sys.exit(3)", 3, "ended with status 3"),
        ("sys.exit(143)", 143, "was preempted (status 143)"),
    ],
)
def test_a_process_that_fails_too_often_ends_the_job(tmp_path: Path, ends: str, status: int, said: str) -> None:
    program = f"""
    nth_start()
    if role == "worker":
        {ends}
    wait_for("never")
    """
    job = Launched(tmp_path, program, *TWO, "--max-restarts", "1")
    assert job.end() == status
    assert job.starts("worker 0") == 2
    assert f"[launcher] worker 0 {said}; started worker 0 again, restart 1 of 1.\n" in job.err_without_pids
    assert f"[launcher] worker 0 {said} and has no restart left (max_restarts=1); ending the job.\n" in job.err


@pytest.mark.parametrize("options", [TWO, IN_STEP])
def test_a_mistake_of_the_user_ends_everything(tmp_path: Path, options: tuple[str, ...]) -> None:
    program = """
    nth_start()
    if role == "worker":
        wait_for("begun")
        sys.exit(2)
    if role == "chief":
        (here / "begun").touch()
    wait_for("never")
    """
    job = Launched(tmp_path, program, *options, "--stop-secs", "0.2")
    assert job.end() == 2
    assert job.starts("worker 0") == job.starts("chief 0") == 1
    reason = "ended with status 2, an error of the user that a restart would repeat"
    assert f"[launcher] worker 0 {reason}; ending the job.\n" in job.err


def test_a_parameter_server_is_restarted_without_the_program(tmp_path: Path) -> None:
    program = """
    nth_start()
    if role == "worker":
        listening = b"[ps 0] INFO:torch_estimator:ps 0 listens on "
        log = here.parent / "stderr"
        while listening not in log.read_bytes():
            time.sleep(0.005)
        subprocess.run(["pkill", "-KILL", "-f", "torch_estimator.parameter_server", "-P", str(os.getppid())])
        while log.read_bytes().count(listening) < 2:
            time.sleep(0.005)
    else:
        wait_for_end_of("worker 0")
    """
    job = Launched(tmp_path, program, *TWO, "--parameter-server-count", "1", "--finish-secs", "0.1")
    assert job.end() == 0, job.err
    assert [job.starts(task) for task in ("chief 0", "worker 0")] == [1, 1]
    assert not (job.package / "ps 0.starts").exists()
    assert "[launcher] ps 0 was killed by SIGKILL; started ps 0 again, restart 1 of 3.\n" in job.err_without_pids


def test_an_evaluator_is_restarted_alone_also_after_training(tmp_path: Path) -> None:
    program = """
    start = nth_start()
    if role == "evaluator" and start == 1:
        (here / "evaluating").touch()
        while b"finished successfully" not in (here.parent / "stderr").read_bytes():
            time.sleep(0.005)
        sys.exit(1)
    wait_for("evaluating")
    """
    job = Launched(tmp_path, program, *IN_STEP)
    assert job.end() == 0
    assert [job.starts(task) for task in ("chief 0", "worker 0", "evaluator 0")] == [1, 1, 2]


def test_a_program_without_a_cluster_is_restarted(tmp_path: Path) -> None:
    job = Launched(tmp_path, "nth_start() > 1 or die()")
    assert job.end() == 0
    assert (
        job.err_without_pids
        == "[launcher] the program was killed by SIGKILL; started the program again, restart 1 of 3.\n"
    )
