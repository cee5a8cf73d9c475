"""Optimizers without parameters, which hold settings and return optimizers when they are called."""

import copy
import pickle

import pytest
import torch

from torch_estimator import optim
from torch_estimator.errors import InvalidTypeError, InvalidValueError

KINDS = [optim.Adagrad, optim.Adam, optim.AdamW, optim.Ftrl, optim.GradientDescent, optim.RMSProp]
every_kind = pytest.mark.parametrize("kind", KINDS)


def _parameters():
    return torch.nn.Linear(2, 1).named_parameters()


@every_kind
def test_calling_it_equals_constructing_it_with_the_parameters(kind):
    unbound = kind(lr=0.3)
    made, at_once = unbound(_parameters()), kind(_parameters(), lr=0.3)
    assert type(made) is kind
    assert unbound.unbound and not made.unbound
    assert [{**group, "params": None} for group in made.param_groups] == [
        {**group, "params": None} for group in at_once.param_groups
    ]
    assert [set(state) for state in made.state.values()] == [set(state) for state in at_once.state.values()]


def test_the_optimizers_it_makes_share_nothing():
    unbound = optim.Adam(lr=torch.tensor(0.1), beta1=0.5)
    one, other = unbound(_parameters()), unbound(_parameters())
    one.param_groups[0]["lr"].fill_(0.2)
    assert (float(other.param_groups[0]["lr"]), float(unbound.defaults["lr"])) == pytest.approx((0.1, 0.1))
    assert other.param_groups[0]["betas"] == (0.5, 0.999)


def test_groups_with_settings_of_their_own_are_taken():
    made = optim.AdamW(lr=0.1)([{"params": _parameters(), "weight_decay": 0.5}, {"params": _parameters()}])
    assert [group["weight_decay"] for group in made.param_groups] == [0.5, 0.01]


@every_kind
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_it_can_be_copied_and_pickled(kind, copied):
    assert copied(kind(lr=0.3))(_parameters()).param_groups[0]["lr"] == 0.3


@every_kind
def test_tensorflows_name_of_the_learning_rate_is_taken_too(kind):
    assert kind(learning_rate=0.3)(_parameters()).param_groups[0]["lr"] == 0.3
    with pytest.raises(InvalidValueError, match=r"^lr and learning_rate are two names .* lr=0.1 and learning_rate=0.3"):
        kind(lr=0.1, learning_rate=0.3)


def test_a_learning_rate_may_be_left_out_where_there_is_a_default():
    assert optim.Adam().defaults["lr"] == optim.AdamW().defaults["lr"] == 0.001
    with pytest.raises(InvalidValueError, match=r"^Ftrl needs a learning rate, but got none; write Ftrl\(lr=0.1\)"):
        optim.Ftrl()


def test_a_rate_in_place_of_the_parameters_is_refused():
    with pytest.raises(InvalidTypeError, match=r"^Adagrad takes its parameters first, but got 0.1; write Adagrad\(lr"):
        optim.Adagrad(0.1)


def test_an_unbound_one_cannot_step_and_a_bound_one_cannot_be_called():
    with pytest.raises(InvalidTypeError, match=r"^This Ftrl has no parameters yet"):
        optim.Ftrl(lr=0.1).step()
    with pytest.raises(InvalidTypeError, match=r"^This Ftrl has parameters already"):
        optim.Ftrl(_parameters(), lr=0.1)(_parameters())
