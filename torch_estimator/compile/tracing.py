"""A training step as one graph of tensor operations."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.optim import optimizer as torch_optimizer
from torch.overrides import TorchFunctionMode

from torch_estimator.compile.cache_key import Fingerprint
from torch_estimator.compile.draws import unused_draws
from torch_estimator.compile.leaves import leaves, rebuilt
from torch_estimator.compile.tensor_settings import TensorSettings
from torch_estimator.train.batches import TensorBatch
from torch_estimator.train.step import TrainStep

_TORCH = str(Path(torch.__file__).parent)
_READS = frozenset({"numpy", "tolist", "__array__", "__dlpack__", "apply_", "map_", "map2_"})
_NUMBERS = frozenset({"__bool__", "__complex__", "__float__", "__index__", "__int__", "item"})
# They take what is in lists for numbers, even tensors.
_MADE_OF_LISTS = frozenset(
    {"tensor", "as_tensor", "asarray", "new", "new_tensor", "sparse_coo_tensor", "sparse_csr_tensor"}
)
# They take integers beyond the largest, as hashing does.
_GROWING = ("aten::mul", "aten::pow", "aten::__lshift__", "aten::bitwise_left_shift", "aten::prod", "aten::cumprod")
WRAPS = "wraps"
"""Says in a graph's ``meta`` whether its integers may go past the largest and on from the smallest."""

_READ_AS_NUMBER = "it turns a tensor into a Python number (item(), float(), bool() or an if on a tensor)"


class CannotBeCompiled(Exception):
    """Why a step cannot be compiled, in words that fit after "because"."""


def trace(
    step: TrainStep, state: Sequence[Tensor], batch: TensorBatch, fingerprint: Callable[[], Fingerprint]
) -> tuple[GraphModule, list[Tensor]]:
    """Takes some steps and records the last; the step's own objects are of no use afterwards.

    Args:
        step: Takes the step in Python, for real.
        state: All tensors that the step reads and writes beside the batch.
        batch: Whose shapes the graph is for.
        fingerprint: Of all that the step depends on, as it is when called.

    Returns:
        The graph from `state`, the settings that may move and the tensors of the batch to the loss, float32; it changes
        the state in place. And the inputs that it was traced with.

    Raises:
        CannotBeCompiled: The step does something that a graph cannot hold.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    given = (batch.features, batch.labels, batch.weights)
    own = leaves(given)
    if own is None:
        raise CannotBeCompiled("a batch holds something other than tensors, such as strings")
    _check(step)
    # A kept step runs without these checks, even as the first of a later training: what is kept has passed them.
    step.check_again()
    drawing = torch.get_rng_state()
    drawn = _check_steady(step, lambda: step.update_left(step.compute(*given)[1]), state, fingerprint)
    values = _numbers(step)
    numbers = step.use_tensors(of_torch=True)
    settings = dict(zip(map(id, numbers), values, strict=True))
    _read_only_tensors(step)
    inputs = [*state, *numbers, *own]

    def take_step(*tensors: Tensor) -> tuple[Tensor]:
        before = _replaceable(step)
        with _no_reading():
            loss, left = step.compute(*rebuilt(given, iter(tensors[len(tensors) - len(own) :])))
            with TensorSettings(settings):
                _update(step, left)
        _put_back(step, before)
        return (loss.float(),)

    with _compiling(), torch.enable_grad():
        try:
            graph = make_fx(take_step)(*inputs)
            again = make_fx(take_step)(*inputs)
        except CannotBeCompiled:
            raise
        except Exception as error:
            raise CannotBeCompiled(_reason(error)) from error
    _check_constants(graph)
    if not _are_same(graph, again):
        raise CannotBeCompiled("each step has other numbers of Python's in it, such as the time or new random numbers")
    if unused_draws(graph.graph):
        raise CannotBeCompiled("it draws random numbers that it does not use, which machine code would not draw")
    graph.meta[WRAPS] = any(map(_may_overflow, graph.graph.nodes))
    for node in graph.graph.nodes:
        node.meta.clear()
    _check_draws(graph, inputs, drawing, drawn)
    return graph, inputs


@contextmanager
def _no_reading() -> Iterator[None]:
    """Refuses what hands a tensor's numbers to Python, where they would for ever be those of the batch traced."""
    run = vars(torch.autograd)["_engine_run_backward"]

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        # torch leaves the mode for its own functions, of which this one calls functions of the user's.
        with _NoReading():
            return run(*args, **kwargs)

    with mock.patch.object(torch.autograd, "_engine_run_backward", run_backward), _NoReading():
        yield


