"""Distinction between installed libraries and the user's code, and texts that identify the version of a library.

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
from torch_estimator.versions import own_sources

_OWN = "torch_estimator"
_STANDARD = "python"

# These packages have thousands of files, which nobody edits in place.
# So only the time of ``__init__.py`` is read, which is the time of the installation.
_LARGE = frozenset({"torch", "numpy", "pyarrow", "scipy", "pandas", "sklearn", "tensorflow", "jax", "keras"})


def library_of_code(code: CodeType) -> str | None:
    """Return the installed package that a code object belongs to; None for code of the user."""
    return library_of_file(code.co_filename)


def library_of_module(name: str) -> str | None:
    """Return the installed package that a module belongs to; None for a module of the user or an unknown module."""
    top = name.partition(".")[0]
    if top == _OWN:
        return _OWN
    if top in sys.builtin_module_names:
        return _STANDARD
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        # A module without a file is part of the interpreter, a namespace package, or made by the user at run time.
        return _STANDARD if top in sys.stdlib_module_names else _library_of_namespace(name)
    return library_of_file(file)


@cache
def library_of_file(path: str) -> str | None:
    """Return the installed package that a file belongs to; None for a file of the user."""
    if path.startswith("<frozen "):
        return _STANDARD
    for root, name in _roots():
        if path.startswith(root):
            return name or _top_package(path[len(root) :])
    return None


def is_well_known(package: str) -> bool:
    """Return whether the code of a package need not be searched for settings.

    This is so for large libraries, the standard library and torch_estimator. Their settings either do not exist, or are
    part of the environment (`torch_flags`).
    """
    return package in _LARGE or package in (_OWN, _STANDARD)


@cache
def library_identity(package: str) -> str:
    """Return a text that distinguishes an installed package from all other versions and builds of the package."""
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
    # Include the sizes and times of the sources, because a package in development may change without a new version.
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


def module_source(module: ModuleType) -> str:
    """Return a hash of the source file of a module; an empty text if the module has no file."""
    try:
        file = str(module.__file__)
        stat = os.stat(file)
    except (AttributeError, OSError):
        return ""
    return file_digest(file, stat.st_mtime_ns, stat.st_size)


@cache
def file_digest(path: str, modified: int, size: int) -> str:
    """Return a hash of a file's content. Read the file again only if its modification time or size has changed."""
    return sha256(Path(path).read_bytes()).hexdigest()


def _library_of_namespace(name: str) -> str | None:
    """Return the installed package that a namespace package belongs to, by its first directory."""
    module = sys.modules.get(name)
    for path in getattr(module, "__path__", ()):
        return library_of_file(f"{path}{os.sep}")
    return None


@cache
def _roots() -> tuple[tuple[str, str], ...]:
    """Return the directories of libraries, innermost first. A directory that holds one package comes with its name."""
    own = str(Path(torch_estimator.__file__).parent)
    standard = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    standard |= {str(Path(os.__file__).parent)}
    installed = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    installed |= {*site.getsitepackages(), site.getusersitepackages()}
    installed |= {path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")}
    named = [(own, _OWN), *((path, "") for path in installed), *((path, _STANDARD) for path in standard)]
    # Include each directory with and without resolved symbolic links, because files may be named either way.
    both = {(path, name) for given, name in named if given for path in (given, os.path.realpath(given))}
    return tuple(sorted(((path + os.sep, name) for path, name in both), key=lambda root: (-len(root[0]), root)))


def _top_package(path: str) -> str:
    """Return the top-level package or module of a path inside of ``site-packages``."""
    return path.lstrip(os.sep).partition(os.sep)[0].partition(".")[0]


def _installed_version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
