"""Part of the cache key computation: writes Python and numpy values, containers, and instances of any class."""

from __future__ import annotations

import copyreg
import logging
import pathlib
import threading
from collections import defaultdict
from contextvars import ContextVar
from hashlib import sha256
from types import CellType, GeneratorType, MappingProxyType, MemberDescriptorType
from typing import Any, NamedTuple
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, WeakValueDictionary

import numpy as np

from torch_estimator.compile.cache_key.walk import PLAIN, Walk, writes_inline, writes_section

# Bytes objects longer than this are written as their digest.
_MAX_INLINE_BYTES = 256

_POINTER_BYTES = 8


class _Storage(NamedTuple):
    """Description of where instances of a class hold their attributes: in ``__dict__``, in slots, or in C.

    Attributes:
        skipped: Names that classes list in ``not_in_fingerprint``, because they do not influence what is computed.
        slots: Name and descriptor of each of ``__slots__``.
        has_dict: Whether instances have a ``__dict__``.
        is_hidden: Whether instances hold something that only code in C can read.
    """

    skipped: frozenset[str]
    slots: tuple[tuple[str, Any], ...]
    has_dict: bool
    is_hidden: bool


def instance_attributes(walk: Walk, value: Any) -> dict[str, Any]:
    """Return the attributes that an object holds in its ``__dict__`` and in slots, by name."""
    storage = _storage_of(walk, type(value))
    found: dict[str, Any] = object.__getattribute__(value, "__dict__") if storage.has_dict else {}
    if not storage.slots and not storage.skipped:
        return found
    found = {name: one for name, one in found.items() if name not in storage.skipped}
    for name, slot in storage.slots:
        try:
            found[name] = slot.__get__(value)
        except AttributeError:
            # Skip this slot, because it has no value yet.
            continue
    return found


def _storage_of(walk: Walk, kind: type) -> _Storage:
    storage: _Storage | None = walk.memo.get(("storage", id(kind)))
    if storage is None:
        storage = walk.memo["storage", id(kind)] = _find_storage(kind)
    return storage


def _find_storage(kind: type) -> _Storage:
    skipped = frozenset(name for base in kind.__mro__ for name in vars(base).get("not_in_fingerprint", ()))
    slots = tuple(
        (name, slot)
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for name, slot in vars(base).items()
        if isinstance(slot, MemberDescriptorType)
    )
    # An instance holds data in C if it is larger than its header, slots, and pointers to a dict and weak references.
    # Pointers whose offset is not positive lie in front of the object, so their bytes do not count.
    pointers = sum(offset > 0 for offset in (kind.__dictoffset__, kind.__weakrefoffset__))
    visible = object.__basicsize__ + _POINTER_BYTES * (pointers + len(slots))
    return _Storage(
        skipped=skipped,
        slots=tuple((name, slot) for name, slot in slots if name not in skipped),
        has_dict=kind.__dictoffset__ != 0,
        is_hidden=kind.__itemsize__ != 0 or kind.__basicsize__ > visible,
    )


# Objects of types without a function below come here, such as deques, partials and numpy's scalars.
@writes_section(object)
def _object(walk: Walk, value: Any) -> None:
    if _storage_of(walk, type(value)).is_hidden:
        _as_pickled(walk, value)
    else:
        walk.visit_class(type(value))
        walk.visit_attributes(instance_attributes(walk, value))


def _as_pickled(walk: Walk, value: Any) -> None:
    """Write an object as pickle would save it. If the object cannot be pickled, write its address."""
    reduced: Any
    reduce = copyreg.dispatch_table.get(type(value))
    try:
        reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
    except Exception:
        walk.write_identity(value)
        return
    walk.visit_class(type(value))
    if isinstance(reduced, str):
        walk.write(repr(reduced))
        return
    for part in reduced:
        # The items of lists and dicts come as iterators, so convert them to lists.
        walk.visit(list(part) if hasattr(type(part), "__next__") else part, "'s state")


@writes_section(CellType)
def _cell(walk: Walk, value: CellType) -> None:
    walk.write("cell")
    try:
        content = value.cell_contents
    except ValueError:
        walk.write("empty")
    else:
        walk.visit(content, "")


@writes_section(GeneratorType)
def _generator(walk: Walk, value: GeneratorType[Any, Any, Any]) -> None:
    walk.write_identity(value)
    walk.visit(dict(value.gi_frame.f_locals) if value.gi_frame is not None else None, "'s locals")


@writes_section(ContextVar)
def _context_variable(walk: Walk, value: ContextVar[Any]) -> None:
    walk.write(f"variable {value.name!r}")
    walk.visit(value.get(None), "'s value")


