"""Telling a function from what it was in another run, by its code and by the values that it uses."""

from __future__ import annotations

import dis
import functools
import os
import pickle
from hashlib import sha256
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from torch_estimator.errors import InvalidValueError


def function_identity(function: Any) -> str:
    """Returns a hash of a function's code, defaults, closure and the globals that it names, of other functions too.

    Other modules are told by their version, or by when their file was written.

    Raises:
        InvalidValueError: It uses a value of which it cannot be told whether it is the same in another run.
    """
    return sha256(repr(_described(function, function, ())).encode()).hexdigest()


def _described(value: Any, function: Any, seen: tuple[int, ...]) -> Any:
    if id(value) in seen:
        return "recursion"
    seen = (*seen, id(value))

    def inside(part: Any) -> Any:
        return _described(part, function, seen)

    if isinstance(value, FunctionType):
        cells = [_content(cell) for cell in value.__closure__ or ()]
        named = {name: value.__globals__[name] for name in _names(value.__code__) if name in value.__globals__}
        return (_code(value.__code__), *map(inside, (value.__defaults__, value.__kwdefaults__, cells, named)))
    if isinstance(value, CodeType):
        return _code(value)
    if isinstance(value, MethodType):
        return inside(value.__func__), inside(value.__self__)
    if isinstance(value, functools.partial):
        return tuple(map(inside, (value.func, value.args, value.keywords)))
    if isinstance(value, ModuleType):
        return value.__name__, getattr(value, "__version__", None) or _file_time(value)
    if isinstance(value, dict):
        return [(repr(key), inside(part)) for key, part in value.items()]
    if isinstance(value, list | tuple):
        return [inside(part) for part in value]
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray) and value.dtype != object:
        return str(value.dtype), value.shape, sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic | np.dtype):
        return repr(value)
    return _pickled(value, function)


def _pickled(value: Any, function: Any) -> str:
    try:
        return f"{type(value).__qualname__} {sha256(pickle.dumps(value)).hexdigest()}"
    except Exception as error:
        name = getattr(function, "__qualname__", repr(function))
        raise InvalidValueError(
            f"cache(filename) cannot tell whether the function {name} is the same in another run: it uses {value!r}; "
            "use cache() without a filename."
        ) from error


def _file_time(module: ModuleType) -> int | None:
    try:
        return os.stat(str(module.__file__)).st_mtime_ns
    except (AttributeError, OSError):
        return None


def _code(code: CodeType) -> tuple[Any, ...]:
    constants = [_code(one) if isinstance(one, CodeType) else _constant(one) for one in code.co_consts]
    return code.co_code, constants, code.co_names, code.co_varnames


def _constant(value: Any) -> str:
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value)


def _names(code: CodeType) -> list[str]:
    """Returns the globals that code reads; co_names has attributes, too."""
    inner = [name for one in code.co_consts if isinstance(one, CodeType) for name in _names(one)]
    own = [str(one.argval) for one in dis.get_instructions(code) if one.opname == "LOAD_GLOBAL"]
    return [*own, *inner]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "empty"
