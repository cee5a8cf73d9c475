"""What is known of code: what it does, and the names by which it reaches out of itself."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from hashlib import sha256
from types import CodeType
from typing import Any, NamedTuple

from torch_estimator.compile.cache_key.libraries import is_settled, library_of_code

_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_BETWEEN = frozenset({"EXTENDED_ARG", "CACHE"})


class Code(NamedTuple):
    """What is known of a code object; of that of settled libraries only the digest.

    Args:
        code: Itself, so that no other has its address.
        digest: Of what it does, wherever it stands.
        globals: Dotted names that begin with a global.
        imports: Modules that it imports: the level and the name.
        words: Names and strings in it, by which it may reach into a module that it was given.
    """

    code: CodeType
    digest: str
    globals: tuple[tuple[str, ...], ...] = ()
    imports: tuple[tuple[int, str], ...] = ()
    words: frozenset[str] = frozenset()


_CODES: dict[int, Code] = {}


def code_facts(code: CodeType) -> Code:
    """What is known of a code object, which never changes."""
    known = _CODES.get(id(code))
    if known is None:
        known = _CODES[id(code)] = _facts(code)
    return known


def _facts(code: CodeType) -> Code:
    digest = sha256(repr(_content(code)).encode("utf-8", "surrogatepass")).hexdigest()
    library = library_of_code(code)
    if library is not None and is_settled(library):
        return Code(code, digest)
    instructions = [one for one in dis.get_instructions(code) if one.opname not in _BETWEEN]
    inner = [code_facts(one) for one in code.co_consts if isinstance(one, CodeType)]
    chains = {*_chains(instructions), *(chain for one in inner for chain in one.globals)}
    imports = {*_imports(instructions), *(name for one in inner for name in one.imports)}
    words = {*code.co_names, *(one for one in code.co_consts if isinstance(one, str))}
    return Code(
        code,
        digest,
        globals=tuple(sorted(chains)),
        imports=tuple(sorted(imports)),
        words=frozenset(words.union(*(one.words for one in inner))),
    )


def _content(code: CodeType) -> tuple[Any, ...]:
    """Everything that code does; neither lines nor files."""
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
    if isinstance(value, CodeType):
        return code_facts(value).digest
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    return f"frozenset {sorted(map(_constant, value))}" if isinstance(value, frozenset) else repr(value)


def _chains(instructions: list[dis.Instruction]) -> Iterator[tuple[str, ...]]:
    for place, first in enumerate(instructions):
        if first.opname in _GLOBALS:
            chain = [str(first.argval)]
            for one in instructions[place + 1 :]:
                if one.opname not in _ATTRIBUTES:
                    break
                chain.append(str(one.argval))
            yield tuple(chain)


def _imports(instructions: list[dis.Instruction]) -> Iterator[tuple[int, str]]:
    for place, one in enumerate(instructions):
        if one.opname == "IMPORT_NAME":
            level = instructions[place - 2].argval
            yield (level if isinstance(level, int) else 0), str(one.argval)
