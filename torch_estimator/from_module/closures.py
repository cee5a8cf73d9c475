"""Check that no loss, head or metric refers to the module given to `Estimator.from_module`: only copies are trained."""

from __future__ import annotations

import contextlib
import dis
import inspect
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

from torch_estimator.errors import InvalidValueError
from torch_estimator.heads.base import Head

# Limits of the search: the depth of nested lists and objects, and the number of items of a collection.
_MOST_DEPTH = 3
_MOST_ITEMS = 1000
# The search skips the globals and attributes that functions of these libraries read. Such a function can refer to a
# user's module only in its closure or default arguments. An example is the wrapper that torch.no_grad() makes.
_LIBRARIES = ("torch", "torch_estimator", "torchmetrics", "numpy", "functools")


def check_holds_no_part(what: str, function: Any, module: nn.Module) -> None:
    """Raise an error if a function refers to the module, to one of its submodules or to one of its trained parameters.

    Each training and evaluation works on a copy of the module. Such a function would read the original: its weights are
    not trained, and values that its forward pass stores exist only if the caller ran it.

    The search covers the function's closure, the globals that its code reads, default arguments, arguments bound by
    `functools.partial`, and attributes of objects. Functions that are found there are searched as well. `what` is the
    name of the function in the error, such as ``"The loss"``.
    """
    found = _Search(module).first(function)
    if found is None:
        return
    name, part = found
    given = type(module).__name__
    read = f"the given {given}" if part is module else f"a {type(part).__name__} of the given {given}"
    raise InvalidValueError(
        f"{what} reads {read}{f' through {name}' if name else ''}, but from_module trains and evaluates copies of it, "
        "so that it would read what is never trained; return what it needs from forward as one of the outputs, or use "
        "a model_fn that makes the module, whose functions may read it."
    )


class _Search:
    """Search for a module, its submodules and its trained parameters among the values that a function refers to."""

    def __init__(self, module: nn.Module) -> None:
        # Leave out torch's modules without parameters, such as nn.ReLU or a loss: training does not change them.
        modules = [one for one in module.modules() if one is module or not _is_stateless(one)]
        self._parts = {id(part) for part in (*modules, *(one for one in module.parameters() if one.requires_grad))}
        # Keep all searched objects alive, by their ids. Otherwise a new object could get the id of a deleted object.
        self._seen: dict[tuple[int, int], Any] = {}

    def first(self, value: Any, name: str = "", depth: int = 0) -> tuple[str, Any] | None:
        """Return the first part of the module to which `value` refers, and a name for the error; None without one."""
        if id(value) in self._parts:
            return name, value
        # Identify a bound method by its function and object, because Python makes a new object at each access.
        is_method = isinstance(value, MethodType)
        key = (id(value.__func__), id(value.__self__)) if is_method else (id(value), 0)
        if key in self._seen:
            return None
        self._seen[key] = value
        found = (self.first(*one) for one in _held(value, name, depth))
        return next((one for one in found if one is not None), None)


_Held = Iterator[tuple[Any, str, int]]


def _held(value: Any, name: str, depth: int) -> _Held:
    """Yield the values that `value` refers to, each with a name for the error and its depth of nesting."""
    if isinstance(value, FunctionType):
        yield from _held_by_function(value)
    elif isinstance(value, MethodType):
        # Yield the instance itself at the maximum depth, so that not all of its attributes are searched.
        # `_held_by_function` yields only the attributes that the method reads.
        yield value.__self__, "self", _MOST_DEPTH
        yield from _held_by_function(value.__func__, [("self", value.__self__)])
    elif isinstance(value, partial):
        yield value.func, name, depth
        for place, argument in enumerate(value.args, 1):
            yield argument, f"argument {place} of a partial", depth
        for key, argument in value.keywords.items():
            yield argument, f"the argument {key!r} of a partial", depth
    elif depth >= _MOST_DEPTH or isinstance(value, type | Tensor):
        return
    elif isinstance(value, dict):
        for key, item in islice(value.items(), _MOST_ITEMS):
            yield item, f"{name}[{key!r}]", depth + 1
    elif isinstance(value, list | tuple | set | frozenset):
        for item in islice(value, _MOST_ITEMS):
            yield item, name, depth + 1
    elif isinstance(value, nn.Module | Head) or callable(value):
        for key, item in _attributes(value).items():
            yield item, f"its attribute {key!r}", depth + 1
        called = "forward" if isinstance(value, nn.Module) else "__call__"
        yield from _held_by_function(getattr(type(value), called, None))


def _held_by_function(function: Any, objects: Sequence[tuple[str, Any]] = ()) -> _Held:
    """Yield the values in a function's closure and defaults, and the globals and attributes that its code reads.

    `objects` are further objects, with their names, whose attributes the function may read. Yield nothing for a
    callable that is not a Python function.
    """
    if not isinstance(function, FunctionType):
        return
    held = [("a default argument", one) for one in function.__defaults__ or ()]
    held += [(f"the default of {key!r}", one) for key, one in (function.__kwdefaults__ or {}).items()]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        # Ignore the error that a variable without a value raises.
        with contextlib.suppress(ValueError):
            held.append((f"its variable {name!r}", cell.cell_contents))
    known: dict[str, Any] = function.__globals__
    is_of_library = str(known.get("__name__")).partition(".")[0] in _LIBRARIES
    read, attributes = (set(), set()) if is_of_library else _names(function.__code__)
    # Skip functions of other Python files: they read other globals, so they cannot refer to objects of this file.
    of_file = [(key, known[key]) for key in sorted(read & known.keys()) if _is_of(known[key], known)]
    held += [(f"the global {key!r}", one) for key, one in of_file]
    for name, one in held:
        yield one, name, 0
    seen: set[int] = set()
    places = [*objects, *held]
    # Append every attribute found to `places` during the loop, since the code may read attributes of it in turn.
    for name, one in places:
        if id(one) in seen or isinstance(one, type | ModuleType | FunctionType | Tensor):
            continue
        seen.add(id(one))
        own = _attributes(one)
        for key in sorted(attributes & own.keys()):
            places.append((f"{name}.{key}", own[key]))
            yield own[key], f"{name}.{key}", 0
        for key in sorted(attributes - own.keys()):
            in_class = inspect.getattr_static(type(one), key, None)
            method = in_class.fget if isinstance(in_class, property) else in_class
            if isinstance(method, FunctionType) and _is_of(method, known):
                yield MethodType(method, one), name, 0


def _attributes(value: Any) -> dict[str, Any]:
    own = getattr(value, "__dict__", {})
    return {**own["_modules"], **own} if isinstance(value, nn.Module) else dict(own)


def _is_of(value: Any, file: dict[str, Any]) -> bool:
    return not isinstance(value, FunctionType) or value.__globals__ is file


def _names(code: CodeType) -> tuple[set[str], set[str]]:
    """Return the names of the globals and of the attributes that a code object and its nested functions read."""
    names: set[str] = set()
    attributes: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names.add(instruction.argval)
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            attributes.add(instruction.argval)
        elif isinstance(instruction.argval, CodeType):
            inner_names, inner_attributes = _names(instruction.argval)
            names |= inner_names
            attributes |= inner_attributes
    return names, attributes


def _is_stateless(module: nn.Module) -> bool:
    is_of_torch = type(module).__module__.partition(".")[0] == "torch"
    return is_of_torch and next(module.children(), None) is None and next(module.parameters(), None) is None
