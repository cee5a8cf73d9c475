"""What a process records of its activity for its launcher."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from torch_estimator.activity import Record, Records, Unchanged


class Process:
    """A program that writes a record, every ten milliseconds. `go_on` lets it return from ``input()``."""

    def __init__(self, folder: Path, program: str) -> None:
        records = Records(str(folder), hang_secs=0.04)
        self.file = records.of("worker-0")
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"import os\nfrom torch_estimator.activity import doing, waiting\n{program}"],
            env={"PATH": "", "PYTHONPATH": str(Path(__file__).parents[2]), **records.environ("worker-0")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def record(self, **expected: object) -> Record:
        """Wait for a record with these attributes."""
        for _ in range(10_000):
            record = self.file.read()
            if record is not None and all(getattr(record, name) == value for name, value in expected.items()):
                return record
            threading.Event().wait(0.005)
        raise AssertionError(self.file.read())

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> str:
        """Wait for the end of the process; return what it printed."""
        out, err = self._process.communicate()
        assert (self._process.returncode, err) == (0, "")
        return out

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def started() -> Iterator[list[Process]]:
    processes: list[Process] = []
    yield processes
    for process in processes:
        process.kill()


def test_a_record_says_what_the_process_does_and_for_whom_it_waits(tmp_path: Path, started: list[Process]) -> None:
    process = Process(
        tmp_path,
        """
step = 7
with doing("starting"):
    input()
    with doing("training", lambda: step):
        input()
        step = 8
        input()
        with waiting(lambda: ["chief 0"]):
            input()
        with doing("saving"):
            input()
input()
""",
    )
    started.append(process)
    first = process.record(doing="starting", progress=None)
    for expected in (
        {"doing": "training", "progress": 7, "waits_for": []},
        {"doing": "training", "progress": 8},
        {"doing": "training", "progress": 8, "waits_for": ["chief 0"]},
        {"doing": "saving", "progress": None, "waits_for": []},
        {"doing": ""},
    ):
        process.go_on()
        last = process.record(**expected)
    assert last.writes > first.writes
    process.go_on()
    process.end()
    # What has ended hangs no more.
    assert list(tmp_path.iterdir()) == []


def test_the_time_without_progress_grows(tmp_path: Path, started: list[Process]) -> None:
    process = Process(tmp_path, 'with doing("starting"):\n    input()')
    started.append(process)
    first = process.record(doing="starting")
    later = process.record(doing="starting")
    while later.writes < first.writes + 3:
        later = process.record(doing="starting")
    assert later.idle_secs > first.idle_secs


def test_processes_that_it_starts_write_no_record(tmp_path: Path) -> None:
    program = 'with doing("starting"):\n    print([name for name in os.environ if "ACTIVITY" in name])'
    assert Process(tmp_path, program).end() == "[]\n"


def test_a_folder_that_is_not_there_does_not_disturb_the_process(tmp_path: Path) -> None:
    assert Process(tmp_path / "no", 'with doing("starting"):\n    print("done")').end() == "done\n"


def test_a_late_look_does_not_count_the_time_in_which_the_machine_stood_still() -> None:
    now = 0.0
    unchanged = Unchanged(5.0, lambda: now)
    assert unchanged.look("a") == 0
    now = 5.0
    assert unchanged.look("a") == 5
    now = 3600.0
    assert unchanged.look("a") == 15
    now = 3601.0
    assert unchanged.look("b") == 0
