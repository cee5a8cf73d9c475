"""How jobs end: by themselves, by a signal, or by force; never with anything left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.launched import Launched, wait_until
from torch_estimator.launch import bound

TWO = ("--distributed", "--worker-count", "1")
HANG = """
    print(me, "hangs", os.getpgid(0))
    wait_for("never")
"""
DEAF = f"""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    {HANG}
"""


def wait_for_both(job: Launched) -> None:
    for name in ("chief 0", "worker 0"):
        job.read_until(f"[{name}] {name} hangs")


def test_the_others_are_waited_for_after_the_chief(tmp_path: Path) -> None:
    job = Launched(tmp_path, "role == 'chief' or wait_for('go'); print(me, 'is done')", *TWO, "--evaluator")
    job.read_until("chief 0 is done")
    job.touch("go")
    assert job.end() == 0
    assert "[worker 0] worker 0 is done" in job.out
    assert "[evaluator 0] evaluator 0 is done" in job.out


def test_who_does_not_end_after_the_chief_is_stopped_and_then_killed(tmp_path: Path) -> None:
    program = (
        "if role == 'worker':\n    (here / 'deaf').touch()\n" + DEAF.replace("\n", "\n    ") + "\nwait_for('deaf')"
    )
    program = """
    if role == "worker":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (here / "deaf").touch()
        wait_for("never")
    wait_for("deaf")
    """
    job = Launched(tmp_path, program, *TWO, "--finish-secs", "0.1", "--stop-secs", "0.1")
    assert job.end() == 1
    assert job.err.splitlines()[1:] == [
        "[launcher] chief 0 has ended well; waiting for worker 0.",
        "[launcher] worker 0 had not ended in time, and was told to stop.",
        "[launcher] worker 0 had not ended in time, and was killed.",
    ]


def test_who_fails_after_the_chief_has_ended_well_is_not_started_again_but_told(tmp_path: Path) -> None:
    program = """
    nth_start()
    if role == "worker":
        while b"ended well" not in (here.parent / "stderr").read_bytes():
            time.sleep(0.005)
        sys.exit(4)
    """
    job = Launched(tmp_path, program, *TWO)
    assert job.end() == 4
    assert job.starts("worker 0") == 1
    assert "[launcher] worker 0 ended with status 4 although the training has ended well.\n" in job.err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_stops_all_with_one_sigterm_each(tmp_path: Path, number: int, status: int) -> None:
    if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("SIGHUP is ignored here, as under nohup, and so it is by the launcher")
    program = """
    def told(number, frame):
        print(me, "got", number)
        (here / f"{me}.told").touch()
        wait_for("chief 0.told")
        wait_for("worker 0.told")
        sys.exit(75)


    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, told)
    """
    job = Launched(tmp_path, program + HANG, *TWO)
    wait_for_both(job)
    job.process.send_signal(number)
    assert job.end() == status
    got = sorted(line for line in job.out.splitlines() if "got" in line)
    assert got == ["[chief 0] chief 0 got 15", "[worker 0] worker 0 got 15"]
    assert job.err.splitlines()[-1] == "[launcher] interrupted; stopping chief 0, worker 0."


def test_a_second_ctrl_c_kills_at_once(tmp_path: Path) -> None:
    job = Launched(tmp_path, DEAF, *TWO, "--stop-secs", "1000")
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


def test_what_a_process_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    program = """
    print(subprocess.Popen(["sleep", "1000"]).pid)
    """
    job = Launched(tmp_path, program)
    assert job.end() == 0
    assert job.out.strip().isdecimal()


def test_nothing_is_left_where_the_launcher_is_killed(tmp_path: Path) -> None:
    job = Launched(tmp_path, DEAF, *TWO, "--evaluator")
    wait_for_both(job)
    assert len(job.left()) == 3
    job.process.kill()
    wait_until(lambda: not job.left())
    assert job.end() == -signal.SIGKILL


def test_nothing_is_left_where_the_launcher_is_killed_while_it_starts_processes(tmp_path: Path) -> None:
    for _ in range(3):
        job = Launched(tmp_path, DEAF, "--distributed", "--worker-count", "10")
        wait_until(lambda job=job: bool(job.left()))
        job.process.kill()
        assert job.end() == -signal.SIGKILL


def test_who_has_lost_the_launcher_before_it_is_bound_to_it_does_not_begin(tmp_path: Path) -> None:
    command = [sys.executable, bound.__file__, "{}", sys.executable, "-c", f"open({str(tmp_path / 'began')!r}, 'w')"]
    for parent, status in ((os.getpid() + 1, 1), (os.getpid(), 0)):
        assert not (tmp_path / "began").exists()
        assert subprocess.run([word.replace("{}", str(parent)) for word in command]).returncode == status
    assert (tmp_path / "began").exists()
