"""Batches that are computed as one give what each of them gives."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import torchmetrics
from torch import Tensor, nn

import torch_estimator as te
from tests.models.test_heads_on_models import HEADS, MODELS, data, train_data
from torch_estimator import feature_column as fc
from torch_estimator.heads import LossReduction

ROWS = 200


class EveryBatch(te.Hook):
    """Wants to be told of every batch, so that each is computed by itself."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def after_step(self, context: te.RunContext) -> None:
        if context.mode == "eval":
            self.losses.append(context.loss)


class Watch(te.Hook):
    """Notes how many rows the module is called with, unnoticed."""

    every_n_steps = None

    def __init__(self) -> None:
        self.rows: list[int] = []

    def begin(self, context: te.RunContext) -> None:
        module = context.module
        assert module is not None
        forward = module.forward

        def noting(features: Any) -> Any:
            outputs = forward(features)
            self.rows.append(len(outputs))
            return outputs

        module.forward = noting  # type: ignore[method-assign]

    def end(self, context: te.RunContext) -> None:
        del context.module.forward  # type: ignore[union-attr]


AGE, PAY = fc.numeric_column("age"), fc.numeric_column("pay")
CITY = fc.categorical_column_with_hash_bucket("city", 20)
AGES = fc.bucketized_column(AGE, [20.0, 40.0, 60.0])
WIDE = [CITY, AGES, fc.crossed_column([AGES, "city"], 100)]
DEEP = [fc.embedding_column(CITY, 4), fc.indicator_column(AGES), AGE, PAY]


def columns() -> dict[str, Any]:
    random = np.random.default_rng(5)
    return {
        "city": random.choice(["Oslo", "Rome", "Lima", "Bern", ""], ROWS).astype(object),
        "age": random.uniform(0, 90, ROWS).astype(np.float32),
        "pay": random.lognormal(8, 2, ROWS).astype(np.float32),
        "weight": random.choice([0.0, 0.5, 2.0], ROWS).astype(np.float32),
    }


def people(batch: int = 7) -> te.data.Dataset:
    there = columns()
    richer = (there["pay"] > 3000) ^ (np.arange(ROWS) % 5 == 0)
    return te.data.Dataset.from_arrays(there, richer.astype(np.float32)).batch(batch)


def classifier(folder: Path, **more: Any) -> te.Estimator:
    arguments = {"dnn_hidden_units": [8, 6], "config": te.RunConfig(random_seed=1), **more}
    estimator = te.DNNLinearCombinedClassifier(
        str(folder), linear_feature_columns=WIDE, dnn_feature_columns=DEEP, **arguments
    )
    return estimator.train(lambda: people().repeat(), steps=30)


def check_evaluation(estimator: te.Estimator, input_fn: Callable[[], te.data.Dataset], rows: list[int]) -> None:
    """Evaluates with the batches computed as one, each time so many rows, and one by one."""
    watch, every = Watch(), EveryBatch()
    together = estimator.evaluate(input_fn, hooks=[watch])
    one_by_one = estimator.evaluate(input_fn, hooks=[every])
    assert watch.rows == rows
    assert list(together) == list(one_by_one)
    assert together == pytest.approx(one_by_one, rel=1e-5, abs=1e-6)
    assert together["loss"] == pytest.approx(np.mean(every.losses), rel=1e-5)


def check_prediction(estimator: te.Estimator, input_fn: Callable[[], te.data.Dataset], rows: list[int]) -> None:
    """Predicts with the batches computed as one, each time so many rows, and one by one."""
    watch = Watch()
    predict = partial(estimator.predict, input_fn, yield_single_examples=False)
    together, one_by_one = list(predict(hooks=[watch])), list(predict(hooks=[EveryBatch()]))
    assert watch.rows == rows
    check_same(together, one_by_one)
    check_same(list(estimator.predict(input_fn)), list(estimator.predict(input_fn, hooks=[EveryBatch()])))


def check_same(some: list[dict[str, Any]], others: list[dict[str, Any]]) -> None:
    for one, other in zip(some, others, strict=True):
        assert list(one) == list(other)
        for key, value in one.items():
            if isinstance(value, np.ndarray) and value.dtype != object:
                assert value.dtype == other[key].dtype
                np.testing.assert_allclose(value, other[key], rtol=1e-5, atol=1e-6)
            else:
                assert np.array_equal(value, other[key])


@pytest.mark.parametrize(("model", "head"), [*itertools.product(MODELS, HEADS)])
def test_every_model_with_every_head(model: str, head: str, tmp_path: Path) -> None:
    estimator = MODELS[model](HEADS[head], str(tmp_path)).train(lambda: train_data(head), steps=10)
    check_evaluation(estimator, lambda: data(head).batch(7), [7, 49, 4])
    # A user's own function of logits may look at a batch as a whole.
    expected = [7] * 8 + [4] if head == "regression" else [7, 49, 4]
    check_prediction(estimator, lambda: data(head).batch(7), expected)