class _NoReading(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name in _READS:
            raise CannotBeCompiled(f"it reads a tensor's numbers in Python ({name.strip('_')}())")
        if name in _MADE_OF_LISTS and any(_is_list_of_tensors(one) for one in (*args, *kwargs.values())):
            raise CannotBeCompiled(
                f"it makes a tensor of a list of tensors by {name}(); torch.stack keeps them tensors"
            )
        if name in _NUMBERS and torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python):
            raise CannotBeCompiled(_READ_AS_NUMBER)
        return func(*args, **kwargs)


def _is_list_of_tensors(value: Any) -> bool:
    return isinstance(value, list | tuple) and any(isinstance(one, Tensor) or _is_list_of_tensors(one) for one in value)


def _check_draws(graph: GraphModule, inputs: Sequence[Tensor], before: Tensor, after: Tensor) -> None:
    """A graph knows nothing of what goes back in torch's random numbers, and ends up elsewhere in them."""
    torch.set_rng_state(before)
    with torch.no_grad():
        graph(*inputs)
    if not torch.equal(torch.get_rng_state(), after):
        raise CannotBeCompiled(
            "it saves, restores or seeds the state of random numbers, as torch.utils.checkpoint does with "
            "preserve_rng_state=True"
        )


class _compiling:
    """torch's own optimizers, and ours, then take the way that a graph can hold."""

    def __enter__(self) -> None:
        self._before = torch.compiler._is_compiling_flag
        torch.compiler._is_compiling_flag = True

    def __exit__(self, *exception: object) -> None:
        torch.compiler._is_compiling_flag = self._before


def _check(step: TrainStep) -> None:
    for optimizer in step.optimizers:
        if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
            raise CannotBeCompiled(f"{type(optimizer).__name__} has hooks around its step")
    hooks = (torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks)
    if step.other_optimizers and any(hooks):
        raise CannotBeCompiled("there are hooks around the step of every optimizer")


def _check_steady(
    step: TrainStep, take_step: Callable[[], None], state: Sequence[Tensor], fingerprint: Callable[[], Fingerprint]
) -> Tensor:
    """What a step leaves behind in Python would stay for ever what it was when traced.

    Returns the state of torch's random numbers after the first of the two steps that it takes.
    """
    generators, numbers = _generators(), _numbers(step)
    places = [tensor.data_ptr() for tensor in state]
    before = fingerprint()
    take_step()
    if _generators() != generators:
        raise CannotBeCompiled("it draws from Python's or numpy's random numbers, which would always be the same")
    drawn, moved = torch.get_rng_state(), [tensor.data_ptr() for tensor in state] != places
    first = fingerprint()
    take_step()
    if _numbers(step) != numbers:
        raise CannotBeCompiled("its optimizer changes a setting such as the learning rate by itself")
    if first.digest != before.digest or fingerprint() != first:
        raise CannotBeCompiled("it changes something in the model that is no tensor, such as a count or a flag")
    if moved or [tensor.data_ptr() for tensor in state] != places:
        raise CannotBeCompiled("it gives a tensor other memory (.data = ...) instead of changing its numbers")
    return drawn


def _numbers(step: TrainStep) -> list[float]:
    return [number for group in step.groups for number in group.numbers()]


def _read_only_tensors(step: TrainStep) -> None:
    """Lets optimizers of `torch.optim` take those of their ways that read no tensor as a number."""
    for optimizer in step.other_optimizers:
        for group in optimizer.param_groups:
            for key in ("foreach", "capturable"):
                if key in group and not group.get("fused"):
                    group[key] = True


