"""The walk through all objects that can be reached, writing down what each is made of."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from torch import Tensor

from torch_estimator.compile.cache_key.libraries import library_identity

logger = logging.getLogger("torch_estimator")

PLAIN = frozenset({str, int, float, bool, type(None), complex, type(Ellipsis), type(NotImplemented), range})
"""Types of values that `repr` tells completely and from each other."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Two computations with the same digest are the same but for the numbers in their tensors.

    Attributes:
        digest: SHA-256 in hexadecimal digits.
        portable: Whether the digest means the same in another process. Where it does not, it can be compared with
            later ones of this process for as long as this object is alive.
        obstacle: Where something is that only its identity tells from others, and what; empty where portable.
        tensors: Every tensor that was reached, once, with a path to it, in an order that belongs to the digest.
    """

    digest: str
    portable: bool
    obstacle: str
    tensors: tuple[tuple[str, Tensor], ...] = field(compare=False, repr=False)
    # What was told by identity: while it lives, nothing else has its address.
    _held: tuple[object, ...] = field(compare=False, repr=False)


Describe = Callable[["Walk", Any], None]
Token = Callable[["Walk", Any], str | None]

DESCRIBED: dict[type, Describe] = {}
"""By type, for its subclasses, too: writes down an object in a section of its own."""

TOKENS: dict[type, Token] = {}
"""By type, for its subclasses, too: says an object in one word, or None where that cannot be."""


def describes(*kinds: type) -> Callable[[Describe], Describe]:
    """Registers a function in `DESCRIBED`."""

    def register(function: Describe) -> Describe:
        DESCRIBED.update(dict.fromkeys(kinds, function))
        return function

    return register


def says(*kinds: type) -> Callable[[Token], Token]:
    """Registers a function in `TOKENS`."""

    def register(function: Token) -> Token:
        TOKENS.update(dict.fromkeys(kinds, function))
        return function

    return register


class Walk:
    """Goes through objects breadth first, each once; what is met again is said by its number.

    Args:
        leave_out: See `fingerprint`.

    Attributes:
        tensors: Those met so far, each with the number of its object.
        notes: What holds for the whole walk and is worked out once, by what it is about.
    """

    def __init__(self, leave_out: frozenset[str] = frozenset()) -> None:
        self.leave_out = leave_out
        self.tensors: list[tuple[int, Tensor]] = []
        self.notes: dict[Any, Any] = {}
        self._written: list[str] = []
        self._numbers: dict[int, int] = {}
        self._objects: list[Any] = []
        self._reached: list[tuple[int, str, str, str]] = []
        self._current = -1
        self._ways: dict[type, tuple[Token | None, Describe]] = {}
        self._libraries: set[str] = set()
        self._opaque: list[object] = []
        self._paths: dict[int, str] = {-1: ""}
        self._obstacle = ""
        self._is_for_order = False

    def write(self, word: str) -> None:
        """Writes a word, which must be one that nothing else writes in its place."""
        self._written.append(word)

    def root(self, value: Any, name: str) -> None:
        """Writes an object and everything that can be reached from it."""
        # Outside of all objects, whatever was gone through before.
        at, self._current = self._current, -1
        self.part(value, name)
        self._current = at
        written, objects, ways = self._written, self._objects, self._ways
        while self._current + 1 < len(objects):
            self._current += 1
            value = objects[self._current]
            written.append("\n")
            try:
                ways[type(value)][1](self, value)
            except Exception:
                logger.debug("%s does not let itself be looked at.", self.path(self._current), exc_info=True)
                self.opaque(value)

    def part(self, value: Any, before: str, name: str = "", after: str = "") -> None:
        """Writes what the object at hand holds; ``before + name + after`` follow its path."""
        kind = type(value)
        if kind in PLAIN:
            self._written.append(repr(value))
            return
        number = self._numbers.get(id(value))
        if number is not None:
            self._written.append(f"@{number}")
            return
        way = self._ways.get(kind)
        if way is None:
            way = self._ways[kind] = _way(kind)
        if way[0] is not None:
            word = way[0](self, value)
            if word is not None:
                self._written.append(word)
                return
        self._numbers[id(value)] = len(self._objects)
        self._objects.append(value)
        self._reached.append((self._current, before, name, after))
        self._written.append("+")

    def kind(self, kind: type) -> None:
        """Writes a class."""
        self.part(kind, "'s class ", kind.__name__)

    def attributes(self, attributes: dict[str, Any], skip: Collection[str] = ()) -> None:
        """Writes attributes by name, whatever order they were set in."""
        written = self._written
        for name in sorted(attributes):
            if name not in skip:
                written.append(name)
                value = attributes[name]
                if type(value) in PLAIN:
                    written.append(repr(value))
                else:
                    self.part(value, ".", name)

    def library(self, package: str) -> None:
        """Notes that something of an installed package is used."""
        self._libraries.add(package)

    def opaque(self, value: object) -> None:
        """Writes an object that only its identity tells from others."""
        kind = type(value)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        if not self._opaque:
            self._obstacle = f"{self.path(self._current)}: an object of type {name}"
        self._opaque.append(value)
        self.write(f"object {name} {id(value)}")

    def path(self, number: int) -> str:
        """How an object was reached."""
        steps = []
        while number not in self._paths:
            steps.append(number)
            number = self._reached[number][0]
        path = self._paths[number]
        for step in reversed(steps):
            _, before, name, after = self._reached[step]
            path = self._paths[step] = f"{path}{before}{name}{after}"
        return path

    def finish(self) -> Fingerprint:
        """The fingerprint of the roots gone through."""
        text = "\0".join([*self._written, *sorted(map(library_identity, self._libraries))])
        return Fingerprint(
            digest=sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
            portable=not self._opaque,
            obstacle=self._obstacle,
            tensors=tuple((self.path(number), tensor) for number, tensor in self.tensors),
            _held=tuple(self._opaque),
        )

    @property
    def current(self) -> int:
        """The number of the object at hand."""
        return self._current

    def ordered(self, values: Iterable[Any]) -> list[Any]:
        """What has no order in one that is the same in every process."""
        if self._is_for_order:
            # It may be a set that holds, somewhere inside, the object whose place is wanted.
            return []
        return sorted(values, key=self._digest_of)

    def _digest_of(self, value: Any) -> str:
        walk = Walk(self.leave_out)
        walk._is_for_order = True
        walk.root(value, "")
        return walk.finish().digest


def _way(kind: type) -> tuple[Token | None, Describe]:
    """How to say and how to describe objects of a type."""
    token = next((TOKENS[base] for base in kind.__mro__ if base in TOKENS), None)
    return token, next(DESCRIBED[base] for base in kind.__mro__ if base in DESCRIBED)
