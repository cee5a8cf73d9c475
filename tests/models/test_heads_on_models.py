"""Training, evaluation, prediction and export of every head with every model that takes a head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import torch_estimator as te
from tests.line_jobs import assert_same_variables, variables
from torch_estimator import feature_column as fc
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError

ROWS = 60
CITY = fc.categorical_column_with_vocabulary_list("city", ["Oslo", "Rome"])
AGE = fc.numeric_column("age")
RAW = [CITY, AGE]

BUYS = te.BinaryClassHead(name="buys", label_vocabulary=["no", "yes"], weight_column="w", thresholds=[0.4])
TAGS = te.MultiLabelHead(3, name="tags", label_vocabulary=["a", "b", "c"], classes_for_class_based_metrics=["b"])
VISITS = te.PoissonRegressionHead(name="visits", weight_column="v")

HEADS: dict[str, te.heads.Head] = {
    "binary": te.BinaryClassHead(label_vocabulary=["no", "yes"], weight_column="w"),
    "multi-class": te.MultiClassHead(3, weight_column="w"),
    "multi-label": te.MultiLabelHead(3, label_vocabulary=["a", "b", "c"], weight_column="v"),
    "regression": te.RegressionHead(2, inverse_link_fn=torch.nn.functional.softplus),
    "poisson": te.PoissonRegressionHead(),
    "logistic regression": te.LogisticRegressionHead(weight_column="w"),
    "multi-head": te.MultiHead([BUYS, TAGS, VISITS], head_weights=[1.0, 2.0, 0.5]),
}


def features() -> dict[str, Any]:
    random = np.random.default_rng(4)
    return {
        "city": random.choice(["Oslo", "Rome", "Lima", ""], ROWS).astype(object),
        "age": random.uniform(0, 2, ROWS).astype(np.float32),
        "w": random.uniform(0.5, 2, ROWS).astype(np.float32),
        "v": random.uniform(0.5, 2, ROWS).astype(np.float32),
    }


def labels(name: str) -> Any:
    random = np.random.default_rng(7)
    tags = pa.array([[tag for tag in "abc" if random.random() < 0.4] for _ in range(ROWS)], pa.list_(pa.string()))
    buys, visits = random.choice(["no", "yes"], ROWS).astype(object), random.integers(0, 5, ROWS)
    return {
        "binary": buys,
        "multi-class": random.integers(0, 3, ROWS),
        "multi-label": tags,
        "regression": random.normal(size=(ROWS, 2)),
        "poisson": visits,
        "logistic regression": random.uniform(size=ROWS),
        "multi-head": {"visits": visits, "tags": tags, "buys": buys},
    }[name]


def data(name: str) -> te.data.Dataset:
    return te.data.Dataset.from_arrays(features(), labels(name))


def train_data(name: str) -> te.data.Dataset:
    return data(name).shuffle(100, seed=2).repeat().batch(8)


def linear(head: te.heads.Head, model_dir: str, **settings: Any) -> te.Estimator:
    return te.LinearEstimator(head, RAW, model_dir, config=te.RunConfig(random_seed=1, **settings))


def deep(head: te.heads.Head, model_dir: str, **settings: Any) -> te.Estimator:
    columns = [fc.indicator_column(CITY), AGE]
    return te.DNNEstimator(head, [6], columns, model_dir, dropout=0.2, config=te.RunConfig(random_seed=1, **settings))


def wide_and_deep(head: te.heads.Head, model_dir: str, **settings: Any) -> te.Estimator:
    return te.DNNLinearCombinedEstimator(
        head,
        model_dir,
        linear_feature_columns=RAW,
        dnn_feature_columns=[fc.embedding_column(CITY, 2), AGE],
        dnn_hidden_units=[6],
        config=te.RunConfig(random_seed=1, **settings),
    )


def baseline(head: te.heads.Head, model_dir: str, **settings: Any) -> te.Estimator:
    return te.BaselineEstimator(head, model_dir, config=te.RunConfig(random_seed=1, **settings))


Make = Callable[..., te.Estimator]
MODELS: dict[str, Make] = {"linear": linear, "deep": deep, "wide and deep": wide_and_deep, "baseline": baseline}


def check_parity(estimator: te.Estimator, receiver: te.serving_input.ServingInput, tmp_path: Path) -> None:
    """Check that the export's ``predict`` returns the predictions of the estimator."""
    exported = te.ExportedModel.load(estimator.export_saved_model(str(tmp_path / "export"), receiver))
    columns = features()
    if receiver.kind == "csv":
        rows = zip(columns["city"], map(str, columns["age"]), strict=True)
        inputs: dict[str, Any] = {"csv_row": [",".join(row) for row in rows]}
    else:
        inputs = {name: columns[name] for name in ("city", "age")}
    theirs = exported.predict(inputs)
    (ours,) = estimator.predict(lambda: columns, yield_single_examples=False)
    named = {key if isinstance(key, str) else "/".join(key): value for key, value in ours.items()}
    assert list(named) == list(theirs)
    for key, value in named.items():
        assert value.shape == theirs[key].shape
        if value.dtype == object:
            assert value.tolist() == theirs[key].tolist()
        else:
            assert value.dtype == theirs[key].dtype
            np.testing.assert_allclose(value, theirs[key], atol=1e-5)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("name", HEADS)
