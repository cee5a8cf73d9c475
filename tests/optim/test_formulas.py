"""Every optimizer's formula, against numpy, torch, and the first step of TensorFlow's linear classifier."""

import csv
import itertools
import math

import numpy as np
import pytest
import torch

from torch_estimator.errors import InvalidValueError
from torch_estimator.optim import Adagrad, Adam, AdamW, Ftrl, GradientDescent, RMSProp


def test_gradient_descent_subtracts_the_scaled_gradient():
    param = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = GradientDescent([param], lr=0.25)
    param.grad = torch.tensor([2.0, 4.0])
    optimizer.step()
    assert param.tolist() == [0.5, -3.0]


def test_adagrad_follows_tensorflows_formula():
    rng = np.random.default_rng(0)
    weights, accumulator = rng.normal(size=(4, 3)), np.full((4, 3), 0.1)
    param = torch.nn.Parameter(torch.tensor(weights, dtype=torch.float32))
    optimizer = Adagrad([param], lr=0.05)
    for grad in rng.normal(size=(20, 4, 3)):
        accumulator += grad**2
        weights -= 0.05 * grad / np.sqrt(accumulator)
        param.grad = torch.tensor(grad, dtype=torch.float32)
        optimizer.step()
    np.testing.assert_allclose(param.detach().numpy(), weights, atol=2e-6)
    np.testing.assert_allclose(optimizer.state[param]["accumulator"].numpy(), accumulator, rtol=1e-5)


def test_the_accumulator_of_adagrad_must_start_above_zero():
    with pytest.raises(InvalidValueError, match="initial_accumulator_value must be greater than 0, but got 0"):
        Adagrad([torch.zeros(1, requires_grad=True)], lr=0.1, initial_accumulator_value=0.0)


@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_rmsprop_follows_tensorflows_formula(momentum):
    rng = np.random.default_rng(0)
    weights, mean_square, velocity = rng.normal(size=(4, 3)), np.ones((4, 3)), np.zeros((4, 3))
    param = torch.nn.Parameter(torch.tensor(weights, dtype=torch.float32))
    optimizer = RMSProp([param], lr=0.01, momentum=momentum)
    for grad in rng.normal(size=(20, 4, 3)):
        mean_square = 0.9 * mean_square + 0.1 * grad**2
        velocity = momentum * velocity + 0.01 * grad / np.sqrt(mean_square + 1e-10)
        weights -= velocity
        param.grad = torch.tensor(grad, dtype=torch.float32)
        optimizer.step()
    np.testing.assert_allclose(param.detach().numpy(), weights, atol=1e-6)


def test_the_decay_of_rmsprop_must_be_from_0_to_1():
    with pytest.raises(InvalidValueError, match=r"decay must be at least 0 and at most 1, but got 1\.5"):
        RMSProp([torch.zeros(1, requires_grad=True)], lr=0.1, decay=1.5)


def test_adam_follows_tensorflows_formula_with_epsilon_hat():
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(4, 3))
    m, v = np.zeros((4, 3)), np.zeros((4, 3))
    param = torch.nn.Parameter(torch.tensor(weights, dtype=torch.float32))
    optimizer = Adam([param], lr=0.01, epsilon=0.1)
    for t, grad in enumerate(rng.normal(size=(20, 4, 3)), start=1):
        m = 0.9 * m + 0.1 * grad
        v = 0.999 * v + 0.001 * grad**2
        weights -= 0.01 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 0.1)
        param.grad = torch.tensor(grad, dtype=torch.float32)
        optimizer.step()
    np.testing.assert_allclose(param.detach().numpy(), weights, atol=1e-6)
    assert optimizer.state[param]["step"] == 20


def test_the_step_counter_of_half_precision_parameters_survives_loading():
    param = torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    optimizer = Adam([param])
    optimizer.state[param]["step"].fill_(1001.0)
    loaded = Adam([param])
    loaded.load_state_dict(optimizer.state_dict())
    assert loaded.state[param]["step"] == 1001.0


def test_betas_must_be_below_one():
    with pytest.raises(InvalidValueError, match="beta2 must be at least 0 and less than 1, but got 1"):
        Adam([torch.zeros(1, requires_grad=True)], beta2=1.0)


@pytest.mark.parametrize("settings", [{}, {"lr": 0.05, "weight_decay": 0.3}, {"lr": 0.05, "weight_decay": 0.0}])
def test_adamw_does_what_torch_does(settings):
    rng = np.random.default_rng(0)
    start = torch.from_numpy(rng.normal(size=(4, 3))).float()
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    mine = AdamW([ours], **settings, beta1=0.8, beta2=0.99, epsilon=1e-3)
    reference = torch.optim.AdamW([theirs], **settings, betas=(0.8, 0.99), eps=1e-3)
    for grad in torch.from_numpy(rng.normal(size=(30, 4, 3))).float():
        for param, optimizer in ((ours, mine), (theirs, reference)):
            param.grad = grad.clone()
            optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    assert mine.state[ours]["step"] == 30


def test_the_defaults_of_adamw_are_torchs():
    ours = AdamW([torch.zeros(1, requires_grad=True)]).defaults
    theirs = torch.optim.AdamW([torch.zeros(1, requires_grad=True)]).defaults
    assert ours["epsilon"] == theirs["eps"]
    assert {key: ours[key] for key in ("lr", "betas", "weight_decay")} == {
        key: theirs[key] for key in ("lr", "betas", "weight_decay")
    }


