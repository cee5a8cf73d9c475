"""The benchmark of training beside an evaluator runs, and reads the clock as it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import evaluator
from benchmarks.peers.ours_evaluated import longest


@pytest.mark.slow
def test_a_quick_run_trains_beside_a_stopped_evaluator(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluator, "SIDES", {"stopped": evaluator.SIDES["stopped"]})

    status = evaluator.main(["--quick", "--data", str(data)])

    lines = capsys.readouterr().out.splitlines()
    assert status == 0
    (row,) = [line.removeprefix(evaluator.SIDES["stopped"]) for line in lines if line.startswith("evaluator, stopped")]
    steps_per_s, ratio, *longest_ms, evaluations = row.replace(",", "").split()
    assert float(steps_per_s) > 0
    assert (ratio, evaluations) == ("-", "0")
    assert min(map(float, longest_ms)) > 0
    assert "steps/s beside a stopped evaluator over those without one: at least 0.97: not measured" in lines


def test_the_longest_step_is_told_apart_from_those_after_a_checkpoint() -> None:
    took = dict.fromkeys(range(5, 25), 0.002) | {11: 0.5, 21: 0.4, 14: 0.03}
    ends = {step: sum(secs for other, secs in took.items() if other <= step) for step in took}

    found = longest(ends, every=10)

    assert found == {"longest_ms": pytest.approx(30), "longest_saving_ms": pytest.approx(500)}
    assert longest({}, every=10) == {"longest_ms": None, "longest_saving_ms": None}
