"""Tracing of the updates by optimizers of `torch.optim`.

The project's own optimizers are functions of tensors, so a graph can contain them as they are. Optimizers of
`torch.optim` cannot be traced directly: they read settings as Python numbers, count steps in float32, and some put new
tensors in the place of old ones. This file makes them traceable from outside.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torch_estimator.compile.trace_checks import CannotBeCompiled
from torch_estimator.train.step import TrainStep

_TORCH = str(Path(torch.__file__).parent)

Places = list[tuple[Any, Any, Any]]
"""Where tensors are held: the dict, the key in it, and the value."""


def prefer_tensor_paths(step: TrainStep) -> None:
    """Set options of `torch.optim` optimizers so that their code does not read tensors as Python numbers."""
    for optimizer in step.other_optimizers:
        for group in optimizer.param_groups:
            for key in ("foreach", "capturable"):
                if key in group and not group.get("fused"):
                    group[key] = True


def update_traced(step: TrainStep, gradients: Sequence[Tensor | None], settings: Mapping[int, float]) -> None:
    """Let optimizers of `torch.optim` apply the gradients that the step leaves to them, while it is traced.

    `settings` holds the value of each setting that is a tensor, by ``id`` of the tensor.
    """
    with TensorSettings(settings):
        step.assign(gradients)
        with torch.no_grad():
            for optimizer in step.other_optimizers:
                _count_in_float64(optimizer)
                _bare_step(optimizer)(optimizer)
        step.assign([None] * len(gradients))


class TensorSettings(TorchFunctionMode):
    """Torch function mode in which optimizers accept tensors as settings, although their code expects Python numbers.

    In the body, factors such as ``alpha=`` may be tensors, and comparing a setting with a number, as in
    ``if weight_decay != 0``, has the result that it had when the step was traced. It is the same in later steps,
    because `LiveGroup` makes no tensor of a weight decay of 0. The argument holds the values by ``id`` of the tensor.
    """

    def __init__(self, settings: Mapping[int, float]) -> None:
        super().__init__()
        self._settings = settings

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name in _COMPARISONS and id(args[0]) in self._settings and isinstance(args[1], int | float):
            return _COMPARISONS[name](self._settings[id(args[0])], args[1])
        for factor in ("alpha", "value"):
            if name in _SCALED and isinstance(kwargs.get(factor), Tensor):
                args = _scaled(args, _SCALED[name], kwargs.pop(factor))
        if name == "_foreach_pow" and isinstance(args[0], Tensor):
            return [args[0] ** exponent for exponent in args[1]]
        if name == "_foreach_lerp_" and isinstance(args[2], Tensor):
            for start, end in zip(args[0], args[1], strict=True):
                start.lerp_(end, args[2].to(start.dtype))
            return args[0]
        return func(*args, **kwargs)


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "__eq__": operator.eq,
    "__ne__": operator.ne,
    "__lt__": operator.lt,
    "__le__": operator.le,
    "__gt__": operator.gt,
    "__ge__": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}

# For each operator with a factor ``alpha`` or ``value``: the position of the argument that the factor multiplies.
_SCALED = {
    f"{prefix}{name}{suffix}": position
    for name, position in (("add", 1), ("sub", 1), ("addcmul", 1), ("addcdiv", 1))
    for prefix in ("", "_foreach_")
    for suffix in ("", "_")
}


def _scaled(args: Sequence[Any], position: int, factor: Tensor) -> tuple[Any, ...]:
    """Return `args` with the argument at `position`, a tensor or a list of tensors, multiplied by `factor`."""
    given = args[position]
    scaled = [one * factor for one in given] if isinstance(given, list | tuple) else given * factor
    return (*args[:position], scaled, *args[position + 1 :])


def _bare_step(optimizer: torch.optim.Optimizer) -> Callable[[torch.optim.Optimizer], object]:
    """Return the method ``step`` of an optimizer without the wrappers that torch adds for profilers and schedules.

    Raise CannotBeCompiled if ``step`` of this object has been replaced by an unknown function.
    """
    step = _unwrapped(type(optimizer).step)
    if _unwrapped(getattr(optimizer.step, "__func__", optimizer.step)) is not step:
        raise CannotBeCompiled(f"step of this {type(optimizer).__name__} has been replaced")
    return step  # type: ignore[no-any-return]


def _unwrapped(step: Any) -> Any:
    """Return a function without the wrappers that torch has put around it. Wrappers of the user stay."""
    while _is_torch_code(step) and hasattr(step, "__wrapped__"):
        step = step.__wrapped__
    return step


def _is_torch_code(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename.startswith(_TORCH)


def _count_in_float64(optimizer: torch.optim.Optimizer) -> None:
    """Convert the step counters of an optimizer to float64, the precision of Python numbers in an eager step.

    In float32, ``1 - 0.999 ** step`` would be off by 1e-5. `put_back` writes the new count into the old tensor.
    """
    for slots in optimizer.state.values():
        if isinstance(slots.get("step"), Tensor):
            slots["step"] = slots["step"].double()


def replaceable(step: TrainStep) -> Places:
    """Return all entries of optimizer state and module buffers. A step may replace these tensors by new ones.

    Machine code writes to fixed addresses, so `put_back` turns each replacement into a copy.
    """
    places: Places = []
    for optimizer in step.optimizers:
        for slots in optimizer.state.values():
            places += [(slots, key, value) for key, value in slots.items()]
    for module in step.module.modules():
        places += [(module._buffers, name, value) for name, value in module._buffers.items()]
    return places


def put_back(step: TrainStep, before: Places) -> None:
    """Undo replacements of tensors by a step: copy each new value into the old tensor, and restore the old tensor.

    `before` is what `replaceable` returned before the step. Raise CannotBeCompiled if a shape or a value that is not a
    tensor has changed, or there is new state.
    """
    replaced = [(holder, key, old, holder.get(key)) for holder, key, old in before if holder.get(key) is not old]
    for _, key, old, new in replaced:
        both = isinstance(old, Tensor) and isinstance(new, Tensor)
        if old.shape != new.shape if both else isinstance(old, Tensor) or isinstance(new, Tensor) or new != old:
            raise CannotBeCompiled(f"it replaces {key!r}, which is {old!r}, by {new!r} instead of changing it")
    pairs = [(old, new) for _, _, old, new in replaced if isinstance(old, Tensor)]
    old_addresses = {old.data_ptr() for old, _ in pairs}
    with torch.no_grad():
        # Clone a new value that is in the memory of an old tensor, because a step may have swapped two tensors.
        # Then writing to the first tensor would otherwise overwrite the second value before it is read.
        values = [new.clone() if new.data_ptr() in old_addresses else new for _, new in pairs]
        for (old, _), value in zip(pairs, values, strict=True):
            old.copy_(value)
    for holder, key, old, _ in replaced:
        holder[key] = old
    if len(replaceable(step)) != len(before):
        raise CannotBeCompiled("its optimizer or a module makes new state while it trains")