def _update(step: TrainStep, left: Sequence[Tensor | None]) -> None:
    step.assign(left)
    with torch.no_grad():
        for optimizer in step.other_optimizers:
            _count_in_double(optimizer)
            _bare_step(optimizer)(optimizer)
    step.assign([None] * len(left))


def _bare_step(optimizer: torch.optim.Optimizer) -> Callable[[torch.optim.Optimizer], object]:
    """Its step without what torch itself wraps around it, for profilers and for counting."""
    step = _unwrapped(type(optimizer).step)
    if _unwrapped(getattr(optimizer.step, "__func__", optimizer.step)) is not step:
        raise CannotBeCompiled(f"step of this {type(optimizer).__name__} has been replaced")
    return step  # type: ignore[no-any-return]


def _unwrapped(step: Any) -> Any:
    while _is_of_torch(step) and hasattr(step, "__wrapped__"):
        step = step.__wrapped__
    return step


def _is_of_torch(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename.startswith(_TORCH)


def _count_in_double(optimizer: torch.optim.Optimizer) -> None:
    # 1 - 0.999 ** step would be off by 1e-5 in float32; `_put_back` writes the count into the old tensor.
    for slots in optimizer.state.values():
        if isinstance(slots.get("step"), Tensor):
            slots["step"] = slots["step"].double()


_Places = list[tuple[Any, Any, Any]]


def _replaceable(step: TrainStep) -> _Places:
    """Where a step may put a new tensor instead of changing the old one: holder, key, value."""
    places: _Places = []
    for optimizer in step.optimizers:
        for slots in optimizer.state.values():
            places += [(slots, key, value) for key, value in slots.items()]
    for module in step.module.modules():
        places += [(module._buffers, name, value) for name, value in module._buffers.items()]
    return places


def _put_back(step: TrainStep, before: _Places) -> None:
    replaced = [(holder, key, old, holder.get(key)) for holder, key, old in before if holder.get(key) is not old]
    for _, key, old, new in replaced:
        both = isinstance(old, Tensor) and isinstance(new, Tensor)
        if old.shape != new.shape if both else isinstance(old, Tensor) or isinstance(new, Tensor) or new != old:
            raise CannotBeCompiled(f"it replaces {key!r}, which is {old!r}, by {new!r} instead of changing it")
    pairs = [(old, new) for _, _, old, new in replaced if isinstance(old, Tensor)]
    held = {old.data_ptr() for old, _ in pairs}
    with torch.no_grad():
        # Where two have changed places, neither may be written over before it is read.
        values = [new.clone() if new.data_ptr() in held else new for _, new in pairs]
        for (old, _), value in zip(pairs, values, strict=True):
            old.copy_(value)
    for holder, key, old, _ in replaced:
        holder[key] = old
    if len(_replaceable(step)) != len(before):
        raise CannotBeCompiled("its optimizer or a module makes new state while it trains")


def _check_constants(graph: GraphModule) -> None:
    for node in graph.graph.nodes:
        if node.op != "get_attr":
            continue
        for user in node.users:
            if user.target not in (torch.ops.aten.lift_fresh_copy.default, torch.ops.aten.lift_fresh.default):
                raise CannotBeCompiled(
                    "it reads a tensor that belongs to none of the module, the head and the optimizers"
                )


def _may_overflow(node: Node) -> bool:
    schema, value = getattr(node.target, "_schema", None), node.meta.get("val")
    grows = schema is not None and schema.name.removesuffix("_") in _GROWING
    return grows and isinstance(value, Tensor) and not (value.is_floating_point() or value.is_complex())


def _are_same(graph: GraphModule, other: GraphModule) -> bool:
    constants = [node.target for node in graph.graph.nodes if node.op == "get_attr"]
    return graph.code == other.code and all(
        torch.equal(getattr(graph, name), getattr(other, name)) for name in constants
    )


def _generators() -> tuple[Any, ...]:
    state = np.random.get_state()
    return random.getstate(), state[0], state[1].tobytes(), state[2:]  # type: ignore[index]


def _reason(error: Exception) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if "tracing tensor" in text or "_local_scalar_dense" in text:
        return _READ_AS_NUMBER
    return f"{type(error).__name__}: {text}"
