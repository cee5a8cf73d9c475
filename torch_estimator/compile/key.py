"""Cache key of a computation: a hash of everything in Python that decides which machine code is compiled for it.

The key is computed before anything is traced, from the objects themselves, and it covers:

- modules, optimizers, losses and heads, with all attributes and hooks, down to the last object that they hold;
- tensors as shapes, strides, dtypes and shared memory, but not their numbers: those are inputs of the compiled step;
- functions and classes of the user with their code, defaults, closures and class attributes, the values of the globals
  that the code names, and the content of the files that they are defined in and of the user's modules that these import
  (`sources`), whichever of them is ``__main__``;
- functions and classes of installed packages by name, and by the version of the package.

Two programs with equal keys may still compute something else: code can read a file, or a setting inside of a package.
So the key only finds a compiled step. Whether the step may be used is proven by taking one step both ways (`proof`).

Some objects, such as open files, differ from others of their type only by their identity. They make the key meaningless
in other processes (`CacheKey.portable`), but it still shows changes within this process. Attributes that a class names
in ``not_in_fingerprint`` do not count.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import logging
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from types import (
    BuiltinFunctionType,
    CellType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any
from weakref import ReferenceType

import numpy as np
import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.nn.parameter import is_lazy
from torch.optim import optimizer as torch_optimizer
from torch.utils.hooks import RemovableHandle

from torch_estimator.compile.sources import (
    digest_of_code,
    package_identity,
    package_of_file,
    package_of_module,
    sources_of,
)
from torch_estimator.optim.clipping import clippings_of

logger = logging.getLogger("torch_estimator")

# Types whose values ``repr`` writes completely, and differently from values of each other type.
_PLAIN = frozenset({str, int, float, bool, type(None), complex, bytes, type(Ellipsis), type(NotImplemented), range})

_POINTER_BYTES = 8

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

# Maps each table of a module's hooks to the tables of flags for these hooks.
# The numbers of hooks are not part of the key, because torch counts all hooks of a process.
_MODULE_HOOKS: dict[str, tuple[str, ...]] = {
    "_forward_hooks": ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    "_forward_pre_hooks": ("_forward_pre_hooks_with_kwargs",),
    "_backward_hooks": (),
    "_backward_pre_hooks": (),
}
_MODULE_PARTS = ("_parameters", "_buffers", "_modules")
# The last five influence only how state dicts are saved and loaded, which is not part of a step.
_MODULE_INTERNALS = frozenset(
    {
        *_MODULE_HOOKS,
        *sum(_MODULE_HOOKS.values(), ()),
        *_MODULE_PARTS,
        "_state_dict_hooks",
        "_state_dict_pre_hooks",
        "_load_state_dict_pre_hooks",
        "_load_state_dict_post_hooks",
        "_non_persistent_buffers_set",
    }
)

_OPTIMIZER_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
# torch uses the last two only to decide whether to warn about the order of calls.
_OPTIMIZER_INTERNALS = frozenset(
    {
        *_OPTIMIZER_HOOKS,
        "_optimizer_state_dict_pre_hooks",
        "_optimizer_state_dict_post_hooks",
        "_optimizer_load_state_dict_pre_hooks",
        "_optimizer_load_state_dict_post_hooks",
        "_zero_grad_profile_name",
        "defaults",
        "param_groups",
        "state",
        "_opt_called",
        "_warned_capturable_if_run_uncaptured",
    }
)


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Key of a computation. Computations with equal keys differ in the numbers in their tensors, as far as one can see.

    Attributes:
        digest: SHA-256 in hexadecimal digits.
        portable: Whether the digest means the same in other processes. If not, it can be compared with later keys of
            this process, for as long as this key is alive.
        obstacle: If not portable, the path and type of the first object that only its identity distinguishes from
            others; empty otherwise.
        tensors: Every tensor that was reached, once, with its path. Equal digests imply the same order.
    """

    digest: str
    portable: bool
    obstacle: str
    tensors: tuple[tuple[str, Tensor], ...] = field(compare=False, repr=False)
    # Objects whose addresses are part of the digest. Keep them alive, so that no new object can get their addresses.
    _held: tuple[object, ...] = field(compare=False, repr=False)


