"""Installed libraries and the user's own code: which of them a file belongs to, and what identifies a library.

The cache key covers the user's code in full. Code of an installed library is represented by its package: by the
package's version, or by its sources if the version is not enough.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import CodeType, ModuleType

import torch_estimator

_OWN = "torch_estimator"
_STANDARD = "python"

# Packages of thousands of files, which nobody edits in place. Instead of all files, only the time of the first one is
# read, which is the time of the installation.
_LARGE = frozenset({"torch", "numpy", "pyarrow", "scipy", "pandas", "sklearn", "tensorflow", "jax", "keras"})


def library_of_code(code: CodeType) -> str | None:
    """Return the package that code belongs to, or None for the user's own."""
    return library_of_file(code.co_filename)


def library_of_module(name: str) -> str | None:
    """Return the package that a module belongs to; None for the user's own, and for modules that do not exist."""
    top = name.partition(".")[0]
    if top == _OWN:
        return _OWN
    if top in sys.builtin_module_names:
        return _STANDARD
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        # Without a file it is a part of the interpreter, a namespace package, or a module that the user made by hand.
        return _STANDARD if top in sys.stdlib_module_names else _library_of_namespace(name)
    return library_of_file(file)


@cache
def library_of_file(path: str) -> str | None:
    """Return the package that a file belongs to, or None for the user's own."""
    if path.startswith("<frozen "):
        return _STANDARD
    for root, name in _roots():
        if path.startswith(root):
            return name or _top_package(path[len(root) :])
    return None


def is_well_known(package: str) -> bool:
    """Return whether a package's code need not be searched for settings.

    These are large libraries, the standard library and this package. Their settings either do not exist, or are part of
    the environment (`torch_flags`).
    """
    return package in _LARGE or package in (_OWN, _STANDARD)


@cache
def library_identity(package: str) -> str:
    """Return a text that distinguishes an installed package from every other build of it."""
    if package == _STANDARD:
        return f"library {package} {sys.version}"
    if package == _OWN:
        return f"library {package} {own_sources()}"
    module = sys.modules.get(package)
    version = getattr(module, "__version__", None) or _installed_version(package)
    file = getattr(module, "__file__", None)
    if file is None:
        return f"library {package} {version}"
    if package in _LARGE:
        stat = os.stat(file)
        return f"library {package} {version} {stat.st_size} {stat.st_mtime_ns}"
    # Include the sizes and times of the sources: a package in development may be edited, or installed again, without a
    # new version.
    return f"library {package} {version} {_source_times(file)}"


def _source_times(file: str) -> str:
    """Return a hash of the sizes and times of a package's sources.

    Args:
        file: The file that the package is imported from; other than an ``__init__.py`` it is the only one.
    """
    path = Path(file)
    paths = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
    digest = sha256()
    for one in paths:
        stat = os.stat(one)
        digest.update(f"{one} {stat.st_size} {stat.st_mtime_ns}\0".encode())
    return digest.hexdigest()


@cache
def own_sources() -> str:
    """Return a hash of this package's sources, which may be a checkout that changes without a new version."""
    root = Path(torch_estimator.__file__).parent
    digest = sha256()
    for path in sorted(root.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root)} {len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def module_source(module: ModuleType) -> str:
    """Return a hash of the file of a module; empty if it has none."""
    try:
        file = str(module.__file__)
        stat = os.stat(file)
    except (AttributeError, OSError):
        return ""
    return file_digest(file, stat.st_mtime_ns, stat.st_size)


@cache
def file_digest(path: str, modified: int, size: int) -> str:
    """Return a hash of a file's content, read once per time of modification and size."""
    return sha256(Path(path).read_bytes()).hexdigest()


def _library_of_namespace(name: str) -> str | None:
    """Return the package of a namespace package, by the first directory that it is spread over."""
    module = sys.modules.get(name)
    for path in getattr(module, "__path__", ()):
        return library_of_file(f"{path}{os.sep}")
    return None


@cache
def _roots() -> tuple[tuple[str, str], ...]:
    """Return the directories of libraries, innermost first, each with its package's name if it holds only one."""
    own = str(Path(torch_estimator.__file__).parent)
    standard = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    standard |= {str(Path(os.__file__).parent)}
    installed = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    installed |= {*site.getsitepackages(), site.getusersitepackages()}
    installed |= {path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")}
    named = [(own, _OWN), *((path, "") for path in installed), *((path, _STANDARD) for path in standard)]
    # Files may be named with or without resolving symbolic links.
    both = {(path, name) for given, name in named if given for path in (given, os.path.realpath(given))}
    return tuple(sorted(((path + os.sep, name) for path, name in both), key=lambda root: (-len(root[0]), root)))


def _top_package(path: str) -> str:
    """Return the name of the package or module that a path inside of ``site-packages`` begins with."""
    return path.lstrip(os.sep).partition(os.sep)[0].partition(".")[0]


def _installed_version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
