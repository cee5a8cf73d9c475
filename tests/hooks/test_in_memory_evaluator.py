"""InMemoryEvaluatorHook evaluates the current weights and does not change training."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import torch_estimator as te
from tests.line_jobs import assert_same_variables, checkpoint_steps, line, points
from tests.summary.test_summary import summarized
from torch_estimator.summary.scalar_reader import read_scalars

held_out = partial(points, rows=40)


@pytest.mark.parametrize(("steps", "evaluated"), [(7, [0, 3, 6, 7]), (6, [0, 3, 6]), (2, [0, 2])])
def test_it_evaluates_before_periodically_and_at_the_end(tmp_path: Path, steps: int, evaluated: list[int]) -> None:
    estimator = line(tmp_path)
    hook = te.InMemoryEvaluatorHook(estimator, held_out, name="live", every_n_iter=3)
    estimator.train(points, steps=steps, hooks=[hook])
    assert read_scalars(estimator.eval_dir("live"))["loss"].steps.tolist() == evaluated
    assert checkpoint_steps(tmp_path) == [0, steps]


def test_its_results_are_those_of_evaluating_checkpoints(tmp_path: Path) -> None:
    estimator = summarized(tmp_path, save_checkpoints_steps=3)
    hook = te.InMemoryEvaluatorHook(estimator, held_out, every_n_iter=3)
    estimator.train(points, steps=7, hooks=[hook])
    live = read_scalars(estimator.eval_dir())["loss"].values.tolist()
    for step, loss in zip((0, 3, 6, 7), live, strict=True):
        saved = estimator.evaluate(held_out, checkpoint_path=f"{tmp_path}/model.ckpt-{step}", name="saved")
        assert loss == pytest.approx(saved["loss"], rel=1e-6)


@pytest.mark.parametrize("settings", [{}, {"compile": True}, {"random_seed": None}])
def test_training_is_bit_for_bit_the_same(tmp_path: Path, settings: dict[str, Any]) -> None:
    import torch

    torch.manual_seed(4)
    watched = summarized(tmp_path / "watched", **settings)
    hook = te.InMemoryEvaluatorHook(watched, held_out, every_n_iter=1)
    watched.train(points, steps=5, hooks=[hook])
    torch.manual_seed(4)
    alone = summarized(tmp_path / "alone", **settings).train(points, steps=5)
    assert_same_variables(watched, alone)


def test_a_module_that_model_fn_returns_in_every_mode_stays_in_training(tmp_path: Path) -> None:
    from tests.line_jobs import Line, squared_error

    def job(name: str, *, evaluated: bool) -> te.Estimator:
        import torch

        torch.manual_seed(0)
        module = Line()

        def model_fn(mode: str) -> te.EstimatorSpec:
            return te.EstimatorSpec(
                mode=mode, module=module, loss=squared_error, optimizer=partial(torch.optim.SGD, lr=0.1)
            )

        estimator = te.Estimator(model_fn, str(tmp_path / name), te.RunConfig(random_seed=1))
        hooks = [te.InMemoryEvaluatorHook(estimator, held_out, every_n_iter=1)] if evaluated else []
        return estimator.train(points, steps=4, hooks=hooks)

    assert_same_variables(job("watched", evaluated=True), job("alone", evaluated=False))


def test_its_steps_and_hooks_are_those_of_the_evaluation(tmp_path: Path) -> None:
    calls: list[tuple[str, int]] = []

    class Recorder(te.Hook):
        def after_step(self, context: te.RunContext) -> None:
            calls.append((str(context.mode), context.global_step))

    estimator = line(tmp_path)
    hook = te.InMemoryEvaluatorHook(estimator, held_out, steps=2, hooks=[Recorder()], every_n_iter=4)
    estimator.train(points, steps=4, hooks=[hook])
    assert calls == [("eval", 0)] * 2 + [("eval", 4)] * 2


def test_early_stopping_can_go_by_it(tmp_path: Path) -> None:
    estimator = line(tmp_path)
    live = te.InMemoryEvaluatorHook(estimator, held_out, name="live", every_n_iter=5)
    stop = te.stop_if_lower_hook(estimator, "loss", 0.5, eval_dir=estimator.eval_dir("live"), run_every_steps=5)
    estimator.train(lambda: points().repeat(), steps=200, hooks=[live, stop])
    losses = read_scalars(estimator.eval_dir("live"))["loss"].by_step()
    first = min(step for step, loss in losses.items() if loss < 0.5)
    assert estimator.get_variable_value("global_step") == first < 200


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"estimator": 3}, TypeError, "estimator must be an Estimator, but got 3."),
        ({"input_fn": 3}, TypeError, "input_fn must be callable, such as lambda: dataset, but got 3."),
        ({"steps": 0}, ValueError, "steps must be positive, but got 0."),
        ({"every_n_iter": 0}, ValueError, "every_n_iter of InMemoryEvaluatorHook must be positive, but got 0."),
        ({"hooks": [3]}, TypeError, "hooks must be instances of torch_estimator.Hook, but got 3."),
    ],
)
def test_arguments_are_checked(tmp_path: Path, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    given = {"estimator": line(tmp_path), "input_fn": held_out, **arguments}
    with pytest.raises(error, match=f"^{message}"):
        te.InMemoryEvaluatorHook(**given)