def test_every_model_takes_every_head(name: str, make: Make, tmp_path: Path) -> None:
    estimator = make(HEADS[name], str(tmp_path / "job"))
    before = estimator.evaluate(lambda: data(name).batch(20))
    estimator.train(lambda: train_data(name), steps=30)
    after = estimator.evaluate(lambda: data(name).batch(20))
    assert after["loss"] < before["loss"]
    assert after.keys() == before.keys()
    check_parity(estimator, te.serving_input.raw_features(RAW), tmp_path)
    check_parity(estimator, te.serving_input.csv(["city", "age"], RAW), tmp_path)


def multi_head(model_dir: Path, **settings: Any) -> te.Estimator:
    return wide_and_deep(HEADS["multi-head"], str(model_dir), **settings)


def test_a_multi_heads_evaluation_is_that_of_its_heads(tmp_path: Path) -> None:
    estimator = multi_head(tmp_path)
    estimator.train(lambda: train_data("multi-head"), steps=3)
    results = estimator.evaluate(lambda: data("multi-head").batch(20))
    expected = 1.0 * results["loss/buys"] + 2.0 * results["loss/tags"] + 0.5 * results["loss/visits"]
    assert results["loss"] == pytest.approx(expected)
    assert {"accuracy/positive_threshold_0.4/buys", "auc/b/tags", "prediction/mean/visits"} <= results.keys()
    columns = features()
    (predicted,) = estimator.predict(lambda: columns, yield_single_examples=False)
    weights, means = columns["v"].astype(np.float64), predicted["visits", "predictions"][:, 0]
    assert results["prediction/mean/visits"] == pytest.approx((weights * means).sum() / weights.sum(), rel=1e-5)


def test_predict_keys_choose_among_the_heads_predictions(tmp_path: Path) -> None:
    estimator = multi_head(tmp_path)
    estimator.train(lambda: train_data("multi-head"), steps=1)

    def keys(predict_keys: Any) -> list[Any]:
        return list(next(iter(estimator.predict(features, predict_keys=predict_keys))))

    assert keys([("buys", "classes"), ("tags", "probabilities")]) == [("buys", "classes"), ("tags", "probabilities")]
    assert keys(("visits", "predictions")) == [("visits", "predictions")]
    with pytest.raises(InvalidValueError, match=r"None of predict_keys \['classes'\] is among the predictions"):
        keys("classes")


def weighted(labels: torch.Tensor, logits: torch.Tensor, features: Mapping[str, torch.Tensor], by: str) -> torch.Tensor:
    return (labels - logits).square() * features[by].reshape(-1, 1)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["eager", "compiled"])
def test_a_resumed_multi_head_run_is_bit_for_bit_the_uninterrupted_one(compiled: bool, tmp_path: Path) -> None:
    visits = te.RegressionHead(name="visits", loss_fn=partial(weighted, by="v"))
    head = te.MultiHead([BUYS, TAGS, visits], head_weights=[1, 2, 0.1])
    # A small model, because compiling takes long.
    make = partial(linear if compiled else deep, head, compile=compiled)
    whole = make(str(tmp_path / "whole")).train(lambda: train_data("multi-head"), max_steps=12)
    for steps in (5, 12):
        parts = make(str(tmp_path / "parts")).train(lambda: train_data("multi-head"), max_steps=steps)
    assert_same_variables(parts, whole)
    if compiled:
        eager = linear(head, str(tmp_path / "eager")).train(lambda: train_data("multi-head"), max_steps=12)
        for name, value in variables(eager).items():
            np.testing.assert_allclose(whole.get_variable_value(name), value, rtol=1e-4, atol=1e-5)


