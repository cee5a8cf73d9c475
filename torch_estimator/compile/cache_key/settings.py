"""Settings that the code of installed packages reads beside itself: plain globals and attributes of classes."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from importlib.util import resolve_name
from types import FunctionType, ModuleType
from typing import Any

from torch_estimator.compile.cache_key.code import code_facts
from torch_estimator.compile.cache_key.libraries import is_settled, library_of_code, library_of_module
from torch_estimator.compile.cache_key.walk import PLAIN, Walk

# In one walk, and the nearest first: what a large package reads is not looked through to the end.
_MOST_READERS = 256
_MOST_ITEMS = 64


def settings_of(walk: Walk, thing: Any) -> str:
    """What a function or class, and what it calls in its package, read of settings; said once in a walk."""
    if thing is os.getenv:
        return f" of {sorted(os.environ.items())}"
    package = _package(thing)
    if package is None or is_settled(package):
        return ""
    met: dict[int, Any] = walk.notes.setdefault("settings", {})
    found: list[str] = []
    waiting = deque([thing])
    while waiting and len(met) < _MOST_READERS:
        reader = waiting.popleft()
        if id(reader) in met:
            continue
        met[id(reader)] = reader
        for name, value in _read_by(reader):
            word = _word(value)
            if word:
                found.append(f"{name} {word}")
            elif value is os.getenv:
                found.append(settings_of(walk, value))
            elif _package(value) == package:
                waiting.append(value)
    return f" with {found}" if found else ""


def _package(thing: Any) -> str | None:
    if isinstance(thing, FunctionType):
        return library_of_code(thing.__code__)
    if isinstance(thing, type) and isinstance(thing.__module__, str):
        return library_of_module(thing.__module__)
    return None


def _read_by(reader: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(reader, type):
        for name, value in vars(reader).items():
            if not name.startswith("__") or isinstance(value, FunctionType):
                yield f"{reader.__qualname__}.{name}", _function_in(value)
        for base in reader.__bases__:
            yield "", base
        return
    code = code_facts(reader.__code__)
    for chain in code.globals:
        yield ".".join(chain), followed(reader.__globals__, chain)
    for level, name in code.imports:
        module = vars(sys.modules.get(absolute_name(reader, level, name), ModuleType("none")))
        for word in sorted(code.words & module.keys()):
            yield f"{name}.{word}", module[word]


def absolute_name(function: FunctionType, level: int, name: str) -> str:
    """The name of the module that a function imports by `name`, from so many packages up."""
    package = function.__globals__.get("__package__")
    try:
        return resolve_name("." * level + name, package) if level else name
    except (ImportError, TypeError):
        return name


def _function_in(value: Any) -> Any:
    if isinstance(value, property):
        return value.fget
    return value.__func__ if isinstance(value, staticmethod | classmethod) else value


def followed(found: Mapping[str, Any], chain: tuple[str, ...]) -> Any:
    """What a dotted name stands for, as far as it goes through modules and attributes of objects."""
    value = None
    for name in chain:
        if name not in found:
            break
        value = found[name]
        found = getattr(value, "__dict__", {})
    return value


def _word(value: Any) -> str:
    """What `repr` says of a number, a string or a small container of them; nothing of all else."""
    kind = type(value)
    if kind in PLAIN:
        return repr(value)
    if kind in (tuple, list, set, frozenset, dict) and len(value) <= _MOST_ITEMS:
        items = [*value, *value.values()] if kind is dict else value
        words = [_word(one) for one in items]
        if all(words):
            return f"{kind.__name__} {sorted(words) if kind in (set, frozenset) else words}"
    return ""
