"""A training run: what it saves and says, and that it goes on exactly where it stopped."""

from __future__ import annotations

import gc
import logging
import re
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torch_estimator as te
from tests.line_jobs import (
    Line,
    WritingExporter,
    assert_same_variables,
    checkpoint_steps,
    line,
    line_model_fn,
    points,
    squared_error,
    variables,
)
from torch_estimator import feature_column as fc
from torch_estimator.checkpoint.checkpoint import load_checkpoint
from torch_estimator.summary.scalar_reader import read_scalars

CITIES = ["Oslo", "Rome", "Lima", "", "Łódź"]


def people(rows: int = 100) -> te.data.Dataset:
    random = np.random.default_rng(5)
    features = {
        "city": random.choice(CITIES, rows).astype(object),
        "job": random.choice(["a", "b", "c", "d"], rows).astype(object),
        "age": random.uniform(18, 80, rows).astype(np.float32),
    }
    return te.data.Dataset.from_arrays(features, (random.random(rows) < 0.4).astype(np.int64))


def wide_and_deep(model_dir: object, **arguments: Any) -> te.Estimator:
    city = fc.categorical_column_with_vocabulary_list("city", CITIES[:3])
    job = fc.categorical_column_with_hash_bucket("job", 20)
    age = fc.numeric_column("age")
    settings = {"random_seed": 3, "save_checkpoints_steps": 1000, **arguments.pop("settings", {})}
    return te.DNNLinearCombinedClassifier(
        str(model_dir),
        linear_feature_columns=[
            city,
            fc.crossed_column(["city", "job"], 50),
            fc.bucketized_column(age, [30.0, 50.0]),
        ],
        dnn_feature_columns=[fc.embedding_column(job, 4), fc.indicator_column(city), age],
        dnn_hidden_units=[8, 4],
        config=te.RunConfig(**settings),
        **arguments,
    )


INPUTS: dict[str, Callable[[], te.data.Dataset]] = {
    "in order": lambda: people().batch(7).repeat(),
    "shuffled": lambda: people().shuffle(1000, seed=11).repeat().batch(7),
    "shuffled with a seed of its own": lambda: people().shuffle(1000).repeat().batch(7),
    "prefetched": lambda: people().shuffle(1000, seed=11).repeat().batch(7).prefetch(3),
    "batches straddle epochs": lambda: people(10).repeat().batch(7),
}


@pytest.mark.parametrize("name", INPUTS)
def test_a_resumed_run_is_bit_for_bit_the_uninterrupted_one(tmp_path: Path, name: str) -> None:
    whole = wide_and_deep(tmp_path / "whole", dnn_dropout=0.3)
    torch.manual_seed(0)
    whole.train(INPUTS[name], max_steps=40)

    resumed = partial(wide_and_deep, tmp_path / "resumed", dnn_dropout=0.3)
    torch.manual_seed(0)
    resumed().train(INPUTS[name], max_steps=40, hooks=[te.StopAtStepHook(num_steps=17)])
    resumed().train(INPUTS[name], max_steps=40, hooks=[te.StopAtStepHook(num_steps=1)])
    resumed().train(INPUTS[name], max_steps=40)

    assert_same_variables(resumed(), whole)
    evaluate = partial(te.Estimator.evaluate, input_fn=lambda: people().batch(32))
    assert evaluate(resumed()) == evaluate(whole)


def test_evaluations_in_between_do_not_show_in_a_resumed_run_without_a_seed(tmp_path: Path) -> None:
    def job(name: str, failures: int = 0) -> te.Estimator:
        estimator = wide_and_deep(
            tmp_path / name, dnn_dropout=0.3, settings={"random_seed": None, "save_checkpoints_steps": 5}
        )
        te.train_and_evaluate(
            estimator,
            te.TrainSpec(INPUTS["in order"], max_steps=20),
            te.EvalSpec(lambda: people().batch(32), throttle_secs=0, exporters=WritingExporter(failures=failures)),
        )
        return estimator

    torch.manual_seed(0)
    whole = job("whole")
    torch.manual_seed(0)
    with pytest.raises(ConnectionError):
        job("killed", failures=1)
    torch.manual_seed(99)
    assert_same_variables(job("killed"), whole)


