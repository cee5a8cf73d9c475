"""Walk through all objects that can be reached from some roots, which collects the text that a cache key hashes.

Each object is written in one of two ways. Small ones are written inline, as one token in the text of the object that
holds them. All others get a section of their own, in the order in which they are found. The holder has only ``+`` in
the place of a new object, and ``@number`` in the place of one that was found before. So shared objects are
distinguished from equal copies, and cycles end.

What is written for a type is registered with `writes_inline` and `writes_section`, in the other files of this folder.
"""

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
"""Types whose values ``repr`` writes completely, and differently from values of each other type."""


@dataclass(frozen=True, slots=True)
class CacheKey:
    """Key of a computation: if two keys are equal, the computations are equal up to the numbers in their tensors.

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
    # The objects that were written as their addresses. While they are alive, nothing else can have these addresses.
    _held: tuple[object, ...] = field(compare=False, repr=False)


SectionWriter = Callable[["Walk", Any], None]
InlineWriter = Callable[["Walk", Any], str | None]

_SECTION_WRITERS: dict[type, SectionWriter] = {}
_INLINE_WRITERS: dict[type, InlineWriter] = {}


def writes_section(*kinds: type) -> Callable[[SectionWriter], SectionWriter]:
    """Return a decorator for a function that writes objects of `kinds`, or of subclasses, into the hashed text.

    Such objects get a section of the text each. Every other mention of the object is a reference to its section.
    """

    def register(function: SectionWriter) -> SectionWriter:
        _SECTION_WRITERS.update(dict.fromkeys(kinds, function))
        return function

    return register


def writes_inline(*kinds: type) -> Callable[[InlineWriter], InlineWriter]:
    """Return a decorator for a function that writes objects of `kinds`, or of subclasses, in place, as one token.

    The function returns the token, or None for an object that needs a section of the text (see `writes_section`).
    """

    def register(function: InlineWriter) -> InlineWriter:
        _INLINE_WRITERS.update(dict.fromkeys(kinds, function))
        return function

    return register


class Walk:
    """Visits objects breadth first, each of them once.

    Args:
        leave_out: Settings of optimizers that do not count; see `cache_key`.

    Attributes:
        tensors: The tensors found so far, each with the number of its object.
        memo: Results that are computed once per walk; the first item of a key names their purpose.
    """

    def __init__(self, leave_out: frozenset[str] = frozenset()) -> None:
        self.leave_out = leave_out
        self.tensors: list[tuple[int, Tensor]] = []
        self.memo: dict[Any, Any] = {}
        self._written: list[str] = []
        # Objects found so far are numbered in the order of their sections.
        self._numbers: dict[int, int] = {}
        self._objects: list[Any] = []
        # For each object the number of its holder, and the three parts of its path from there.
        self._found_at: list[tuple[int, str, str, str]] = []
        self._current = -1
        self._paths: dict[int, str] = {-1: ""}
        self._writers: dict[type, tuple[InlineWriter | None, SectionWriter]] = {}
        self._libraries: set[str] = set()
        self._by_identity: list[object] = []
        self._obstacle = ""
        self._sorts_set = False

    @property
    def current(self) -> int:
        """The number of the object whose section is being written."""
        return self._current

    def write(self, token: str) -> None:
        """Append a token, which must be one that nothing else writes in its place."""
        self._written.append(token)

    def visit_root(self, value: Any, name: str) -> None:
        """Write an object and everything that can be reached from it."""
        # A root has no holder, whatever object was visited last.
        at, self._current = self._current, -1
        self.visit(value, name)
        self._current = at
        written, objects, writers = self._written, self._objects, self._writers
        while self._current + 1 < len(objects):
            self._current += 1
            value = objects[self._current]
            written.append("\n")
            try:
                writers[type(value)][1](self, value)
            except Exception:
                # Properties and ``__reduce__`` of the user may raise anything.
                logger.debug(
                    "%s cannot be inspected, so its identity counts.", self._path(self._current), exc_info=True
                )
                self.write_identity(value)

    def visit(self, value: Any, before: str, name: str = "", after: str = "") -> None:
        """Write a value that the current object holds, inline or as a section that follows later.

        Args:
            value: The value.
            before: First part of the path from the current object to the value, such as ``"["``.
            name: Second part, such as the name of an attribute. The three parts are joined only if the path is needed.
            after: Third part, such as ``"]"``.
        """
        kind = type(value)
        if kind in PLAIN:
            self._written.append(repr(value))
            return
        number = self._numbers.get(id(value))
        if number is not None:
            self._written.append(f"@{number}")
            return
        writers = self._writers.get(kind)
        if writers is None:
            writers = self._writers[kind] = _writers_of(kind)
        if writers[0] is not None:
            token = writers[0](self, value)
            if token is not None:
                self._written.append(token)
                return
        self._numbers[id(value)] = len(self._objects)
        self._objects.append(value)
        self._found_at.append((self._current, before, name, after))
        self._written.append("+")

    def visit_class(self, kind: type) -> None:
        """Write the class of the current object, or one of its bases."""
        self.visit(kind, "'s class ", kind.__name__)

    def visit_attributes(self, attributes: dict[str, Any], skip: Collection[str] = ()) -> None:
        """Write attributes sorted by name, so that the order in which they were set does not count.

        Args:
            attributes: Values by name.
            skip: Names to leave out.
        """
        written = self._written
        for name in sorted(attributes):
            if name not in skip:
                written.append(name)
                value = attributes[name]
                if type(value) in PLAIN:
                    written.append(repr(value))
                else:
                    self.visit(value, ".", name)

    def note_library(self, package: str) -> None:
        """Note that the computation uses an installed package, whose version then counts."""
        self._libraries.add(package)

    def write_identity(self, value: object) -> None:
        """Write the address of an object that nothing else distinguishes from others; the key is not portable then."""
        kind = type(value)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        if not self._by_identity:
            self._obstacle = f"{self._path(self._current)}: an object of type {name}"
        self._by_identity.append(value)
        self.write(f"object {name} {id(value)}")

    def in_stable_order(self, values: Iterable[Any]) -> list[Any]:
        """Return the elements of a set in an order that is the same in every process."""
        if self._sorts_set:
            # Do not follow sets while computing the place of an element in a set. The element may hold that set
            # somewhere inside, so that the walk might never end. Elements that differ only in the sets that they hold
            # are therefore in arbitrary order.
            return []
        return sorted(values, key=self._digest_of_element)

    def finish(self) -> CacheKey:
        """Return the key of the roots that were visited."""
        text = "\0".join([*self._written, *sorted(map(library_identity, self._libraries))])
        return CacheKey(
            digest=sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
            portable=not self._by_identity,
            obstacle=self._obstacle,
            tensors=tuple((self._path(number), tensor) for number, tensor in self.tensors),
            _held=tuple(self._by_identity),
        )

    def _path(self, number: int) -> str:
        """Return how an object was reached, such as ``module.encoder.weight``."""
        steps = []
        while number not in self._paths:
            steps.append(number)
            number = self._found_at[number][0]
        path = self._paths[number]
        for step in reversed(steps):
            _, before, name, after = self._found_at[step]
            path = self._paths[step] = f"{path}{before}{name}{after}"
        return path

    def _digest_of_element(self, value: Any) -> str:
        walk = Walk(self.leave_out)
        walk._sorts_set = True
        walk.visit_root(value, "")
        return walk.finish().digest


def _writers_of(kind: type) -> tuple[InlineWriter | None, SectionWriter]:
    """Return the functions that write objects of a type: those registered for the nearest of its base classes."""
    inline = next((_INLINE_WRITERS[base] for base in kind.__mro__ if base in _INLINE_WRITERS), None)
    return inline, next(_SECTION_WRITERS[base] for base in kind.__mro__ if base in _SECTION_WRITERS)
