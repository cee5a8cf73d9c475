"""Scripts in processes of their own."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

import pytest

from benchmarks.peers.report import Pace, peak_mb, since_process_start
from benchmarks.protocol import Side, SideError, machine_line


def _script(folder: Path, text: str) -> Side:
    (folder / "benchmarks" / "peers").mkdir(parents=True)
    for package in ("benchmarks", "benchmarks/peers"):
        (folder / package / "__init__.py").touch()
    (folder / "benchmarks" / "peers" / "one.py").write_text(text)
    return Side(name="one", script="one", root=folder)


def test_the_last_line_is_the_result(tmp_path: Path) -> None:
    text = "import json, os, sys; print('noise'); print(json.dumps({'x': sys.argv[1:], 'v': os.environ['V']}))"
    one = _script(tmp_path, text)

    result = dataclasses.replace(one, arguments=("3",)).run([5], variables={"V": "4"})

    assert result.pop("wall_s") > 0
    assert result == {"x": ["3", "5"], "v": "4"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise SystemExit('no such file')", "ended with 1:\nno such file"),
        ("print('done')", "did not end with a line of JSON, but with:\ndone"),
        ("import time; time.sleep(60)", "did not end within 1 s"),
    ],
)
def test_a_script_without_a_result_says_why(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SideError, match=said):
        _script(tmp_path, text).run([], timeout=1.0)


def test_what_a_script_leaves_running_is_not_waited_for(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    child = f"open({str(fifo)!r}).read()"
    one = _script(
        tmp_path, f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]); print('{{}}')"
    )

    assert one.run([], timeout=60.0).keys() == {"wall_s"}

    fifo.write_text("the child may end")


def test_an_environment_that_is_not_there_is_not_made_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TE_BENCH_DIR", str(tmp_path / "bench"))
    one = dataclasses.replace(_script(tmp_path, ""), environment="jax")

    assert "is not installed" in str(one.missing(install=False))
    assert not (tmp_path / "bench").exists()


def test_a_script_that_is_not_there_is_missing(tmp_path: Path) -> None:
    assert _script(tmp_path, "").missing(install=False) is None
    assert "two.py is not there" in str(Side(name="two", script="two", root=tmp_path).missing(install=True))


def test_the_clock_counts_from_the_start_of_the_process() -> None:
    before = since_process_start()

    assert 0 < before <= since_process_start()
    assert peak_mb() > 10
    assert before < time.clock_gettime(time.CLOCK_BOOTTIME)


def test_the_pace_leaves_the_warm_up_out() -> None:
    waited: list[int] = []
    pace = Pace(warmup=3, synchronise=lambda: waited.append(pace.steps))

    for _ in range(5):
        pace.step(2)
    pace.end()

    assert waited == [2, 4, 10]
    assert pace.first_step_s is not None
    assert pace.steps_per_s is not None and pace.steps_per_s > 0


def test_a_run_no_longer_than_its_warm_up_has_no_steady_state() -> None:
    pace = Pace(warmup=3)

    pace.step()
    pace.end()

    assert pace.steps_per_s is None


def test_the_machine_line_names_the_processor_and_the_versions() -> None:
    line = machine_line({"TensorFlow": "2.15.1"})

    assert f"{len(os.sched_getaffinity(0))} cores" in line
    assert "TensorFlow 2.15.1" in line
    assert "torch 2." in line
