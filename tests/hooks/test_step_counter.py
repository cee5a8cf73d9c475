"""StepCounterHook measures steps per second."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

import torch_estimator as te
from tests.line_jobs import line, points
from torch_estimator.summary.scalar_reader import read_scalars


@pytest.mark.parametrize(
    ("when", "steps"), [({"every_n_steps": 3}, [4, 7]), ({"every_n_secs": 10.0}, [3, 5, 7]), ({}, [])]
)
def test_it_logs_and_summarises_steps_per_second(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, when: dict[str, Any], steps: list[int]
) -> None:
    class Clock(te.Hook):
        now = 0.0

        def before_step(self, context: te.RunContext) -> None:
            Clock.now += 5.0

    caplog.set_level(logging.INFO, "torch_estimator")
    hook = te.StepCounterHook(**when, output_dir=f"{tmp_path}/speed", clock=lambda: Clock.now)
    line(tmp_path, log_step_count_steps=None).train(points, steps=8, hooks=[Clock(), hook])
    speeds = read_scalars(f"{tmp_path}/speed")
    assert speeds["global_step/sec"].by_step() == pytest.approx(dict.fromkeys(steps, 0.2)) if steps else not speeds
    assert caplog.messages.count("global_step/sec: 0.2") == len(steps)


def test_a_summary_goes_into_the_file_of_the_run(tmp_path: Path) -> None:
    line(tmp_path).train(points, steps=3, hooks=[te.StepCounterHook(every_n_steps=1)])
    assert read_scalars(tmp_path)["global_step/sec"].steps.tolist() == [2, 3]
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 1


@pytest.mark.parametrize(
    ("cluster", "whose"),
    [
        ({"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}, " (all workers together)"),
        ({"chief": ["a:1"], "ps": ["c:1"]}, ""),
        ({"chief": ["a:1"], "worker": ["b:1"]}, ""),
    ],
)
def test_the_log_says_if_the_speed_is_that_of_all_workers(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    cluster: dict[str, list[str]],
    whose: str,
) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}}))
    caplog.set_level(logging.INFO, "torch_estimator")
    seconds = iter([0.0, 0.5])
    hook = te.StepCounterHook(output_dir=str(tmp_path), clock=lambda: next(seconds))
    context = te.RunContext(global_step=1)
    hook.begin(context)
    hook.after_step(context)
    context.global_step = 101
    hook.after_step(context)
    context.summary_writer(str(tmp_path)).close()
    assert caplog.messages == [f"global_step/sec: 200{whose}"]


def test_numbers_must_be_positive() -> None:
    with pytest.raises(ValueError, match=r"^every_n_steps of StepCounterHook must be positive, but got 0\.$"):
        te.StepCounterHook(every_n_steps=0)
