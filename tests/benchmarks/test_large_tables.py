"""The benchmark of large tables runs, and reads the clock and the memory as it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import large_tables
from benchmarks.peers.large_table import LOOKUPS, batches
from benchmarks.peers.ours_large_table import paces
from benchmarks.protocol import ROLE, MemoryWatch


@pytest.mark.slow
def test_a_quick_run_trains_with_a_table_on_servers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status = large_tables.main(["--quick", "--parts", "speed", "--dir", str(tmp_path)])

    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if line.startswith("1,200,000 x 16 ")]
    steps_per_s, while_saving, pause_s = map(float, row.replace(",", "").split()[-3:])
    assert status == 0
    assert min(steps_per_s, while_saving) > 1 / pause_s > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_quick_job_loses_a_server_and_serves_in_the_end(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status = large_tables.main(["--quick", "--parts", "huge", "--dir", str(tmp_path)])

    lines = capsys.readouterr().out.splitlines()
    assert status == 0
    assert not [line for line in lines if line.endswith("not measured")]
    assert ["steps", "400", "-"] in [line.split() for line in lines]


def test_steps_and_pauses_are_told_apart_by_whether_a_checkpoint_is_written() -> None:
    # Ten steps of 0.1 s, ten of 0.2 s while a checkpoint is written, then a server is lost and five steps are repeated.
    took = [0.1] * 10 + [0.2] * 10
    ends = [(step + 1, sum(took[: step + 1])) for step in range(20)]
    ends += [(15, 10.0), *((16 + step, 10.1 + step / 10) for step in range(10))]

    measured = paces(ends, [(1.01, 3.01)], warmup=2)

    assert measured["saving_steps_per_s"] == pytest.approx(5)
    assert measured["steps_per_s"] == pytest.approx(10)
    assert measured["longest_pause_s"] == pytest.approx(0.2)


def test_each_batch_reads_equally_many_rows_however_many_there_are() -> None:
    for rows in (10_000, 10_000_000):
        ids, labels = batches(rows, 32)
        assert len(ids) == len(labels)
        assert {len(np.unique(ids[at : at + 32])) for at in range(0, len(ids), 32)} == {32 * LOOKUPS}


def test_the_watch_sees_the_private_memory_of_marked_processes() -> None:
    program = "import sys; taken = b'x' * 200_000_000; print(flush=True); sys.stdin.read()"
    with MemoryWatch() as watch:
        marked = {**watch.variables, ROLE: "taker"}
        with subprocess.Popen(
            [sys.executable, "-c", program], env=marked, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            while "taker" not in watch.peaks or watch.peaks["taker"] < 200_000_000:
                assert process.poll() is None
            assert watch.pids == {"taker": process.pid}
            process.kill()
    assert 200 <= watch.peaks_mb()["taker MB"] < 300


def test_a_disk_without_room_is_refused_with_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(large_tables, "HUGE", large_tables.Shape(10**12, 16))

    with pytest.raises(SystemExit):
        large_tables.main(["--parts", "huge", "--dir", str(tmp_path)])

    assert "MB left, but" in capsys.readouterr().err
