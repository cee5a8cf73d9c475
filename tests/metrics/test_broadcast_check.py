"""Labels [N] and outputs [N, 1] are compared row by row, or else the comparison is an error."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import torch_estimator as te
from torch_estimator.metrics.broadcast_check import BroadcastCheck

X = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
Y = X @ np.array([1.0, 2.0, 3.0, 4.0], np.float32)
WEIGHT = torch.tensor([[1.0, 2.0, 3.0, 4.0]])


class Perfect(nn.Module):
    """Model whose outputs equal the labels, of shape [N, 1] or [N]."""

    def __init__(self, columns: int = 1) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1, bias=False)
        self.columns = columns
        with torch.no_grad():
            self.linear.weight.copy_(WEIGHT)

    def forward(self, rows: Tensor) -> Tensor:
        return self.linear(rows) if self.columns else self.linear(rows).squeeze(1)


def estimator(model_dir: Path, loss: Any, metrics: Any = None, columns: int = 1, **settings: Any) -> te.Estimator:
    config = te.RunConfig(**{"compile": False, "save_checkpoints_steps": 1000, **settings.pop("config", {})})
    return te.Estimator.from_module(
        Perfect(columns),
        loss=loss,
        metrics=metrics,
        optimizer=te.optim.GradientDescent(lr=0.0),
        model_dir=str(model_dir),
        config=config,
        **settings,
    )


def data(labels: np.ndarray = Y) -> te.data.Dataset:
    return te.data.Dataset.from_arrays(X, labels).batch(16)


def difference(one: Any, other: Any) -> Any:
    return ((one - other) ** 2).mean()


PAIRS: list[Callable[[Tensor, Tensor], Any]] = [
    difference,
    lambda o, y: torch.maximum(o.exp(), y.log1p()).mean(),
    lambda o, y: torch.broadcast_tensors(o, y)[0].sum(),
    lambda o, y: torch.where(o > 0, y, 0.0).sum(),
    lambda o, y: nn.L1Loss()(o, y),
    lambda o, y: functional.huber_loss(o, y),
    lambda o, y: torch.dist(o, y),
    lambda o, y: functional.pairwise_distance(o, y).mean(),
    lambda o, y: nn.CosineSimilarity(0)(o, y).mean(),
    lambda o, y: float(torch.allclose(o, y)),
    lambda o, y: difference(o.numpy(), y.numpy()),
    lambda o, y: np.abs(o.numpy() - 1 - y.numpy()[::1]).mean(),
]


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("function", PAIRS)
def test_an_operation_that_makes_pairs_is_named_with_its_place(function: Callable[[Tensor, Tensor], Any]) -> None:
    column, row = torch.rand(5, 1), torch.rand(5)
    message = r"^The loss compares each with each: \w+ of outputs \[5, 1\] and labels \[5\] makes \[5, 5\] \(.*line \d+"
    for _ in range(2):
        check = BroadcastCheck("The loss")
        # A batch of one row shows nothing, so it must not end the check.
        check({"outputs": column[:1], "labels": row[:1]}, lambda: function(column[:1], row[:1]))
        with pytest.raises(te.errors.PairsError, match=message):
            check({"outputs": column, "labels": row}, lambda: function(column, row))


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("function", PAIRS)
@pytest.mark.parametrize("rest", [(3,), (4, 3), (5,), (1,)])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_dimension_of_size_1_before_others_makes_pairs_too(
    function: Callable[[Tensor, Tensor], Any], rest: tuple[int, ...], swapped: bool
) -> None:
    def called() -> Any:
        return function(row, column) if swapped else function(column, row)

    column, row = torch.rand(5, 1, *rest), torch.rand(5, *rest)
    arguments = {"labels": column, "outputs": row} if swapped else {"outputs": column, "labels": row}
    rest_words = "".join(f", {one}" for one in rest)
    message = re.escape(f"[5, 1{rest_words}] and ") + r"\w+" + re.escape(f" [5{rest_words}] makes [5, 5{rest_words}]")
    with pytest.raises(te.errors.PairsError, match=message):
        BroadcastCheck("The loss")(arguments, called)


@pytest.mark.parametrize(
    "function",
    [
        lambda o, y: difference(o[:, 0], y),
        lambda o, y: difference(o, y[:, None]),
        lambda o, y: torch.dist(o, y.view_as(o)),
        lambda o, y: functional.cross_entropy(o.movedim(2, 1), y[:, :1].long().clamp(0, 2)),
        lambda o, y: (o @ y.T).mean(),
        # Pairs that are meant.
        lambda o, y: (o[:, 0][None] - y[:, None]).mean() + (o - y[None]).mean(),
    ],
)
def test_what_makes_no_pairs_of_three_dimensions_is_left_alone(function: Callable[[Tensor, Tensor], Any]) -> None:
    column, row = torch.rand(5, 1, 3), torch.rand(5, 3)
    arguments = {"outputs": column, "labels": row}
    assert float(BroadcastCheck("The loss")(arguments, lambda: function(column, row))) == float(function(column, row))


@pytest.mark.parametrize(
    "function",
    [
        lambda o, y: difference(o.squeeze(1), y),
        lambda o, y: difference(o, y.view_as(o)),
        lambda o, y: difference(o.numpy()[:, 0], y.numpy()),
        lambda o, y: functional.cross_entropy(torch.cat([o, -o], 1), y.long()),
        lambda o, y: o[y.long()].sum(),
        lambda o, y: functional.gaussian_nll_loss(o, y.view_as(o), torch.cat([o, o]).view(2, 5)[0] + 1),
        lambda o, y: np.mean(o.numpy(), where=o.numpy() >= 0) + np.sum(y.numpy(), where=y.numpy() >= 0),
        # Pairs that are meant.
        lambda o, y: ((o - o[:, 0]) * (y[:, None] - y)).mean(),
        lambda o, y: (o - y[None, :]).mean(),
        lambda o, y: (torch.arange(5)[:, None] < y).sum(),
        lambda o, y: torch.vmap(lambda one, other: (one - other).mean())(o, y).sum(),
    ],
)
def test_a_function_without_pairs_or_with_intended_ones_is_allowed(function: Callable[[Tensor, Tensor], Any]) -> None:
    column, row = torch.rand(5, 1), torch.rand(5)
    arguments = {"outputs": column, "labels": row}
    assert float(BroadcastCheck("The loss")(arguments, lambda: function(column, row))) == float(function(column, row))


@pytest.mark.runs_in_python
@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize(("columns", "labels"), [(1, Y), (0, Y[:, None])])
def test_a_loss_that_makes_pairs_is_refused(tmp_path: Path, columns: int, labels: np.ndarray, compile: bool) -> None:
    ours = estimator(tmp_path, difference, columns=columns, config={"compile": compile})
    with pytest.raises(te.errors.PairsError, match=r"^The loss compares each with each: sub of .* makes \[16, 16\]"):
        ours.train(lambda: data(labels), steps=2)


@pytest.mark.parametrize("labels", [Y, Y[:, None]], ids=["labels [N]", "labels [N, 1]"])
@pytest.mark.parametrize("columns", [0, 1])
def test_metrics_of_a_perfect_model_are_perfect(tmp_path: Path, columns: int, labels: np.ndarray) -> None:
    class Mean:
        def __init__(self) -> None:
            self.reset()

        def reset(self) -> None:
            self.values: list[float] = []

        def update(self, predictions: Tensor, labels: Tensor) -> None:
            self.values.append(float(difference(predictions, labels)))

        def compute(self) -> float:
            return sum(self.values)

    def squeezing(labels: Tensor, predictions: dict[str, Tensor]) -> Tensor:
        return difference(predictions["output"].reshape(-1), labels.reshape(-1))

    metrics = {
        "torch": lambda labels, predictions: difference(predictions["output"], labels),
        "numpy": lambda labels, predictions: difference(predictions["output"].numpy(), labels.numpy()),
        "squeezing": squeezing,
        "object": Mean,
    }
    ours = estimator(tmp_path, nn.MSELoss(), metrics, columns)
    ours = te.add_metrics(ours, lambda labels, predictions: {"added": difference(predictions["output"], labels)})
    results = ours.train(lambda: data(labels), steps=1).evaluate(lambda: data(labels))
    assert {name: results[name] for name in (*metrics, "added")} == pytest.approx(dict.fromkeys([*metrics, "added"], 0))


def test_metrics_and_predictions_that_squeeze_to_the_labels_shape_stay_right(tmp_path: Path) -> None:
    metrics = {
        "torch": lambda labels, predictions: difference(predictions["output"][:, 0], labels),
        "numpy": lambda labels, predictions: difference(predictions["output"].numpy()[:, 0], labels.numpy()),
    }
    results = estimator(tmp_path / "a", nn.MSELoss(), metrics).train(data, steps=1).evaluate(data)
    assert (results["torch"], results["numpy"]) == pytest.approx((0, 0))
    ours = estimator(
        tmp_path / "b",
        nn.MSELoss(),
        {"flat": lambda labels, predictions: difference(predictions["flat"], labels)},
        predictions=lambda outputs: {"flat": outputs[:, 0]},
    )
    assert ours.train(data, steps=1).evaluate(data)["flat"] == pytest.approx(0)


def test_a_metric_that_makes_pairs_is_refused_where_the_loss_reshapes(tmp_path: Path) -> None:
    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return difference(outputs.squeeze(1), labels)

    ours = estimator(tmp_path, loss, {"wrong": lambda labels, predictions: difference(predictions["output"], labels)})
    with pytest.raises(te.errors.PairsError, match="compares each with each: sub of predictions"):
        ours.train(data, steps=1).evaluate(data)


def test_a_loss_fn_that_pairs_logits_with_a_feature_is_refused() -> None:
    def weighted(labels: Tensor, logits: Tensor, features: dict[str, Tensor]) -> Tensor:
        return ((logits - labels) ** 2 * features["w"]).mean(1, keepdim=True)

    head = te.RegressionHead(loss_fn=weighted)
    numbers = torch.rand(5, 1)
    with pytest.raises(te.errors.PairsError, match=r"^The loss_fn compares each with each: mul of labels and logits"):
        head.unweighted_loss(numbers, numbers + 1, {"w": torch.rand(5)})
    assert head.unweighted_loss(numbers, numbers + 1, {"w": torch.ones(5, 1)}).sum() == pytest.approx(5)
