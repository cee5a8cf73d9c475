"""The public names of torch_estimator and their objects, for the reference and its tests."""

from __future__ import annotations

import ast
import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

import torch_estimator as te

ROOT = te.__name__

NOT_FOR_USERS = {
    "torch_estimator.errors.printable": "makes a text of a file printable in a message",
    "torch_estimator.serving_input.transform_outputs": "called by the exporter",
}
"""Names without an underscore that other parts of the package use, but that are not part of the interface."""


@functools.cache
def public_names() -> dict[str, Any]:
    """Return every public name, such as ``torch_estimator.data.Dataset``, and its object. Modules are not included."""
    modules = {ROOT: te, **{f"{ROOT}.{name}": getattr(te, name) for name in te.__all__ if _is_module(name)}}
    return {
        f"{place}.{name}": getattr(module, name)
        for place, module in modules.items()
        for name in _names(module)
        if not isinstance(getattr(module, name), types.ModuleType) and f"{place}.{name}" not in NOT_FOR_USERS
    }


def other_names(name: str) -> list[str]:
    """Return the other public names of the object with this name, such as ``te.hooks.Hook`` of ``te.Hook``."""
    names = public_names()
    return [short(other) for other, value in names.items() if value is names.get(name) and other != name]


def short(name: str) -> str:
    """Return a name as users write it: ``te.data.Dataset``."""
    return f"te.{name.removeprefix(f'{ROOT}.')}"


def _is_module(name: str) -> bool:
    return isinstance(getattr(te, name), types.ModuleType)


def _names(module: types.ModuleType) -> list[str]:
    """Return ``__all__`` of a module or, without it, what the module defines or imports as ``X as X``."""
    names = getattr(module, "__all__", None) or list(_exported(ast.parse(inspect.getsource(module))))
    return [name for name in dict.fromkeys(names) if not name.startswith("_")]


def _exported(program: ast.Module) -> Iterator[str]:
    for statement in program.body:
        match statement:
            case ast.ImportFrom(names=names):
                yield from (one.name for one in names if one.asname == one.name)
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]):
                yield name
