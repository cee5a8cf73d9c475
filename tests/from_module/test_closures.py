"""Functions that read the module given to from_module are refused, since copies of it are trained."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import torch_estimator as te


class Net(nn.Module):
    """Keeps a penalty of its forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 1), nn.ReLU())
        self.criterion = nn.CrossEntropyLoss(weight=torch.ones(2))
        self.register_buffer("mean", torch.zeros(4))
        self.kl = torch.zeros(())

    def forward(self, rows: Tensor) -> Any:
        self.kl = rows.square().mean()
        return self.inner(rows)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return functional.mse_loss(outputs, labels) + self.kl


NET = Net()
FOREIGN = Net()


def mse(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.mse_loss(outputs, labels)


def of_global(outputs: Tensor, labels: Tensor) -> Tensor:
    return mse(outputs, labels) + NET.kl


def of_global_in_a_helper(outputs: Tensor, labels: Tensor) -> Tensor:
    def penalty() -> Tensor:
        return sum((of_global(outputs, labels) for _ in range(2)), torch.zeros(()))

    return mse(outputs, labels) + penalty()


def of_other_names(outputs: Any, labels: Tensor) -> Tensor:
    return mse(outputs.NET, labels) + FOREIGN.kl


class Program:
    """Holds its module and its loss, as programs often do."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self.scale = 2.0

    @property
    def kl(self) -> Tensor:
        return self.net.kl

    def penalty(self) -> Tensor:
        return self.net.kl

    def plain(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.scale * mse(outputs, labels)

    def direct(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.plain(outputs, labels) + self.net.kl

    def by_method(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.plain(outputs, labels) + self.penalty()

    def recursive(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.recursive(outputs, labels) if len(outputs) > 9 else self.direct(outputs, labels)

    def by_property(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.plain(outputs, labels) + self.kl


class Callable:
    def __init__(self, held: Any) -> None:
        self.held = held

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return mse(outputs, labels)


class Penalised(nn.Module):
    """A loss module."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return mse(outputs, labels)


def closing_over(net: Any) -> Any:
    return lambda outputs, labels: mse(outputs, labels) + net.kl


def keyword(outputs: Tensor, labels: Tensor, net: Any = None) -> Tensor:
    return mse(outputs, labels)


def default(net: Any) -> Any:
    def loss(outputs: Tensor, labels: Tensor, net: Any = net, *, other: Any = None) -> Tensor:
        return mse(outputs, labels)

    return loss


def program_of(net: Net) -> Any:
    program = Program(net)
    return lambda outputs, labels: mse(outputs, labels) + program.net.kl


def of_weight(net: Net) -> Any:
    weight = net.inner[0].weight
    return lambda outputs, labels: mse(outputs, labels) + weight.square().sum()


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (closing_over, "the given Net through its variable 'net'"),
        (lambda net: closing_over(net.inner), "a Sequential of the given Net through its variable 'net'"),
        (of_weight, "a Parameter of the given Net through its variable 'weight'"),
        (lambda net: torch.no_grad()(closing_over(net)), "the given Net through its variable 'net'"),
        (lambda net: of_global, "the given Net through the global 'NET'"),
        (lambda net: of_global_in_a_helper, "the given Net through the global 'NET'"),
        (lambda net: functools.partial(keyword, net=net), "the given Net through the argument 'net' of a partial"),
        (lambda net: functools.partial(closing_over(net)), "the given Net through its variable 'net'"),
        (default, "the given Net through a default argument"),
        (lambda net: net.loss, "the given Net through self"),
        (lambda net: Program(net).direct, "the given Net through self.net"),
        (lambda net: Program(net).by_method, "the given Net through self.net"),
        (lambda net: Program(net).by_property, "the given Net through self.net"),
        (program_of, "the given Net through its variable 'program'.net"),
        (lambda net: Program(net).recursive, "the given Net through self.net"),
        (Callable, "the given Net through its attribute 'held'"),
        (lambda net: Callable([net.inner]), "a Sequential of the given Net through its attribute 'held'"),
        (lambda net: Callable({"a": net}), "the given Net through its attribute 'held'['a']"),
        (Penalised, "the given Net through its attribute 'net'"),
    ],
)
def test_a_function_that_holds_a_part_of_the_module_is_named(make: Any, name: str) -> None:
    function = make(NET)
    with pytest.raises(te.errors.InvalidValueError) as caught:
        te.Estimator.from_module(NET, loss=function)
    assert str(caught.value).startswith(f"The loss reads {name}, but from_module trains and evaluates copies of it")


@pytest.mark.parametrize(
    "function",
    [
        mse,
        of_other_names,
        closing_over(FOREIGN),
        closing_over(Net),
        functools.partial(keyword, net=FOREIGN),
        Program(NET).plain,
        Callable(Net),
        Callable(mse),
        Penalised(FOREIGN).requires_grad_(False),
        nn.MSELoss(),
        NET.criterion,
        closing_over(NET.inner[1]),
    ],
)
def test_a_function_that_holds_other_modules_or_a_class_is_taken(function: Any) -> None:
    te.Estimator.from_module(NET, loss=function)


def test_predictions_metrics_and_heads_are_named_too() -> None:
    net = Net()
    for start, arguments in {
        "The function of predictions reads": {"loss": mse, "predictions": lambda outputs: {"mean": net.mean}},
        "The metric 'kl' reads": {"loss": mse, "metrics": {"kl": lambda labels, predictions: net.kl}},
        "The head reads": {"head": te.RegressionHead(loss_fn=lambda labels, logits: logits - labels + net.kl)},
    }.items():
        with pytest.raises(te.errors.InvalidValueError, match=f"^{start} the given Net through its variable 'net'"):
            te.Estimator.from_module(net, **arguments)
    head = te.MultiHead([te.RegressionHead(name="a", loss_fn=lambda labels, logits: logits - labels + net.kl)])
    with pytest.raises(te.errors.InvalidValueError, match=r"^The head reads the given Net"):
        te.Estimator.from_module(net, head=head)
