"""Fingerprints of functions: their code, what they close over, and the globals that the code names."""

from __future__ import annotations

import functools
import sys
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

from torch_estimator.compile.cache_key.code import Code, code_facts
from torch_estimator.compile.cache_key.libraries import library_of_code, library_of_module, module_source
from torch_estimator.compile.cache_key.settings import absolute_name, settings_of
from torch_estimator.compile.cache_key.walk import Walk, describes, says

_MISSING = object()


def library_of_function(function: FunctionType) -> str | None:
    """The package that a function belongs to, or None for the user's own."""
    code = function.__code__
    # Written by dataclasses and their like; it runs among the names of the module that it was written for.
    if code.co_filename == "<string>":
        return library_of_module(str(function.__globals__.get("__name__")))
    return library_of_code(code)


@says(FunctionType)
def _library_function(walk: Walk, value: FunctionType) -> str | None:
    if value.__closure__ is not None:
        return None
    library = library_of_function(value)
    return None if library is None else _function_word(walk, value, library)


@describes(FunctionType)
def _function(walk: Walk, value: FunctionType) -> None:
    library = library_of_function(value)
    walk.write(_function_word(walk, value, library))
    if value.__defaults__ or value.__kwdefaults__:
        walk.part(value.__defaults__, "'s defaults")
        walk.part(value.__kwdefaults__, "'s defaults")
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        walk.part(cell, "'s variable ", name)
    if library is None:
        _named_globals(walk, value, code_facts(value.__code__))
        if value.__dict__:
            walk.attributes(value.__dict__)


def _function_word(walk: Walk, value: FunctionType, library: str | None) -> str:
    digest = code_facts(value.__code__).digest
    if library is None:
        return f"function {digest}"
    walk.library(library)
    name = f"{value.__globals__.get('__name__')} {value.__code__.co_qualname}"
    return f"function {name} {digest}{settings_of(walk, value)}"


def _named_globals(walk: Walk, function: FunctionType, code: Code) -> None:
    for first, *attributes in code.globals:
        value = function.__globals__.get(first, _MISSING)
        if value is _MISSING:
            continue
        path = [first]
        while isinstance(value, ModuleType) and attributes:
            inner = vars(value).get(attributes[0], _MISSING)
            if inner is _MISSING:
                break
            path.append(attributes.pop(0))
            if not isinstance(inner, ModuleType) and library_of_module(value.__name__) is not None:
                inner = _of_library(walk, value, path[-1], inner)
            value = inner
        name = ".".join(path)
        walk.write(name)
        walk.part(value, "'s global ", name)
        if isinstance(value, ModuleType) and library_of_module(value.__name__) is None:
            _reached_into(walk, value, code)
    for level, name in code.imports:
        module = sys.modules.get(absolute_name(function, level, name))
        if module is not None:
            walk.part(module, "'s import ", name)
            _reached_into(walk, module, code)


def _of_library(walk: Walk, module: ModuleType, name: str, value: Any) -> Any:
    """What stands for something in a module of a library: the name for a function that belongs there."""
    walk.part(module, "")
    if not _is_of_library(value):
        return value
    function = value.__func__ if isinstance(value, MethodType) else value
    return f"{module.__name__}.{name}{settings_of(walk, function)}"


def _is_of_library(value: Any) -> bool:
    function = value.__func__ if isinstance(value, MethodType) else value
    if isinstance(function, FunctionType):
        return library_of_function(function) is not None
    # Not what it is bound to, such as the state of a random generator.
    return function is not value or isinstance(value, BuiltinFunctionType)


def _reached_into(walk: Walk, module: ModuleType, code: Code) -> None:
    """Writes what code may read of a module that it handles as a whole."""
    of_library = library_of_module(module.__name__) is not None
    for name in sorted(code.words & vars(module).keys()):
        value = vars(module)[name]
        if not of_library or not (_is_of_library(value) or isinstance(value, type | ModuleType)):
            walk.write(name)
            walk.part(value, f"'s {module.__name__}.", name)


@says(ModuleType)
def _module(walk: Walk, value: ModuleType) -> str:
    library = library_of_module(value.__name__)
    if library is None:
        return f"module {value.__name__} {module_source(value)}"
    walk.library(library)
    return f"module {value.__name__}"


@says(BuiltinFunctionType)
def _builtin(walk: Walk, value: Any) -> str | None:
    held = value.__self__
    kind = held if isinstance(held, type) else type(held)
    module = value.__module__ or kind.__module__
    of_library = isinstance(held, type) and library_of_module(held.__module__) is not None
    by_name = held is None or of_library or isinstance(held, ModuleType)
    if by_name or vars(sys.modules.get(module, sys)).get(value.__name__) is value:
        walk.library(library_of_module(module) or "python")
        return f"builtin {module} {value.__qualname__}"
    return None


@describes(BuiltinFunctionType, MethodWrapperType)
def _bound(walk: Walk, value: Any) -> None:
    walk.write(f"bound {value.__name__}")
    walk.part(value.__self__, "'s object")


@says(
    MethodDescriptorType, WrapperDescriptorType, GetSetDescriptorType, MemberDescriptorType, ClassMethodDescriptorType
)
def _descriptor(walk: Walk, value: Any) -> str:
    return f"descriptor {value.__objclass__.__module__}.{value.__objclass__.__qualname__}.{value.__name__}"


@says(MethodType)
def _library_method(walk: Walk, value: MethodType) -> str | None:
    """One that a module of a library offers as a function, such as ``numpy.random.rand``."""
    module = getattr(value, "__module__", None)
    library = library_of_module(module) if isinstance(module, str) else None
    name = getattr(value, "__name__", "")
    if library is None or vars(sys.modules.get(str(module), sys)).get(name) is not value:
        return None
    walk.library(library)
    return f"method {module}.{name}"


@describes(MethodType)
def _method(walk: Walk, value: MethodType) -> None:
    walk.write("method")
    walk.part(value.__func__, "'s function")
    walk.part(value.__self__, "'s object")


@describes(staticmethod, classmethod)
def _wrapped(walk: Walk, value: Any) -> None:
    walk.write(type(value).__name__)
    walk.part(value.__func__, "")


@describes(property)
def _property(walk: Walk, value: property) -> None:
    walk.kind(type(value))
    for function in (value.fget, value.fset, value.fdel):
        walk.part(function, "")


@describes(functools.cached_property)
def _cached_property(walk: Walk, value: functools.cached_property[Any]) -> None:
    walk.write("cached property")
    walk.part(value.func, "")


@describes(type(functools.lru_cache(lambda: None)))
def _cached(walk: Walk, value: Any) -> None:
    walk.write(f"cached {value.cache_parameters()}")
    walk.part(value.__wrapped__, "")


@describes(CodeType)
def _code(walk: Walk, value: CodeType) -> None:
    walk.write(f"code {code_facts(value).digest}")
