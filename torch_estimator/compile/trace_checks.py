"""Checks that a traced graph computes what the step computes in Python. A step that fails a check is not compiled.

A graph holds tensor operations only. Everything else that Python does while the step is traced happens once and never
again: a number computed in Python becomes a constant, a count stays what it was, a file is written once. A step is
compiled only if no such thing can matter. The checks before tracing take real steps and compare objects before and
after them. The checks during tracing refuse operations that hand numbers to Python. The checks after tracing inspect
the graph.
"""

from __future__ import annotations

import operator
import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.optim import optimizer as torch_optimizer
from torch.overrides import TorchFunctionMode

from torch_estimator.compile.key import CacheKey
from torch_estimator.train.step import TrainStep

# Functions that hand all numbers of a tensor to Python.
_READS = frozenset({"numpy", "tolist", "__array__", "__dlpack__", "apply_", "map_", "map2_"})
# Functions that turn a tensor of one element into a Python number.
_NUMBERS = frozenset({"__bool__", "__complex__", "__float__", "__index__", "__int__", "item"})
# Functions that make a tensor from a list by reading the elements as numbers, even if the elements are tensors.
_MADE_OF_LISTS = frozenset(
    {"tensor", "as_tensor", "asarray", "new", "new_tensor", "sparse_coo_tensor", "sparse_csr_tensor"}
)

# How the error begins of an operator for which PyTorch has no rule that gives the shapes of its results.
_NO_SHAPES = re.compile(r"(aten::\w+)[\w.]*: attempted to run this operator with Meta tensors")

_READ_AS_NUMBER = "it turns a tensor into a Python number (item(), float(), bool() or an if on a tensor)"


class CannotBeCompiled(Exception):
    """Error that a step cannot be compiled. The message is the reason, in words that fit after "because"."""


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute of an object in the body of a ``with`` statement, and restore the attribute afterwards."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def check_optimizer_hooks(step: TrainStep) -> None:
    """Raise CannotBeCompiled if an optimizer has hooks before or after its step, because a graph cannot call them."""
    for optimizer in step.optimizers:
        if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
            raise CannotBeCompiled(f"{type(optimizer).__name__} has hooks around its step")
    hooks = (torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks)
    if step.other_optimizers and any(hooks):
        raise CannotBeCompiled("there are hooks around the step of every optimizer")


def check_repeats(
    step: TrainStep, take_step: Callable[[], None], state: Sequence[Tensor], compute_key: Callable[[], CacheKey]
) -> Tensor:
    """Take two steps in Python, and check that these steps change nothing but the numbers in tensors.

    One step is not enough, because some modules do something in their very first step only. Two steps without a check
    between them are not enough either: two tensors that are swapped in every step are back in place after two.

    Args:
        step: The step to check.
        take_step: Takes the step, on the same batch each time.
        state: The tensors that the step reads and writes.
        compute_key: Returns the cache key of everything that the step depends on at the time of the call.

    Returns:
        The state of torch's random generator after the first step.

    Raises:
        CannotBeCompiled: A step draws from Python's or numpy's generators, changes a setting of an optimizer, changes
            something in the model that is not a tensor, or gives a tensor other memory.
    """
    generators, settings = _python_generators(), settings_of_groups(step)
    addresses = [tensor.data_ptr() for tensor in state]
    before = compute_key()
    take_step()
    if _python_generators() != generators:
        raise CannotBeCompiled("it draws from Python's or numpy's random numbers, which would always be the same")
    drawn, has_moved = torch.get_rng_state(), [tensor.data_ptr() for tensor in state] != addresses
    after_first = compute_key()
    take_step()
    if settings_of_groups(step) != settings:
        raise CannotBeCompiled("its optimizer changes a setting such as the learning rate by itself")
    if after_first.digest != before.digest or compute_key() != after_first:
        raise CannotBeCompiled("it changes something in the model that is no tensor, such as a count or a flag")
    if has_moved or [tensor.data_ptr() for tensor in state] != addresses:
        raise CannotBeCompiled("it gives a tensor other memory (.data = ...) instead of changing its numbers")
    return drawn


def settings_of_groups(step: TrainStep) -> list[float]:
    """Return the settings of optimizers that may change from step to step, such as learning rates."""
    return [number for group in step.groups for number in group.numbers()]


def _python_generators() -> tuple[Any, ...]:
    """Return the states of the global random generators of Python and numpy."""
    state = np.random.get_state()
    return random.getstate(), state[0], state[1].tobytes(), state[2:]  # type: ignore[index]


@contextmanager
def refusing_reads() -> Iterator[None]:
    """Raise CannotBeCompiled if the body reads the numbers of a tensor in Python, for instance by ``tolist()``.

    In the graph, the numbers of the traced batch would be constants.
    """
    run = vars(torch.autograd)["_engine_run_backward"]

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        # Enter the mode again for the backward pass, because torch disables the mode inside its own functions.
        # The backward pass calls code of the user: hooks of tensors, and ``backward`` of autograd functions.
        with _RefuseReads():
            return run(*args, **kwargs)

    with replaced(torch.autograd, "_engine_run_backward", run_backward), _RefuseReads():
        yield


