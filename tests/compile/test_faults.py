"""Thirty deliberate faults of compiled steps: which of them the first batch refuses, and what the others would need."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node

import torch_estimator as te
from tests.compile.test_tracing import Traced, batches, given
from torch_estimator.compile.key import cache_key
from torch_estimator.compile.proof import Proof, prove
from torch_estimator.feature_column.table import Piece, Table
from torch_estimator.optim.companions import with_companions
from torch_estimator.train.batches import TensorBatch
from torch_estimator.train.live_group import LiveGroup
from torch_estimator.train.step import TrainStep

aten = torch.ops.aten
ROWS = 16


class Everything(nn.Module):
    """A module of most kinds of operators that users train with."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Table([Piece(name="ids", rows=11, initializer=nn.init.normal_)], 3)
        self.embedding = nn.Embedding(11, 4)
        self.conv = nn.Conv2d(2, 3, 2)
        self.norm = nn.BatchNorm1d(8)
        self.square = nn.Linear(8, 8)
        self.layer_norm = nn.LayerNorm(8)
        self.drop = nn.Dropout(0.25)
        self.out = nn.Linear(8, 1)

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        ids, signed, image, byte = (features[name] for name in ("ids", "signed", "image", "byte"))
        deep = torch.cat([self.table(ids).mean(1), self.embedding(ids).sum(1)], 1)
        whole = torch.div(signed, 4, rounding_mode="floor") + signed % 3 + byte.amax(1)
        x = self.norm(torch.cat([deep, whole[:, None] * 0.5], 1))
        pixels = self.conv(image.to(memory_format=torch.channels_last)).amax((2, 3))
        x = self.layer_norm(torch.relu(self.square(x))) + nn.functional.gelu(x)
        x = self.drop(x) * torch.softmax(x, 1).cumsum(1)
        x = torch.where(x > 0.1, x, x.clamp(min=-0.5) * 2)
        return self.out(x) + pixels.mean(1, keepdim=True)


def batch_of(*, is_mild: bool = False) -> TensorBatch:
    """Return a batch; a mild one has neither negative integers nor bytes above 127."""
    (batch,) = batches(1, ROWS)
    draw = torch.Generator().manual_seed(3)
    signed = torch.randint(-20, 20, (ROWS,), generator=draw)
    byte = torch.randint(0, 256, (ROWS, 4), generator=draw, dtype=torch.uint8)
    image = torch.randn(ROWS, 2, 4, 5, generator=draw)
    if is_mild:
        signed, byte = signed.abs(), byte // 2
    features = {**batch.features, "signed": signed, "image": image, "byte": byte}
    return TensorBatch(features, batch.labels, torch.rand(ROWS, 1, generator=draw))


def loss_fn(module: nn.Module, features: Any, labels: Any, weights: Any) -> Tensor:
    return (weights * (module(features) - labels) ** 2).mean()


def step_of() -> TrainStep:
    torch.manual_seed(0)
    module = Everything()
    rows = te.optim.Ftrl(module.table.parameters(), lr=0.1)  # type: ignore[arg-type]
    others = [parameter for name, parameter in module.named_parameters() if not name.startswith("table")]
    return TrainStep(module, loss_fn, [rows, torch.optim.AdamW(others, lr=0.01, weight_decay=0.1)])


@functools.cache
def traced_step(is_mild: bool) -> tuple[Traced, TensorBatch]:
    step, batch = step_of(), batch_of(is_mild=is_mild)
    torch.manual_seed(1)
    step(*given(batch))
    return Traced(step, batch), batch


def first_batch(fault: Callable[[GraphModule], None] | None, *, is_mild: bool = False) -> Proof:
    """Take the second step in Python and by the graph of another step, with a fault; return the proof."""
    (traced, batch), step = traced_step(is_mild), step_of()
    torch.manual_seed(1)
    step(*given(batch))
    graph = copy.deepcopy(traced.graph)
    if fault is not None:
        fault(graph)
        graph.graph.lint()
        graph.recompile()
    tensors = cache_key(step.module, list(with_companions(step.optimizers)), leave_out=LiveGroup.MOVING).tensors
    own = [*(tensor for _, tensor in tensors), *step.scratch()]
    numbers = [number for group in step.groups for number in group.numbers()]
    inputs = [*batch.features.values(), batch.labels, batch.weights]

    def run() -> float:
        with torch.no_grad():
            for there, number in zip(traced.numbers, numbers, strict=True):
                there.fill_(number)
            (loss,) = graph(*own, *traced.numbers, *inputs)
        return float(loss)

    return prove(step, tensors, given(batch), run)


Fault = Callable[[GraphModule], None]


def node_of(graph: GraphModule, name: str) -> Node:
    """Return the node of the printed graph that has a name, such as ``embedding_1``."""
    (found,) = [node for node in graph.graph.nodes if node.name == name]
    return found


def with_arguments(name: str, changed: dict[int, Any], **keywords: Any) -> Fault:
    """Replace arguments of a node, by position and by name."""

    def change(graph: GraphModule) -> None:
        node = node_of(graph, name)
        node.args = tuple(changed.get(place, one) for place, one in enumerate(node.args))
        node.kwargs = {**node.kwargs, **keywords}

    return change


def with_target(name: str, target: Any) -> Fault:
    return lambda graph: setattr(node_of(graph, name), "target", target)


