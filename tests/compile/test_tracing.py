"""A traced step computes the same as the step, with any module and optimizer; a refusal names its reason."""

from __future__ import annotations

import copy
import functools
import random
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, manual_seed, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.checkpoint import checkpoint

import torch_estimator as te
from torch_estimator.compile.key import cache_key
from torch_estimator.compile.trace_checks import CannotBeCompiled
from torch_estimator.compile.tracing import WRAPS, trace
from torch_estimator.feature_column.table import Piece, Table
from torch_estimator.optim.companions import with_companions
from torch_estimator.train.batches import TensorBatch
from torch_estimator.train.live_group import LiveGroup
from torch_estimator.train.optimizers import Schedules
from torch_estimator.train.step import TrainStep

Factory = Callable[[nn.Module], Any]


class Model(nn.Module):
    """A module with tables, an embedding of torch, dropout and batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Table([Piece(name="ids", rows=11, initializer=nn.init.normal_)], 3)
        self.wide = Table([Piece(name="ids", rows=11)], 1)
        self.embedding = nn.Embedding(11, 4)
        self.norm = nn.BatchNorm1d(7)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(7, 1)

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        ids = features["ids"]
        deep = torch.cat([self.table(ids).mean(1), self.embedding(ids).sum(1)], 1)
        return self.out(self.drop(self.norm(deep))) + self.wide(ids).sum(1)


def loss_fn(module: nn.Module, features: Any, labels: Any, weights: Tensor | None) -> Tensor:
    return nn.functional.mse_loss(module(features), labels)


def batches(count: int, rows: int = 6) -> list[TensorBatch]:
    generator = torch.Generator().manual_seed(0)
    return [
        TensorBatch(
            # The last id stands for a missing value.
            {"ids": torch.randint(0, 12, (rows, 2), generator=generator).clamp(max=10)},
            torch.randn(rows, 1, generator=generator),
            None,
        )
        for _ in range(count)
    ]


def given(batch: TensorBatch) -> tuple[Any, Any, Any]:
    return batch.features, batch.labels, batch.weights


class Traced:
    """Takes steps with the graph of another step, which itself cannot be used afterwards."""

    def __init__(self, step: TrainStep, batch: TensorBatch, roots: Sequence[Any] = ()) -> None:
        def now() -> Any:
            optimizers = [one for one in with_companions(step.optimizers) if one not in step.accumulation]
            return cache_key(step.module, optimizers, *roots, leave_out=LiveGroup.MOVING)

        self.groups = step.groups
        state = [*(tensor for _, tensor in now().tensors), *step.scratch()]
        kept = [tensor.clone() for tensor in state]
        numbers = len([number for group in self.groups for number in group.numbers()])
        generator = torch.get_rng_state()
        self.graph, inputs = trace(step, state, batch, now)
        torch.set_rng_state(generator)
        with torch.no_grad():
            for tensor, before in zip(state, kept, strict=True):
                tensor.copy_(before)
        self.state, self.numbers = state, inputs[len(state) : len(state) + numbers]

    def __call__(self, batch: TensorBatch, numbers: Sequence[float]) -> Tensor:
        for tensor, number in zip(self.numbers, numbers, strict=True):
            tensor.fill_(number)
        with torch.no_grad():
            labels = [] if batch.labels is None else [batch.labels]
            (loss,) = self.graph(*self.state, *self.numbers, *batch.features.values(), *labels)
        return loss


OPTIMIZERS: dict[str, Factory] = {
    "SGD": lambda module: torch.optim.SGD(module.parameters(), lr=0.1),
    "SGD, momentum, decay": lambda m: torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9, weight_decay=0.01),
    "Nesterov": lambda m: torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9, nesterov=True),
    "Adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.01),
    "AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01),
    "AMSGrad": lambda m: torch.optim.Adam(m.parameters(), lr=0.01, amsgrad=True),
    "Adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=0.1, lr_decay=0.01),
    "RMSprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=0.01, momentum=0.5, centered=True),
    "Adadelta": lambda m: torch.optim.Adadelta(m.parameters(), lr=1.0),
    "Adamax": lambda m: torch.optim.Adamax(m.parameters(), lr=0.01),
    "NAdam": lambda m: torch.optim.NAdam(m.parameters(), lr=0.01),
    "RAdam": lambda m: torch.optim.RAdam(m.parameters(), lr=0.01),
    "ASGD": lambda m: torch.optim.ASGD(m.parameters(), lr=0.01),
    "Rprop": lambda m: torch.optim.Rprop(m.parameters(), lr=0.01),
    "ours, Adagrad": lambda m: te.optim.Adagrad(m.parameters(), lr=0.1),
    "ours, Ftrl": lambda m: te.optim.Ftrl(m.parameters(), lr=0.1, l1_regularization_strength=0.01),
    "ours, Adam": lambda m: te.optim.Adam(m.parameters(), lr=0.01),
    "ours, AdamW": lambda m: te.optim.AdamW(m.parameters(), lr=0.01),
    "ours, clipped": lambda m: te.optim.clip_gradients_by_norm(te.optim.Adagrad(lr=0.1), 0.5)(m.named_parameters()),
    "both": lambda m: [
        te.optim.Ftrl(m.wide.parameters(), lr=0.1),  # type: ignore[union-attr,arg-type]
        torch.optim.Adam([p for n, p in m.named_parameters() if not n.startswith("wide")], lr=0.01),
    ],
}


def step_of(factory: Factory, model: nn.Module | None = None) -> TrainStep:
    torch.manual_seed(0)
    module = model or Model()
    made = factory(module)
    return TrainStep(module, loss_fn, made if isinstance(made, list) else [made])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_traced_step_computes_the_same_as_the_step_over_100_steps(name: str) -> None:
    eager, other = step_of(OPTIMIZERS[name]), step_of(OPTIMIZERS[name])
    data = batches(100)
    torch.manual_seed(1)
    eager(*given(data[0]))
    state = torch.get_rng_state()
    torch.manual_seed(1)
    # Optimizers of torch.optim make their state in their first step, which comes before tracing.
    other(*given(data[0]))
    traced = Traced(other, data[0])
    torch.set_rng_state(state)
    expected = [float(eager(*given(batch))) for batch in data[1:]]
    torch.set_rng_state(state)
    numbers = [number for group in eager.groups for number in group.numbers()]
    losses = [float(traced(batch, numbers)) for batch in data[1:]]
    np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-5)
    theirs = dict(eager.module.state_dict())
    for key, value in other.module.state_dict().items():
        torch.testing.assert_close(value, theirs[key], rtol=1e-4, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("name", ["SGD, momentum, decay", "Adam", "AdamW", "RMSprop", "ours, AdamW"])
def test_a_schedule_moves_a_traced_step_without_another_graph(name: str) -> None:
    def scheduled() -> tuple[TrainStep, Schedules]:
        step = step_of(OPTIMIZERS[name])
        (optimizer,) = step.optimizers
        return step, Schedules([torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=100)])

    (eager, schedules), (other, others) = scheduled(), scheduled()
    data = batches(60)
    for step, its in ((eager, schedules), (other, others)):
        torch.manual_seed(1)
        step(*given(data[0]))
        its.advance()
    state = torch.get_rng_state()
    numbers: list[list[float]] = []
    expected = []
    for batch in data[1:]:
        numbers.append([number for group in eager.groups for number in group.numbers()])
        expected.append(float(eager(*given(batch))))
        schedules.advance()
    traced = Traced(other, data[0])
    torch.set_rng_state(state)
    losses = [float(traced(batch, at)) for batch, at in zip(data[1:], numbers, strict=True)]
    assert len({tuple(at) for at in numbers}) > 50
    np.testing.assert_allclose(losses, expected, rtol=1e-4, atol=1e-5)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(1, 1)
        self.calls = 0

    def forward(self, features: Any) -> Tensor:
        self.calls += 1
        return self.out(features["ids"][:, :1].float()) * (1.0 if self.calls < 3 else 2.0)


class Drawing(Counting):
    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, features: Any) -> Tensor:
        return self.out(features["ids"][:, :1].float()) * self.draw()


class Reading(Counting):
    def forward(self, features: Any) -> Tensor:
        outputs = self.out(features["ids"][:, :1].float())
        return outputs if outputs.sum() > 0 else -outputs


class Beginning(Counting):
    """Sets its bias in the very first step only."""

    def forward(self, features: Any) -> Tensor:
        x = features["ids"][:, :1].float()
        if not self.calls:
            self.calls = 1
            with torch.no_grad():
                self.out.bias.copy_(x.mean())
        return self.out(x)


class Checkpointed(Counting):
    def forward(self, features: Any) -> Tensor:
        x = features["ids"][:, :1].float().requires_grad_()
        return checkpoint(lambda x: nn.functional.dropout(self.out(x), 0.5), x, use_reentrant=False)


class Seeding(Counting):
    def forward(self, features: Any) -> Tensor:
        manual_seed(1)
        return self.out(features["ids"][:, :1].float()) * torch.rand(())


class Replacing(Counting):
    def forward(self, features: Any) -> Tensor:
        self.out.weight.data = self.out.weight.data * 0.9
        return self.out(features["ids"][:, :1].float())


class Exchanging(Replacing):
    """Exchanges two tensors in every step, so that after two steps both are where they were."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Parameter(torch.ones(1, 1), requires_grad=False)

    def forward(self, features: Any) -> Tensor:
        self.out.weight.data, self.other.data = self.other.data, self.out.weight.data
        return self.out(features["ids"][:, :1].float()) * self.other


