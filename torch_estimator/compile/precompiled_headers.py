"""Precompiled headers of compiled steps, kept in the cache.

All steps include the same headers, and the C++ compiler takes two fifths of its time to read them. So they are compiled
once on a machine, after its first step. Later compilations read the result, a file of 135 MB.

A separate process does this: ``python -m torch_estimator.compile.precompiled_headers DIRECTORY KEY COMMAND...``. The
process does not import torch, so it needs little memory. It goes on if the training ends first.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from torch_estimator.code_cache import CodeCache, entry_key

HEADERS = Path(__file__).with_name("step_headers.h")
# The compiler looks for a file with this name before it looks for the header.
_PRECOMPILED = f"{HEADERS.name}.gch"

# Those of other versions of PyTorch or of the compiler are removed beyond this number.
_MOST = 2
# Headers are made only if so many bytes are free, so that a training does not miss them in the meantime.
_LEAST_FREE = 2**30
_MAX_SECS = 600
_NICENESS = 10


class PrecompiledHeaders:
    """The precompiled headers of this machine, if there are any.

    `machine` names all that they depend on but compiler options.
    """

    def __init__(self, machine: Iterable[str], directory: str | os.PathLike[str] | None = None) -> None:
        self._facts = (HEADERS.read_text(), *machine)
        self._cache = _cache(directory)

    def arguments(self, command: Sequence[str]) -> list[str]:
        """Return arguments that make a compiler read the precompiled headers; none if there are no such headers.

        The compiler fails if it cannot use them.
        """
        folder = self._cache.find(self._key(command))
        return ["-include", str(folder / HEADERS.name)] if folder is not None else []

    def make(self, command: Sequence[str]) -> subprocess.Popen[bytes] | None:
        """Start a process that precompiles the headers.

        Nobody needs to wait for it. Return None if it cannot be started.
        """
        program = [sys.executable, "-m", __name__, str(self._cache.base), self._key(command), *command]
        none = subprocess.DEVNULL
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        try:
            # In a group of its own it outlives the compiling process, whose group is killed at its end.
            return subprocess.Popen(program, env=variables, stdin=none, stdout=none, stderr=none, process_group=0)
        except (OSError, TypeError):
            # An embedded interpreter has no executable.
            return None

    def _key(self, command: Sequence[str]) -> str:
        return entry_key((*self._facts, *command))


def _cache(directory: str | os.PathLike[str] | None) -> CodeCache:
    return CodeCache(directory, content="headers", most=_MOST)


def precompile(directory: str, key: str, command: Sequence[str]) -> None:
    """Precompile the headers and keep them.

    Nothing happens if another process is doing it, or if there is no room for them.
    """
    cache = _cache(directory)
    if (reserved := cache.reserve(key)) is None:
        return
    with reserved:
        folder = cache.make_build_folder(key)
        try:
            if cache.can_keep(folder) and shutil.disk_usage(folder).free > _LEAST_FREE:
                made = folder / _PRECOMPILED
                subprocess.run(
                    [*command, "-x", "c++-header", str(HEADERS), "-o", str(made)], check=True, timeout=_MAX_SECS
                )
                cache.keep(folder, key)
        finally:
            # There is nothing left to remove if the headers are kept.
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    os.nice(_NICENESS)
    precompile(sys.argv[1], sys.argv[2], sys.argv[3:])