def through(name: str, function: Callable[[Tensor], Tensor]) -> Fault:
    """Let everything that uses the result of a node use a function of it instead."""

    def change(graph: GraphModule) -> None:
        node = node_of(graph, name)
        with graph.graph.inserting_after(node):
            changed = graph.graph.call_function(function, (node,))
        node.replace_all_uses_with(changed, delete_user_cb=lambda user: user is not changed)

    return change


def without(name: str) -> Fault:
    """Remove a node that changes something in place."""

    def change(graph: GraphModule) -> None:
        node = node_of(graph, name)
        node.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
        graph.graph.erase_node(node)

    return change


def swapped(name: str, one: int, other: int) -> Fault:
    """Swap two arguments of a node."""

    def change(graph: GraphModule) -> None:
        arguments = list(node_of(graph, name).args)
        arguments[one], arguments[other] = arguments[other], arguments[one]
        node_of(graph, name).args = tuple(arguments)

    return change


def items_of(name: str, argument: int, change_items: Callable[[list[Any]], list[Any]]) -> Fault:
    """Change a list that is an argument of a node."""

    def change(graph: GraphModule) -> None:
        items = list(node_of(graph, name).args[argument])  # type: ignore[arg-type]
        with_arguments(name, {argument: change_items(items)})(graph)

    return change


def an_extra_draw(x: Tensor) -> Tensor:
    torch.rand(1)
    return x


def one_element_lost(x: Tensor) -> Tensor:
    x = x.clone()
    x[tuple(torch.nonzero(x.abs() == x.abs().max())[0])] = 0
    return x


SHOWN: dict[str, Fault] = {
    "integer division towards zero": with_arguments("div", {}, rounding_mode="trunc"),
    "a remainder with the sign of the dividend": with_target("remainder", aten.fmod.Scalar),
    "the largest of bytes as signed numbers": through("_to_copy", lambda x: x.to(torch.int8).to(torch.int32)),
    "lost sums of a scatter into a table": with_arguments("index_put__1", {3: False}),
    "lost sums of a dense embedding": with_arguments("embedding_dense_backward", {4: True}),
    "a padding row that gets no gradient": with_arguments("embedding_dense_backward", {3: 10}),
    "ids of another feature's bucket": through("view_4", lambda ids: (ids + 1) % 11),
    "a constant of another program": with_arguments("mul", {1: 0.25}),
    "a bound of another program": with_arguments("clamp", {1: -0.01}),
    "a threshold of another program": with_arguments("gt", {1: 0.3}),
    "strides of another layout": through("_to_copy_2", lambda x: x.contiguous().view(16, 4, 5, 2).permute(0, 3, 1, 2)),
    "a transposed square matrix": through("t", lambda x: x.t()),
    "a softmax over rows": with_arguments("_softmax", {1: 0}),
    "a sum that begins one later": through("cumsum", lambda x: x.roll(1, 1)),
    "branches of where swapped": swapped("where", 1, 2),
    "an approximate gelu": with_arguments("gelu", {}, approximate="tanh"),
    "a rounded product": through("addmm", lambda x: x.half().float()),
    "a rounded loss": through("mean_2", lambda x: x.bfloat16().float()),
    "weights of rows that do not count": with_arguments("mul_5", {1: 1.0}),
    "a last row that is lost": through("mul_7", lambda x: torch.cat([x[:-1], torch.zeros_like(x[-1:])])),
    "a sum in the place of a mean": through("div_1", lambda x: x * ROWS),
    "another rate of dropout": with_arguments("bernoulli_", {1: 0.5}),
    "one random number too many": through("mean_2", an_extra_draw),
    "the random numbers of a step before": through("bernoulli_", lambda x: x.flip(0)),
    "a momentum of batch norm": with_arguments("native_batch_norm", {6: 0.01}),
    "statistics that are not updated": with_arguments("native_batch_norm", {3: None, 4: None}),
    "a count of batches that stands still": without("add_"),
    "one lost element of a gradient": through("getitem_10", one_element_lost),
    "two bias gradients swapped": items_of("_foreach_lerp_", 1, lambda ones: [*ones[:7], ones[8], ones[7], *ones[9:]]),
    "another decay of Adam's second moments": with_arguments("_foreach_mul__1", {1: 0.9}),
    "a lost decay of weights": without("_foreach_mul_"),
    "a count of Adam that stands still": without("_foreach_add_"),
    "an accumulator of Ftrl that is not written": without("index_put__3"),
    "a table that is not written": without("index_put__2"),
}

# What a batch without negative integers and bytes above 127 does not show. The replacements of these operators are
# compared with Python over all kinds of values in test_replacements.py.
HIDDEN = [
    "integer division towards zero",
    "a remainder with the sign of the dividend",
    "the largest of bytes as signed numbers",
]


def test_a_graph_without_a_fault_is_proven() -> None:
    assert first_batch(None).difference is None
    assert first_batch(None, is_mild=True).difference is None


@pytest.mark.parametrize("name", SHOWN)
def test_the_first_batch_refuses_a_fault(name: str) -> None:
    assert first_batch(SHOWN[name]).difference is not None


@pytest.mark.parametrize("name", HIDDEN)
def test_a_batch_without_the_numbers_that_a_fault_needs_does_not_show_it(name: str) -> None:
    assert first_batch(SHOWN[name], is_mild=True).difference is None
