"""Fingerprints of Python's and numpy's containers, and of values that need more than `repr`."""

from __future__ import annotations

import enum
import functools
import pathlib
from collections import defaultdict, deque
from hashlib import sha256
from types import MappingProxyType
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, WeakSet, WeakValueDictionary

import numpy as np

from torch_estimator.compile.cache_key.objects import instance_attributes
from torch_estimator.compile.cache_key.walk import PLAIN, Walk, describes, says

_LONG = 256


@says(bytes)
def _bytes(walk: Walk, value: bytes) -> str | None:
    if type(value) is not bytes:
        return None
    return repr(value) if len(value) <= _LONG else f"bytes {len(value)} {sha256(value).hexdigest()}"


@says(list)
def _list(walk: Walk, value: list[Any]) -> str | None:
    return repr(value) if type(value) is list and PLAIN.issuperset(map(type, value)) else None


@says(tuple)
def _tuple(walk: Walk, value: tuple[Any, ...]) -> str | None:
    return repr(value) if _is_plain(value) else None


@says(dict)
def _dict(walk: Walk, value: dict[Any, Any]) -> str | None:
    plain = type(value) is dict and PLAIN.issuperset(map(type, value.values())) and PLAIN.issuperset(map(type, value))
    return repr(value) if plain else None


@says(set, frozenset)
def _set(walk: Walk, value: set[Any] | frozenset[Any]) -> str | None:
    plain = type(value) in (set, frozenset) and all(map(_is_plain, value))
    return f"{type(value).__name__} {sorted(map(repr, value))}" if plain else None


@describes(enum.Enum)
def _member(walk: Walk, value: enum.Enum) -> None:
    walk.kind(type(value))
    walk.write(value._name_)
    walk.part(value._value_, ".value")


@says(pathlib.PurePath)
def _path(walk: Walk, value: pathlib.PurePath) -> str | None:
    return f"path {type(value).__name__} {str(value)!r}"


@describes(list, tuple, deque)
def _items(walk: Walk, value: Any) -> None:
    _begin(walk, value)
    if isinstance(value, deque):
        walk.write(repr(value.maxlen))
    items = tuple(value)
    walk.write(f"of {len(items)}")
    for place, item in enumerate(items):
        walk.part(item, "[", str(place), "]")


@describes(dict, MappingProxyType, WeakKeyDictionary, WeakValueDictionary)
def _mapping(walk: Walk, value: Any) -> None:
    _begin(walk, value)
    if isinstance(value, defaultdict):
        walk.part(value.default_factory, ".default_factory")
    items = tuple(value.items())
    walk.write(f"of {len(items)}")
    for place, (key, item) in enumerate(items):
        if _is_plain(key):
            walk.write(repr(key))
            walk.part(item, "[", repr(key), "]")
        else:
            walk.part(key, "'s key ", str(place))
            walk.part(item, "'s value ", str(place))


@describes(set, frozenset, WeakSet)
def _unordered(walk: Walk, value: Any) -> None:
    _begin(walk, value)
    walk.write(f"of {len(value)}")
    for item in walk.ordered(value):
        walk.part(item, "'s element")


@describes(str, int, float, complex, bytes, bytearray)
def _value(walk: Walk, value: Any) -> None:
    _begin(walk, value)
    for kind in (str, int, float, complex):
        if isinstance(value, kind):
            walk.write(kind.__repr__(value))
            return
    walk.part(bytes(value), "")


@describes(slice)
def _slice(walk: Walk, value: slice) -> None:
    walk.write("slice")
    for name in ("start", "stop", "step"):
        walk.part(getattr(value, name), ".", name)


@describes(functools.partial)
def _partial(walk: Walk, value: functools.partial[Any]) -> None:
    _begin(walk, value)
    walk.part(value.func, ".func")
    walk.part(value.args, ".args")
    walk.part(value.keywords, ".keywords")


@describes(ReferenceType)
def _weakref(walk: Walk, value: ReferenceType[Any]) -> None:
    _begin(walk, value)
    target = value()
    walk.write("dead") if target is None else walk.part(target, "()")


@says(np.dtype)
def _dtype(walk: Walk, value: np.dtype[Any]) -> str | None:
    return f"numpy {value!r}"


@says(np.ufunc)
def _ufunc(walk: Walk, value: np.ufunc) -> str | None:
    return f"numpy {value.__name__}"


@says(np.generic)
def _scalar(walk: Walk, value: np.generic) -> str | None:
    return None if value.dtype.hasobject else f"numpy {value.dtype!r} {value.tobytes().hex()}"


@describes(np.generic)
def _void(walk: Walk, value: np.generic) -> None:
    walk.opaque(value)


@describes(np.ndarray)
def _array(walk: Walk, value: np.ndarray[Any, Any]) -> None:
    _begin(walk, value)
    walk.write(f"{value.dtype!r} {value.shape}")
    if value.dtype.hasobject:
        for place, item in enumerate(value.ravel().tolist()):
            walk.part(item, "[", str(place), "]")
    else:
        walk.write(sha256(np.ascontiguousarray(value).view(np.uint8).data).hexdigest() if value.size else "empty")


def _begin(walk: Walk, value: Any) -> None:
    """Writes the class, and what a subclass holds beside the items."""
    kind = type(value)
    walk.kind(kind)
    if kind.__module__ != "builtins":
        walk.attributes(instance_attributes(walk, value))


def _is_plain(value: Any) -> bool:
    return type(value) in PLAIN or (type(value) is tuple and all(map(_is_plain, value)))
