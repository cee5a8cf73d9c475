"""Digest of a function that trials run, by which a changed one is told from that with which a study began."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from types import FunctionType, MethodType
from typing import Any

from torch_estimator.compile.sources import digest_of_code

_SIMPLE = bool | int | float | complex | str | bytes | None


def digest_of_function(function: Callable[..., Any]) -> str:
    """Return a digest of a function's code, defaults and closure, after the version of Python, which has its own code.

    A `partial` counts with its arguments, and another object with its class's ``__call__`` and its attributes. Values
    in these and in a closure that are neither simple nor functions count by their type alone, because they cannot be
    compared between processes.

    >>> def make(steps):
    ...     return lambda parameters, job_dir: steps
    >>> [digest_of_function(make(10)) == digest_of_function(make(steps)) for steps in (10, 20)]
    [True, False]
    """
    text = repr(_described(function, (), is_called=True))
    version = ".".join(map(str, sys.version_info[:2]))
    return f"{version} {sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


def is_changed(digest: str, before: str) -> bool:
    """Return whether two digests are of different functions, as far as one can know that."""
    return digest != before and digest.partition(" ")[0] == before.partition(" ")[0]


def _described(value: Any, seen: tuple[int, ...], *, is_called: bool = False) -> Any:
    """Return a value as strings and tuples; `seen` has the ids of the values that it is a part of."""
    if isinstance(value, _SIMPLE):
        return repr(value)
    if id(value) in seen:
        return "recursion"
    seen = (*seen, id(value))

    def inside(*parts: Any) -> tuple[Any, ...]:
        return tuple(_described(one, seen) for one in parts)

    if isinstance(value, FunctionType):
        closure = [_content(cell) for cell in value.__closure__ or ()]
        return digest_of_code(value.__code__), *inside(value.__defaults__, value.__kwdefaults__, *closure)
    if isinstance(value, MethodType):
        return *inside(value.__func__), _described(value.__self__, seen, is_called=is_called)
    if isinstance(value, partial):
        return _described(value.func, seen, is_called=is_called), *inside(value.args, value.keywords)
    if isinstance(value, tuple | list):
        return inside(*value)
    if isinstance(value, dict):
        return tuple((repr(key), *inside(one)) for key, one in value.items() if isinstance(key, _SIMPLE))
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if not is_called:
        return name
    call = getattr(kind, "__call__", None)  # noqa: B004  # its code is wanted
    return name, *inside(call, getattr(value, "__dict__", None))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        # A name that gets its value later.
        return None
