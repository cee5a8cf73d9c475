"""Rates, areas, means and the buffer, against definitions written out example by example."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from torch_estimator.metrics import AreaUnderCurves, Buffered, ThresholdRates, WeightedMeans
from torch_estimator.metrics.curves import Summation


@pytest.fixture(params=[0, 1, 2])
def examples(request):
    rng = np.random.default_rng(request.param)
    scores = rng.choice([0.0, 0.1, 0.25, 0.5, 0.75, 1.0, *rng.uniform(size=20)], size=300)
    return scores.astype(np.float32), rng.integers(0, 2, 300), rng.choice([0.0, 0.5, 2.0], 300)


def counts(scores, labels, weights, threshold):
    above = scores > np.float32(threshold)
    return [
        float(weights[(above == predicted) & (labels == label)].sum())
        for predicted, label in ((True, 1), (True, 0), (False, 1), (False, 0))
    ]


def in_batches(metric, *columns):
    for start in range(0, len(columns[0]), 77):
        metric.update(*(torch.from_numpy(column[start : start + 77]) for column in columns))


def test_rates_at_thresholds_count_scores_strictly_above(examples):
    scores, labels, weights = examples
    thresholds = [0.5, 0.1, 0.75, 0.5]
    rates = ThresholdRates(thresholds)
    in_batches(rates, scores, labels.astype(np.float32), weights)
    for threshold, measured in zip(thresholds, rates.compute(), strict=True):
        tp, fp, fn, tn = counts(scores, labels, weights, threshold)
        assert measured.accuracy == pytest.approx((tp + tn) / (tp + fp + fn + tn))
        assert measured.precision == pytest.approx(tp / (tp + fp))
        assert measured.recall == pytest.approx(tp / (tp + fn))


def test_areas_follow_tensorflows_definition(examples):
    scores, labels, weights = examples
    areas = AreaUnderCurves()
    in_batches(areas, scores, labels.astype(np.float32), weights)
    thresholds = [-1e-7, *(i / 199 for i in range(1, 199)), 1 + 1e-7]
    table = [counts(scores.astype(np.float64), labels, weights, t) for t in thresholds]
    assert areas.roc() == pytest.approx(roc(table), abs=1e-9)
    assert areas.precision_recall() == pytest.approx(precision_recall(table), abs=1e-9)


def roc(table):
    area = 0.0
    for (tp, fp, fn, tn), (next_tp, next_fp, _, _) in pairwise(table):
        area += (fp - next_fp) / (fp + tn) * (tp + next_tp) / (tp + fn) / 2
    return area


def precision_recall(table):
    area = 0.0
    for (tp, fp, fn, _), (next_tp, next_fp, _, _) in pairwise(table):
        p, next_p = tp + fp, next_tp + next_fp
        slope = (tp - next_tp) / (p - next_p) if p > next_p else 0.0
        growth = math.log(p / next_p) if next_p > 0 else 0.0
        area += slope * (tp - next_tp + (next_tp - slope * next_p) * growth) / (tp + fn)
    return area


def test_areas_of_one_kind_of_label_are_zero():
    areas = AreaUnderCurves()
    areas.update(torch.tensor([0.2, 0.9]), torch.tensor([0.0, 0.0]), None)
    assert (areas.roc(), areas.precision_recall()) == (0.0, 0.0)


def test_a_perfect_ranking_has_area_one():
    areas = AreaUnderCurves()
    areas.update(torch.tensor([0.1, 0.2, 0.8, 0.9]), torch.tensor([0.0, 0.0, 1.0, 1.0]), None)
    assert areas.roc() == pytest.approx(1.0)
    assert areas.precision_recall() == pytest.approx(1.0)


def test_means_are_weighted_in_float64():
    means = WeightedMeans(2)
    for _ in range(3):
        means.update(torch.full((4, 2), 1e8), torch.ones(4, 2), weights=torch.tensor([[1.0], [2], [0], [0]]))
    means.update(torch.full((1, 2), 1.0), torch.zeros(1, 2), weights=torch.tensor([[2.0]]))
    assert means.compute() == [(18e8 + 4) / 22, 18 / 22]


class Recorder:
    def __init__(self):
        self.batches = []

    def update(self, logits, labels, weights=None):
        self.batches.append((logits.tolist(), labels.tolist(), None if weights is None else weights.tolist()))

    def compute(self):
        return {}


def test_batches_are_passed_on_in_order_once_there_are_enough_rows():
    recorder = Recorder()
    buffered = Buffered(recorder, rows=3)
    reused = torch.zeros(2, 1)
    for value in (1.0, 2.0, 3.0):
        reused.fill_(value)
        buffered.update(reused, reused)
    assert recorder.batches == [([[1], [1], [2], [2]],) * 2 + (None,)]
    buffered.update(reused, reused, reused)
    buffered.compute()
    three = [[3], [3]]
    assert recorder.batches[1:] == [(three, three, None), (three, three, three)]


# tf.compat.v1.metrics.auc adds 1e-6 to numerators and denominators, so that a rate of nothing is 1 (recall) or 0
# (fall-out). tf.keras.metrics.AUC divides without NaN.
@pytest.mark.parametrize(
    ("labels", "v1", "v2"), [([0.0, 0.0, 0.0], 1.0, 0.0), ([1.0, 1.0, 1.0], 0.0, 0.0), ([0.0, 1.0, 1.0], 1.0, 1.0)]
)
@pytest.mark.parametrize("curves", [1, 2])
def test_the_area_without_one_of_the_labels(labels: list[float], v1: float, v2: float, curves: int) -> None:
    scores, wanted = torch.tensor([0.2, 0.6, 0.9]), torch.tensor(labels)
    if curves == 2:
        scores, wanted = torch.stack([scores, scores], 1), torch.stack([wanted, wanted], 1)
    for summation, expected in (("trapezoidal", v1), ("interpolation", v2)):
        areas = AreaUnderCurves(summation, curves=curves)  # type: ignore[arg-type]
        areas.update(scores, wanted, None)
        assert areas.roc_by_curve() == pytest.approx([expected] * curves, abs=2e-6)


@pytest.mark.parametrize("summation", ["trapezoidal", "interpolation"])
@pytest.mark.parametrize("weights", [None, [1.0, 1.0, 0.0]])
def test_a_score_of_nan_makes_rates_and_areas_nan(summation: Summation, weights: list[float] | None) -> None:
    scores, labels = torch.tensor([0.2, 0.9, math.nan]), torch.tensor([0.0, 1.0, 0.0])
    weighted = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    areas, rates = AreaUnderCurves(summation), ThresholdRates([0.5])
    for metric in (areas, rates):
        metric.update(scores, labels, weighted)
        metric.update(torch.tensor([0.1, 0.8]), torch.tensor([0.0, 1.0]), None)
    (one,) = rates.compute()
    values = [areas.roc(), areas.precision_recall(), one.accuracy, one.precision, one.recall]
    assert all(math.isnan(value) for value in values)
