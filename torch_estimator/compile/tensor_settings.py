"""Lets the optimizers of `torch.optim` take tensors where they were written for numbers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

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
# Which argument a factor goes to.
_SCALED = {
    f"{prefix}{name}{suffix}": place
    for name, place in (("add", 1), ("sub", 1), ("addcmul", 1), ("addcdiv", 1))
    for prefix in ("", "_foreach_")
    for suffix in ("", "_")
}


class TensorSettings(TorchFunctionMode):
    """While it is entered, factors such as ``alpha=`` may be tensors, and whether a setting is 0 has an answer.

    Args:
        settings: By ``id`` of the tensor that stands for it, what each setting is now.
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


def _scaled(args: Sequence[Any], place: int, factor: Tensor) -> tuple[Any, ...]:
    given = args[place]
    scaled = [one * factor for one in given] if isinstance(given, list | tuple) else given * factor
    return (*args[:place], scaled, *args[place + 1 :])
