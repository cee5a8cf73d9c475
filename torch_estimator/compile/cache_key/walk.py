"""Walk through all objects that can be reached from some root objects. It collects the text that a cache key hashes.

Each object is written in one of two ways. A small object is written inline, as one token in the text of the object that
holds it. Every other object gets a section: a separate line of tokens, in the order in which objects are found. In the
holder's text, ``+`` stands for a new object, and ``@number`` for an object that was found before. So shared objects
are distinguished from equal copies, and cycles end.

The other files of this folder register functions that write objects of each type, by the decorators `writes_inline` and
`writes_section`.
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
    """Key of a computation. Computations with equal keys differ only in the numbers in their tensors.

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


SectionWriter = Callable[["Walk", Any], None]
InlineWriter = Callable[["Walk", Any], str | None]

_SECTION_WRITERS: dict[type, SectionWriter] = {}
_INLINE_WRITERS: dict[type, InlineWriter] = {}


def writes_section(*kinds: type) -> Callable[[SectionWriter], SectionWriter]:
    """Decorate a function that writes objects of some types into the key's text, each as a section (a separate line).

    The function is also called for objects of subclasses.
    """

    def register(function: SectionWriter) -> SectionWriter:
        _SECTION_WRITERS.update(dict.fromkeys(kinds, function))
        return function

    return register


def writes_inline(*kinds: type) -> Callable[[InlineWriter], InlineWriter]:
    """Decorate a function that returns a token for an object of some types: a short text that stands for the object.

    The function is also called for objects of subclasses. It returns None for objects that need a section.
    """

    def register(function: InlineWriter) -> InlineWriter:
        _INLINE_WRITERS.update(dict.fromkeys(kinds, function))
        return function

    return register


class Walk:
    """Breadth-first walk through objects, which writes each object once into the text of a cache key.

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
        # The number of each object found so far, by id. Sections are written in the order of these numbers.
        self._numbers: dict[int, int] = {}
        self._objects: list[Any] = []
        # For each object: the number of its holder, and the three parts of the path from the holder to the object.
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
        """Number of the object that is being written."""
        return self._current

    def write(self, token: str) -> None:
        """Append a token to the key's text. Different objects must write different tokens."""
        self._written.append(token)

    def visit_root(self, value: Any, name: str) -> None:
        """Write an object and all objects that can be reached from it."""
        # A root has no holder, so clear the number of the object that was visited last.
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
                # Properties and ``__reduce__`` methods of the user may raise any exception.
                logger.debug(
                    "%s cannot be inspected, so its identity counts.", self._path(self._current), exc_info=True
                )
                self.write_identity(value)

    def visit(self, value: Any, before: str, name: str = "", after: str = "") -> None:
        """Write a value that the current object holds: inline, or as a reference to a section that follows later.

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
        """Write the class of the current object, or a base class of this class."""
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

    def record_library(self, package: str) -> None:
        """Record that the computation uses an installed package. The key then depends on the package's version."""
        self._libraries.add(package)

    def write_identity(self, value: object) -> None:
        """Write the address of an object that has no other distinguishing feature. The key is then not portable."""
        kind = type(value)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        if not self._by_identity:
            self._obstacle = f"{self._path(self._current)}: an object of type {name}"
        self._by_identity.append(value)
        self.write(f"object {name} {id(value)}")

    def in_stable_order(self, values: Iterable[Any]) -> list[Any]:
        """Return the elements of a set in an order that is the same in every process."""
        if self._sorts_set:
            # Skip sets inside of the elements of a set, because an element may contain the outer set.
            # Therefore the order of elements that differ only in their inner sets is arbitrary.
            return []
        return sorted(values, key=self._digest_of_element)

    def finish(self) -> CacheKey:
        """Return the cache key of all root objects that were visited."""
        text = "\0".join([*self._written, *sorted(map(library_identity, self._libraries))])
        return CacheKey(
            digest=sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
            portable=not self._by_identity,
            obstacle=self._obstacle,
            tensors=tuple((self._path(number), tensor) for number, tensor in self.tensors),
            _held=tuple(self._by_identity),
        )

    def _path(self, number: int) -> str:
        """Return the path by which an object was reached, such as ``module.encoder.weight``."""
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
    """Return the functions that write objects of a type. They are registered for the type or its nearest base class."""
    inline = next((_INLINE_WRITERS[base] for base in kind.__mro__ if base in _INLINE_WRITERS), None)
    return inline, next(_SECTION_WRITERS[base] for base in kind.__mro__ if base in _SECTION_WRITERS)
