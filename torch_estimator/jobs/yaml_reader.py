"""A reader of YAML that names the file, the line and the key of what it refuses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from torch_estimator import files
from torch_estimator.errors import InvalidValueError

_KINDS = {str: "a text", int: "a whole number", bool: "true or false", dict: "a mapping", list: "a list"}


class YamlReader:
    """Reads the nodes of a YAML file."""

    def __init__(self, path: str, loader: Any) -> None:
        self._path, self._loader = path, loader

    @classmethod
    def open(cls, path: str) -> tuple[YamlReader, Any]:
        """Return a reader of a file, and the file's root node; None if it is empty."""
        import yaml

        try:
            loader = yaml.SafeLoader(files.read_text(path))
            return cls(path, loader), loader.get_single_node()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidValueError(f"{path} cannot be read: {files.reason(error)}.") from error
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            place = f"{path}, line {mark.line + 1}" if mark is not None else path
            raise InvalidValueError(f"{place} is not YAML: {getattr(error, 'problem', None) or error}.") from error

    def refuse(self, node: Any, problem: str) -> NoReturn:
        """Raise an InvalidValueError that begins with the place of a node."""
        raise InvalidValueError(f"{self._path}, line {node.start_mark.line + 1}: {problem}.")

    @contextmanager
    def placed(self, node: Any, key: str) -> Iterator[None]:
        """Name the place of a node, and its key, in an InvalidValueError of the body."""
        try:
            yield
        except InvalidValueError as error:
            self.refuse(node, f"{key}: {str(error).removesuffix('.')}")

    def items(self, node: Any, name: str, known: Iterable[str] = ()) -> list[tuple[str, Any]]:
        """Return the keys of a mapping and their nodes; if there are `known` keys, refuse all others."""
        if node.id != "mapping":
            self.refuse(node, f"{name} must have keys, such as {next(iter(known), 'trainingInput')}")
        keys = [str(self._value(key, name)) for key, _ in node.value]
        for index, (key, (place, value)) in enumerate(zip(keys, node.value, strict=True)):
            if key in keys[:index]:
                self.refuse(place, f"{key!r} is there twice")
            if known and key not in known:
                self.refuse(value, f"unknown key {key!r} in {name}; there are {', '.join(known)}")
        return list(zip(keys, (value for _, value in node.value), strict=True))

    def nodes(self, node: Any, key: str) -> list[Any]:
        """Return the nodes in a list."""
        self.value(node, list, key)
        return list(node.value)

    def text(self, node: Any, key: str) -> str:
        """Return a scalar as it is written, which a number or a date in YAML would lose."""
        if node.id != "scalar":
            self.refuse(node, f"{key} must be a single value")
        return str(node.value)

    def value(self, node: Any, kind: type[Any], key: str) -> Any:
        """Return a value of a kind."""
        value = self._value(node, key)
        if kind is int and isinstance(value, str) and value.isdecimal():
            # Google's API has 64-bit integers as strings.
            value = int(value)
        if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
            self.refuse(node, f"{key} must be {_KINDS[kind]}, but got {value!r}")
        return value

    def _value(self, node: Any, key: str) -> Any:
        import yaml

        try:
            return self._loader.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            self.refuse(node, f"{key} cannot be read: {getattr(error, 'problem', None) or error}")


@dataclass(frozen=True, slots=True)
class Unread:
    """Parts of a file that another room reads, by their keys."""

    reader: YamlReader
    nodes: dict[str, Any]