def cache_key(*roots: Any, leave_out: Collection[str] = ()) -> CacheKey:
    """Return the cache key of some objects and of all objects that can be reached from them.

    Args:
        roots: Modules, optimizers, functions or any other objects. The items of a dict are roots with names, with which
            the paths of their tensors begin.
        leave_out: Settings in the groups of optimizers whose numbers do not count, because the compiled step reads them
            anew in every step. If such a setting is a tuple, only its first number is left out. With ``"state"`` the
            state of optimizers is left out, for computations that never read it.

    >>> cache_key({"scale": 1.0}) == cache_key({"scale": 1.0})
    True
    >>> cache_key({"scale": 1.0}) == cache_key({"scale": 2.0})
    False
    """
    walk = _Walk(frozenset(leave_out))
    for place, root in enumerate(roots):
        walk.write("root")
        if type(root) is dict:
            for name, value in root.items():
                walk.write(repr(name))
                walk.visit_root(value, str(name))
        else:
            walk.visit_root(root, "module" if isinstance(root, nn.Module) else f"root {place}")
    for hook in _global_hooks():
        walk.visit_root(hook, "a hook of all modules")
    return walk.finish()


def _global_hooks() -> Iterator[Any]:
    """Yield the hooks that torch calls for every module and every optimizer."""
    of_modules = vars(nn.modules.module)
    for name in ("forward_pre_hooks", "forward_hooks", "backward_pre_hooks", "backward_hooks"):
        yield from of_modules[f"_global_{name}"].values()
    yield from torch_optimizer._global_optimizer_pre_hooks.values()
    yield from torch_optimizer._global_optimizer_post_hooks.values()


class _Walk:
    """Breadth-first walk through objects, which writes each object once into the text that the key is a hash of.

    A small object is written inline, as one token in the text of the object that holds it. Every other object gets a
    section of its own, in the order in which objects are found. In the holder's text, ``+`` stands for a new object,
    and ``@number`` for one that was found before. So shared objects differ from equal copies, and cycles end.
    """

    def __init__(self, leave_out: frozenset[str], *, of_element: bool = False) -> None:
        self.leave_out = leave_out
        self.of_element = of_element
        self.tensors: list[tuple[int, Tensor]] = []
        self.storages: dict[int, int] = {}
        self.current = -1
        self._written: list[str] = []
        # The number of each object found so far, by id. Holding the objects keeps their ids from being used again.
        self._numbers: dict[int, int] = {}
        self._objects: list[Any] = []
        # For each object: the number of its holder, and the path from there.
        self._found_at: list[tuple[int, str]] = []
        self._packages: set[str] = set()
        self._sources: dict[int, set[str]] = {}
        self._members: set[tuple[int, frozenset[str]]] = set()
        self._by_identity: list[object] = []
        self._obstacle = ""

    def write(self, token: str) -> None:
        """Append a token to the text. Different objects must write different tokens."""
        self._written.append(token)

    def visit_root(self, value: Any, name: str) -> None:
        """Write an object and all objects that can be reached from it."""
        # A root has no holder, so clear the number of the object that was visited last.
        at, self.current = self.current, -1
        self.visit(value, name)
        self.current = at
        while self.current + 1 < len(self._objects):
            self.current += 1
            value = self._objects[self.current]
            self._written.append("\n")
            try:
                _writer_of(type(value))(self, value)
            except Exception:
                # Properties and ``__reduce__`` methods of the user may raise any exception.
                logger.debug("%s cannot be inspected, so its identity counts.", self._path(self.current), exc_info=True)
                self.write_identity(value)

    def visit(self, value: Any, path: str) -> None:
        """Write a value that the current object holds, at a path from it: inline, or as a section that follows."""
        kind = type(value)
        if kind in _PLAIN:
            self._written.append(repr(value) if kind is not bytes else f"bytes {len(value)} {_digest(value)}")
            return
        number = self._numbers.get(id(value))
        if number is not None:
            self._written.append(f"@{number}")
            return
        token = _inline_of(kind)(self, value)
        if token is None:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
            self._found_at.append((self.current, path))
            token = "+"
        self._written.append(token)

    def visit_attributes(self, attributes: Mapping[str, Any], skip: Collection[str] = ()) -> None:
        """Write attributes sorted by name, so that the order in which they were set does not count."""
        for name in sorted(attributes):
            if name not in skip:
                self._written.append(name)
                self.visit(attributes[name], f".{name}")

    def use_package(self, package: str) -> None:
        """Let the version of an installed package count."""
        self._packages.add(package)

    def use_source(self, module: ModuleType | None) -> None:
        """Let the file of a user's module count, and those of the user's modules that it imports."""
        if module is not None and id(module) not in self._sources:
            self._sources[id(module)] = sources_of(module)

    def visit_members(self, module: ModuleType, words: frozenset[str]) -> None:
        """Write the members of a module that a function's code names in any way, for instance in ``getattr``."""
        if (id(module), words) in self._members:
            return
        self._members.add((id(module), words))
        is_of_package = package_of_module(module.__name__) is not None
        self.visit(module, f"'s {module.__name__}")
        for name in sorted(words & vars(module).keys()):
            value = vars(module)[name]
            if isinstance(value, ModuleType):
                if package_of_module(value.__name__) is None:
                    self.visit_members(value, words)
            elif not (is_of_package and _is_of_package(value)):
                self._written.append(name)
                self.visit(value, f"'s {module.__name__}.{name}")

    def write_identity(self, value: object) -> None:
        """Write the address of an object that has no other distinguishing feature. The key is then not portable."""
        kind = type(value)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        if not self._by_identity:
            self._obstacle = f"{self._path(self.current)}: an object of type {name}"
        self._by_identity.append(value)
        self.write(f"object {name} {id(value)}")

    def finish(self) -> CacheKey:
        """Return the cache key of all root objects that were visited."""
        sources = sorted(set().union(*self._sources.values()))
        text = "\0".join([*self._written, *sorted(map(package_identity, self._packages)), *sources])
        return CacheKey(
            digest=_digest(text.encode("utf-8", "surrogatepass")),
            portable=not self._by_identity,
            obstacle=self._obstacle,
            tensors=tuple((self._path(number), tensor) for number, tensor in self.tensors),
            _held=tuple(self._by_identity),
        )

    def _path(self, number: int) -> str:
        """Return the path by which an object was reached, such as ``module.encoder.weight``."""
        steps = []
        while number != -1:
            number, step = self._found_at[number]
            steps.append(step)
        return "".join(reversed(steps))


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()


