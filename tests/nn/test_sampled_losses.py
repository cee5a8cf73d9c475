"""Losses over classes drawn at random: TensorFlow's numbers, rows of tables, and draws that continue."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import torch_estimator as te
from tests.nn.make_golden import CASES, CLASSES, FILE, SAMPLED, rows
from torch_estimator import feature_column as fc

GOLDEN = json.loads(FILE.read_text(encoding="utf-8"))


def test_every_case_is_there() -> None:
    assert [(one["loss"], one["num_true"], one["hits"], one["unique"]) for one in GOLDEN] == CASES


@pytest.mark.parametrize("as_tables", [False, True])
@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case['loss']}-{case['num_true']}-{case['hits']}")
def test_losses_and_gradients_are_tensorflows(case: dict[str, Any], as_tables: bool) -> None:
    given = {name: torch.from_numpy(value) for name, value in rows(case["num_true"]).items()}
    inputs = given["inputs"].requires_grad_()
    weights, biases = given["weights"].requires_grad_(), given["biases"].requires_grad_()
    drawn = te.nn.Candidates(*(torch.tensor(case[key]) for key in ("sampled", "true", "expected")))
    losses = getattr(te.nn, case["loss"])(
        table(weights) if as_tables else weights,
        table(biases) if as_tables else biases,
        given["labels"],
        inputs,
        SAMPLED,
        CLASSES,
        case["num_true"],
        drawn,
        case["hits"],
    )
    torch.testing.assert_close(losses, torch.tensor(case["losses"]), rtol=1e-5, atol=1e-6)
    found = dict(zip(("weights", "biases", "inputs"), gradients(losses, weights, biases, inputs), strict=True))
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, torch.tensor(case[f"d_{name}"]), rtol=1e-4, atol=1e-6)


def table(values: Tensor) -> fc.Table:
    """Return a table whose weight is computed from the values, so that they get its gradient."""
    rows = values.reshape(CLASSES, -1)
    made = fc.Table([fc.Piece(name="classes", rows=CLASSES)], rows.shape[1])
    del made.weight
    made.weight = torch.cat([rows, torch.zeros(1, rows.shape[1])])  # type: ignore[assignment]
    return made


def gradients(losses: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(losses.sum(), leaves)


@pytest.mark.parametrize("case", GOLDEN)
def test_expected_counts_are_tensorflows(case: dict[str, Any]) -> None:
    torch.manual_seed(0)
    labels = torch.from_numpy(rows(case["num_true"])["labels"])
    for _ in range(100):
        # Draw until as many draws as in TensorFlow were needed for as many classes, which this count tells.
        drawn = te.nn.log_uniform_candidate_sampler(labels, case["num_true"], SAMPLED, case["unique"], CLASSES)
        if drawn.true_expected_count[0, 0] == pytest.approx(case["true"][0][0], rel=1e-5):
            break
    np.testing.assert_allclose(drawn.true_expected_count, case["true"], rtol=1e-5)
    theirs = dict(zip(case["sampled"], case["expected"], strict=True))
    ours = dict(zip(drawn.sampled.tolist(), drawn.sampled_expected_count.tolist(), strict=True))
    both = theirs.keys() & ours.keys()
    assert both
    assert [ours[one] for one in both] == pytest.approx([theirs[one] for one in both], rel=1e-5)


def test_candidates_have_the_log_uniform_distribution() -> None:
    torch.manual_seed(3)
    label = torch.tensor([[0]])
    drawn = te.nn.log_uniform_candidate_sampler(label, 1, 200_000, unique=False, range_max=8).sampled
    frequency = torch.bincount(drawn, minlength=8) / len(drawn)
    chance = torch.log1p(1 / (torch.arange(8) + 1)) / np.log(9)
    assert (frequency - chance).abs().max() < 4 * (0.25 / len(drawn)) ** 0.5


def test_unique_candidates_are_drawn_one_after_the_other_without_those_before() -> None:
    chance, among = np.log1p(1 / (np.arange(5) + 1)) / np.log(6), np.zeros(5)
    for order in itertools.permutations(range(5), 3):
        before = np.cumsum([0.0, *chance[list(order)]])[:3]
        among[list(order)] += np.prod(chance[list(order)] / (1 - before))
    torch.manual_seed(3)
    label, counts = torch.tensor([[0]]), np.zeros(5)
    for _ in range(2000):
        counts[te.nn.log_uniform_candidate_sampler(label, 1, 3, unique=True, range_max=5).sampled] += 1
    assert np.abs(counts / 2000 - among).max() < 4 * (0.25 / 2000) ** 0.5


@pytest.mark.parametrize(("count", "classes"), [(1, 1), (5, 5), (64, 100_000), (99, 100)])
def test_all_candidates_differ_however_many_there_are(count: int, classes: int) -> None:
    labels = torch.zeros(1, 1, dtype=torch.int64)
    for _ in range(20):
        drawn = te.nn.log_uniform_candidate_sampler(labels, 1, count, unique=True, range_max=classes).sampled
        assert drawn.unique().numel() == count and drawn.max() < classes


class Words(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        uniform = torch.nn.init.uniform_
        self.words = fc.Table([fc.Piece(name="words", rows=rows, initializer=uniform)], 4)
        self.weights = fc.Table([fc.Piece(name="weights", rows=rows, initializer=uniform)], 4)
        self.biases = fc.Table([fc.Piece(name="biases", rows=rows)], 1)

    def forward(self, word: Tensor) -> Tensor:
        return self.words(word)


def sampled(outputs: Tensor, labels: Tensor, module: Words) -> Tensor:
    return te.nn.sampled_softmax_loss(module.weights, module.biases, labels, outputs, 6, module.weights.rows).mean()


def words(model_dir: str, optimizer: Any = None) -> te.Estimator:
    def model_fn(mode: str) -> te.EstimatorSpec:
        return te.EstimatorSpec(mode=mode, module=Words(50), loss=sampled, optimizer=optimizer or te.optim.Adam(lr=0.1))

    return te.Estimator(model_fn, model_dir, te.RunConfig(random_seed=5))


def pairs() -> te.data.Dataset:
    return te.data.Dataset.from_arrays(np.arange(64) % 9, np.arange(64) % 5).repeat().batch(4)


def test_a_step_changes_only_rows_that_it_has_seen(tmp_path: Path) -> None:
    estimator = words(str(tmp_path), te.optim.Adagrad(lr=0.1)).train(pairs, steps=1)
    for name, seen in {"words": 4, "weights": 4 + 6, "biases": 4 + 6}.items():
        changed = (estimator.get_variable_value(f"{name}/Adagrad") != 0.1).any(1)
        assert 4 <= changed.sum() <= seen


def test_a_training_that_continues_draws_what_it_would_have_drawn(tmp_path: Path) -> None:
    whole = words(str(tmp_path / "whole")).train(pairs, steps=8)
    parts = words(str(tmp_path / "parts")).train(pairs, steps=3)
    parts.train(pairs, steps=5)
    for name in whole.get_variable_names():
        np.testing.assert_array_equal(whole.get_variable_value(name), parts.get_variable_value(name))


def test_wrong_arguments_are_errors() -> None:
    weights, biases, inputs = torch.ones(9, 2), torch.ones(9), torch.ones(3, 2)
    labels = torch.tensor([1, 2, 3])
    with pytest.raises(te.UserError, match=r"weights must have a row for each of 10 classes, but has 9"):
        te.nn.nce_loss(weights, biases, labels, inputs, 4, 10)
    with pytest.raises(te.UserError, match=r"labels must have the shape \[N, 2\] for num_true=2, but have \[3\]"):
        te.nn.nce_loss(weights, biases, labels, inputs, 4, 9, num_true=2)
    with pytest.raises(te.UserError, match=r"labels must be integers, the classes of the rows, but are torch.float32"):
        te.nn.sampled_softmax_loss(weights, biases, labels.float(), inputs, 4, 9)
    with pytest.raises(te.UserError, match=r"num_sampled must be from 1 to the number of classes, 9, but got 10"):
        te.nn.sampled_softmax_loss(weights, biases, labels, inputs, 10, 9)
