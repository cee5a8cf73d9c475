"""The user's code and installed packages: which is which, and texts that identify both by content or version.

The cache key covers the user's code by the content of its files, and an installed package by its version.
"""

from __future__ import annotations

import ast
import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from importlib import metadata
from importlib.util import resolve_name
from pathlib import Path
from types import CodeType, ModuleType

import torch_estimator
from torch_estimator.cluster.process_start import process_start
from torch_estimator.versions import own_sources

_OWN = "torch_estimator"
_STANDARD = "python"
_PROCESS_START = process_start()


def package_of_module(name: object) -> str | None:
    """Return the installed package that a module belongs to; None for a module of the user or an unknown module."""
    if not isinstance(name, str):
        # The ``__module__`` of a class made in C may be a descriptor.
        return None
    top = name.partition(".")[0]
    if top == _OWN:
        return _OWN
    if top in sys.builtin_module_names:
        return _STANDARD
    module = sys.modules.get(name)
    if (file := getattr(module, "__file__", None)) is not None:
        return package_of_file(file)
    # A module without a file is part of the interpreter, a namespace package, or made by the user at run time.
    if top in sys.stdlib_module_names:
        return _STANDARD
    return next((package_of_file(f"{path}{os.sep}") for path in getattr(module, "__path__", ())), None)


@cache
def package_of_file(path: str) -> str | None:
    """Return the installed package that a file belongs to; None for a file of the user."""
    if path.startswith("<frozen "):
        return _STANDARD
    for root, name in _roots():
        if path.startswith(root):
            return name or path[len(root) :].lstrip(os.sep).partition(os.sep)[0].partition(".")[0]
    return None


@cache
def _roots() -> tuple[tuple[str, str], ...]:
    """Return the directories of libraries, innermost first. A directory that holds one package comes with its name."""
    own = str(Path(torch_estimator.__file__).parent)
    standard = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")} | {str(Path(os.__file__).parent)}
    installed = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    installed |= {*site.getsitepackages(), site.getusersitepackages()}
    installed |= {path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")}
    named = [(own, _OWN), *((path, "") for path in installed), *((path, _STANDARD) for path in standard)]
    # Include each directory with and without resolved symbolic links, because files may be named either way.
    both = {(path, name) for given, name in named if given for path in (given, os.path.realpath(given))}
    return tuple(sorted(((path + os.sep, name) for path, name in both), key=lambda root: (-len(root[0]), root)))


@cache
def package_identity(package: str) -> str:
    """Return a text that distinguishes an installed package from other versions and builds of it."""
    if package == _STANDARD:
        return f"library {package} {sys.version}"
    if package == _OWN:
        return f"library {package} {own_sources()}"
    module = sys.modules.get(package)
    version = getattr(module, "__version__", None)
    if version is None:
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            version = "without a version"
    file = getattr(module, "__file__", None)
    stat = None if file is None else os.stat(file)
    return f"library {package} {version}" + (f" {stat.st_size} {stat.st_mtime_ns}" if stat else "")


def sources_of(module: ModuleType) -> set[str]:
    """Return digests of the file of a user's module and of the user's modules that it imports, at any distance."""
    found: dict[str, str] = {}
    waiting = [module]
    while waiting:
        one = waiting.pop()
        name, file = one.__name__, getattr(one, "__file__", None)
        if name in found or not isinstance(file, str) or package_of_module(name) is not None:
            continue
        try:
            stat = os.stat(file)
            digest, imports = _read(file, getattr(one, "__package__", None) or "", stat.st_mtime_ns, stat.st_size)
        except OSError:
            continue
        # If the file was written after this process started, the process may have imported an older version. Then add
        # the time of the file, so that no later process finds the same.
        found[name] = digest + (f" while running at {stat.st_mtime_ns}" if stat.st_mtime > _PROCESS_START else "")
        waiting += [sys.modules[name] for name in imports if name in sys.modules]
    return set(found.values())


@cache
def _read(file: str, package: str, modified: int, size: int) -> tuple[str, tuple[str, ...]]:
    """Return the digest of a source file and the names of all modules that it may import, with their packages.

    Args:
        file: Its path.
        package: Package of the module, which relative imports begin from.
        modified: Time of the file, in nanoseconds; with its size, a reason to read it again.
        size: Number of its bytes.
    """
    content = Path(file).read_bytes()
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return sha256(content).hexdigest(), ()
    names = {name for node in ast.walk(tree) for name in _imported(node, package)}
    parts = [name.split(".") for name in names]
    with_packages = {".".join(part[:end]) for part in parts for end in range(1, len(part) + 1)}
    return sha256(content).hexdigest(), tuple(sorted(with_packages))


def _imported(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (one.name for one in node.names)
    if isinstance(node, ast.ImportFrom):
        try:
            start = resolve_name("." * node.level + (node.module or ""), package) if node.level else node.module or ""
        except ImportError:
            return
        # What is imported from a package may be a module or a name inside of one.
        yield from (start, *(f"{start}.{one.name}" for one in node.names))


@cache
def digest_of_code(code: CodeType) -> str:
    """Return a digest of what a code object does, without line numbers and file names."""
    consts = [_text_of_constant(one) for one in code.co_consts]
    names = (code.co_names, code.co_varnames, code.co_freevars)
    text = repr((code.co_code, consts, names, code.co_exceptiontable))
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _text_of_constant(value: object) -> str:
    if isinstance(value, CodeType):
        return digest_of_code(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_text_of_constant, value))})"
    return f"frozenset {sorted(map(repr, value))}" if isinstance(value, frozenset) else repr(value)
