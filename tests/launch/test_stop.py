"""Jobs end by themselves, by a signal or by SIGKILL, and never leave processes behind."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.launch.launched import Launched, wait_until

TWO = ("--distributed", "--worker-count", "1")
HANG = """
    print(me, "hangs", os.getpgid(0))
    wait_for("never")
"""
IGNORES_SIGTERM = f"""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    {HANG}
"""


def wait_for_both(job: Launched) -> None:
    for name in ("chief 0", "worker 0"):
        job.read_until(f"[{name}] {name} hangs")


def test_the_launcher_waits_for_the_others_after_the_chief(tmp_path: Path) -> None:
    job = Launched(tmp_path, "role == 'chief' or wait_for('go'); print(me, 'is done')", *TWO, "--evaluator")
    job.read_until("chief 0 is done")
    job.touch("go")
    assert job.end() == 0
    assert "[worker 0] worker 0 is done" in job.out
    assert "[evaluator 0] evaluator 0 is done" in job.out


def test_a_worker_that_does_not_finish_after_the_chief_is_stopped_and_then_killed(tmp_path: Path) -> None:
    program = """
    if role == "worker":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (here / "ready").touch()
        wait_for("never")
    wait_for("ready")
    """
    job = Launched(tmp_path, program, *TWO, "--finish-secs", "0.1", "--stop-secs", "0.1")
    assert job.end() == 1
    assert job.err.splitlines()[1:] == [
        "[launcher] chief 0 finished successfully; waiting up to 0.1 s for worker 0.",
        "[launcher] worker 0 did not finish within 0.1 s of the chief; sent SIGTERM.",
        "[launcher] worker 0 did not exit within 0.1 s of SIGTERM; sent SIGKILL.",
    ]


def test_a_worker_that_fails_after_the_chief_finished_is_reported_and_not_restarted(tmp_path: Path) -> None:
    program = """
    nth_start()
    if role == "worker":
        while b"finished successfully" not in (here.parent / "stderr").read_bytes():
            time.sleep(0.005)
        sys.exit(4)
    """
    job = Launched(tmp_path, program, *TWO)
    assert job.end() == 4
    assert job.starts("worker 0") == 1
    assert "[launcher] worker 0 ended with status 4 after training had finished; it is not restarted.\n" in job.err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_stops_all_with_one_sigterm_each(tmp_path: Path, number: int, status: int) -> None:
    if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("SIGHUP is ignored here, as under nohup, and so it is by the launcher")
    program = """
    def report(number, frame):
        print(me, "got", number)
        (here / f"{me}.signalled").touch()
        wait_for("chief 0.signalled")
        wait_for("worker 0.signalled")
        sys.exit(75)


    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, report)
    """
    job = Launched(tmp_path, program + HANG, *TWO)
    wait_for_both(job)
    job.process.send_signal(number)
    assert job.end() == status
    got = sorted(line for line in job.out.splitlines() if "got" in line)
    assert got == ["[chief 0] chief 0 got 15", "[worker 0] worker 0 got 15"]
    assert job.err.splitlines()[-1] == "[launcher] interrupted; stopping chief 0, worker 0."


def test_a_second_ctrl_c_kills_at_once(tmp_path: Path) -> None:
    job = Launched(tmp_path, IGNORES_SIGTERM, *TWO, "--stop-secs", "1000")
    wait_for_both(job)
    job.process.send_signal(signal.SIGINT)
    wait_until(lambda: "interrupted" in job.err)
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 130


def test_ctrl_c_on_a_terminal_does_not_reach_the_processes_directly(tmp_path: Path) -> None:
    job = Launched(tmp_path, HANG, *TWO, start_new_session=True)
    wait_for_both(job)
    groups = {line.split()[-1] for line in job.out.splitlines()}
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 130
    assert len(groups) == 2
    assert str(job.process.pid) not in groups


def test_processes_that_a_task_leaves_behind_are_killed(tmp_path: Path) -> None:
    program = """
    print(subprocess.Popen(["sleep", "1000"]).pid)
    """
    job = Launched(tmp_path, program)
    assert job.end() == 0
    assert job.out.strip().isdecimal()


def test_no_process_is_left_if_the_launcher_is_killed(tmp_path: Path) -> None:
    job = Launched(tmp_path, IGNORES_SIGTERM, *TWO, "--evaluator")
    wait_for_both(job)
    assert len(job.left()) == 3
    job.process.kill()
    wait_until(lambda: not job.left())
    assert job.end() == -signal.SIGKILL


def test_no_process_is_left_if_the_launcher_is_killed_while_it_starts_processes(tmp_path: Path) -> None:
    for _ in range(3):
        job = Launched(tmp_path, IGNORES_SIGTERM, "--distributed", "--worker-count", "10")
        wait_until(lambda job=job: bool(job.left()))
        job.process.kill()
        assert job.end() == -signal.SIGKILL
