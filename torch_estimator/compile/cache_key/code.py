"""Analysis of bytecode: a digest, the globals that the code names, and the settings that packages read."""

from __future__ import annotations

import dis
import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from hashlib import sha256
from importlib.util import resolve_name
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from torch_estimator.compile.cache_key.libraries import is_well_known, library_of_code, library_of_module
from torch_estimator.compile.cache_key.walk import PLAIN, Walk

_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_FILLERS = frozenset({"EXTENDED_ARG", "CACHE"})

# At most this number of functions and classes is searched for settings in one walk, the nearest first.
# This limits the time that the search of large packages takes.
_MAX_READERS = 256
# Containers with more items are considered data and not settings.
_MAX_ITEMS = 64


class CodeFacts(NamedTuple):
    """Digest of a code object, and the globals, imports and strings in it. Well-known libraries have only the digest.

    Attributes:
        code: The code object. Holding it ensures that no other one gets its address.
        digest: SHA-256 of what the code does, wherever it stands in a file.
        globals: Dotted names in the code that begin with a global.
        imports: Modules that the code imports: the level of a relative import, and the name.
        words: All names and strings in the code. Each of them may be the name of a module's member that the code reads.
    """

    code: CodeType
    digest: str
    globals: tuple[tuple[str, ...], ...] = ()
    imports: tuple[tuple[int, str], ...] = ()
    words: frozenset[str] = frozenset()


_FACTS: dict[int, CodeFacts] = {}


def code_facts(code: CodeType) -> CodeFacts:
    """Return the facts about a code object, which are computed once per process because code objects never change."""
    known = _FACTS.get(id(code))
    if known is None:
        known = _FACTS[id(code)] = _find_facts(code)
    return known


def _find_facts(code: CodeType) -> CodeFacts:
    digest = sha256(repr(_content(code)).encode("utf-8", "surrogatepass")).hexdigest()
    library = library_of_code(code)
    if library is not None and is_well_known(library):
        return CodeFacts(code, digest)
    instructions = [one for one in dis.get_instructions(code) if one.opname not in _FILLERS]
    # Functions, lambdas and comprehensions inside of this code are code objects among its constants.
    inner = [code_facts(one) for one in code.co_consts if isinstance(one, CodeType)]
    dotted_names = {*_dotted_names(instructions), *(name for one in inner for name in one.globals)}
    imports = {*_imports(instructions), *(name for one in inner for name in one.imports)}
    words = {*code.co_names, *(one for one in code.co_consts if isinstance(one, str))}
    return CodeFacts(
        code,
        digest,
        globals=tuple(sorted(dotted_names)),
        imports=tuple(sorted(imports)),
        words=frozenset(words.union(*(one.words for one in inner))),
    )


def _content(code: CodeType) -> tuple[Any, ...]:
    """Return all parts of a code object that determine what the code does, without line numbers and file names."""
    return (
        code.co_name,
        code.co_code,
        [_constant(one) for one in code.co_consts],
        code.co_names,
        code.co_varnames,
        code.co_freevars,
        code.co_cellvars,
        code.co_flags,
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
        code.co_exceptiontable,
    )


def _constant(value: Any) -> str:
    """Return a text for a constant of code that is the same in every process."""
    if isinstance(value, CodeType):
        return code_facts(value).digest
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    return f"frozenset {sorted(map(_constant, value))}" if isinstance(value, frozenset) else repr(value)


def _dotted_names(instructions: list[dis.Instruction]) -> Iterator[tuple[str, ...]]:
    """Yield the dotted names that code reads, such as ``("config", "SCALE")`` for ``config.SCALE``."""
    for place, first in enumerate(instructions):
        if first.opname in _GLOBALS:
            name = [str(first.argval)]
            for one in instructions[place + 1 :]:
                if one.opname not in _ATTRIBUTES:
                    break
                name.append(str(one.argval))
            yield tuple(name)


