"""What belongs to an installed library, which its version tells, and what is the user's own code."""

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
# Of thousands of files, which nobody edits; their first file has the time of the installation.
_LARGE = frozenset({"torch", "numpy", "pyarrow", "scipy", "pandas", "sklearn", "tensorflow", "jax", "keras"})


def library_of_code(code: CodeType) -> str | None:
    """The package that code belongs to, or None for the user's own."""
    return library_of_file(code.co_filename)


def library_of_module(name: str) -> str | None:
    """The package that a module belongs to, or None for one of the user's, or one that is not there."""
    top = name.partition(".")[0]
    if top == _OWN:
        return _OWN
    if top in sys.builtin_module_names:
        return _STANDARD
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        # A namespace package, or a part of the interpreter; a module made by hand is the user's.
        return _STANDARD if top in sys.stdlib_module_names else _library_of_parent(name)
    return library_of_file(file)


@cache
def library_of_file(path: str) -> str | None:
    """The package that a file belongs to, or None for the user's own."""
    if path.startswith("<frozen "):
        return _STANDARD
    for root, name in _roots():
        if path.startswith(root):
            return name or _top(path[len(root) :])
    return None


def is_settled(package: str) -> bool:
    """Whether a package is one that nobody sets anything in; its settings, if any, are known otherwise."""
    return package in _LARGE or package in (_OWN, _STANDARD)


@cache
def library_identity(package: str) -> str:
    """What tells a package from another build of it."""
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
    # Somebody's own package may be installed anew, or edited, under the same version.
    return f"library {package} {version} {_sources(file)}"


def _sources(file: str) -> str:
    """Sizes and times of the sources of a package, or of a single module, by the file that it is imported from."""
    path = Path(file)
    paths = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
    digest = sha256()
    for one in paths:
        stat = os.stat(one)
        digest.update(f"{one} {stat.st_size} {stat.st_mtime_ns}\0".encode())
    return digest.hexdigest()


@cache
def own_sources() -> str:
    """A hash of this package's sources, which may be a checkout."""
    root = Path(torch_estimator.__file__).parent
    digest = sha256()
    for path in sorted(root.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root)} {len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def module_source(module: ModuleType) -> str:
    """A hash of the file of a module, empty where it has none."""
    try:
        file = str(module.__file__)
        stat = os.stat(file)
    except (AttributeError, OSError):
        return ""
    return file_digest(file, stat.st_mtime_ns, stat.st_size)


@cache
def file_digest(path: str, modified: int, size: int) -> str:
    """A hash of a file that was last modified then."""
    return sha256(Path(path).read_bytes()).hexdigest()


def _library_of_parent(name: str) -> str | None:
    module = sys.modules.get(name)
    for path in getattr(module, "__path__", ()):
        return library_of_file(f"{path}{os.sep}")
    return None


@cache
def _roots() -> tuple[tuple[str, str], ...]:
    """Directories of libraries, the innermost first, with the package where it is only one."""
    own = str(Path(torch_estimator.__file__).parent)
    standard = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    standard |= {str(Path(os.__file__).parent)}
    installed = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    installed |= {*site.getsitepackages(), site.getusersitepackages()}
    installed |= {path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")}
    named = [(own, _OWN), *((path, "") for path in installed), *((path, _STANDARD) for path in standard)]
    both = {(path, name) for given, name in named if given for path in (given, os.path.realpath(given))}
    return tuple(sorted(((path + os.sep, name) for path, name in both), key=lambda root: (-len(root[0]), root)))


def _top(path: str) -> str:
    return path.lstrip(os.sep).partition(os.sep)[0].partition(".")[0]


def _installed_version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
