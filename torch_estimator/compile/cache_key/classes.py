"""Fingerprints of classes: a library's by name, others with all that they define."""

from __future__ import annotations

import operator
import sys
from types import FunctionType
from typing import Any

from torch_estimator.compile.cache_key.functions import library_of_function
from torch_estimator.compile.cache_key.libraries import library_of_module
from torch_estimator.compile.cache_key.settings import settings_of
from torch_estimator.compile.cache_key.walk import Walk, describes, says

_WITHOUT_BEARING = frozenset(
    {
        "__abstractmethods__",
        "__annotate__",
        "__annotate_func__",
        "__annotations__",
        "__annotations_cache__",
        "__dict__",
        "__doc__",
        "__firstlineno__",
        "__match_args__",
        "__module__",
        "__orig_bases__",
        "__parameters__",
        "__static_attributes__",
        "__weakref__",
        "_abc_impl",
    }
)

# By class of a library: what it held when it was looked through, and which of that is a function of the user's.
_LOOKED_THROUGH: dict[type, tuple[tuple[Any, ...], tuple[str, ...]]] = {}


@says(type)
def _library_class(walk: Walk, value: type) -> str | None:
    word: str | None = walk.notes.get(("class", id(value)), "")
    if word == "":
        is_known = _is_of_library(value) and not any(_foreign(walk, base) for base in value.__mro__)
        word = walk.notes["class", id(value)] = f"{_name(value)}{settings_of(walk, value)}" if is_known else None
        if word is not None:
            walk.library(library_of_module(value.__module__) or "python")
    return word


@describes(type)
def _class(walk: Walk, value: type) -> None:
    walk.write(value.__qualname__)
    if _is_of_library(value):
        walk.library(library_of_module(value.__module__) or "python")
        walk.write(settings_of(walk, value))
        walk.attributes({name: vars(value)[name] for name in _foreign(walk, value)})
    else:
        if type(value) is not type:
            walk.kind(type(value))
        walk.attributes(dict(vars(value)), _WITHOUT_BEARING)
    for base in value.__bases__:
        walk.kind(base)


def _name(kind: type) -> str:
    return f"class {kind.__module__}.{kind.__qualname__}"


def _is_of_library(kind: type) -> bool:
    """Whether a class is what its name says in an installed package, rather than made by a function there."""
    # A class made in C may say a descriptor.
    if not isinstance(kind.__module__, str) or library_of_module(kind.__module__) is None:
        return False
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, "__dict__", {}).get(name)
    return found is kind or kind.__module__ == "builtins"


def _foreign(walk: Walk, kind: type) -> tuple[str, ...]:
    """Names of functions that somebody has put into a class of a library."""
    found: tuple[str, ...] | None = walk.notes.get(("foreign", id(kind)))
    if found is None:
        found = walk.notes["foreign", id(kind)] = _look_through(kind) if _is_of_library(kind) else ()
    return found


def _look_through(kind: type) -> tuple[str, ...]:
    values = tuple(vars(kind).values())
    known = _LOOKED_THROUGH.get(kind)
    if known is not None and len(known[0]) == len(values) and all(map(operator.is_, known[0], values)):
        return known[1]
    foreign = tuple(sorted(name for name, value in vars(kind).items() if _is_users(value)))
    _LOOKED_THROUGH[kind] = (values, foreign)
    return foreign


def _is_users(value: Any) -> bool:
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        return any(_is_users(one) for one in (value.fget, value.fset, value.fdel))
    return isinstance(value, FunctionType) and library_of_function(value) is None