class _RefuseReads(TorchFunctionMode):
    """Torch function mode that raises CannotBeCompiled if a call reads the numbers of a tensor in Python."""

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name in _READS:
            raise CannotBeCompiled(f"it reads a tensor's numbers in Python ({name.strip('_')}())")
        if name in _MADE_OF_LISTS and any(_is_list_of_tensors(one) for one in (*args, *kwargs.values())):
            raise CannotBeCompiled(
                f"it makes a tensor of a list of tensors by {name}(); torch.stack keeps them tensors"
            )
        # The tracer refuses conversions to Python numbers, except while its dispatch key is excluded.
        # This is so while torch reads the elements of a list, as in torch.FloatTensor([x]).
        if name in _NUMBERS and torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python):
            raise CannotBeCompiled(_READ_AS_NUMBER)
        return func(*args, **kwargs)


def _is_list_of_tensors(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(one, Tensor) or _is_list_of_tensors(one) for one in value)


def reason_of(error: Exception, text: str | None = None) -> str:
    """Return why tracing or compiling failed, in words that fit after "because".

    `text` replaces ``str(error)``.
    """
    lines = map(str.strip, (str(error) if text is None else text).splitlines())
    line = next(filter(None, lines), "")
    if line.startswith("Exception encountered when calling") and isinstance(error.__context__, Exception):
        # Keras replaces the error of a layer by another one, which says first in which layer it was.
        return reason_of(error.__context__)
    if isinstance(error, CannotBeCompiled):
        return str(error)
    if "tracing tensor" in line or "_local_scalar_dense" in line:
        return _READ_AS_NUMBER
    if found := _NO_SHAPES.match(line):
        return f"PyTorch has no compiled form of {found[1]}"
    return f"{type(error).__name__}: {line}".rstrip(": ")


def check_graph(graph: GraphModule, again: GraphModule) -> None:
    """Raise CannotBeCompiled if a graph contains constants that may change between steps, or unused random numbers.

    `again` is the graph of the same step, traced a second time.
    """
    _check_constants(graph)
    # Numbers that Python computes, such as the time or the values of a new random generator, are constants of a graph.
    # Only a second graph shows that these numbers differ from step to step.
    if not _are_equal(graph, again):
        raise CannotBeCompiled("each step has other numbers of Python's in it, such as the time or new random numbers")
    if _unused_draws(graph.graph):
        raise CannotBeCompiled("it draws random numbers that it does not use, which machine code would not draw")


def check_draws(graph: GraphModule, inputs: Sequence[Tensor], before: Tensor, after: Tensor) -> None:
    """Run a graph, which changes its inputs, and check that it draws as many random numbers as the step in Python.

    A graph holds the draws, but not the calls that save, restore or seed the generator between them. `before` and
    `after` are the states of torch's random generator around a step in Python.
    """
    torch.set_rng_state(before)
    with torch.no_grad():
        graph(*inputs)
    if not torch.equal(torch.get_rng_state(), after):
        raise CannotBeCompiled(
            "it saves, restores or seeds the state of random numbers, as torch.utils.checkpoint does with "
            "preserve_rng_state=True"
        )


def _check_constants(graph: GraphModule) -> None:
    """Raise CannotBeCompiled if a graph holds a tensor that is not one of its inputs.

    Such a tensor could change later, and the graph would not see it. Tensors that the step makes from Python numbers
    are allowed; they are recognized by the operators with which the tracer copies them before each use.
    """
    for node in graph.graph.nodes:
        if node.op != "get_attr":
            continue
        for user in node.users:
            if user.target not in (torch.ops.aten.lift_fresh_copy.default, torch.ops.aten.lift_fresh.default):
                raise CannotBeCompiled(
                    "it reads a tensor that belongs to none of the module, the head and the optimizers, or assigns a "
                    "buffer instead of changing it (copy_)"
                )


def _are_equal(graph: GraphModule, other: GraphModule) -> bool:
    constants = [node.target for node in graph.graph.nodes if node.op == "get_attr"]
    return graph.code == other.code and all(
        torch.equal(getattr(graph, name), getattr(other, name)) for name in constants
    )


def _unused_draws(graph: Graph) -> list[Node]:
    """Return the nodes of a graph that draw random numbers which the graph does not use.

    A compiler leaves them out, so that all later operators would draw other numbers than in Python.
    """
    owner: dict[Node, Node] = {}

    def memory(node: Node) -> Node:
        """Return the node that allocated the memory of `node`. Views and in-place operations allocate no memory."""
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
    """Yield the inputs of `node` with which its result shares memory, as views and in-place operations do."""
    if node.target is operator.getitem:
        yield from node.all_input_nodes
    schema = getattr(node.target, "_schema", None)
    for argument, value in zip(schema.arguments if schema is not None else (), node.args, strict=False):
        if argument.alias_info is not None:
            yield from (one for one in (value if isinstance(value, list | tuple) else [value]) if isinstance(one, Node))


def _is_random(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
