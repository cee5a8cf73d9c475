"""A training step as one graph of tensor operations."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.overrides import TorchFunctionMode

from torch_estimator.engine.batches import TensorBatch
from torch_estimator.engine.compiled.leaves import leaves, rebuilt
from torch_estimator.engine.compiled.tensor_settings import TensorSettings
from torch_estimator.engine.fingerprint import Fingerprint
from torch_estimator.engine.step import TrainStep

_TORCH = str(Path(torch.__file__).parent)
_READS = frozenset({"numpy", "tolist", "__array__", "__dlpack__"})


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
    _check_steady(lambda: step.update_left(step.compute(*given)[1]), state, fingerprint)
    values = [number for group in step.groups for number in group.numbers()]
    numbers = step.use_tensors(of_torch=True)
    settings = dict(zip(map(id, numbers), values, strict=True))
    _read_only_tensors(step)
    inputs = [*state, *numbers, *own]

    def take_step(*tensors: Tensor) -> tuple[Tensor]:
        before = _replaceable(step)
        with _NoReading():
            loss, left = step.compute(*rebuilt(given, iter(tensors[len(tensors) - len(own) :])))
            with TensorSettings(settings):
                _update(step, left)
        _put_back(step, before)
        return (loss.float(),)

    with _compiling(), torch.enable_grad(), _no_seeding():
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
    for node in graph.graph.nodes:
        node.meta.clear()
    return graph, inputs


class _NoReading(TorchFunctionMode):
    """Refuses what hands a tensor's numbers to Python, where they would for ever be those of the batch traced."""

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in _READS:
            raise CannotBeCompiled(f"it reads a tensor's numbers in Python ({name.strip('_')}())")
        return func(*args, **(kwargs or {}))


@contextmanager
def _no_seeding() -> Iterator[None]:
    """Refuses what goes back in torch's random numbers, of which a graph knows nothing."""

    # It takes a list of torch's functions when it is imported, which tracing does.
    importlib.import_module("torch._dynamo")

    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise CannotBeCompiled(
            "it saves, restores or seeds the state of random numbers, as torch.utils.checkpoint does with "
            "preserve_rng_state=True"
        )

    with ExitStack() as stack:
        for name in ("get_rng_state", "set_rng_state", "manual_seed", "seed", "fork_rng"):
            for module in (torch, torch.random):
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, refuse))
        yield


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


def _check_steady(
    take_step: Callable[[], None], state: Sequence[Tensor], fingerprint: Callable[[], Fingerprint]
) -> None:
    """What a step leaves behind in Python would stay for ever what it was when traced."""
    generators, places = _generators(), [tensor.data_ptr() for tensor in state]
    before = fingerprint()
    take_step()
    if _generators() != generators:
        raise CannotBeCompiled("it draws from Python's or numpy's random numbers, which would always be the same")
    first = fingerprint()
    take_step()
    if first.digest != before.digest or fingerprint() != first:
        raise CannotBeCompiled("it changes something in the model that is no tensor, such as a count or a flag")
    if [tensor.data_ptr() for tensor in state] != places:
        raise CannotBeCompiled("it gives a tensor other memory (.data = ...) instead of changing its numbers")


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
    own = vars(optimizer).get("step")
    if own is not None and not _is_of_torch(getattr(own, "__func__", own)):
        raise CannotBeCompiled(f"step of this {type(optimizer).__name__} has been replaced")
    step: Any = type(optimizer).step
    while _is_of_torch(step) and hasattr(step, "__wrapped__"):
        step = step.__wrapped__
    return step  # type: ignore[no-any-return]


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
    for holder, key, old in before:
        new = holder.get(key)
        if new is old:
            continue
        if not isinstance(old, Tensor) or not isinstance(new, Tensor) or old.shape != new.shape:
            if isinstance(old, Tensor) or isinstance(new, Tensor) or new != old:
                raise CannotBeCompiled(f"it replaces {key!r}, which is {old!r}, by {new!r} instead of changing it")
            continue
        with torch.no_grad():
            old.copy_(new)
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
        return "it turns a tensor into a Python number (item(), float(), bool() or an if on a tensor)"
    return f"{type(error).__name__}: {text}"