@pytest.mark.parametrize("reduction", LossReduction)
@pytest.mark.parametrize("weight_column", [None, "weight"])
@pytest.mark.parametrize("batch", [1, 7])
def test_every_reduction(reduction: LossReduction, weight_column: str | None, batch: int, tmp_path: Path) -> None:
    estimator = classifier(tmp_path, loss_reduction=reduction, weight_column=weight_column, batch_norm=True)
    rest = ROWS % batch
    check_evaluation(estimator, lambda: people(batch), [batch, ROWS - batch - rest, *([rest] if rest else [])])
    check_prediction(estimator, lambda: people(batch), [batch, ROWS - batch - rest, *([rest] if rest else [])])


@pytest.mark.parametrize(
    "activation_fn",
    [torch.tanh, nn.LeakyReLU(0.1), nn.PReLU(), partial(nn.functional.elu, alpha=0.5), nn.functional.gelu],
)
def test_activations_and_dropout(activation_fn: Any, tmp_path: Path) -> None:
    estimator = classifier(tmp_path, dnn_activation_fn=activation_fn, dnn_dropout=0.5, batch_norm=True)
    check_evaluation(estimator, people, [7, 189, 4])
    check_prediction(estimator, people, [7, 189, 4])


@pytest.mark.parametrize(
    "activation_fn", [lambda hidden: hidden - hidden.mean(0), nn.BatchNorm1d(8, track_running_stats=False)]
)
def test_an_activation_that_may_look_at_other_rows_sees_the_batches(activation_fn: Any, tmp_path: Path) -> None:
    estimator = classifier(tmp_path, dnn_activation_fn=activation_fn, dnn_hidden_units=[8])
    check_evaluation(estimator, people, [7] * 28 + [4])
    check_prediction(estimator, people, [7] * 28 + [4])


def test_a_module_of_a_users_sees_the_batches(tmp_path: Path) -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x - x.mean(0))

    def points() -> te.data.Dataset:
        x = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
        return te.data.Dataset.from_arrays(x, x.sum(1) > 0).batch(4)

    estimator = te.Estimator.from_module(Centred(), head=te.BinaryClassHead(), optimizer="SGD", model_dir=str(tmp_path))
    estimator.train(points, steps=3)
    check_evaluation(estimator, points, [4] * 5)
    check_prediction(estimator, points, [4] * 5)


def test_a_head_of_a_users_and_a_loss_function_see_the_batches(tmp_path: Path) -> None:
    class Ranking(te.BinaryClassHead):
        def loss(self, logits: Tensor, labels: Tensor, *beside: Any) -> Tensor:
            return (logits - logits.mean()).square().mean()

        def predictions(self, logits: Tensor) -> dict[str, Tensor]:
            return {"rank": logits.argsort(0), **super().predictions(logits)}

    def against_the_mean(labels: Tensor, logits: Tensor) -> Tensor:
        return (labels - labels.mean() - logits).square()

    for number, head in enumerate((Ranking(), te.BinaryClassHead(loss_fn=against_the_mean))):
        make = partial(te.DNNEstimator, head, [8], DEEP, config=te.RunConfig(random_seed=1))
        estimator = make(str(tmp_path / str(number))).train(lambda: people().repeat(), steps=5)
        watch, every = Watch(), EveryBatch()
        together = estimator.evaluate(people, hooks=[watch])
        assert watch.rows == [7, 189, 4]
        assert together["loss"] == pytest.approx(estimator.evaluate(people, hooks=[every])["loss"], rel=1e-5)
        assert together["loss"] == pytest.approx(np.mean(every.losses), rel=1e-5)
        check_prediction(estimator, people, [7] * 28 + [4])


def test_metrics_that_were_added_see_the_batches(tmp_path: Path) -> None:
    batches: list[int] = []

    def noted(predictions: Mapping[str, Tensor], features: Mapping[str, Any]) -> dict[str, Any]:
        batches.append(len(predictions["logistic"]))
        assert {len(column) for column in features.values()} == {batches[-1]}
        mean = torchmetrics.MeanMetric()
        mean.update(predictions["logistic"] * features["pay"][:, None])
        return {"weighed": mean}

    estimator = te.add_metrics(classifier(tmp_path, weight_column="weight"), noted)
    check_evaluation(estimator, people, [7, 189, 4])
    assert batches == [*[7] * 28, 4] * 2


def test_lists_are_evaluated_batch_by_batch(tmp_path: Path) -> None:
    words = fc.categorical_column_with_vocabulary_list("words", ["a", "b", "c"], multivalent=True)
    random = np.random.default_rng(1)
    lists = pa.array([random.choice(["a", "b", "c", "d"], row % 9).tolist() for row in range(ROWS)])
    make = lambda: te.data.Dataset.from_arrays({"words": lists}, np.arange(ROWS) % 2).batch(7)  # noqa: E731
    estimator = te.LinearClassifier([words], str(tmp_path)).train(make, steps=20)
    check_evaluation(estimator, make, [7] * 28 + [4])
    check_prediction(estimator, make, [7] * 28 + [4])