class DrawingForNothing(Counting):
    def forward(self, features: Any) -> Tensor:
        outputs = self.out(features["ids"][:, :1].float())
        nn.functional.dropout(outputs, 0.5).relu()
        return nn.functional.dropout(outputs, 0.5)


class Made(Counting):
    """Makes a tensor of the sum of its inputs by a given function."""

    def __init__(self, make: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.make = make

    def forward(self, features: Any) -> Tensor:
        x = features["ids"][:, :1].float()
        return self.out(x) * self.make(x.sum()).sum()


class ReadingBackwards(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradient * torch.from_numpy(np.abs(x.detach().numpy()))


class Hooked(Counting):
    def forward(self, features: Any) -> Tensor:
        outputs = self.out(features["ids"][:, :1].float())
        outputs.register_hook(lambda gradient: gradient * float(np.asarray(gradient).mean()))
        return outputs


class Backwards(Counting):
    def forward(self, features: Any) -> Tensor:
        return ReadingBackwards.apply(self.out(features["ids"][:, :1].float()))  # type: ignore[no-any-return]


class Assigning(Counting):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, features: Any) -> Tensor:
        outputs: Tensor = self.out(features["ids"][:, :1].float())
        self.mean = 0.9 * self.mean + 0.1 * outputs.detach().mean()
        return outputs - self.mean


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Assigning, r"assigns a buffer instead of changing it \(copy_\)"),
        (Exchanging, r"gives a tensor other memory \(.data = ...\)"),
        (DrawingForNothing, "draws random numbers that it does not use"),
        (lambda: Made(lambda x: torch.tensor([x, 1])), r"makes a tensor of a list of tensors by tensor\(\)"),
        (lambda: Made(lambda x: torch.tensor(data=((1, x),))), r"makes a tensor of a list of tensors by tensor\(\)"),
        (lambda: Made(lambda x: torch.as_tensor([x])), r"makes a tensor of a list of tensors by as_tensor\(\)"),
        (lambda: Made(lambda x: x.new_tensor([x])), r"makes a tensor of a list of tensors by new_tensor\(\)"),
        (lambda: Made(lambda x: torch.FloatTensor([x])), "turns a tensor into a Python number"),
        (Backwards, r"reads a tensor's numbers in Python \(numpy\(\)\)"),
        (Hooked, r"reads a tensor's numbers in Python \(array\(\)\)"),
        (Counting, "it changes something in the model that is no tensor"),
        (Beginning, "it changes something in the model that is no tensor"),
        (Checkpointed, "saves, restores or seeds the state of random numbers, as torch.utils.checkpoint does"),
        (Seeding, "saves, restores or seeds the state of random numbers"),
        (Replacing, r"gives a tensor other memory \(.data = ...\)"),
        (lambda: Drawing(time.time), "has other numbers of Python's in it, such as the time"),
        (lambda: Drawing(lambda: np.random.default_rng().uniform()), "has other numbers of Python's in it"),
        (lambda: Drawing(lambda: torch.tensor(time.time() % 1)), "has other numbers of Python's in it"),  # type: ignore[arg-type,return-value]
        (lambda: Drawing(random.random), "draws from Python's or numpy's random numbers"),
        (lambda: Drawing(np.random.rand), "draws from Python's or numpy's random numbers"),
        (Reading, "turns a tensor into a Python number"),
    ],
)
def test_a_step_that_a_graph_cannot_repeat_is_refused(model: Callable[[], nn.Module], reason: str) -> None:
    step = step_of(OPTIMIZERS["SGD"], model())
    with pytest.raises(CannotBeCompiled, match=reason):
        Traced(step, batches(1)[0])


