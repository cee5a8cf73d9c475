"""State files: one value, mostly a dataclass, in a JSON file that other processes read, or the next one after a kill.

A write replaces the file atomically, so that a reader gets the state before it or after it. Keys that this version does
not know are ignored, and keys with a default may be absent, so that versions can read each other's files.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import stat
import types
import typing
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from torch_estimator import files
from torch_estimator.errors import CheckpointError, UserError
from torch_estimator.json_text import parse_json, shortened

T = TypeVar("T")

_types = functools.cache(typing.get_type_hints)


class StateFile(Generic[T]):
    """A file at a path or URL with one value as JSON, of a type that `from_json` takes.

    If the file is damaged, an `error` tells the user to do what `cure` says.
    """

    def __init__(
        self, path: str, kind: type[T], *, error: type[UserError] = CheckpointError, cure: str = "remove it"
    ) -> None:
        self.path = path
        self._kind = kind
        self._error = error
        self._cure = cure

    def read(self) -> T | None:
        """Return the value; None if there is no file."""
        try:
            if files.is_local(self.path) and stat.S_ISFIFO(os.stat(files.as_url(self.path)).st_mode):
                # To open it would wait for a writer.
                raise ValueError("it is a named pipe")
            found: T = from_json(self._kind, parse_json(files.read_text(self.path)))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except ValueError as error:
            raise self.damaged(error) from error
        return found

    def write(self, value: T) -> None:
        """Replace the file atomically; make its directory first."""
        files.makedirs(files.parent(self.path))
        files.write_atomic(self.path, encoded(value))

    def remove(self) -> None:
        """Remove the file, if it exists."""
        files.remove_tree(self.path)

    def damaged(self, why: ValueError) -> UserError:
        """Return the error that the file is damaged."""
        return self._error(f"{self.path} is damaged: {files.reason(why)}; {self._cure}.")


def encoded(value: Any) -> bytes:
    """Return a value as JSON, as state files have it."""
    if hasattr(value, "to_json"):
        value = value.to_json()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    # A path may have bytes that are not UTF-8, which are lone surrogates here; "backslashreplace" gives JSON's escapes.
    return json.dumps(value, indent=2, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"


def from_json(kind: Any, content: Any, name: str = "its content") -> Any:
    """Return parsed JSON, which the user knows by `name`, as a value of a type.

    The type is a class with a method ``from_json``, a dataclass, ``X | None``, a dict with strings as keys, a list, a
    tuple, a simple type, or Any.

    Raise a ValueError if the content has another type.
    """
    if hasattr(kind, "from_json"):
        return kind.from_json(content)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return dataclass_from_json(kind, content, name)
    base, parts = typing.get_origin(kind) or kind, typing.get_args(kind)
    if base in (types.UnionType, typing.Union):
        others = [one for one in parts if one is not types.NoneType]
        # Readers check a choice between several types themselves.
        return from_json(others[0] if len(others) == 1 and content is not None else Any, content, name)
    if base is typing.Literal:
        # A later version may know more values.
        return _checked(type(parts[0]), content, name)
    if base in (dict, Mapping):
        return {key: from_json(parts[1], value, repr(key)) for key, value in _checked(dict, content, name).items()}
    if base is list or parts[1:] == (...,):
        return base(from_json(parts[0], value, name) for value in _checked(list, content, name))
    if base is tuple:
        if len(_checked(list, content, name)) != len(parts):
            raise ValueError(f"{name}: expected {len(parts)} values, but got {shortened(content)}")
        return tuple(from_json(part, value, name) for part, value in zip(parts, content, strict=True))
    return content if kind is Any else _checked(kind, content, name)


def dataclass_from_json(kind: type[T], content: Any, name: str = "its content") -> T:
    """Return a parsed JSON object as a dataclass, as `from_json` does if the class has no method ``from_json``."""
    _checked(dict, content, name)
    known, types_of = {}, _types(kind)  # type: ignore[arg-type]  # classes are hashable
    for one in dataclasses.fields(kind):  # type: ignore[arg-type]  # callers give dataclasses
        if one.name in content:
            known[one.name] = from_json(types_of[one.name], content[one.name], repr(one.name))
        elif one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING:
            raise ValueError(f"{name} has no {one.name!r}")
    return kind(**known)


def _checked(kind: type, content: Any, name: str) -> Any:
    # JSON has one kind of numbers, and a bool is an int in Python.
    accepted = int | float if kind is float else kind
    if isinstance(content, bool) is not (kind is bool) or not isinstance(content, accepted):
        raise ValueError(f"{name}: expected {kind.__name__}, but got {shortened(content)}")
    if isinstance(content, int) and abs(content) >= 2**64:
        raise ValueError(f"{name}: expected a number of 64 bits, but got {shortened(content)}")
    return content
