"""SummarySaverHook writes summaries of functions and of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import torch_estimator as te
from tests.line_jobs import line, points
from tests.summary.test_summary import read, steps, summarized


def bias(context: te.RunContext) -> dict[str, Any]:
    return {"bias": context.variables()["linear.bias"][0], "weights": context.variables()["linear.weight"]}


def picture(context: te.RunContext) -> None:
    te.summary.image("picture", torch.ones(2, 2))


def test_functions_return_numbers_histograms_and_images(tmp_path: Path) -> None:
    hook = te.SummarySaverHook(save_steps=3, output_dir=f"{tmp_path}/mine", summaries=[bias, picture])
    line(tmp_path).train(points, steps=7, hooks=[hook])
    seen = read(tmp_path / "mine")
    assert (
        steps(seen.Scalars("bias")) == steps(seen.Histograms("weights")) == steps(seen.Images("picture")) == [1, 4, 7]
    )


def test_they_go_with_the_runs_own_into_one_file_that_a_resumed_run_goes_on_from(tmp_path: Path) -> None:
    for _ in range(2):
        line(tmp_path).train(points, steps=2, hooks=[te.SummarySaverHook(save_steps=1, summaries=bias)])
    assert steps(read(tmp_path).Scalars("bias")) == [1, 2, 3, 4]
    assert len(list(tmp_path.glob("events.*"))) == 2


def test_in_an_evaluation_it_writes_the_models_summaries(tmp_path: Path) -> None:
    estimator = summarized(tmp_path).train(points, steps=3)
    estimator.evaluate(points, steps=2, name="x", hooks=[te.SummarySaverHook(save_steps=10)])
    seen = read(tmp_path / "eval_x")
    assert {"hidden/mean", "error", "loss"} <= set(seen.Tags()["scalars"])
    assert steps(seen.Histograms("hidden")) == [3]


@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_with_functions_it_leaves_the_models_summaries_to_the_runs_hook(tmp_path: Path, compile: bool) -> None:
    def one(context: te.RunContext) -> dict[str, float]:
        return {"one": 1}

    hook = te.SummarySaverHook(save_steps=1, output_dir=f"{tmp_path}/mine", summaries=one)
    summarized(tmp_path, compile=compile).train(points, steps=2, hooks=[hook])
    assert read(tmp_path / "mine").Tags()["scalars"] == ["one"]


def test_predicting_it_writes_into_the_jobs_directory(tmp_path: Path) -> None:
    estimator = summarized(tmp_path, save_summary_steps=None).train(points, steps=1)
    list(estimator.predict(points, hooks=[te.SummarySaverHook(save_secs=1e9)]))
    assert steps(read(tmp_path).Histograms("hidden")) == [1]


@pytest.mark.parametrize("arguments", [{}, {"save_steps": 1, "save_secs": 1}])
def test_exactly_one_of_steps_and_seconds_must_be_given(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"^SummarySaverHook takes exactly one of save_steps and save_secs, but got"):
        te.SummarySaverHook(**arguments)


def test_other_things_than_functions_that_return_dicts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="must be functions of the RunContext, but got 'loss'"):
        te.SummarySaverHook(save_steps=1, summaries=["loss"])  # type: ignore[list-item]
    hook = te.SummarySaverHook(save_steps=1, summaries=lambda context: 3)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="must return a dict or None, but returned 3"):
        line(tmp_path).train(points, steps=1, hooks=[hook])
