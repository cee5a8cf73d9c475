"""Fingerprints of objects in general: the class and the attributes, and what pickle would keep of C's own types."""

from __future__ import annotations

import copyreg
import logging
import threading
from contextvars import ContextVar
from types import CellType, GeneratorType, MemberDescriptorType
from typing import Any, NamedTuple

from torch_estimator.compile.cache_key.walk import Walk, describes, says

_WORD = 8


class _Layout(NamedTuple):
    """Where the objects of a class hold what they hold.

    Args:
        skipped: Attributes that classes declare, in ``not_in_fingerprint``, to have no bearing on what is computed.
        slots: By name.
        has_dict: Whether there is a ``__dict__``.
        hidden: Whether there is more, which only code in C can see.
    """

    skipped: frozenset[str]
    slots: tuple[tuple[str, Any], ...]
    has_dict: bool
    hidden: bool


def instance_attributes(walk: Walk, value: Any) -> dict[str, Any]:
    """What an object holds in its ``__dict__`` and in slots."""
    layout = _layout_of(walk, type(value))
    found: dict[str, Any] = object.__getattribute__(value, "__dict__") if layout.has_dict else {}
    if not layout.slots and not layout.skipped:
        return found
    found = {name: one for name, one in found.items() if name not in layout.skipped}
    for name, slot in layout.slots:
        try:
            found[name] = slot.__get__(value)
        except AttributeError:
            continue
    return found


@describes(object)
def _object(walk: Walk, value: Any) -> None:
    if _layout_of(walk, type(value)).hidden:
        _as_pickled(walk, value)
    else:
        walk.kind(type(value))
        walk.attributes(instance_attributes(walk, value))


def _as_pickled(walk: Walk, value: Any) -> None:
    reduced: Any
    reduce = copyreg.dispatch_table.get(type(value))
    try:
        reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
    except Exception:
        walk.opaque(value)
        return
    walk.kind(type(value))
    if isinstance(reduced, str):
        walk.write(repr(reduced))
        return
    for part in reduced:
        # Items and pairs come as iterators.
        walk.part(list(part) if hasattr(type(part), "__next__") else part, "'s state")


@describes(CellType)
def _cell(walk: Walk, value: CellType) -> None:
    walk.write("cell")
    try:
        content = value.cell_contents
    except ValueError:
        walk.write("empty")
    else:
        walk.part(content, "")


@describes(GeneratorType)
def _generator(walk: Walk, value: GeneratorType[Any, Any, Any]) -> None:
    walk.opaque(value)
    walk.part(dict(value.gi_frame.f_locals) if value.gi_frame is not None else None, "'s locals")


@describes(ContextVar)
def _variable(walk: Walk, value: ContextVar[Any]) -> None:
    walk.write(f"variable {value.name!r}")
    walk.part(value.get(None), "'s value")


@describes(threading.local)
def _local(walk: Walk, value: threading.local) -> None:
    walk.kind(type(value))
    walk.attributes(vars(value))


@says(type(threading.Lock()), type(threading.RLock()))
def _lock(walk: Walk, value: Any) -> str:
    return f"lock {type(value).__name__}"


@says(logging.Logger)
def _logger(walk: Walk, value: logging.Logger) -> str:
    return f"logger {value.name!r}"


def _layout_of(walk: Walk, kind: type) -> _Layout:
    layout: _Layout | None = walk.notes.get(("layout", id(kind)))
    if layout is None:
        layout = walk.notes["layout", id(kind)] = _layout(kind)
    return layout


def _layout(kind: type) -> _Layout:
    skipped = frozenset(name for base in kind.__mro__ for name in vars(base).get("not_in_fingerprint", ()))
    slots = tuple(
        (name, slot)
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for name, slot in vars(base).items()
        if isinstance(slot, MemberDescriptorType)
    )
    # Python puts the dict and the list of weak references in front of the object, or counts them among its bytes.
    counted = sum(offset > 0 for offset in (kind.__dictoffset__, kind.__weakrefoffset__))
    seen = object.__basicsize__ + _WORD * (counted + len(slots))
    return _Layout(
        skipped=skipped,
        slots=tuple((name, slot) for name, slot in slots if name not in skipped),
        has_dict=kind.__dictoffset__ != 0,
        hidden=kind.__itemsize__ != 0 or kind.__basicsize__ > seen,
    )
