"""The checkpoint_stall benchmark runs, and reads the clock as it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.checkpoint_stall import disk_lacks
from benchmarks.peers.ours_saving import held_up

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_a_quick_run_prints_the_table_and_the_promise_and_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.checkpoint_stall", "--quick", "--mb", "2", "--dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == ["", "Saving 2 MB while training", ""]
    assert [line.split()[0] for line in lines[3:7]] == ["saving", "asynchronous", "synchronous", "torch.save"]
    assert "torch_estimator" in lines[8]
    assert lines[-1].startswith("loop stalled by saving 2 MB, asynchronous over synchronous: at most 0.25: ")
    assert list(tmp_path.iterdir()) == []


def test_stalls_are_what_steps_with_saves_take_longer() -> None:
    # Steps of a second; after the 10th and the 20th a save of 5 seconds, then four steps of 1.5 seconds.
    took = [1.0] * 10 + [6.0] + [1.5] * 4 + [1.0] * 5 + [6.0] + [1.5] * 4 + [1.0] * 5
    ends = [sum(took[: count + 1]) for count in range(len(took))]
    measured = held_up(ends, every=10)
    assert measured["stalls_s"] == pytest.approx([5.0, 5.0])
    assert measured["stall_s"] == pytest.approx(5.0)
    assert measured["lost_s"] == pytest.approx(7.0)
    assert measured["slower"] == pytest.approx(1.5)
    assert measured["step_ms"] == pytest.approx(1000.0)


def test_a_folder_in_memory_or_too_small_is_refused(tmp_path: Path) -> None:
    assert disk_lacks(str(tmp_path), 1e9).endswith("MB are needed; name another folder with --dir.")  # type: ignore[union-attr]
    if Path("/dev/shm").is_dir():
        assert disk_lacks("/dev/shm", 1) == "/dev/shm lies in memory, not on a disk; name another folder with --dir."
