"""Part of the cache key computation: writes functions, methods, modules and classes.

The user's own functions count with their bytecode, what they close over, and the values of the globals that the
bytecode names. The user's classes count with everything that they define. Functions and classes of installed packages
are written as their names, because the version of the package fixes what they do; only the settings that they read are
added.
"""

from __future__ import annotations

import functools
import operator
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

from torch_estimator.compile.cache_key.code import CodeFacts, absolute_name, code_facts, settings_of
from torch_estimator.compile.cache_key.libraries import library_of_code, library_of_module, module_source
from torch_estimator.compile.cache_key.walk import Walk, writes_inline, writes_section

_MISSING = object()

# Class attributes that do not influence what is computed, or that are written in another way.
_IGNORED_ATTRIBUTES = frozenset(
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

# Cache of `_search`: for each class, its attributes at the time of the search and the names of the user's functions.
_SEARCHED: dict[type, tuple[tuple[Any, ...], tuple[str, ...]]] = {}


def library_of_function(function: FunctionType) -> str | None:
    """Return the installed package that a function belongs to; None for a function of the user."""
    code = function.__code__
    # A generated function, such as ``__init__`` of a dataclass, belongs to the module of its class.
    if code.co_filename == "<string>":
        return library_of_module(str(function.__globals__.get("__name__")))
    return library_of_code(code)


@writes_inline(FunctionType)
def _library_function(walk: Walk, value: FunctionType) -> str | None:
    if value.__closure__ is not None:
        return None
    library = library_of_function(value)
    return None if library is None else _function_token(walk, value, library)


@writes_section(FunctionType)
def _function(walk: Walk, value: FunctionType) -> None:
    library = library_of_function(value)
    walk.write(_function_token(walk, value, library))
    if value.__defaults__ or value.__kwdefaults__:
        walk.visit(value.__defaults__, "'s defaults")
        walk.visit(value.__kwdefaults__, "'s defaults")
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        walk.visit(cell, "'s variable ", name)
    if library is None:
        _write_globals(walk, value, code_facts(value.__code__))
        if value.__dict__:
            walk.visit_attributes(value.__dict__)


def _function_token(walk: Walk, value: FunctionType, library: str | None) -> str:
    digest = code_facts(value.__code__).digest
    if library is None:
        return f"function {digest}"
    walk.record_library(library)
    name = f"{value.__globals__.get('__name__')} {value.__code__.co_qualname}"
    return f"function {name} {digest}{settings_of(walk, value)}"


def _write_globals(walk: Walk, function: FunctionType, code: CodeFacts) -> None:
    """Write the globals and imports that the code of a function names.

    A dotted name such as ``config.model.SCALE`` is followed through modules, so that only the attribute in the end
    counts, and not everything that the modules hold.
    """
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
                inner = _member_of_library(walk, value, path[-1], inner)
            value = inner
        name = ".".join(path)
        walk.write(name)
        walk.visit(value, "'s global ", name)
        if isinstance(value, ModuleType) and library_of_module(value.__name__) is None:
            _write_members(walk, value, code)
    for level, name in code.imports:
        module = sys.modules.get(absolute_name(function, level, name))
        if module is not None:
            walk.visit(module, "'s import ", name)
            _write_members(walk, module, code)


def _member_of_library(walk: Walk, module: ModuleType, name: str, value: Any) -> Any:
    """Return what to write for a member of a library's module: the name of a function, or any other member itself."""
    walk.visit(module, "")
    if not _is_library_function(value):
        return value
    function = value.__func__ if isinstance(value, MethodType) else value
    return f"{module.__name__}.{name}{settings_of(walk, function)}"


def _is_library_function(value: Any) -> bool:
    function = value.__func__ if isinstance(value, MethodType) else value
    if isinstance(function, FunctionType):
        return library_of_function(function) is not None
    # Ignore the object of a bound method, because it may be a global random generator, whose state changes.
    return function is not value or isinstance(value, BuiltinFunctionType)


def _write_members(walk: Walk, module: ModuleType, code: CodeFacts) -> None:
    """Write the members of a module whose names occur anywhere in a function's code.

    Code can read a member without naming it as ``module.member``, for instance by ``getattr(module, "name")``.
    """
    is_library = library_of_module(module.__name__) is not None
    for name in sorted(code.words & vars(module).keys()):
        value = vars(module)[name]
        if not is_library or not (_is_library_function(value) or isinstance(value, type | ModuleType)):
            walk.write(name)
            walk.visit(value, f"'s {module.__name__}.", name)


@writes_inline(ModuleType)
def _module(walk: Walk, value: ModuleType) -> str:
    library = library_of_module(value.__name__)
    if library is None:
        return f"module {value.__name__} {module_source(value)}"
    walk.record_library(library)
    return f"module {value.__name__}"


@writes_inline(BuiltinFunctionType)
def _builtin(walk: Walk, value: Any) -> str | None:
    """Return the name of a function written in C; None for a method bound to an object, because the object counts."""
    bound_to = value.__self__
    kind = bound_to if isinstance(bound_to, type) else type(bound_to)
    module = value.__module__ or kind.__module__
    is_library_class = isinstance(bound_to, type) and library_of_module(bound_to.__module__) is not None
    has_name = bound_to is None or is_library_class or isinstance(bound_to, ModuleType)
    if has_name or vars(sys.modules.get(module, sys)).get(value.__name__) is value:
        walk.record_library(library_of_module(module) or "python")
        return f"builtin {module} {value.__qualname__}"
    return None


@writes_section(BuiltinFunctionType, MethodWrapperType)
def _bound_builtin(walk: Walk, value: Any) -> None:
    walk.write(f"bound {value.__name__}")
    walk.visit(value.__self__, "'s object")


@writes_inline(
    MethodDescriptorType, WrapperDescriptorType, GetSetDescriptorType, MemberDescriptorType, ClassMethodDescriptorType
)
def _descriptor(walk: Walk, value: Any) -> str:
    return f"descriptor {value.__objclass__.__module__}.{value.__objclass__.__qualname__}.{value.__name__}"


@writes_inline(MethodType)
def _library_method(walk: Walk, value: MethodType) -> str | None:
    """Return the name of a bound method that a library offers as a function, such as ``numpy.random.rand``.

    None stands for any other method.
    """
    module = getattr(value, "__module__", None)
    library = library_of_module(module) if isinstance(module, str) else None
    name = getattr(value, "__name__", "")
    if library is None or vars(sys.modules.get(str(module), sys)).get(name) is not value:
        return None
    walk.record_library(library)
    return f"method {module}.{name}"


@writes_section(MethodType)
def _method(walk: Walk, value: MethodType) -> None:
    walk.write("method")
    walk.visit(value.__func__, "'s function")
    walk.visit(value.__self__, "'s object")


@writes_section(staticmethod, classmethod)
def _static_or_class_method(walk: Walk, value: Any) -> None:
    walk.write(type(value).__name__)
    walk.visit(value.__func__, "")


@writes_section(property)
def _property(walk: Walk, value: property) -> None:
    walk.visit_class(type(value))
    for function in (value.fget, value.fset, value.fdel):
        walk.visit(function, "")


@writes_section(functools.cached_property)
def _cached_property(walk: Walk, value: functools.cached_property[Any]) -> None:
    walk.write("cached property")
    walk.visit(value.func, "")


@writes_section(type(functools.lru_cache(lambda: None)))
def _cached_function(walk: Walk, value: Any) -> None:
    walk.write(f"cached {value.cache_parameters()}")
    walk.visit(value.__wrapped__, "")


@writes_section(CodeType)
def _code(walk: Walk, value: CodeType) -> None:
    walk.write(f"code {code_facts(value).digest}")


@writes_inline(type)
def _library_class(walk: Walk, value: type) -> str | None:
    """Return the name of a library's class; None for other classes and for classes with functions of the user."""
    token: str | None = walk.memo.get(("class", id(value)), "")
    if token == "":
        is_known = _is_library_class(value) and not any(_users_functions(walk, base) for base in value.__mro__)
        name = f"class {value.__module__}.{value.__qualname__}"
        token = walk.memo["class", id(value)] = f"{name}{settings_of(walk, value)}" if is_known else None
        if token is not None:
            walk.record_library(library_of_module(value.__module__) or "python")
    return token


@writes_section(type)
def _class(walk: Walk, value: type) -> None:
    walk.write(value.__qualname__)
    if _is_library_class(value):
        walk.record_library(library_of_module(value.__module__) or "python")
        walk.write(settings_of(walk, value))
        walk.visit_attributes({name: vars(value)[name] for name in _users_functions(walk, value)})
    else:
        if type(value) is not type:
            walk.visit_class(type(value))
        walk.visit_attributes(dict(vars(value)), _IGNORED_ATTRIBUTES)
    for base in value.__bases__:
        walk.visit_class(base)


def _is_library_class(kind: type) -> bool:
    """Return whether a class can be found by its name in an installed package.

    Classes that a function of a package makes, such as by ``type(...)``, cannot, and count with all they define.
    """
    # The ``__module__`` of a class made in C may be a descriptor instead of a string.
    if not isinstance(kind.__module__, str) or library_of_module(kind.__module__) is None:
        return False
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, "__dict__", {}).get(name)
    return found is kind or kind.__module__ == "builtins"


def _users_functions(walk: Walk, kind: type) -> tuple[str, ...]:
    """Return the names of functions that the user has added to a class of a library."""
    found: tuple[str, ...] | None = walk.memo.get(("users functions", id(kind)))
    if found is None:
        found = walk.memo["users functions", id(kind)] = _search(kind) if _is_library_class(kind) else ()
    return found


def _search(kind: type) -> tuple[str, ...]:
    """Return the names of the user's functions in a class. Reuse the last result if the class has not changed."""
    values = tuple(vars(kind).values())
    known = _SEARCHED.get(kind)
    if known is not None and len(known[0]) == len(values) and all(map(operator.is_, known[0], values)):
        return known[1]
    found = tuple(sorted(name for name, value in vars(kind).items() if _is_users_function(value)))
    _SEARCHED[kind] = (values, found)
    return found


def _is_users_function(value: Any) -> bool:
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        return any(_is_users_function(one) for one in (value.fget, value.fset, value.fdel))
    return isinstance(value, FunctionType) and library_of_function(value) is None
