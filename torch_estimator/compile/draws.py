"""Random numbers that a graph draws and does not use."""

from __future__ import annotations

import operator
from collections.abc import Iterator

import torch
from torch.fx import Graph, Node


def unused_draws(graph: Graph) -> list[Node]:
    """The random operators that a compiler would leave out, so that all later ones would draw other numbers."""
    owner: dict[Node, Node] = {}

    def memory(node: Node) -> Node:
        """What is changed in place, and views, lie in the memory of another."""
        while owner[node] is not node:
            owner[node] = node = owner[owner[node]]
        return node

    for node in graph.nodes:
        owner[node] = node
        for other in _aliased(node):
            owner[memory(node)] = memory(other)
    used = {memory(node) for node in graph.nodes if node.op in ("placeholder", "get_attr", "output")}
    for node in reversed(graph.nodes):
        if memory(node) in used:
            used.update(map(memory, node.all_input_nodes))
    return [node for node in graph.nodes if _is_random(node) and memory(node) not in used]


def _aliased(node: Node) -> Iterator[Node]:
    if node.target is operator.getitem:
        yield from node.all_input_nodes
    schema = getattr(node.target, "_schema", None)
    for argument, value in zip(schema.arguments if schema is not None else (), node.args, strict=False):
        if argument.alias_info is not None:
            yield from (one for one in (value if isinstance(value, list | tuple) else [value]) if isinstance(one, Node))


def _is_random(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