_Writer = Callable[[_Walk, Any], None]
_Inline = Callable[[_Walk, Any], str | None]
_WRITERS: dict[type, _Writer] = {}
_INLINES: dict[type, _Inline] = {}


def _section(*kinds: type) -> Callable[[_Writer], _Writer]:
    """Decorate a function that writes objects of some types, or of their subclasses, each as a section."""

    def register(function: _Writer) -> _Writer:
        _WRITERS.update(dict.fromkeys(kinds, function))
        return function

    return register


def _inline(*kinds: type) -> Callable[[_Inline], _Inline]:
    """Decorate a function that returns the token of an object of some types; None if the object needs a section."""

    def register(function: _Inline) -> _Inline:
        _INLINES.update(dict.fromkeys(kinds, function))
        return function

    return register


def _writer_of(kind: type) -> _Writer:
    return next(_WRITERS[base] for base in kind.__mro__ if base in _WRITERS)


def _inline_of(kind: type) -> _Inline:
    return next((_INLINES[base] for base in kind.__mro__ if base in _INLINES), lambda walk, value: None)


# Values and containers.


@_section(object)
def _object(walk: _Walk, value: Any) -> None:
    """Write an object by its attributes; if a part of it is in C, as pickle would save it, or else by its identity."""
    kind = type(value)
    if (attributes := _attributes(value)) is not None:
        walk.visit(kind, f"'s class {kind.__name__}")
        walk.visit_attributes(attributes)
        return
    reduce = copyreg.dispatch_table.get(kind)
    try:
        reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
    except Exception:
        walk.write_identity(value)
        return
    walk.visit(kind, f"'s class {kind.__name__}")
    for part in (reduced,) if isinstance(reduced, str) else reduced:
        # The items of lists and dicts come as iterators.
        walk.visit(list(part) if isinstance(part, Iterator) else part, "'s state")


