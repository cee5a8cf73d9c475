"""Optimizer factories, and optimizers by name."""

import pickle

import pytest
import torch

from torch_estimator import optim
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.optim.factories import check_factory


def _parameters():
    return torch.nn.Linear(2, 1).named_parameters()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Adagrad", optim.Adagrad),
        ("Adam", optim.Adam),
        ("AdamW", optim.AdamW),
        ("Ftrl", optim.Ftrl),
        ("RMSProp", optim.RMSProp),
        ("SGD", optim.GradientDescent),
    ],
)
def test_a_name_gives_a_factory_that_can_be_pickled(name, kind):
    factory = pickle.loads(pickle.dumps(optim.by_name(name, 0.3)))
    optimizer = factory([torch.zeros(1, requires_grad=True)])
    assert type(optimizer) is kind
    assert optimizer.param_groups[0]["lr"] == 0.3


def test_an_unknown_name_is_refused_with_the_known_ones():
    message = r"^Unknown optimizer 'adam'; the names are 'Adagrad', 'Adam', 'AdamW', 'Ftrl', 'RMSProp', 'SGD'\.$"
    with pytest.raises(InvalidValueError, match=message):
        optim.by_name("adam", 0.1)


def test_a_name_must_be_a_string_and_the_rate_a_number():
    with pytest.raises(InvalidTypeError, match="name must be a string, but got 3"):
        optim.by_name(3, 0.1)
    with pytest.raises(InvalidValueError, match="lr must be at least 0"):
        optim.by_name("Adam", -0.1)


@pytest.mark.parametrize("factory", [optim.Ftrl(lr=0.1), torch.optim.Adam, optim.AdamW, lambda named: None])
def test_a_factory_is_anything_that_takes_parameters(factory):
    check_factory(factory)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (torch.optim.Adam(_parameters(), lr=0.02), r"but got Adam with parameters; write functools\.partial\(torch\.o"),
        (optim.Ftrl(_parameters(), lr=0.02), r"but got Ftrl with parameters; write te\.optim\.Ftrl\(lr=0\.02\)\.$"),
        (
            torch.optim.lr_scheduler.StepLR(torch.optim.Adam(_parameters()), 2),
            r"^A schedule must be made with its optimizer.* but got StepLR of an existing one; give a function",
        ),
        ("Adam", r"^An optimizer must be a function from named parameters to an optimizer, .* but got 'Adam'\.$"),
    ],
)
def test_the_error_for_a_wrong_factory_says_what_to_write(optimizer, message):
    with pytest.raises(InvalidTypeError, match=message):
        check_factory(optimizer)
