"""The census benchmark runs, and says of each promise whether it holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import census_train
from benchmarks.census import memory, quality, steady_state, whole_command
from benchmarks.census.peers import PEERS, present, steps_of
from benchmarks.protocol import Side


def test_a_quick_run_without_peers_prints_tables_and_verdicts(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--quick",
        "--compile",
        "no",
        "--peers",
        "--parts",
        "whole",
        "steady40",
        "imports",
        "--data",
        str(data),
    ]

    status = census_train.main(arguments)

    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert status == 0
    assert "Whole command: train_and_evaluate, 60 steps of 40, compile=no on our side" in lines
    assert "steps/s at 40 over Lightning: at least 5: not measured" in lines
    assert any(line.startswith("torch-estimator ") for line in lines)
    assert any(line.startswith("seconds to the first step, no compiled code yet: at most 6: ") for line in lines)
    assert "first step, no compiled code yet: at most 6: not measured" not in printed
    assert any(line.startswith("seconds that import torch_estimator adds") for line in lines)
    assert "A quick run, too short to judge by:" in lines


def test_a_peer_whose_script_is_not_there_is_left_out_with_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(PEERS, "gone", Side(name="Gone", script="gone_census"))

    assert present(["gone"], install=False) == {}
    assert capsys.readouterr().err == "Gone is left out: benchmarks/peers/gone_census.py is not there.\n"
    with pytest.raises(SystemExit, match=r"^Gone: .* is not there; leave it out with --peers"):
        present(["gone"], install=True)


def test_every_side_measures_some_steps_after_its_warm_up() -> None:
    for key in ("ours", *PEERS):
        for batch in (40, 512):
            for quick in (False, True):
                steps, warmup = steps_of(key, batch=batch, quick=quick)
                assert steps > warmup > 0


def test_the_promises_are_those_of_the_issue() -> None:
    assert steady_state.PROMISES[40] == {"tensorflow": 8, "eager": 4, "lightning": 5}
    assert steady_state.PROMISES[512] == {"tensorflow": 20, "eager": 4}
    assert (whole_command.STEPS, whole_command.BATCH, quality.STEPS, quality.BATCH) == (12_000, 40, 12_000, 512)


def test_files_are_repeated_up_to_the_size_asked_for(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("1,a\n2,b\n3,c")

    rows = memory.write_repeated(tmp_path / "one.csv", tmp_path / "many.csv", 30)

    assert rows == 9
    assert (tmp_path / "many.csv").read_text() == "1,a\n2,b\n3,c\n" * 3


def test_without_the_census_files_one_line_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        census_train.parse(["--data", str(tmp_path)])

    assert "name the folder of the census files with --data" in capsys.readouterr().err