def _attributes(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object in ``__dict__`` and in slots; None if it holds something that only C reads."""
    kind = type(value)
    found = dict(getattr(value, "__dict__", {}))
    slots = [
        (name, slot)
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for name, slot in vars(base).items()
        if isinstance(slot, MemberDescriptorType)
    ]
    # Such an object is larger than its header, slots, and pointers to a dict and weak references. Pointers whose offset
    # is not positive lie in front of the object.
    pointers = sum(offset > 0 for offset in (kind.__dictoffset__, kind.__weakrefoffset__))
    if kind.__itemsize__ or kind.__basicsize__ > object.__basicsize__ + _POINTER_BYTES * (pointers + len(slots)):
        return None
    for name, slot in slots:
        with contextlib.suppress(AttributeError):
            found[name] = slot.__get__(value)
    skipped = _skipped(kind)
    return {name: one for name, one in found.items() if name not in skipped}


def _skipped(kind: type) -> frozenset[str]:
    return frozenset(name for base in kind.__mro__ for name in vars(base).get("not_in_fingerprint", ()))


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN or (type(value) is tuple and all(map(_is_plain, value)))


@_inline(list, tuple, set, frozenset)
def _plain_container(walk: _Walk, value: Any) -> str | None:
    kind = type(value)
    if kind not in (list, tuple, set, frozenset) or not all(map(_is_plain, value)):
        return None
    return repr(value) if kind in (list, tuple) else f"{kind.__name__} {sorted(map(repr, value))}"


@_inline(dict)
def _plain_dict(walk: _Walk, value: dict[Any, Any]) -> str | None:
    is_plain = type(value) is dict and all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    return repr(value) if is_plain else None


@_section(list, tuple, dict, MappingProxyType, set, frozenset)
def _container(walk: _Walk, value: Any) -> None:
    kind = type(value)
    if kind not in (list, tuple, dict, MappingProxyType, set, frozenset):
        _object(walk, value)
        return
    walk.write(f"{kind.__name__} of {len(value)}")
    if kind in (set, frozenset):
        # The order of elements that differ in sets only is arbitrary: an element may hold the set that it is in.
        for item in () if walk.of_element else sorted(value, key=_digest_of_element):
            walk.visit(item, "'s element")
    elif kind in (list, tuple):
        for place, item in enumerate(tuple(value)):
            walk.visit(item, f"[{place}]")
    else:
        for place, (key, item) in enumerate(tuple(value.items())):
            walk.visit(key, f"'s key {place}")
            walk.visit(item, f"[{key!r}]" if _is_plain(key) else f"'s value {place}")


def _digest_of_element(value: Any) -> str:
    walk = _Walk(frozenset(), of_element=True)
    walk.visit_root(value, "")
    return walk.finish().digest


@_section(np.ndarray)
def _array(walk: _Walk, value: np.ndarray[Any, Any]) -> None:
    walk.visit(type(value), "'s class")
    walk.write(f"{value.dtype!r} {value.shape}")
    if value.dtype.hasobject:
        walk.visit(value.ravel().tolist(), "")
    else:
        walk.write(_digest(np.ascontiguousarray(value).tobytes()))


@_section(ReferenceType)
def _weak_reference(walk: _Walk, value: ReferenceType[Any]) -> None:
    walk.write("weak reference")
    walk.visit(value(), "()")


@_section(CellType)
def _cell(walk: _Walk, value: CellType) -> None:
    walk.write("cell")
    try:
        content = value.cell_contents
    except ValueError:
        walk.write("empty")
    else:
        walk.visit(content, "")


# Locks do not influence what is computed.
@_inline(type(threading.Lock()), type(threading.RLock()), RemovableHandle)
def _lock(walk: _Walk, value: Any) -> str:
    return type(value).__name__


@_inline(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, torch.finfo, torch.iinfo)
def _torch_constant(walk: _Walk, value: Any) -> str:
    return f"torch {value!r}"


@_inline(OpOverload, OpOverloadPacket, HigherOrderOperator)
def _operator(walk: _Walk, value: Any) -> str:
    return f"operator {value}"


@_inline(torch.Generator)
def _generator(walk: _Walk, value: torch.Generator) -> str:
    return f"generator {value.device} {_digest(value.get_state().numpy().tobytes())}"


# Functions, classes and modules.


def _package_of_function(function: FunctionType) -> str | None:
    # A generated function, such as ``__init__`` of a dataclass, belongs to the module of its class.
    file = function.__code__.co_filename
    return package_of_module(function.__globals__.get("__name__")) if file == "<string>" else package_of_file(file)


def _is_of_package(value: Any) -> bool:
    """Return whether a value is a function or a class of an installed package, which its name identifies."""
    function = getattr(value, "__func__", value)
    if isinstance(function, FunctionType):
        return _package_of_function(function) is not None
    # Ignore the object of a bound method, because it may be a global random generator, whose state changes.
    return function is not value or isinstance(value, BuiltinFunctionType | type)


@_inline(FunctionType)
def _function_of_package(walk: _Walk, value: FunctionType) -> str | None:
    package = _package_of_function(value)
    if package is None or "<locals>" in value.__code__.co_qualname:
        return None
    walk.use_package(package)
    return f"function {value.__module__}.{value.__code__.co_qualname} {value.__code__.co_firstlineno}"


@_section(FunctionType)
def _function(walk: _Walk, value: FunctionType) -> None:
    package, code = _package_of_function(value), value.__code__
    walk.write(f"function {code.co_qualname} {digest_of_code(code)}")
    walk.visit(value.__defaults__, "'s defaults")
    walk.visit(value.__kwdefaults__, "'s defaults")
    for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=True):
        walk.visit(cell, f"'s variable {name}")
    if package is not None:
        walk.use_package(package)
        return
    walk.visit_attributes(value.__dict__)
    walk.use_source(sys.modules.get(str(value.__globals__.get("__name__"))))
    words = _words(code)
    for name in sorted(words & value.__globals__.keys()):
        one = value.__globals__[name]
        walk.write(name)
        if isinstance(one, ModuleType):
            walk.visit_members(one, words)
        else:
            walk.visit(one, f"'s global {name}")
    for name in sorted(words & sys.modules.keys() - value.__globals__.keys()):
        # A module that the function itself imports.
        walk.visit_members(sys.modules[name], words)


@functools.cache
def _words(code: CodeType) -> frozenset[str]:
    """Return all names and strings in code: each may be the name of a global or a member that the code reads."""
    inner = (_words(one) for one in code.co_consts if isinstance(one, CodeType))
    return frozenset(code.co_names).union((one for one in code.co_consts if isinstance(one, str)), *inner)


@_section(
    staticmethod, classmethod, property, functools.cached_property, type(functools.cache(lambda: None)), MethodType
)
def _wrapper(walk: _Walk, value: Any) -> None:
    walk.write(type(value).__name__)
    for name in ("__func__", "__self__", "fget", "fset", "fdel", "func", "__wrapped__"):
        walk.visit(getattr(value, name, None), f"'s {name}")


@_inline(MethodType, BuiltinFunctionType, MethodWrapperType)
def _named_callable(walk: _Walk, value: Any) -> str | None:
    """Return the name of a builtin, or of a method that a package offers as a function, such as ``numpy.random.rand``.

    None stands for a method that is bound to another object, because the object counts.
    """
    bound_to, name = value.__self__, getattr(value, "__name__", "")
    kind = bound_to if isinstance(bound_to, type) else type(bound_to)
    module = getattr(value, "__module__", None) or kind.__module__
    package = package_of_module(module)
    is_function = isinstance(value, BuiltinFunctionType) and (
        bound_to is None
        or isinstance(bound_to, ModuleType)
        or (isinstance(bound_to, type) and package_of_module(bound_to.__module__) is not None)
    )
    is_offered = package is not None and vars(sys.modules.get(str(module), sys)).get(name) is value
    if not (is_function or is_offered):
        return None
    walk.use_package(package or "python")
    return f"builtin {module} {getattr(value, '__qualname__', name)}"


@_section(BuiltinFunctionType, MethodWrapperType)
def _bound_builtin(walk: _Walk, value: Any) -> None:
    walk.write(f"bound {value.__name__}")
    walk.visit(value.__self__, "'s object")


@_inline(
    MethodDescriptorType, WrapperDescriptorType, GetSetDescriptorType, MemberDescriptorType, ClassMethodDescriptorType
)
def _descriptor(walk: _Walk, value: Any) -> str:
    return f"descriptor {value.__objclass__.__module__}.{value.__objclass__.__qualname__}.{value.__name__}"


@_inline(ModuleType)
def _module_of_python(walk: _Walk, value: ModuleType) -> str:
    package = package_of_module(value.__name__)
    if package is None:
        walk.use_source(value)
        return "module"
    walk.use_package(package)
    return f"module {value.__name__}"


@_inline(type)
def _class_of_package(walk: _Walk, value: type) -> str | None:
    package = package_of_module(value.__module__)
    if package is None:
        return None
    # A class that a function of a package makes, for instance by ``type(...)``, counts with all that it defines.
    found: Any = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        found = getattr(found, "__dict__", {}).get(name)
    if found is not value and value.__module__ != "builtins":
        return None
    walk.use_package(package)
    return f"class {value.__module__}.{value.__qualname__}"


@_section(type)
def _class(walk: _Walk, value: type) -> None:
    walk.write(f"class {value.__qualname__}")
    if package_of_module(value.__module__) is None:
        walk.use_source(sys.modules.get(str(value.__module__)))
    walk.visit_attributes(vars(value), _IGNORED_ATTRIBUTES)
    for base in (type(value), *value.__bases__):
        walk.visit(base, f"'s class {base.__name__}")


# Tensors, modules and optimizers.


@_section(Tensor)
def _tensor(walk: _Walk, value: Tensor) -> None:
    walk.tensors.append((walk.current, value))
    walk.visit(type(value), "'s class")
    if is_lazy(value):
        walk.write(f"tensor without a shape {value.dtype} {value.device}")
        return
    place = (value.stride(), value.storage_offset()) if value.layout is torch.strided else value.layout
    flags = (value.requires_grad, value.is_leaf, value.is_conj(), value.is_neg(), value.is_inference())
    walk.write(f"tensor {value.dtype} {tuple(value.shape)} {place} {value.device} {flags} in {_storage(walk, value)}")
    walk.visit_attributes(value.__dict__)
    for hooks in (value._backward_hooks, getattr(value, "_post_accumulate_grad_hooks", None)):
        if hooks:
            _hooks(walk, hooks)


def _storage(walk: _Walk, value: Tensor) -> int:
    """Return a number that identifies the memory of a tensor. Views of the same memory have the same number."""
    try:
        address = value.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return -1
    return walk.storages.setdefault(address, len(walk.storages))


@_section(nn.Module)
def _module(walk: _Walk, value: nn.Module) -> None:
    kind, attributes = type(value), vars(value)
    walk.visit(kind, f"'s class {kind.__name__}")
    walk.visit_attributes(attributes, _MODULE_INTERNALS | _skipped(kind))
    for name in _MODULE_PARTS:
        for part, one in attributes.get(name, {}).items():
            walk.write(f"{name} {part!r}")
            walk.visit(one, f".{part}")
    for name, flags in _MODULE_HOOKS.items():
        if hooks := attributes.get(name):
            walk.write(name)
            _hooks(walk, hooks, *(attributes.get(flag, {}) for flag in flags))


def _hooks(walk: _Walk, hooks: Mapping[int, Any], *flags: Mapping[int, Any]) -> None:
    """Write hooks in their order, each with booleans that say which of the tables `flags` contain the hook's number."""
    walk.write(f"of {len(hooks)}")
    for place, (number, hook) in enumerate(hooks.items()):
        walk.write(str([number in flagged for flagged in flags]))
        walk.visit(hook, f"'s hook {place}")


@_section(torch.optim.Optimizer)
def _optimizer(walk: _Walk, value: torch.optim.Optimizer) -> None:
    attributes = vars(value)
    walk.visit(type(value), f"'s class {type(value).__name__}")
    walk.visit_attributes(attributes, _OPTIMIZER_INTERNALS)
    for name in _OPTIMIZER_HOOKS:
        _hooks(walk, attributes.get(name, {}))
    walk.write("defaults")
    _settings(walk, value.defaults, ".defaults")
    for place, group in enumerate(value.param_groups):
        walk.write("group")
        _settings(walk, group, f".param_groups[{place}]")
    if "state" not in walk.leave_out:
        walk.write("state")
        _state(walk, value)
    walk.write("clippings")
    for clipping in clippings_of([value]):
        walk.visit(clipping, "'s clipping")


def _settings(walk: _Walk, settings: Mapping[str, Any], path: str) -> None:
    """Write the settings of a parameter group. Leave out the numbers of the settings in `leave_out`."""
    for name in sorted(settings):
        if name != "param_names":
            walk.write(name)
            value = settings[name]
            walk.visit(_without_number(value) if name in walk.leave_out else value, f"{path}[{name!r}]")


def _without_number(value: Any) -> Any:
    """Replace the number in a setting by a fixed text. Of a tuple, replace only the first number."""
    if isinstance(value, tuple) and value:
        return (_without_number(value[0]), *value[1:])
    return "a number" if isinstance(value, int | float | np.number) and not isinstance(value, bool) else value


def _state(walk: _Walk, optimizer: torch.optim.Optimizer) -> None:
    """Hash the state of an optimizer, parameter by parameter, in the order of the groups, with sorted slots.

    The order of the dict depends on which parameter got a gradient first, and state that was restored from a checkpoint
    has its slots in another order than new state.
    """
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    known = set(map(id, held))
    keys = [*(one for one in held if one in optimizer.state), *(k for k in optimizer.state if id(k) not in known)]
    for place, key in enumerate(keys):
        walk.visit(key, f"'s key {place}")
        slots = optimizer.state[key]
        for name in sorted(slots, key=str):
            walk.write(repr(name))
            walk.visit(slots[name], f".state[{place}][{name!r}]")