def test_an_optimizer_that_reads_its_state_as_numbers_is_not_traced() -> None:
    step = step_of(lambda module: torch.optim.Adafactor(module.parameters(), lr=0.01))
    batch = batches(1)[0]
    step(*given(batch))
    with pytest.raises(CannotBeCompiled, match="turns a tensor into a Python number"):
        Traced(step, batch)


def clipping(step: Any) -> Any:
    @functools.wraps(step)
    def wrapper(self: torch.optim.Optimizer, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.clamp_(-0.01, 0.01)
        return step(self, closure)

    return wrapper


class Clipping(torch.optim.SGD):
    step = clipping(torch.optim.SGD.step)


def test_wrappers_of_the_user_around_a_step_are_traced() -> None:
    eager, other = (step_of(lambda module: Clipping(module.parameters(), lr=0.1)) for _ in range(2))
    data = batches(20)
    traced = Traced(other, data[0])
    numbers = [number for group in eager.groups for number in group.numbers()]
    torch.manual_seed(1)
    expected = [float(eager(*given(batch))) for batch in data]
    torch.manual_seed(1)
    np.testing.assert_allclose([float(traced(batch, numbers)) for batch in data], expected, rtol=1e-4, atol=1e-5)


def test_a_step_that_was_replaced_is_not_traced() -> None:
    step = step_of(OPTIMIZERS["SGD"])
    (optimizer,) = step.optimizers
    optimizer.step = types.MethodType(lambda self, closure=None: None, optimizer)  # type: ignore[method-assign,assignment]
    with pytest.raises(CannotBeCompiled, match="step of this SGD has been replaced"):
        Traced(step, batches(1)[0])


def test_a_step_that_was_replaced_is_not_traced_where_a_schedule_has_wrapped_it() -> None:
    step = step_of(OPTIMIZERS["SGD"])
    (optimizer,) = step.optimizers
    own = optimizer.step
    optimizer.step = types.MethodType(lambda self, closure=None: own(closure), optimizer)  # type: ignore[method-assign,assignment]
    torch.optim.lr_scheduler.StepLR(optimizer, 1000)
    with pytest.raises(CannotBeCompiled, match="step of this SGD has been replaced"):
        Traced(step, batches(1)[0])


def test_an_optimizer_that_changes_its_own_settings_is_not_traced() -> None:
    class Slowing(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            for group in self.param_groups:
                group["lr"] *= 0.9

    with pytest.raises(CannotBeCompiled, match="changes a setting such as the learning rate by itself"):
        Traced(step_of(lambda module: Slowing(module.parameters(), lr=0.1)), batches(1)[0])


def test_hooks_of_all_optimizers_are_not_traced() -> None:
    hook = register_optimizer_step_pre_hook(lambda *_: None)
    try:
        with pytest.raises(CannotBeCompiled, match="hooks around the step of every optimizer"):
            Traced(step_of(OPTIMIZERS["SGD"]), batches(1)[0])
    finally:
        hook.remove()


class Swapping(Counting):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("one", torch.zeros(6, 1))
        self.register_buffer("other", torch.zeros(6, 1))

    def forward(self, features: Any) -> Tensor:
        outputs = self.out(features["ids"][:, :1].float())
        self.one.copy_(outputs.detach())
        self.one, self.other = self.other, self.one
        return outputs + 0.5 * self.one


class Hashing(Counting):
    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, features: Any) -> Tensor:
        hashed = (features["ids"] * self.factor + 1442695040888963407) % 1000 if self.factor else features["ids"] + 1
        return self.out(hashed[:, :1].float() / 1000)


@pytest.mark.parametrize("factor", [6364136223846793005, 0])
def test_a_graph_says_whether_its_integers_may_overflow(factor: int) -> None:
    traced = Traced(step_of(OPTIMIZERS["SGD"], Hashing(factor)), batches(1)[0])
    assert traced.graph.meta[WRAPS] is bool(factor)


def test_buffers_that_are_exchanged_are_exchanged_in_the_graph() -> None:
    eager, other = (step_of(OPTIMIZERS["SGD"], Swapping()) for _ in range(2))
    eager.module.load_state_dict(other.module.state_dict())
    data = batches(10)
    traced = Traced(other, data[0])
    expected = [float(eager(*given(batch))) for batch in data]
    np.testing.assert_allclose([float(traced(batch, [0.1])) for batch in data], expected, rtol=1e-5)


def test_an_optimizer_with_hooks_is_not_traced() -> None:
    step = step_of(OPTIMIZERS["Adam"])
    step.optimizers[0].register_step_post_hook(lambda *_: None)
    with pytest.raises(CannotBeCompiled, match="Adam has hooks around its step"):
        Traced(step, batches(1)[0])


def test_a_tensor_outside_of_the_model_is_refused() -> None:
    hidden = copy.copy(torch.ones(1))
    step = step_of(OPTIMIZERS["SGD"], Drawing(lambda: hidden))  # type: ignore[arg-type,return-value]
    # A tensor that is reached through an attribute of the module is an input like all others.
    Traced(step, batches(1)[0])

    def with_hidden(module: nn.Module, features: Any, labels: Any, weights: Any) -> Tensor:
        return loss_fn(module, features, labels, weights) * hidden.sum()

    module = Model()
    step = TrainStep(module, with_hidden, [torch.optim.SGD(module.parameters(), lr=0.1)])
    with pytest.raises(CannotBeCompiled, match="reads a tensor that belongs to none of"):
        Traced(step, batches(1)[0])
