"""A loss or metric of the user names what it needs: weights, features, the module. Modules name their features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te
from tests.line_jobs import assert_same_variables
from torch_estimator import feature_column as fc
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError

DRAW = np.random.default_rng(0)
AGE, HOURS = (DRAW.normal(size=40).astype(np.float32) for _ in range(2))
WEIGHT = DRAW.integers(1, 4, 40).astype(np.float32)
LABELS = (2 * AGE - HOURS).reshape(-1, 1).astype(np.float32)
CONFIG = te.RunConfig(random_seed=1)


class Sum(nn.Module):
    """Takes its features one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)

    def forward(self, age: Tensor, hours: Tensor) -> Tensor:
        return self.linear(torch.stack([age, hours], 1))


def data() -> te.data.Dataset:
    return te.data.Dataset.from_arrays({"age": AGE, "hours": HOURS, "weight": WEIGHT}, LABELS).batch(8)


def repeated() -> te.data.Dataset:
    rows = np.arange(40).repeat(WEIGHT.astype(int))
    return te.data.Dataset.from_arrays({"age": AGE[rows], "hours": HOURS[rows]}, LABELS[rows]).batch(len(rows))


def weighted(outputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    return ((outputs - labels) ** 2 * weights).sum() / weights.sum()


def mean_error(labels: Tensor, predictions: dict[str, Tensor], weights: Tensor) -> Tensor:
    return ((predictions["output"] - labels).abs() * weights).sum() / weights.sum()


def plain_error(labels: Tensor, predictions: dict[str, Tensor]) -> Tensor:
    return (predictions["output"] - labels).abs().mean()


def made(model_dir: Path, kind: str, **settings: Any) -> te.Estimator:
    """Return an estimator of `Sum`, by ``from_module`` or by a ``model_fn``."""
    torch.manual_seed(0)
    settings = {"optimizer": te.optim.SGD(lr=0.1), **settings}
    module = Sum()
    if kind == "from_module":
        return te.Estimator.from_module(module, model_dir=str(model_dir), config=CONFIG, **settings)
    weights = {name: value.clone() for name, value in module.state_dict().items()}

    def model_fn(mode: str) -> te.EstimatorSpec:
        made = Sum()
        made.load_state_dict(weights)
        return te.EstimatorSpec(mode=mode, module=made, **settings)

    return te.Estimator(model_fn, str(model_dir), CONFIG)


KINDS = pytest.mark.parametrize("kind", ["from_module", "model_fn"])


@KINDS
def test_forward_names_the_features_it_takes(kind: str, tmp_path: Path) -> None:
    estimator = made(tmp_path, kind, loss=nn.MSELoss()).train(data, steps=5)
    (first, *_) = estimator.predict(data)
    weight, bias = (estimator.get_variable_value(f"linear.{name}") for name in ("weight", "bias"))
    assert first["output"] == pytest.approx(weight @ np.array([AGE[0], HOURS[0]]) + bias, rel=1e-5)
    exported = estimator.export_saved_model(
        str(tmp_path / "exported"), te.serving_input.like({"age": AGE[:2], "hours": HOURS[:2]})
    )
    served = te.ExportedModel.load(exported).predict({"age": AGE[:2], "hours": HOURS[:2]})
    assert served["output"][0] == pytest.approx(first["output"], rel=1e-5)


def test_a_model_fn_that_returns_one_module_spreads_its_features_once(tmp_path: Path) -> None:
    module = Sum()

    def model_fn(mode: str) -> te.EstimatorSpec:
        return te.EstimatorSpec(mode=mode, module=module, loss=nn.MSELoss(), optimizer=te.optim.SGD(lr=0.1))

    te.Estimator(model_fn, str(tmp_path), CONFIG).train(data, steps=1).evaluate(data)
    assert len(module._forward_pre_hooks) == 1


@KINDS
def test_a_weight_counts_as_that_many_rows(kind: str, tmp_path: Path) -> None:
    metrics = {"error": mean_error}
    estimator = made(tmp_path, kind, loss=weighted, metrics=metrics, weight_column="weight")
    result = estimator.train(data, steps=5).evaluate(data)
    whole = te.data.Dataset.from_arrays({"age": AGE, "hours": HOURS, "weight": WEIGHT}, LABELS).batch(40)
    copied = made(tmp_path, kind, loss=nn.MSELoss(), metrics={"error": plain_error})
    assert result["error"] == pytest.approx(copied.evaluate(repeated)["error"], rel=1e-5)
    again = made(tmp_path, kind, loss=weighted, weight_column="weight").evaluate(lambda: whole)
    assert again["loss"] == pytest.approx(copied.evaluate(repeated)["loss"], rel=1e-5)


@KINDS
def test_a_loss_reads_features_and_the_module_that_is_trained(kind: str, tmp_path: Path) -> None:
    def loss(outputs: Tensor, labels: Tensor, features: dict[str, Tensor], module: nn.Module) -> Tensor:
        old = torch.where(features["age"] > 0, 2.0, 1.0).reshape(-1, 1)
        return ((outputs - labels) ** 2 * old).mean() + 0.1 * module.linear.weight.square().sum()

    torch.manual_seed(0)
    module = Sum()
    for step in range(5):
        rows = slice(8 * step, 8 * step + 8)
        age, hours, labels = (torch.from_numpy(one[rows]) for one in (AGE, HOURS, LABELS))
        loss(module(age, hours), labels, {"age": age}, module).backward()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter -= 0.1 * parameter.grad
        module.zero_grad()
    estimator = made(tmp_path, kind, loss=loss).train(data, steps=5)
    for name, value in module.named_parameters():
        np.testing.assert_allclose(estimator.get_variable_value(name), value.detach().numpy(), rtol=1e-5)
    assert estimator.evaluate(data)["loss"] > 0


def test_with_columns_features_are_the_numbers_of_the_input(tmp_path: Path) -> None:
    seen: list[Any] = []

    def loss(outputs: Tensor, labels: Tensor, features: dict[str, Tensor], weights: Tensor) -> Tensor:
        seen.append((sorted(features), list(weights.shape)))
        return ((outputs - labels) ** 2 * weights).mean()

    torch.manual_seed(0)
    estimator = te.Estimator.from_module(
        nn.Linear(1, 1),
        columns=[fc.numeric_column("age")],
        loss=loss,
        optimizer="SGD",
        weight_column="weight",
        model_dir=str(tmp_path),
        config=te.RunConfig(compile=False),
    )
    estimator.train(data, steps=1)
    assert seen[0] == (["age", "hours", "weight"], [8, 1])


def test_a_compiled_step_reads_them_too(tmp_path: Path) -> None:
    def loss(outputs: Tensor, labels: Tensor, weights: Tensor, features: Any, module: nn.Module) -> Tensor:
        error = (outputs - labels) ** 2 * weights * features["age"].abs().reshape(-1, 1)
        return error.mean() + module.linear.weight.abs().sum()

    estimators = []
    for compiled in (False, True):
        torch.manual_seed(0)
        config = te.RunConfig(random_seed=1, compile=compiled)
        model_dir = str(tmp_path / str(compiled))
        estimator = te.Estimator.from_module(
            Sum(), loss=loss, optimizer=te.optim.SGD(lr=0.1), weight_column="weight", model_dir=model_dir, config=config
        )
        estimators.append(estimator.train(lambda: data().repeat(), steps=20))
    for name in ("linear.weight", "linear.bias"):
        eager, fast = (one.get_variable_value(name) for one in estimators)
        np.testing.assert_allclose(fast, eager, rtol=1e-4)


def test_arguments_with_a_default_keep_it(tmp_path: Path) -> None:
    def loss(outputs: Tensor, labels: Tensor, weights: float = 3.0, module: Any = None) -> Tensor:
        assert (weights, module) == (3.0, None)
        return (outputs - labels).square().mean()

    first = made(tmp_path / "first", "model_fn", loss=loss).train(data, steps=3)
    assert_same_variables(first, made(tmp_path / "other", "model_fn", loss=nn.MSELoss()).train(data, steps=3))


def test_weights_that_would_be_paired_with_labels_are_an_error(tmp_path: Path) -> None:
    def loss(outputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        return ((outputs - labels)[:, 0] ** 2 * weights).mean()

    with pytest.raises(te.UserError, match="The loss compares each with each: mul of"):
        made(tmp_path, "model_fn", loss=loss, weight_column="weight").train(data, steps=1)


@pytest.mark.parametrize(
    ("error", "words", "settings"),
    [
        (InvalidValueError, "The loss takes weights, but there is no weight column", {"loss": weighted}),
        (
            InvalidValueError,
            "The metric 'error' takes weights, but there is no weight column",
            {"loss": nn.MSELoss(), "metrics": {"error": mean_error}},
        ),
        (
            InvalidValueError,
            "weight_column is 'weight', but neither the loss nor a metric takes weights",
            {"loss": nn.MSELoss(), "weight_column": "weight"},
        ),
        (DataError, "weight column 'gone' is not among the features", {"loss": weighted, "weight_column": "gone"}),
        (InvalidTypeError, "weight_column must be the name of a feature", {"loss": weighted, "weight_column": 3}),
        (
            InvalidValueError,
            "weight_column is for a model without a head",
            {"head": te.RegressionHead(), "weight_column": "weight"},
        ),
    ],
)
@KINDS
def test_mistakes_are_sentences(
    error: type[Exception], words: str, settings: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        made(tmp_path, kind, **settings).train(data, steps=1).evaluate(data)


def test_features_without_names_are_a_sentence(tmp_path: Path) -> None:
    def loss(outputs: Tensor, labels: Tensor, features: Any) -> Tensor:
        return (outputs - labels).square().mean()

    estimator = te.Estimator.from_module(nn.Linear(1, 1), loss=loss, optimizer="SGD", model_dir=str(tmp_path))
    with pytest.raises(DataError, match="takes features, but the input's have no names; give a dict"):
        estimator.train(lambda: (AGE.reshape(-1, 1), LABELS), steps=1)