def _imports(instructions: list[dis.Instruction]) -> Iterator[tuple[int, str]]:
    """Yield for each import in code the number of leading dots (0 if absolute) and the name of the module."""
    for place, one in enumerate(instructions):
        if one.opname == "IMPORT_NAME":
            # The level is loaded two instructions before: 0, or the number of dots of a relative import.
            level = instructions[place - 2].argval
            yield (level if isinstance(level, int) else 0), str(one.argval)


def absolute_name(function: FunctionType, level: int, name: str) -> str:
    """Return the absolute name of a module that a function imports.

    Args:
        function: The importing function.
        level: Number of dots of a relative import, or 0.
        name: Name behind the dots.
    """
    package = function.__globals__.get("__package__")
    try:
        return resolve_name("." * level + name, package) if level else name
    except (ImportError, TypeError):
        return name


def resolve(names: Mapping[str, Any], dotted_name: tuple[str, ...]) -> Any:
    """Return the value of a dotted name such as ``config.SCALE``. At a missing attribute, return the value before it.

    Args:
        names: The globals among which the first name is looked up.
        dotted_name: The names in order.
    """
    value = None
    for name in dotted_name:
        if name not in names:
            break
        value = names[name]
        names = getattr(value, "__dict__", {})
    return value


def settings_of(walk: Walk, thing: Any) -> str:
    """Return a text of the settings, such as globals, that a library's function or class reads; empty if it reads none.

    Settings are globals, and attributes of classes and objects, that are numbers, strings, or small containers of
    these. The function's own code is searched for them, and then that of everything it uses in its package. Each
    function is searched once per walk.
    """
    if thing is os.getenv:
        return f" of {sorted(os.environ.items())}"
    package = _package(thing)
    if package is None or is_well_known(package):
        return ""
    searched: dict[int, Any] = walk.memo.setdefault("settings", {})
    found: list[str] = []
    waiting = deque([thing])
    while waiting and len(searched) < _MAX_READERS:
        reader = waiting.popleft()
        if id(reader) in searched:
            continue
        searched[id(reader)] = reader
        for name, value in _names_read_by(reader):
            token = _setting_token(value)
            if token:
                found.append(f"{name} {token}")
            elif value is os.getenv:
                found.append(settings_of(walk, value))
            elif _package(value) == package:
                waiting.append(value)
    return f" with {found}" if found else ""


def _package(thing: Any) -> str | None:
    """Return the installed package of a function or class; None for code of the user and for other objects."""
    if isinstance(thing, FunctionType):
        return library_of_code(thing.__code__)
    if isinstance(thing, type) and isinstance(thing.__module__, str):
        return library_of_module(thing.__module__)
    return None


def _names_read_by(reader: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values: of a function the globals that it may read, of a class its attributes and bases."""
    if isinstance(reader, type):
        for name, value in vars(reader).items():
            if not name.startswith("__") or isinstance(value, FunctionType):
                yield f"{reader.__qualname__}.{name}", _function_of(value)
        for base in reader.__bases__:
            yield "", base
        return
    code = code_facts(reader.__code__)
    for dotted_name in code.globals:
        yield ".".join(dotted_name), resolve(reader.__globals__, dotted_name)
    for level, name in code.imports:
        module = vars(sys.modules.get(absolute_name(reader, level, name), ModuleType("none")))
        for word in sorted(code.words & module.keys()):
            yield f"{name}.{word}", module[word]


def _function_of(value: Any) -> Any:
    """Return the function inside of a property, a static method or a class method; return other values unchanged."""
    if isinstance(value, property):
        return value.fget
    return value.__func__ if isinstance(value, staticmethod | classmethod) else value


def _setting_token(value: Any) -> str:
    """Return the text of a number, a string, or a small container of these; empty for everything else."""
    kind = type(value)
    if kind in PLAIN:
        return repr(value)
    if kind in (tuple, list, set, frozenset, dict) and len(value) <= _MAX_ITEMS:
        items = [*value, *value.values()] if kind is dict else value
        tokens = [_setting_token(one) for one in items]
        if all(tokens):
            return f"{kind.__name__} {sorted(tokens) if kind in (set, frozenset) else tokens}"
    return ""
