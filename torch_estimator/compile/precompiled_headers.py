"""Precompiled headers of compiled steps, kept in the cache.

Every step includes the same headers, and the C++ compiler takes more than half of its time to read them. So they are
compiled once on a machine, after the first step was compiled. Later compilations read the result, which is 135 MB long.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from torch_estimator.compile.cache import StepCache, entry_key
from torch_estimator.compile.cache_key.environment import machine

HEADERS = Path(__file__).with_name("step_headers.h")
# Headers of other versions of PyTorch, of the compiler or of this package are removed beyond this number.
_MOST = 2
_MAX_SECS = 600


class PrecompiledHeaders:
    """The precompiled headers of this machine, if there are any.

    Args:
        directory: Directory of the cache, as of `StepCache`.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self._cache = StepCache(directory, content="headers", most=_MOST)
        self._missing: list[str] | None = None

    def arguments(self, command: Sequence[str]) -> list[str]:
        """Return what makes a compiler read the precompiled headers instead of `HEADERS`.

        Args:
            command: The compiler and its options. Headers that were precompiled with other options cannot be used.

        Returns:
            Arguments; none if the headers are not precompiled yet. Then `make` will do it.
        """
        folder = self._cache.find(_key(command))
        self._missing = list(command) if folder is None else None
        # The compiler looks for a file with this name and the suffix .gch. If it cannot use that, it reads the header.
        return ["-include", str(folder / HEADERS.name)] if folder is not None else []

    def make(self) -> None:
        """Precompile the headers, which takes seconds, if `arguments` has not found them.

        Nothing happens if another process is doing it, or if the result cannot be kept.
        """
        if self._missing is None or (reserved := self._cache.reserve(_key(self._missing))) is None:
            return
        with reserved:
            folder = self._cache.make_build_folder(_key(self._missing))
            header = folder / HEADERS.name
            command = [*self._missing, "-x", "c++-header", str(header), "-o", f"{header}.gch"]
            try:
                if self._cache.can_keep(folder):
                    shutil.copyfile(HEADERS, header)
                    subprocess.run(command, check=True, timeout=_MAX_SECS)
                    self._cache.keep(folder, _key(self._missing))
            finally:
                # There is nothing left to remove if the headers are kept.
                shutil.rmtree(folder, ignore_errors=True)


def _key(command: Sequence[str]) -> str:
    return entry_key(("headers", *machine(), *command))
