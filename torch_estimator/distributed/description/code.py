"""The user's own code that a training runs, by name."""

from __future__ import annotations

from types import FunctionType, MethodType
from typing import Any

from torch_estimator.compile.cache_key.code import code_facts, resolve
from torch_estimator.compile.cache_key.functions import library_of_function
from torch_estimator.compile.cache_key.libraries import library_of_module
from torch_estimator.distributed.description.plain import is_own, plain

_DIGITS = 12


def library_of(kind: type) -> str | None:
    """The package that a class belongs to, or None for the user's own."""
    return library_of_module(str(kind.__module__))


class Code:
    """Notes functions and classes of the user, and those that they name in turn; a library's are told by its version.

    Of globals that functions read, floats count as well; whole numbers and words may say which process this is.
    """

    def __init__(self) -> None:
        self._digests: dict[str, set[str]] = {}
        self._settings: dict[str, Any] = {}
        self._met: set[int] = set()

    def described(self) -> dict[str, Any]:
        """Returns what was noted: digests and settings, by name."""
        return {**self._settings, **{name: " ".join(sorted(all)) for name, all in self._digests.items()}}

    def note_function(self, function: FunctionType) -> None:
        """Notes a function, if it is the user's."""
        if id(function) in self._met or library_of_function(function) is not None:
            return
        self._met.add(id(function))
        facts, name = code_facts(function.__code__), function.__code__.co_qualname
        # Two may have one name.
        self._digests.setdefault(name, set()).add(facts.digest[:_DIGITS])
        for chain in facts.globals:
            value = resolve(function.__globals__, chain)
            if isinstance(value, float) and not any(map(is_own, chain)):
                self._settings[f"{'.'.join(chain)} of {name}"] = plain(value)
            else:
                self._note(value)

    def note_class(self, kind: type) -> None:
        """Notes what of a class and its bases is the user's."""
        for base in kind.__mro__:
            if id(base) in self._met or library_of(base) is not None:
                continue
            self._met.add(id(base))
            skipped = vars(base).get("not_in_fingerprint", ())
            for name, value in vars(base).items():
                if isinstance(value, property):
                    value = value.fget
                value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
                self._note(value)
                found = None if name.startswith("__") or name in skipped or is_own(name) else plain(value)
                if found is not None:
                    self._settings[f"{base.__qualname__}.{name}"] = found

    def _note(self, value: Any) -> None:
        value = value.__func__ if isinstance(value, MethodType) else value
        if isinstance(value, FunctionType):
            self.note_function(value)
        elif isinstance(value, type):
            self.note_class(value)