def test_csv_files_with_several_labels_train_a_multi_head(tmp_path: Path) -> None:
    columns, given = features(), labels("multi-head")
    lines = [
        f"{city},{age},{bought},{count},{w},{v}"
        for city, age, bought, count, w, v in zip(
            columns["city"], columns["age"], given["buys"], given["visits"], columns["w"], columns["v"], strict=True
        )
    ]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["city,age,bought,count,w,v", *lines]))

    def rows() -> te.data.Dataset:
        return te.data.Dataset.from_csv(path, label={"buys": "bought", "visits": "count"})

    estimator = wide_and_deep(te.MultiHead([BUYS, VISITS]), str(tmp_path / "job"))
    estimator.train(lambda: rows().shuffle(100, seed=1).repeat().batch(8), steps=5)
    from_csv = estimator.evaluate(lambda: rows().batch(20))
    in_memory = te.data.Dataset.from_arrays(columns, {name: given[name] for name in ("buys", "visits")})
    assert from_csv == pytest.approx(estimator.evaluate(lambda: in_memory.batch(20)))

    path.write_text("\n".join(["city,age,bought,count,w,v", *lines[:2], "Oslo,1.0,perhaps,2,1.0,1.0"]))
    with pytest.raises(DataError, match=r"a\.csv, line 4: column 'bought': unknown label 'perhaps'; expected one"):
        estimator.evaluate(lambda: rows().batch(20))
    with pytest.raises(InvalidValueError, match="no labels for the head 'visits': the labels are those of buys"):
        estimator.evaluate(lambda: te.data.Dataset.from_csv(path, label={"buys": "bought"}).batch(20))


@pytest.mark.parametrize("column", ["age", "v"], ids=["a column of the model's", "another column"])
def test_a_loss_fn_sees_the_columns(column: str, tmp_path: Path) -> None:
    by_function = linear(te.RegressionHead(loss_fn=partial(weighted, by=column)), str(tmp_path / "function"))
    by_weights = linear(te.RegressionHead(weight_column=column), str(tmp_path / "weights"))
    for estimator in (by_function, by_weights):
        estimator.train(lambda: train_data("poisson"), steps=4)
    assert_same_variables(by_function, by_weights)
    results = [estimator.evaluate(lambda: data("poisson").batch(20)) for estimator in (by_function, by_weights)]
    assert results[0]["loss"] == pytest.approx(results[1]["loss"])
    assert results[0]["average_loss"] == pytest.approx(results[1]["loss"])


def test_weights_and_a_loss_fn_need_features_with_names(tmp_path: Path) -> None:
    def arrays() -> Any:
        return np.zeros((4, 2), np.float32), np.zeros(4)

    for head, what in (
        (te.RegressionHead(weight_column="w"), "The weight column 'w' needs features with names"),
        (
            te.RegressionHead(loss_fn=partial(weighted, by="v")),
            "takes features, but the input's have no names",
        ),
    ):

        def model_fn(mode: str, head: te.heads.Head = head) -> te.EstimatorSpec:
            return te.EstimatorSpec(mode=mode, module=torch.nn.Linear(2, 1), head=head, optimizer=None)

        with pytest.raises(DataError, match=what):
            te.Estimator(model_fn, str(tmp_path)).evaluate(arrays, steps=1)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_only_a_head_is_accepted_as_head(make: Make, tmp_path: Path) -> None:
    with pytest.raises(InvalidTypeError, match=r"head must be a head such as te\.BinaryClassHead\(\), but got 2"):
        make(2, str(tmp_path))


class Towers(torch.nn.Module):
    """Module that returns logits by head."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = torch.nn.Linear(4, 5)
        self.heads = torch.nn.ModuleDict({"visits": torch.nn.Linear(5, 1), "buys": torch.nn.Linear(5, 1)})

    def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        shared = torch.tanh(self.shared(inputs))
        return {name: tower(shared) for name, tower in self.heads.items()}


def test_a_module_of_the_users_may_have_several_heads_and_columns_in_front(tmp_path: Path) -> None:
    estimator = te.Estimator.from_module(
        Towers(),
        head=te.MultiHead([BUYS, VISITS]),
        optimizer="Adam",
        columns=[fc.indicator_column(CITY), fc.bucketized_column(AGE, [1.0])],
        model_dir=str(tmp_path / "job"),
        config=te.RunConfig(random_seed=1),
    )
    before = estimator.evaluate(lambda: data("multi-head").batch(20))
    estimator.train(lambda: train_data("multi-head"), steps=60)
    assert estimator.evaluate(lambda: data("multi-head").batch(20))["loss"] < before["loss"]
    check_parity(estimator, te.serving_input.raw_features(RAW), tmp_path)
