"""Lines of the processes arrive whole, at once, and with the name of the process."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.launch.launched import Launched, wait_until

TWO = ("--distributed", "--worker-count", "1")


def test_no_line_is_split_or_lost_where_all_print_at_once(tmp_path: Path) -> None:
    program = """
    for number in range(200):
        for stream in (sys.stdout, sys.stderr):
            os.write(stream.fileno(), f"{number} {me[0] * 20_000}.\\n".encode())
    """
    job = Launched(tmp_path, program, "--distributed", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert job.process.stdout is not None
    # A pipe takes such lines in parts.
    printed = job.process.stdout.read().decode()
    assert job.end() == 0
    lines = Counter(line for line in printed.splitlines() if not line.startswith("[launcher]"))
    names = {"chief 0": "c", "worker 0": "w", "worker 1": "w"}
    whole = [f"[{name}] {number} {letter * 20_000}." for name, letter in names.items() for number in range(200)]
    assert lines == dict.fromkeys(whole, 2)


def test_a_line_without_an_end_is_broken_before_the_launcher_holds_all_of_it(tmp_path: Path) -> None:
    job = Launched(tmp_path, "sys.stdout.write('x' * (5 * 2**19))", "--distributed", "--worker-count", "0")
    assert job.end() == 0
    assert job.out.splitlines() == [f"[chief 0] {'x' * length}" for length in (2**20, 2**20, 2**19)]


def test_the_unfinished_line_of_a_killed_process_arrives(tmp_path: Path) -> None:
    program = """
    print(f"{me} is here")
    (here / role).touch()
    for other in ("chief", "worker"):
        wait_for(other)
    print("unfinished", end="", file=sys.stderr, flush=True)
    (here / f"{role} is done").touch()
    for other in ("chief", "worker"):
        wait_for(f"{other} is done")
    die()
    """
    job = Launched(tmp_path, program, *TWO, "--max-restarts", "0")
    assert job.end() == 128 + signal.SIGKILL
    assert sorted(job.out.splitlines()) == ["[chief 0] chief 0 is here", "[worker 0] worker 0 is here"]
    assert {"[chief 0] unfinished", "[worker 0] unfinished"} <= set(job.err.splitlines())


def test_a_slow_reader_gets_all_lines(tmp_path: Path) -> None:
    job = Launched(tmp_path, "sys.stdout.write('line\\n' * 20_000)", stdout=subprocess.PIPE)
    assert job.process.stdout is not None
    job.process.stdout.read(1)
    wait_until(lambda: not job.left())
    with pytest.raises(subprocess.TimeoutExpired):
        job.process.wait(0.5)
    assert job.process.stdout.read() == b"ine\n" + b"line\n" * 19_999
    assert job.end() == 0


def test_lines_arrive_when_they_are_printed(tmp_path: Path) -> None:
    job = Launched(tmp_path, "print('now'); wait_for('read')", *TWO, env={"PYTHONUNBUFFERED": ""})
    job.read_until("[worker 0] now\n")
    job.touch("read")
    assert job.end() == 0


def test_a_terminal_shows_colors_unless_no_color_is_set(tmp_path: Path) -> None:
    def printed(**environ: str) -> bytes:
        ours, theirs = os.openpty()
        job = Launched(tmp_path, "print('hello')", *TWO, stdout=theirs, env={"TERM": "xterm", **environ})
        os.close(theirs)
        text = b""
        try:
            while chunk := os.read(ours, 1000):
                text += chunk
        except OSError:
            # Linux raises EIO when the other end of the terminal is closed.
            pass
        os.close(ours)
        assert job.end() == 0
        assert "\x1b" not in job.err  # which is a file
        return text

    assert b"\x1b[32m[chief 0]\x1b[0m hello\r\n" in printed()
    assert b"[chief 0] hello\r\n" in printed(NO_COLOR="1")


def test_a_detached_process_that_keeps_the_output_open_is_not_waited_for(tmp_path: Path) -> None:
    program = """
    print(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid, "sleeps")
    """
    job = Launched(tmp_path, program)
    job.read_until("sleeps")
    sleeper = int(job.out.split()[0])
    try:
        job.process.wait(timeout=20)
    finally:
        os.kill(sleeper, signal.SIGKILL)
    wait_until(lambda: not job.left())
    assert job.end() == 0


def test_a_closed_output_ends_all_processes(tmp_path: Path) -> None:
    program = """
    while True:
        print("y" * 1000)
    """
    job = Launched(tmp_path, program, *TWO, stdout=subprocess.PIPE)
    assert job.process.stdout is not None
    job.process.stdout.readline()
    job.process.stdout.close()
    assert job.end() == 141
    assert "Traceback" not in job.err


def test_an_output_that_cannot_be_written_ends_all_processes_with_a_message(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        job = Launched(tmp_path, "print('lost'); wait_for('never')", *TWO, stdout=full)
    assert job.end() == 2
    sentence = "the job was ended because its output cannot be written: No space left on device."
    assert job.err.splitlines()[-1] == f"estimator: error: {sentence}"
