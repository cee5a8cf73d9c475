"""Tracing of a training step into one graph of tensor operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from torch_estimator import tree
from torch_estimator.compile import trace_checks
from torch_estimator.compile.batch_layout import flatten, step_inputs, with_plain_strides
from torch_estimator.compile.key import CacheKey
from torch_estimator.compile.replacements import replacements
from torch_estimator.compile.trace_checks import CannotBeCompiled
from torch_estimator.compile.traced_update import prefer_tensor_paths, put_back, replaceable, update_traced
from torch_estimator.train.batches import TensorBatch
from torch_estimator.train.step import TrainStep

WRAPS = "wraps"
"""Key in a graph's ``meta``: whether integers in the graph may overflow, and then wrap around."""

# Operators whose integer results can overflow. Hashing in a model overflows on purpose.
_OVERFLOWING = (
    "aten::mul",
    "aten::pow",
    "aten::__lshift__",
    "aten::bitwise_left_shift",
    "aten::prod",
    "aten::cumprod",
)


def trace(
    step: TrainStep, state: Sequence[Tensor], batch: TensorBatch, compute_key: Callable[[], CacheKey]
) -> tuple[GraphModule, list[Tensor]]:
    """Take two real steps in Python, then trace the step twice, and return the first of the two graphs.

    This changes the step, its module and its optimizers. Afterwards they are of no use for training, which is why it
    runs in a forked process.

    Args:
        step: The step to trace.
        state: All tensors that the step reads and writes, without those of the batch.
        batch: A batch of the layout that the graph is for.
        compute_key: Returns the cache key of everything that the step depends on at the time of the call.

    Returns:
        The graph and the inputs that it was traced with. The inputs are `state`, then a tensor for each setting that
        may change, such as learning rates, then the tensors of the batch. The output is the loss, a float32 scalar. The
        graph changes the state in place.

    Raises:
        CannotBeCompiled: The step does something that a graph cannot repeat.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    inputs_of_step = step_inputs(batch)
    if flatten(inputs_of_step) is None:
        raise CannotBeCompiled("a batch holds something other than tensors, such as strings")
    inputs_of_step = tree.map(with_plain_strides, inputs_of_step)
    batch_tensors = tree.leaves(inputs_of_step)
    trace_checks.check_optimizer_hooks(step)
    # Check the loss here, even if this training has already checked its first loss.
    # Compiled steps do not check the loss, not even in a later training that loads the step from the cache.
    step.check_again()
    random_state = torch.get_rng_state()
    drawn = trace_checks.check_repeats(
        step, lambda: step.update_left(step.compute(*inputs_of_step)[1]), state, compute_key
    )

    # Convert settings that may change to tensors, so that they become inputs of the graph and not constants.
    values = trace_checks.settings_of_groups(step)
    setting_tensors = step.use_tensors(of_torch=True)
    settings = dict(zip(map(id, setting_tensors), values, strict=True))
    prefer_tensor_paths(step)
    inputs = [*state, *setting_tensors, *batch_tensors]

    def take_step(*tensors: Tensor) -> tuple[Tensor]:
        # The tracer recognizes the tensors of the module and the optimizers by identity.
        # So the function builds only the batch from its arguments and ignores the arguments for all other tensors.
        before = replaceable(step)
        of_batch = iter(tensors[len(tensors) - len(batch_tensors) :])
        with trace_checks.refusing_reads():
            loss, left = step.compute(*tree.map(lambda _: next(of_batch), inputs_of_step))
            update_traced(step, left, settings)
            step.average()
        put_back(step, before)
        return (loss.float(),)

    # If this flag is set, optimizers of torch and of this project run the code that they have for compilers.
    with trace_checks.replaced(torch.compiler, "_is_compiling_flag", True), torch.enable_grad():
        try:
            graph, again = (make_fx(take_step, replacements())(*inputs) for _ in range(2))
        except Exception as error:
            raise CannotBeCompiled(trace_checks.reason_of(error)) from error
    trace_checks.check_graph(graph, again)
    graph.meta[WRAPS] = any(map(_may_overflow, graph.graph.nodes))
    # Free what the tracer has attached to each node, such as example tensors, which the compiler does not need.
    for node in graph.graph.nodes:
        node.meta.clear()
    trace_checks.check_draws(graph, inputs, random_state, drawn)
    return graph, inputs


def _may_overflow(node: Node) -> bool:
    """Return whether a node of the graph computes integers that may overflow."""
    schema, value = getattr(node.target, "_schema", None), node.meta.get("val")
    is_overflowing = schema is not None and schema.name.removesuffix("_") in _OVERFLOWING
    return is_overflowing and isinstance(value, Tensor) and not (value.is_floating_point() or value.is_complex())
