"""The bias after one step of TensorFlow's linear classifier: the part of a trajectory that needs no model."""

import csv
import itertools
import math

import numpy as np
import pytest
import torch

from torch_estimator.optim import Ftrl, GradientDescent


def test_gradient_descent_equals_tensorflows(golden, shared_data):
    reference = golden("linear_classifier_census_sgd")
    bias = torch.nn.Parameter(torch.zeros(1))
    bias.grad = bias_gradient(reference, shared_data)
    GradientDescent([bias], lr=0.01).step()
    assert bias.tolist() == pytest.approx(bias_after_one_step(reference), rel=1e-5)


def test_ftrl_equals_tensorflows(golden, shared_data):
    reference = golden("linear_classifier_census")
    columns = [name for name in reference["runs"][0]["variables"] if name.endswith("/weights")]
    bias = torch.nn.Parameter(torch.zeros(1))
    bias.grad = bias_gradient(reference, shared_data)
    Ftrl([bias], lr=min(0.2, 1 / math.sqrt(len(columns)))).step()
    assert bias.tolist() == pytest.approx(bias_after_one_step(reference), rel=1e-5)


def bias_gradient(reference, shared_data):
    """Returns the sum of sigmoid(0) - label over the first batch."""
    start, size = reference["train_skip_rows"], reference["batch_size"]
    with open(shared_data / reference["train_file"], newline="") as file:
        rows = list(itertools.islice(csv.reader(file), start, start + size))
    labels = np.array([row[-1] == ">50K" for row in rows])
    return torch.tensor([(0.5 - labels).sum()], dtype=torch.float32)


def bias_after_one_step(reference):
    run = next(run for run in reference["runs"] if run["steps"] == 1)
    return run["variables"]["linear/linear_model/bias_weights"]["values"]