def test_a_large_model_takes_as_many_rows_as_fill_a_thread(tmp_path: Path) -> None:
    estimator = te.DNNClassifier([1000, 2000], DEEP, str(tmp_path)).train(people, steps=1)
    # Two million multiply-adds a row.
    check_evaluation(estimator, people, [7] + [14] * 13 + [7, 4])


def test_hooks_are_told_at_the_batches_that_they_ask_for(tmp_path: Path) -> None:
    class Some(EveryBatch):
        first_step = 3
        every_n_steps = 10

    estimator = classifier(tmp_path)
    some, every, watch = Some(), EveryBatch(), Watch()
    estimator.evaluate(people, hooks=[some, watch])
    estimator.evaluate(people, hooks=[every])
    assert watch.rows == [7, 7, 7, 63, 7, 63, 7, 35, 4]
    assert some.losses == pytest.approx([every.losses[at] for at in (2, 12, 22)], rel=1e-6)
    predicting = Watch()
    assert len(list(estimator.predict(people, hooks=[Some(), predicting]))) == ROWS
    assert predicting.rows == watch.rows


def test_hooks_told_after_seconds_are_asked_between(tmp_path: Path) -> None:
    class Timed(EveryBatch):
        every_secs = 10.0

        def __init__(self, clock: Callable[[], float]) -> None:
            super().__init__()
            self.clock = clock  # type: ignore[method-assign]

    watch = Watch()
    estimator = te.DNNClassifier([1000, 2000], DEEP, str(tmp_path)).train(people, steps=1)
    # Each pass takes a second; twice as many rows as one batch are as many as fill a thread.
    timed = Timed(lambda: float(len(watch.rows)))
    estimator.evaluate(people, hooks=[timed, watch])
    assert watch.rows == [7, *[14] * 9, 7, *[14] * 4, 4]
    assert len(timed.losses) == 2


def test_a_hook_that_looks_on_sees_every_batch(tmp_path: Path) -> None:
    class LookingOn(te.Hook):
        first_step = 4
        every_n_steps = None

        def __init__(self, at: str) -> None:
            self.seen: list[int] = []
            setattr(self, at, self.look)
            if at == "after_step":
                self.every_n_steps = 1000

        def look(self, context: te.RunContext) -> None:
            assert context.module is not None
            layer = context.module.get_submodule("dnn.logits")
            self.handle = layer.register_forward_hook(lambda module, inputs, output: self.seen.append(len(output)))

        def after_step(self, context: te.RunContext) -> None:
            pass

        def end(self, context: te.RunContext) -> None:
            self.handle.remove()

    estimator = classifier(tmp_path)
    from_the_beginning, later = LookingOn("begin"), LookingOn("after_step")
    estimator.evaluate(people, hooks=[from_the_beginning])
    assert from_the_beginning.seen == [7] * 28 + [4]
    estimator.evaluate(people, hooks=[later])
    assert later.seen == [7] * 24 + [4]
    list(estimator.predict(people, hooks=[from_the_beginning]))
    assert from_the_beginning.seen == ([7] * 28 + [4]) * 2


def test_a_hook_may_stop_it(tmp_path: Path) -> None:
    class Stop(EveryBatch):
        first_step = 11

        def after_step(self, context: te.RunContext) -> None:
            context.request_stop()

    estimator = classifier(tmp_path)
    watch = Watch()
    stopped = estimator.evaluate(people, hooks=[Stop(), watch])
    assert stopped == pytest.approx(estimator.evaluate(people, steps=11), rel=1e-6)
    assert watch.rows == [7, 63, 7]
    assert len(list(estimator.predict(people, hooks=[Stop()]))) == 77


def test_there_are_as_many_batches_as_asked_for(tmp_path: Path) -> None:
    estimator = classifier(tmp_path)
    watch, every = Watch(), EveryBatch()
    results = estimator.evaluate(people, steps=12, hooks=[watch])
    assert watch.rows == [7, 77]
    assert results == pytest.approx(estimator.evaluate(people, steps=12, hooks=[every]), rel=1e-5)
    assert len(every.losses) == 12


def test_progress_is_logged_at_the_same_batches(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    estimator = classifier(tmp_path)
    caplog.set_level("INFO", "torch_estimator")
    estimator.evaluate(people, steps=20)
    lines = [record.message for record in caplog.records if record.message.startswith("Evaluation [")]
    assert lines == [f"Evaluation [{taken}/20]" for taken in range(2, 21, 2)]


def test_what_is_forwarded_belongs_to_its_rows(tmp_path: Path) -> None:
    estimator = te.forward_layers(
        te.forward_features(classifier(tmp_path), ["city", "pay"]), {"hidden": "dnn.hiddenlayer_1"}
    )
    check_prediction(estimator, people, [7, 189, 4])
    given = columns()
    for row, example in enumerate(estimator.predict(people)):
        assert example["city"] == given["city"][row]
        assert example["pay"] == given["pay"][row]
        assert example["hidden"].shape == (6,)
