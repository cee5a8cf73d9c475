"""SpecEvaluator: not more often than allowed, never the same checkpoint twice, the final export once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import torch_estimator as te
from tests.line_jobs import WritingExporter, line, points
from torch_estimator.executors.evaluation import SpecEvaluator


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def estimator(tmp_path: Path) -> te.Estimator:
    return line(tmp_path, save_checkpoints_steps=1).train(points, steps=4)


def evaluator(
    estimator: te.Estimator, *exporters: WritingExporter, max_steps: int | None = None, **arguments: Any
) -> SpecEvaluator:
    spec = te.EvalSpec(points, steps=1, exporters=exporters, throttle_secs=10)
    return SpecEvaluator(estimator, spec, max_steps, **arguments)


def path(estimator: te.Estimator, step: int) -> str:
    return f"{estimator.model_dir}/model.ckpt-{step}"


def test_it_is_due_at_once_and_then_when_the_throttle_has_passed_and_the_step_is_new(estimator: te.Estimator) -> None:
    clock = Clock()
    one = evaluator(estimator, clock=clock)
    assert one.is_due(0)
    one.evaluate(1, path(estimator, 1))
    assert not one.is_due(2)
    clock.now = 9.9
    assert not one.is_due(2)
    clock.now = 10.0
    assert one.is_due(2)
    assert not one.is_due(1)


def test_the_throttle_counts_from_the_start_of_an_evaluation(estimator: te.Estimator) -> None:
    clock = Clock()

    class Slow(WritingExporter):
        def export(self, *args: Any, **kwargs: Any) -> str | None:
            clock.now += 30
            return super().export(*args, **kwargs)

    one = evaluator(estimator, Slow(), clock=clock)
    one.evaluate(1, path(estimator, 1))
    assert one.is_due(2)


def test_the_outcome_is_that_of_the_last_evaluation(estimator: te.Estimator) -> None:
    exporter = WritingExporter()
    one = evaluator(estimator, exporter)
    assert (one.last_step, one.outcome) == (None, None)
    for step in (1, 3):
        one.evaluate(step, path(estimator, step))
        assert one.last_step == step
        assert one.outcome is not None
        assert one.outcome.metrics["global_step"] == step
        assert one.outcome.exports == [f"{estimator.model_dir}/export/writing/{step}"]
        assert (one.outcome.checkpoint_path, one.outcome.final) == (path(estimator, step), False)


def test_reaching_max_steps_makes_the_export_final(estimator: te.Estimator) -> None:
    exporter = WritingExporter()
    one = evaluator(estimator, exporter, max_steps=3)
    for step in (2, 3, 4):
        one.evaluate(step, path(estimator, step))
    assert exporter.finals == [False, True, True]


def test_the_end_of_training_makes_the_export_final(estimator: te.Estimator) -> None:
    exporter = WritingExporter()
    evaluator(estimator, exporter).evaluate(2, path(estimator, 2), final=True)
    assert exporter.finals == [True]


def test_finish_has_only_those_export_that_did_not(estimator: te.Estimator) -> None:
    every, only_final = WritingExporter("every"), WritingExporter("only_final", only_final=True)
    one = evaluator(estimator, every, only_final)
    one.evaluate(2, path(estimator, 2))
    one.finish()
    assert (every.finals, only_final.finals) == ([False], [False, True])
    assert one.outcome is not None
    assert one.outcome.final
    assert one.outcome.exports == [f"{estimator.model_dir}/export/{name}/2" for name in ("every", "only_final")]
    one.finish()
    assert only_final.finals == [False, True]


def test_finish_does_nothing_after_a_final_evaluation(estimator: te.Estimator) -> None:
    exporter = WritingExporter()
    one = evaluator(estimator, exporter)
    one.evaluate(2, path(estimator, 2), final=True)
    one.finish()
    assert exporter.finals == [True]
