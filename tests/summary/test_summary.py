"""Summaries recorded inside a model reach TensorBoard and do not change training."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te
from tests.line_jobs import assert_same_variables, points, squared_error
from torch_estimator.summary.recorder import recording


class Summarized(nn.Module):
    """Module with summaries and with all state that an extra forward pass could change: random numbers and buffers."""

    def __init__(self, *, summaries: bool = True) -> None:
        super().__init__()
        self.summaries = summaries
        self.linear = nn.Linear(2, 3)
        self.norm = nn.BatchNorm1d(3)
        self.last = nn.Linear(3, 1)

    def forward(self, features: Any) -> Tensor:
        hidden = nn.functional.dropout(self.norm(self.linear(features["x"])), 0.3, self.training)
        outputs: Tensor = self.last(hidden)
        if self.summaries:
            te.summary.scalar("hidden/mean", hidden.mean())
            te.summary.histogram("hidden", hidden)
            te.summary.image("pixels", hidden[:2].reshape(2, 1, 1, 3))
        return outputs


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("cache of summaries"))


@pytest.fixture(autouse=True)
def _share_compiled_programs(cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_ESTIMATOR_CACHE_DIR", cache)


def loss_with_summary(outputs: Tensor, labels: Tensor) -> Tensor:
    te.summary.scalar("error", (outputs - labels).abs().mean())
    return squared_error(outputs, labels)


def summarized(model_dir: object, *, summaries: bool = True, **settings: Any) -> te.Estimator:
    def model_fn(mode: str) -> te.EstimatorSpec:
        return te.EstimatorSpec(
            mode=mode,
            module=Summarized(summaries=summaries),
            loss=loss_with_summary if summaries else squared_error,
            optimizer=partial(torch.optim.SGD, lr=0.05),
        )

    settings = {"random_seed": 1, "save_checkpoints_steps": 1000, **settings}
    return te.Estimator(model_fn, str(model_dir), te.RunConfig(**settings))


def read(logdir: object) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(logdir), size_guidance={"images": 0, "histograms": 0})
    accumulator.Reload()
    return accumulator


def steps(events: list[Any]) -> list[int]:
    return [event.step for event in events]


@pytest.mark.parametrize("compile", [False, True])
def test_tensorboard_sees_them_every_save_summary_steps(tmp_path: Path, compile: bool) -> None:
    summarized(tmp_path, save_summary_steps=4, compile=compile).train(points, steps=9)
    seen = read(tmp_path)
    assert seen.Tags()["histograms"] == ["hidden"]
    assert seen.Tags()["images"] == ["pixels/0", "pixels/1"]
    assert {"loss", "error", "hidden/mean"} <= set(seen.Tags()["scalars"])
    for events in (
        seen.Scalars("loss"),
        seen.Scalars("error"),
        seen.Scalars("hidden/mean"),
        seen.Histograms("hidden"),
        seen.Images("pixels/1"),
    ):
        assert steps(events) == [1, 5, 9]
    assert seen.Histograms("hidden")[0].histogram_value.num == 12
    assert (seen.Images("pixels/0")[0].width, seen.Images("pixels/0")[0].height) == (3, 1)


def test_compiled_and_eager_steps_have_the_same_summaries(tmp_path: Path) -> None:
    eager, compiled = (
        summarized(tmp_path / str(compile), save_summary_steps=3, compile=compile).train(points, steps=7)
        for compile in (False, True)
    )
    for tag in ("hidden/mean", "error", "loss"):
        one, other = (
            [event.value for event in read(estimator.model_dir).Scalars(tag)] for estimator in (eager, compiled)
        )
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("compile", [False, True])
def test_training_is_bit_for_bit_the_same_with_and_without_them(tmp_path: Path, compile: bool) -> None:
    often = summarized(tmp_path / "often", save_summary_steps=1, compile=compile).train(points, steps=6)
    never = summarized(tmp_path / "never", save_summary_steps=None, compile=compile).train(points, steps=6)
    without = summarized(tmp_path / "without", summaries=False, save_summary_steps=2, compile=compile)
    without.train(points, steps=6)
    assert_same_variables(often, never)
    assert_same_variables(often, without)


def test_observing_does_not_compile_again(
    tmp_path: Path, compilations: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_ESTIMATOR_CACHE_DIR", str(tmp_path / "cache"))
    hook = te.LoggingTensorHook(["linear"], every_n_iter=2)
    summarized(tmp_path, save_summary_steps=3, compile=True).train(points, steps=8, hooks=[hook])
    assert len(compilations()) == 1


def test_a_hooks_own_forward_hooks_see_compiled_steps_that_it_observes(tmp_path: Path) -> None:
    class Outputs(te.Hook):
        first_step = every_n_steps = 2

        def __init__(self) -> None:
            self.shapes: list[Any] = []

        def before_step(self, context: te.RunContext) -> None:
            assert context.module is not None and isinstance(context.module.linear, nn.Module)
            context.observe = True
            self.handle = context.module.linear.register_forward_hook(
                lambda module, args, output: self.shapes.append(output.shape)
            )

        def after_step(self, context: te.RunContext) -> None:
            self.handle.remove()

    for compile in (False, True):
        hook = Outputs()
        watched = summarized(tmp_path / f"{compile} watched", summaries=False, compile=compile)
        watched.train(points, steps=5, hooks=[hook])
        assert hook.shapes == [(4, 3)] * 2
        assert_same_variables(watched, summarized(tmp_path / f"{compile}", compile=compile).train(points, steps=5))


def test_a_module_may_record_a_summary_called_loss(tmp_path: Path) -> None:
    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        te.summary.scalar("loss", torch.tensor(7.0))
        return squared_error(outputs, labels)

    def model_fn(mode: str) -> te.EstimatorSpec:
        return te.EstimatorSpec(
            mode=mode, module=Summarized(summaries=False), loss=loss, optimizer=partial(torch.optim.SGD, lr=0.05)
        )

    te.Estimator(model_fn, str(tmp_path)).train(points, steps=1)
    assert [event.value for event in read(tmp_path).Scalars("loss")] == [7.0]


def test_a_tag_used_several_times_in_a_step_gets_suffixes() -> None:
    with recording() as said:
        for value in (1.0, 2.0, 3.0):
            te.summary.scalar("norm", value)
    assert [(one.tag, float(one.value)) for one in said] == [("norm", 1.0), ("norm_1", 2.0), ("norm_2", 3.0)]


def test_they_do_nothing_and_check_nothing_in_other_steps() -> None:
    te.summary.scalar("x", "not a number")
    te.summary.histogram("x", None)
    te.summary.image("x", torch.ones(7))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: te.summary.scalar("x", torch.ones(2)), r"scalar summary 'x' must be one number, .* shape \[2\]"),
        (lambda: te.summary.scalar("x", "high"), "summary 'x' must be numbers, but got 'high'"),
        (lambda: te.summary.scalar("", 1.0), "name of a summary must be a string, but got ''"),
        (
            lambda: te.summary.image("x", torch.ones(2, 5, 4, 4)),
            r"1, 3 or 4 channels \(NCHW\), but got .* \[2, 5, 4, 4",
        ),
        (lambda: te.summary.image("x", torch.ones(4, 4), data_format="HW"), "must be 'NCHW' or 'NHWC', but got 'HW'"),
    ],
)
def test_in_a_summarized_step_a_bad_value_is_one_sentence(call: Callable[[], None], message: str) -> None:
    with recording(), pytest.raises(te.UserError, match=message):
        call()


@pytest.mark.parametrize(
    ("tensor", "arguments", "expected"),
    [
        (torch.tensor([[0.0, 0.5], [1.0, 2.0]]), {}, [[[0], [128]], [[255], [255]]]),
        (torch.tensor([[-1.0, float("nan")]]), {}, [[[0], [0]]]),
        (torch.tensor([[[7, 300]], [[8, -4]], [[9, 2]]]), {}, [[[7, 8, 9], [255, 0, 2]]]),
        (torch.tensor([[[7, 8, 9]]], dtype=torch.uint8), {"data_format": "NHWC"}, [[[7, 8, 9]]]),
        (torch.tensor([[True, False]]), {}, [[[255], [0]]]),
        (torch.tensor([[1.0]], dtype=torch.bfloat16), {}, [[[255]]]),
    ],
)
def test_pixels_are_bytes(tensor: Tensor, arguments: dict[str, Any], expected: Any) -> None:
    with recording() as said:
        te.summary.image("x", tensor, **arguments)
    assert [one.tag for one in said] == ["x"]
    assert said[0].value.tolist() == expected


def test_only_some_of_many_images_are_shown() -> None:
    with recording() as said:
        te.summary.image("x", torch.ones(9, 1, 2, 2), max_outputs=2)
    assert [one.tag for one in said] == ["x/0", "x/1"]


def test_a_summary_is_not_changed_by_later_operations() -> None:
    tensor = torch.zeros(2)
    with recording() as said:
        te.summary.histogram("x", tensor)
    tensor.fill_(1)
    assert said[0].value.tolist() == [0.0, 0.0]


def test_a_summary_that_cannot_be_shown_ends_training_at_the_first_step(tmp_path: Path) -> None:
    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        te.summary.scalar("outputs", outputs)
        return squared_error(outputs, labels)

    def model_fn(mode: str) -> te.EstimatorSpec:
        return te.EstimatorSpec(
            mode=mode, module=Summarized(summaries=False), loss=loss, optimizer=partial(torch.optim.SGD, lr=0.05)
        )

    with pytest.raises(te.UserError, match=r"^The scalar summary 'outputs' must be one number"):
        te.Estimator(model_fn, str(tmp_path)).train(points, steps=1)


def test_a_compiled_model_without_summaries_is_observed_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Observed(te.Hook):
        def __init__(self) -> None:
            self.steps: list[int] = []

        def before_step(self, context: te.RunContext) -> None:
            if context.observe:
                self.steps.append(context.global_step + 1)

    caplog.set_level(logging.INFO, "torch_estimator")
    # With an optimizer of torch.optim the first step runs in Python, where observing costs nothing.
    for summaries, expected in ((True, [1, 2, 3, 4]), (False, [1, 2])):
        hook = Observed()
        summarized(tmp_path / str(summaries), summaries=summaries, save_summary_steps=1, compile=True).train(
            points, steps=4, hooks=[hook]
        )
        assert hook.steps == expected