def test_the_decay_of_adamw_must_not_be_negative():
    with pytest.raises(InvalidValueError, match=r"^weight_decay must be at least 0, but got -0.1\.$"):
        AdamW(weight_decay=-0.1)


def ftrl_by_hand(weights, gradients, *, lr, power=-0.5, start=0.1, l1=0.0, l2=0.0, shrinkage=0.0, beta=0.0):
    """Return the weights after all gradients, by the formula in float64, one weight at a time."""
    result = []
    for w, column in zip(weights.ravel(), gradients.reshape(len(gradients), -1).T, strict=True):
        accumulator, linear = start, 0.0
        for g in column:
            new = accumulator + g * g
            linear += g + 2 * shrinkage * w - (new**-power - accumulator**-power) / lr * w
            quadratic = new**-power / lr + 2 * (l2 + beta / (2 * lr))
            w = (math.copysign(l1, linear) - linear) / quadratic if abs(linear) > l1 else 0.0
            accumulator = new
        result.append(w)
    return np.reshape(result, weights.shape)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({}, {}),
        ({"power": -0.3}, {"learning_rate_power": -0.3}),
        ({"power": 0.0}, {"learning_rate_power": 0.0}),
        ({"l1": 0.7, "l2": 0.2}, {"l1_regularization_strength": 0.7, "l2_regularization_strength": 0.2}),
        ({"shrinkage": 0.1}, {"l2_shrinkage_regularization_strength": 0.1}),
        ({"beta": 0.5, "start": 0.0}, {"beta": 0.5, "initial_accumulator_value": 0.0}),
    ],
)
def test_ftrl_follows_tensorflows_formula(short, long):
    rng = np.random.default_rng(0)
    weights, gradients = rng.normal(size=(4, 3)), rng.normal(size=(20, 4, 3))
    param = torch.nn.Parameter(torch.tensor(weights, dtype=torch.float32))
    optimizer = Ftrl([param], lr=0.2, **long)
    for grad in gradients:
        param.grad = torch.tensor(grad, dtype=torch.float32)
        optimizer.step()
    expected = ftrl_by_hand(weights, gradients, lr=0.2, **short)
    np.testing.assert_allclose(param.detach().numpy(), expected, atol=5e-6)


def test_the_l1_penalty_of_ftrl_makes_weights_exactly_zero():
    param = torch.nn.Parameter(torch.zeros(2))
    optimizer = Ftrl([param], lr=0.1, l1_regularization_strength=1.0)
    param.grad = torch.tensor([0.5, 2.0])
    optimizer.step()
    assert param[0] == 0.0
    assert param[1] < 0.0


def test_a_weight_of_ftrl_without_gradient_or_accumulator_is_zero():
    param = torch.nn.Parameter(torch.zeros(2))
    optimizer = Ftrl([param], lr=0.1, initial_accumulator_value=0.0)
    param.grad = torch.tensor([0.0, 1.0])
    optimizer.step()
    assert param[0] == 0.0
    assert torch.isfinite(param).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": 0.0}, "lr must be greater than 0, but got 0"),
        ({"learning_rate_power": 0.5}, "learning_rate_power must be at most 0, but got 0.5"),
        ({"l1_regularization_strength": -1.0}, "l1_regularization_strength must be at least 0, but got -1"),
        ({"initial_accumulator_value": -0.1}, "initial_accumulator_value must be at least 0, but got -0.1"),
    ],
)
def test_arguments_of_ftrl_out_of_range_are_refused(arguments, message):
    with pytest.raises(InvalidValueError, match=message):
        Ftrl([torch.zeros(1, requires_grad=True)], **{"lr": 0.1, **arguments})


def test_the_first_step_of_gradient_descent_equals_tensorflows(golden, shared_data):
    reference = golden("linear_classifier_census_sgd")
    bias = torch.nn.Parameter(torch.zeros(1))
    bias.grad = bias_gradient(reference, shared_data)
    GradientDescent([bias], lr=0.01).step()
    assert bias.tolist() == pytest.approx(bias_after_one_step(reference), rel=1e-5)


def test_the_first_step_of_ftrl_equals_tensorflows(golden, shared_data):
    reference = golden("linear_classifier_census")
    columns = [name for name in reference["runs"][0]["variables"] if name.endswith("/weights")]
    bias = torch.nn.Parameter(torch.zeros(1))
    bias.grad = bias_gradient(reference, shared_data)
    Ftrl([bias], lr=min(0.2, 1 / math.sqrt(len(columns)))).step()
    assert bias.tolist() == pytest.approx(bias_after_one_step(reference), rel=1e-5)


def bias_gradient(reference, shared_data):
    """Return the sum of sigmoid(0) - label over the first batch."""
    start, size = reference["train_skip_rows"], reference["batch_size"]
    with open(shared_data / reference["train_file"], newline="") as file:
        rows = list(itertools.islice(csv.reader(file), start, start + size))
    labels = np.array([row[-1] == ">50K" for row in rows])
    return torch.tensor([(0.5 - labels).sum()], dtype=torch.float32)


def bias_after_one_step(reference):
    run = next(run for run in reference["runs"] if run["steps"] == 1)
    return run["variables"]["linear/linear_model/bias_weights"]["values"]