@pytest.mark.parametrize(
    "optimizer",
    [partial(torch.optim.Adam, lr=0.05), partial(torch.optim.SGD, lr=0.01, momentum=0.9), "Adam", "RMSProp", "SGD"],
)
def test_any_optimizer_survives_a_checkpoint_bit_for_bit(tmp_path: Path, optimizer: Any) -> None:
    make = partial(wide_and_deep, linear_optimizer=optimizer, dnn_optimizer=optimizer)
    whole = make(tmp_path / "whole").train(INPUTS["shuffled"], steps=20)
    make(tmp_path / "resumed").train(INPUTS["shuffled"], steps=9)
    make(tmp_path / "resumed").train(INPUTS["shuffled"], max_steps=20)
    assert_same_variables(make(tmp_path / "resumed"), whole)


def test_optimizers_of_both_kinds_can_be_mixed(tmp_path: Path) -> None:
    make = partial(wide_and_deep, dnn_optimizer=partial(torch.optim.Adam, lr=0.05))
    whole = make(tmp_path / "whole").train(INPUTS["in order"], steps=12)
    make(tmp_path / "resumed").train(INPUTS["in order"], steps=5).train(INPUTS["in order"], steps=7)
    assert_same_variables(make(tmp_path / "resumed"), whole)


class Seen(te.Hook):
    """Reads the first number of each batch that was trained on, off a module that keeps it."""

    def __init__(self) -> None:
        self.values: list[int] = []

    def after_step(self, context: te.RunContext) -> None:
        self.values.append(int(context.module.seen))  # type: ignore[union-attr]


class Watching(Line):
    seen = torch.tensor(-1)

    def forward(self, features: Any) -> torch.Tensor:
        self.seen = features["number"][0]
        return super().forward({"x": features["number"].float().repeat(1, 2) / 1000})


def watching(model_dir: object, **settings: Any) -> te.Estimator:
    def model_fn(mode: str) -> te.EstimatorSpec:
        return te.EstimatorSpec(
            mode=mode, module=Watching(), loss=squared_error, optimizer=partial(torch.optim.SGD, lr=1e-3)
        )

    return te.Estimator(model_fn, str(model_dir), te.RunConfig(**{"save_checkpoints_steps": 1000, **settings}))


def numbers(batches: int) -> te.data.Dataset:
    column = np.arange(2 * batches, dtype=np.int64).reshape(-1, 1)
    return te.data.Dataset.from_arrays({"number": column}, column.astype(np.float32)).batch(2)


def seen(estimator: te.Estimator, batches: int, **arguments: Any) -> list[int]:
    hook = Seen()
    estimator.train(lambda: numbers(batches), hooks=[hook], **arguments)
    return hook.values


def test_train_after_train_goes_on_in_the_data(tmp_path: Path) -> None:
    estimator = watching(tmp_path)
    assert seen(estimator, 10, steps=3) == [0, 2, 4]
    assert seen(estimator, 10, steps=2) == [6, 8]
    assert seen(watching(tmp_path), 10, max_steps=7) == [10, 12]


def test_resume_input_false_starts_the_data_over(tmp_path: Path) -> None:
    assert seen(watching(tmp_path), 10, steps=3) == [0, 2, 4]
    assert seen(watching(tmp_path, resume_input=False), 10, steps=2) == [0, 2]


def test_input_that_ended_starts_over_in_a_new_call(tmp_path: Path) -> None:
    estimator = watching(tmp_path)
    assert seen(estimator, 3, steps=5) == [0, 2, 4]
    assert seen(estimator, 3, steps=2) == [0, 2]
    assert seen(estimator, 3, steps=5) == [4]
    assert seen(estimator, 3) == [0, 2, 4]
    assert estimator.get_variable_value("global_step") == 9


