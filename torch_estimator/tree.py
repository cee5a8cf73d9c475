"""Functions on "structures": nested dicts, tuples and lists of arrays or tensors.

Features, labels, weights and the outputs of a module may each be one array or tensor, or a structure of several. Code
that does the same with every array uses these functions instead of distinguishing the types itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def map(function: Callable[[Any], Any], structure: Any, *, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """Apply `function` to each leaf of nested dicts, tuples and lists, and return the results in the same nesting.

    A leaf is anything but a dict, a tuple, a list or None, and also one of the first three for which `is_leaf` is true.
    None stays None. Any other mapping becomes a dict, and a named tuple stays a named tuple.

    >>> map(len, {"x": "abc", "y": ("de", None)})
    {'x': 3, 'y': (2, None)}
    >>> map(len, {"x": [1, 2], "y": [3]}, is_leaf=lambda value: isinstance(value, list))
    {'x': 2, 'y': 1}
    """
    if structure is None:
        return None
    if is_leaf is not None and is_leaf(structure):
        return function(structure)
    # Test for dict, tuple and list first, because a test for Mapping takes several times as long.
    if isinstance(structure, dict):
        return {key: map(function, value, is_leaf=is_leaf) for key, value in structure.items()}
    if isinstance(structure, tuple | list):
        return _like(structure, [map(function, value, is_leaf=is_leaf) for value in structure])
    if isinstance(structure, Mapping):
        return map(function, dict(structure), is_leaf=is_leaf)
    return function(structure)


def leaves(structure: Any) -> list[Any]:
    """Return all values in nested dicts, tuples and lists as one flat list, in order and without None.

    >>> leaves({"x": 1, "y": (2, None, [3])})
    [1, 2, 3]
    """
    found: list[Any] = []
    _collect(structure, found)
    return found


def slice_rows(structure: Any, start: int, stop: int) -> Any:
    """Return rows ``start:stop`` of every array and tensor in a structure, as views.

    >>> slice_rows({"x": "abcd", "y": ("efgh", None)}, 1, 3)
    {'x': 'bc', 'y': ('fg', None)}
    """
    return map(lambda leaf: leaf[start:stop], structure)


def split_rows(structure: Any, parts: int) -> Sequence[Any]:
    """Split the arrays or tensors in a structure by rows into parts of equal length and the same nesting.

    The number of rows is a multiple of `parts`. Each part is a view.

    >>> split_rows({"x": "abcdef", "y": None}, 3)
    [{'x': 'ab', 'y': None}, {'x': 'cd', 'y': None}, {'x': 'ef', 'y': None}]
    """
    # Split one array after the other into all parts, then assemble the parts. An input is split into a thousand parts.
    # Slicing the whole structure once per part would take several times as long.
    if structure is None:
        return [None] * parts
    if isinstance(structure, Mapping):
        if not structure:
            return [{}] * parts
        rows = zip(*(split_rows(value, parts) for value in structure.values()), strict=True)
        return [dict(zip(structure, row, strict=True)) for row in rows]
    if isinstance(structure, tuple | list):
        if not structure:
            return [structure] * parts
        return [_like(structure, row) for row in zip(*(split_rows(value, parts) for value in structure), strict=True)]
    size = len(structure) // parts
    if hasattr(structure, "unsafe_split"):
        # Use `unsafe_split`, because a module may change its batch in place.
        # Autograd forbids such changes of the tensors that `split` returns, which are several views of one tensor.
        return structure.unsafe_split(size)  # type: ignore[no-any-return]
    return [structure[start : start + size] for start in range(0, parts * size, size)]


def _collect(structure: Any, found: list[Any]) -> None:
    if isinstance(structure, dict):
        for value in structure.values():
            _collect(value, found)
    elif isinstance(structure, tuple | list):
        for value in structure:
            _collect(value, found)
    elif isinstance(structure, Mapping):
        _collect(dict(structure), found)
    elif structure is not None:
        found.append(structure)


def _like(structure: tuple[Any, ...] | list[Any], values: Sequence[Any]) -> Any:
    """Return `values` in a container of the type of `structure`: a tuple, a list or a named tuple."""
    make = getattr(type(structure), "_make", None)
    if make is not None:
        return make(values)
    return list(values) if isinstance(structure, list) else tuple(values)