@writes_section(threading.local)
def _thread_local(walk: Walk, value: threading.local) -> None:
    walk.visit_class(type(value))
    walk.visit_attributes(vars(value))


# Locks do not influence what is computed, so the same text is written for all locks of a type.
@writes_inline(type(threading.Lock()), type(threading.RLock()))
def _lock(walk: Walk, value: Any) -> str:
    return f"lock {type(value).__name__}"


@writes_inline(logging.Logger)
def _logger(walk: Walk, value: logging.Logger) -> str:
    return f"logger {value.name!r}"


@writes_inline(bytes)
def _bytes(walk: Walk, value: bytes) -> str | None:
    if type(value) is not bytes:
        return None
    return repr(value) if len(value) <= _MAX_INLINE_BYTES else f"bytes {len(value)} {sha256(value).hexdigest()}"


# Containers that hold only plain values, such as numbers and strings, are written inline by `repr`.
@writes_inline(list)
def _plain_list(walk: Walk, value: list[Any]) -> str | None:
    return repr(value) if type(value) is list and PLAIN.issuperset(map(type, value)) else None


@writes_inline(tuple)
def _plain_tuple(walk: Walk, value: tuple[Any, ...]) -> str | None:
    return repr(value) if _is_plain(value) else None


@writes_inline(dict)
def _plain_dict(walk: Walk, value: dict[Any, Any]) -> str | None:
    plain = type(value) is dict and PLAIN.issuperset(map(type, value.values())) and PLAIN.issuperset(map(type, value))
    return repr(value) if plain else None


@writes_inline(set, frozenset)
def _plain_set(walk: Walk, value: set[Any] | frozenset[Any]) -> str | None:
    plain = type(value) in (set, frozenset) and all(map(_is_plain, value))
    return f"{type(value).__name__} {sorted(map(repr, value))}" if plain else None


@writes_inline(pathlib.PurePath)
def _path(walk: Walk, value: pathlib.PurePath) -> str | None:
    return f"path {type(value).__name__} {str(value)!r}"


@writes_section(list, tuple)
def _sequence(walk: Walk, value: Any) -> None:
    _begin(walk, value)
    walk.write(f"of {len(value)}")
    for place, item in enumerate(tuple(value)):
        walk.visit(item, "[", str(place), "]")


@writes_section(dict, MappingProxyType, WeakKeyDictionary, WeakValueDictionary)
def _mapping(walk: Walk, value: Any) -> None:
    _begin(walk, value)
    if isinstance(value, defaultdict):
        walk.visit(value.default_factory, ".default_factory")
    items = tuple(value.items())
    walk.write(f"of {len(items)}")
    for place, (key, item) in enumerate(items):
        if _is_plain(key):
            walk.write(repr(key))
            walk.visit(item, "[", repr(key), "]")
        else:
            walk.visit(key, "'s key ", str(place))
            walk.visit(item, "'s value ", str(place))


@writes_section(set, frozenset, WeakSet)
def _set(walk: Walk, value: Any) -> None:
    _begin(walk, value)
    walk.write(f"of {len(value)}")
    for item in walk.in_stable_order(value):
        walk.visit(item, "'s element")


# This function gets bytearrays and instances of subclasses. Other values of these types are written inline.
@writes_section(str, int, float, complex, bytes, bytearray)
def _value(walk: Walk, value: Any) -> None:
    _begin(walk, value)
    for kind in (str, int, float, complex):
        if isinstance(value, kind):
            walk.write(kind.__repr__(value))
            return
    walk.visit(bytes(value), "")


@writes_section(ReferenceType)
def _weak_reference(walk: Walk, value: ReferenceType[Any]) -> None:
    _begin(walk, value)
    target = value()
    walk.write("dead") if target is None else walk.visit(target, "()")


@writes_section(np.ndarray)
def _array(walk: Walk, value: np.ndarray[Any, Any]) -> None:
    _begin(walk, value)
    walk.write(f"{value.dtype!r} {value.shape}")
    if value.dtype.hasobject:
        for place, item in enumerate(value.ravel().tolist()):
            walk.visit(item, "[", str(place), "]")
    else:
        walk.write(sha256(np.ascontiguousarray(value).view(np.uint8).data).hexdigest() if value.size else "empty")


def _begin(walk: Walk, value: Any) -> None:
    """Write the class of a value, and for an instance of a user's subclass also its attributes."""
    kind = type(value)
    walk.visit_class(kind)
    if kind.__module__ != "builtins":
        walk.visit_attributes(instance_attributes(walk, value))


def _is_plain(value: Any) -> bool:
    return type(value) in PLAIN or (type(value) is tuple and all(map(_is_plain, value)))