def test_input_used_up_to_the_last_batch_starts_over_in_a_new_call(tmp_path: Path) -> None:
    estimator = watching(tmp_path)
    assert seen(estimator, 3, steps=3) == [0, 2, 4]
    assert seen(estimator, 3, steps=2) == [0, 2]
    assert seen(estimator, 3, max_steps=6) == [4]
    assert seen(watching(tmp_path), 3, max_steps=8) == [0, 2]


def test_other_data_is_read_from_its_beginning_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert seen(watching(tmp_path), 10, steps=3) == [0, 2, 4]
    assert seen(watching(tmp_path), 11, steps=2) == [0, 2]
    assert any("Reading the input from its beginning." in message for message in caplog.messages)


def test_checkpoints_at_the_start_every_n_steps_and_at_the_end(tmp_path: Path) -> None:
    line(tmp_path / "all", save_checkpoints_steps=4).train(points, max_steps=10)
    assert checkpoint_steps(tmp_path / "all") == [0, 4, 8, 10]
    line(tmp_path / "two", save_checkpoints_steps=4, keep_checkpoint_max=2).train(points, max_steps=10)
    assert checkpoint_steps(tmp_path / "two") == [8, 10]
    assert not (tmp_path / "two" / "model.ckpt-4").exists()


@pytest.mark.parametrize("settings", [{}, {"save_checkpoints_steps": None, "save_checkpoints_secs": None}])
def test_training_does_not_start_from_0_beside_checkpoints_whose_index_is_lost(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    line(tmp_path).train(points, max_steps=3)
    (tmp_path / "checkpoint").unlink()
    again = te.Estimator(line_model_fn, str(tmp_path), te.RunConfig(**settings))
    with pytest.raises(te.errors.CheckpointError, match=r"holds model.ckpt-0, model.ckpt-3, but no file 'checkpoint'"):
        again.train(points, steps=1)
    (tmp_path / "checkpoint").write_text('{"model_checkpoint_path": "model.ckpt-3"}')
    assert again.train(points, steps=1).latest_checkpoint() is not None
    assert (tmp_path / "model.ckpt-0").is_dir()


@pytest.mark.parametrize("settings", [{"save_checkpoints_steps": None}, {"save_checkpoints_secs": 0}])
def test_without_checkpoints_nothing_is_saved(tmp_path: Path, settings: dict[str, Any]) -> None:
    estimator = te.Estimator(line_model_fn, str(tmp_path), te.RunConfig(**settings)).train(points, steps=3)
    assert estimator.latest_checkpoint() is None


def test_a_training_that_has_ended_holds_no_memory(tmp_path: Path) -> None:
    held: list[weakref.ref[Any]] = []

    class Optimizers(te.Hook):
        def begin(self, context: te.RunContext) -> None:
            held.extend(map(weakref.ref, context.optimizers))

    # The first optimizer of a process is held by what PyTorch imports for it.
    line(tmp_path / "first").train(points, steps=1)
    gc.collect()
    gc.disable()
    try:
        line(tmp_path / "second").train(points, hooks=[Optimizers()], steps=2)
        assert held and all(one() is None for one in held)
    finally:
        gc.enable()


def test_a_checkpoint_holds_all_that_a_run_goes_on_from(tmp_path: Path) -> None:
    wide_and_deep(tmp_path).train(INPUTS["shuffled"], steps=3)
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.step == 3
    assert {name.partition("/")[0] for name in checkpoint.variables} == {"linear", "dnn"}
    assert "linear/linear_model/city/weights/Ftrl_1" in checkpoint.slots
    assert "dnn/hiddenlayer_0/kernel/Adagrad" in checkpoint.slots
    assert {"input", "input_ended", "random", "optimizers"} <= set(checkpoint.state)
    assert checkpoint.state["input_ended"] is False
    assert checkpoint.state["optimizers"] == ["torch_estimator.Ftrl", "torch_estimator.Adagrad"]


def test_nan_raises_and_leaves_the_last_good_checkpoint(tmp_path: Path) -> None:
    def poisoned() -> te.data.Dataset:
        return points(rows=27).map(lambda x, y: (x, y if len(y) == 4 else y * np.nan))

    estimator = line(tmp_path, save_checkpoints_steps=2)
    with pytest.raises(te.NanLossDuringTrainingError, match=r"^The loss became NaN at global step 7;"):
        estimator.train(poisoned)
    assert checkpoint_steps(tmp_path) == [0, 2, 4, 6]
    assert all(np.isfinite(value).all() for value in variables(estimator).values())


def test_the_log_is_tf_estimators(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    estimator = line(tmp_path, log_step_count_steps=3, save_checkpoints_steps=4)
    estimator.train(lambda: points().repeat(), steps=8)
    expected = [
        r"Calling model_fn\.",
        r"Done calling model_fn\.",
        r"Training on cpu\.",
        rf"Saving checkpoints for 0 into {tmp_path}\.",
        r"loss = [\d.e+-]+, step = 0",
        rf"Saving checkpoints for 4 into {tmp_path}\.",
        r"global_step/sec: [\d.e+]+",
        r"loss = [\d.e+-]+, step = 3 \(\d\.\d{3} sec\)",
        r"global_step/sec: [\d.e+]+",
        r"loss = [\d.e+-]+, step = 6 \(\d\.\d{3} sec\)",
        rf"Saving checkpoints for 8 into {tmp_path}\.",
        r"Training ended at global step 8: the last step was reached\.",
    ]
    assert len(caplog.messages) == len(expected)
    for message, pattern in zip(caplog.messages, expected, strict=True):
        assert re.fullmatch(pattern, message), (message, pattern)


def test_the_logged_loss_is_the_one_of_that_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Losses(te.Hook):
        values: list[float]

        def after_step(self, context: te.RunContext) -> None:
            self.values.append(context.loss)

    losses = Losses()
    losses.values = []
    caplog.set_level(logging.INFO, "torch_estimator")
    line(tmp_path, log_step_count_steps=100).train(lambda: points().repeat(), steps=201, hooks=[losses])
    logged = [message for message in caplog.messages if message.startswith("loss")]
    for message, step in zip(logged, [0, 100, 200], strict=True):
        assert message.startswith(f"loss = {losses.values[step]:g}, step = {step}")


def test_by_default_log_lines_come_at_most_once_a_second_and_events_every_100_steps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    started = time.monotonic()
    line(tmp_path, compile=False).train(lambda: points().repeat(), steps=1001)
    secs = time.monotonic() - started
    losses = [text for text in caplog.messages if text.startswith("loss = ")]
    assert losses[0].endswith("step = 0")
    assert ", step = 1000 (" in losses[-1]
    assert len(losses) <= secs + 2
    assert len([text for text in caplog.messages if text.startswith("global_step/sec")]) <= secs + 1
    assert read_scalars(str(tmp_path))["global_step/sec"].steps.tolist() == list(range(101, 1002, 100))


def test_log_steps_that_are_given_are_all_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    estimator = line(tmp_path, log_step_count_steps=100)
    estimator = te.Estimator(estimator.job.builder.model_fn, config=estimator.config.replace(keep_checkpoint_max=2))
    estimator.train(lambda: points().repeat(), steps=301)
    assert len([text for text in caplog.messages if text.startswith("loss = ")]) == 4


def test_log_step_count_steps_none_switches_both_lines_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    line(tmp_path, log_step_count_steps=None).train(points, steps=3)
    assert not [message for message in caplog.messages if message.startswith(("loss", "global_step/sec"))]
    assert "global_step/sec" not in read_scalars(tmp_path)


def test_an_input_without_rows_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    line(tmp_path).train(lambda: points().take(0))
    assert "Training took no step: the input is empty or at its end." in caplog.messages
    assert checkpoint_steps(tmp_path) == [0]


def curve(model_dir: Path, tag: str) -> list[int]:
    return read_scalars(model_dir)[tag].steps.tolist()


def test_summaries_hold_loss_and_speed(tmp_path: Path) -> None:
    line(tmp_path, save_summary_steps=4, log_step_count_steps=5).train(points, steps=12)
    assert sorted(read_scalars(tmp_path)) == ["global_step/sec", "loss"]
    assert curve(tmp_path, "loss") == [1, 5, 9]
    assert curve(tmp_path, "global_step/sec") == [6, 11]


@pytest.mark.parametrize("steps", [None, 0])
def test_summaries_can_be_switched_off(tmp_path: Path, steps: int | None) -> None:
    line(tmp_path, save_summary_steps=steps).train(points, steps=3)
    assert "loss" not in read_scalars(tmp_path)


def test_a_resumed_runs_summaries_go_on_without_a_gap(tmp_path: Path) -> None:
    estimator = line(tmp_path, save_summary_steps=1)
    estimator.train(points, steps=3)
    estimator.train(points, steps=3)
    assert curve(tmp_path, "loss") == [1, 2, 3, 4, 5, 6]


def test_what_a_killed_run_wrote_beyond_its_checkpoint_is_dropped(tmp_path: Path) -> None:
    class Kill(te.Hook):
        first_step = 5

        def after_step(self, context: te.RunContext) -> None:
            raise ConnectionError

    with pytest.raises(ConnectionError):
        line(tmp_path, save_summary_steps=1, save_checkpoints_steps=3).train(points, hooks=[Kill()], steps=9)
    assert curve(tmp_path, "loss") == [1, 2, 3, 4, 5]
    assert checkpoint_steps(tmp_path) == [0, 3]
    line(tmp_path, save_summary_steps=1).train(points, max_steps=6)
    assert curve(tmp_path, "loss") == [1, 2, 3, 4, 5, 6]


def test_a_models_own_hooks_are_told_too(tmp_path: Path) -> None:
    told: list[str] = []

    class Teller(te.Hook):
        def __init__(self, name: str) -> None:
            self.name = name

        def after_step(self, context: te.RunContext) -> None:
            told.append(self.name)

    def model_fn(mode: str) -> te.EstimatorSpec:
        spec = line_model_fn(mode)
        return te.EstimatorSpec(
            mode=mode, module=spec.module, loss=spec.loss, optimizer=spec.optimizer, training_hooks=[Teller("model's")]
        )

    te.Estimator(model_fn, str(tmp_path)).train(points, steps=1, hooks=[Teller("caller's")])
    assert told == ["model's", "caller's"]


def test_a_frozen_layer_stays(tmp_path: Path) -> None:
    def model_fn(mode: str) -> te.EstimatorSpec:
        spec = line_model_fn(mode)
        spec.module.linear.weight.requires_grad_(False)  # type: ignore[union-attr]
        return spec

    estimator = te.Estimator(model_fn, str(tmp_path), te.RunConfig(save_checkpoints_steps=10)).train(points, steps=5)
    start, end = (load_checkpoint(tmp_path / f"model.ckpt-{step}").variables for step in (0, 5))
    assert torch.equal(start["linear.weight"], end["linear.weight"])
    assert not torch.equal(start["linear.bias"], end["linear.bias"])
    assert "linear.weight/momentum_buffer" not in estimator.get_variable_names()


def test_the_same_seed_gives_the_same_model(tmp_path: Path) -> None:
    one, same, other = (
        wide_and_deep(tmp_path / name, dnn_dropout=0.5, settings={"random_seed": seed}).train(
            INPUTS["in order"], steps=3
        )
        for name, seed in (("one", 1), ("same", 1), ("other", 2))
    )
    assert_same_variables(one, same)
    name = "dnn/hiddenlayer_0/kernel"
    assert not np.array_equal(one.get_variable_value(name), other.get_variable_value(name))


def test_a_compiled_step_equals_the_eager_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def data() -> te.data.Dataset:
        return people().shuffle(1000, seed=1).batch(7).repeat()

    caplog.set_level(logging.INFO, "torch_estimator")
    eager, compiled = (
        wide_and_deep(tmp_path / str(compile), settings={"compile": compile}).train(data, steps=30)
        for compile in (False, True)
    )
    assert "Compiling the training step for batches of 7; this takes some seconds." in caplog.messages
    theirs = variables(eager)
    for name, value in variables(compiled).items():
        np.testing.assert_allclose(value, theirs[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_a_larger_batch_than_the_first_is_compiled_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    first_partial = partial(points, rows=10, batch=4)
    eager, compiled = (line(tmp_path / str(compile), compile=compile) for compile in (False, True))
    for estimator in (eager, compiled):
        estimator.train(lambda: first_partial().repeat().skip(2), steps=4)
    sizes = [int(rows) for m in caplog.messages for rows in re.findall(r"Compiling .* for batches of (\d+)", m)]
    # The first step of an optimizer of torch's, here of 2 rows, runs in Python.
    assert sizes == [4]
    theirs = variables(eager)
    for name, value in variables(compiled).items():
        np.testing.assert_allclose(value, theirs[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_compiled_training_resumes_bit_for_bit_with_dropout_batch_norm_and_partial_batches(
    tmp_path: Path, compilations: Callable[[], list[int]]
) -> None:
    def data() -> te.data.Dataset:
        return people().take(23).batch(10).repeat()

    def job(name: str) -> te.Estimator:
        return wide_and_deep(tmp_path / name, dnn_dropout=0.3, batch_norm=True, settings={"compile": True})

    whole = job("whole").train(data, steps=9)
    assert compilations() == [10]
    # Stopped just before the short batch, which the whole run took eagerly.
    job("resumed").train(data, steps=2)
    resumed = job("resumed").train(data, steps=7)
    assert_same_variables(whole, resumed)


@pytest.mark.slow
def test_compiling_gives_what_training_eagerly_gives_with_dropout(tmp_path: Path) -> None:
    eager, compiled = (
        wide_and_deep(tmp_path / str(compile), dnn_dropout=0.3, settings={"compile": compile}).train(
            lambda: people().batch(10).repeat(), steps=100
        )
        for compile in (False, True)
    )
    theirs = variables(eager)
    for name, value in variables(compiled).items():
        np.testing.assert_allclose(value, theirs[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_compiled_training_may_be_called_any_number_of_times(tmp_path: Path) -> None:
    estimator = line(tmp_path, compile=True)
    for _ in range(10):
        estimator.train(points, steps=1)
    assert int(estimator.get_variable_value("global_step")) == 10


@pytest.mark.parametrize("weights", [[1.0, 0.0], [0.0, 1.0]])
def test_weights_decide_what_is_learnt(weights: list[float], tmp_path: Path) -> None:
    features = {"x": np.array([1.0, 1.0], np.float32), "w": np.array(weights, np.float32)}
    data = te.data.Dataset.from_arrays(features, np.array([3.0, -3.0], np.float32)).batch(2).repeat()
    estimator = te.LinearRegressor([fc.numeric_column("x")], str(tmp_path), weight_column="w")
    estimator.train(lambda: data, steps=50)
    (bias,) = estimator.get_variable_value("linear/linear_model/bias_weights")
    assert bias > 0.1 if weights[0] else bias < -0.1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_no_number_is_named(value: float, tmp_path: Path) -> None:
    features = {"x": np.ones(2, np.float32), "w": np.array([1.0, value], np.float32)}
    data = te.data.Dataset.from_arrays(features, np.ones(2, np.float32)).batch(2)
    estimator = te.LinearRegressor([fc.numeric_column("x")], str(tmp_path), weight_column="w")
    with pytest.raises(te.UserError, match=rf"'w'.*a weight must be a finite number, but this is {value}"):
        estimator.train(lambda: data, steps=1)


def test_a_weight_that_float32_does_not_hold_is_named(tmp_path: Path) -> None:
    features = {"x": np.ones(2, np.float32), "w": np.array([1.0, 1e300])}
    data = te.data.Dataset.from_arrays(features, np.ones(2, np.float32)).batch(2)
    estimator = te.LinearRegressor([fc.numeric_column("x")], str(tmp_path), weight_column="w")
    with pytest.raises(te.UserError, match=r"'w'.*weight 1e\+300 is beyond float32"):
        estimator.train(lambda: data, steps=1)


def test_batches_that_a_map_leaves_without_rows_count_for_nothing(tmp_path: Path) -> None:
    x = np.arange(10, dtype=np.float32)

    def kept() -> te.data.Dataset:
        every = te.data.Dataset.from_arrays({"x": x}, x).batch(2)
        return every.map(lambda features, labels: ({"x": features["x"][labels > 3]}, labels[labels > 3]))

    estimator = te.LinearRegressor([fc.numeric_column("x")], str(tmp_path)).train(kept, steps=3)
    expected = estimator.evaluate(lambda: te.data.Dataset.from_arrays({"x": x[4:]}, x[4:]).batch(2))
    assert expected["average_loss"] > 0
    assert estimator.evaluate(kept) == pytest.approx(expected)
    assert len([*estimator.predict(lambda: kept())]) == 6


def test_checkpoints_are_pinned_every_n_hours(tmp_path: Path) -> None:
    estimator = line(tmp_path, save_checkpoints_steps=1, keep_checkpoint_max=1, keep_checkpoint_every_n_hours=1e-9)
    estimator.train(points, steps=3)
    assert len(checkpoint_steps(tmp_path)) > 1


@pytest.mark.parametrize("own_generator", [False, True])
def test_a_shuffling_data_loader_resumes_exactly_in_any_pass(own_generator: bool, tmp_path: Path) -> None:
    def data() -> te.data.Dataset:
        x = torch.randn(24, 2, generator=torch.Generator().manual_seed(0))
        rows = [({"x": row}, row.sum(0, keepdim=True)) for row in x]
        generator = torch.Generator().manual_seed(7) if own_generator else None
        loader = torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True, generator=generator)
        return te.data.Dataset.from_iterable(loader).repeat()

    whole = line(tmp_path / "whole", random_seed=1).train(data, steps=8)
    resumed = line(tmp_path / "resumed", random_seed=1)
    for steps in (2, 3, 3):
        resumed.train(data, steps=steps)
    assert_same_variables(whole, resumed)


def test_a_map_that_draws_from_torch_resumes_exactly(tmp_path: Path) -> None:
    def noisy(features: Any, labels: Any) -> Any:
        return {"x": features["x"] + torch.randn(features["x"].shape).numpy()}, labels

    whole = line(tmp_path / "whole", random_seed=1).train(lambda: points().map(noisy), steps=8)
    resumed = line(tmp_path / "resumed", random_seed=1)
    for steps in (3, 5):
        resumed.train(lambda: points().map(noisy), steps=steps)
    assert_same_variables(whole, resumed)


@pytest.mark.parametrize(
    "optimizer",
    [partial(torch.optim.Adafactor, lr=0.01), partial(torch.optim.Adam, lr=0.01), partial(torch.optim.SGD, lr=0.1)],
)
def test_optimizers_of_torch_resume_exactly_whatever_state_they_keep(optimizer: Any, tmp_path: Path) -> None:
    def job(name: str) -> te.Estimator:
        return wide_and_deep(tmp_path / name, linear_optimizer=optimizer, dnn_optimizer=optimizer)

    def data() -> te.data.Dataset:
        return people().batch(10).repeat()

    whole = job("whole").train(data, steps=6)
    job("resumed").train(data, steps=3)
    assert_same_variables(whole, job("resumed").train(data, steps=3))
