"""One side of a comparison: a script in a process and an environment of its own that ends with a JSON line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import environment

ROOT = Path(__file__).resolve().parents[2]


class SideError(Exception):
    """A side that did not run or did not report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A script of `benchmarks/peers`, and what it runs in.

    Args:
        name: Name in the tables.
        script: Module below `benchmarks.peers`, such as `tensorflow_census`.
        environment: Which of `.bench/` it runs in; None is the interpreter of this process.
        root: The checkout that holds the script.
    """

    name: str
    script: str
    environment: str | None = None
    root: Path = ROOT

    def interpreter(self, *, install: bool) -> Path | None:
        """The Python that runs it; None where its environment is missing and shall not be installed."""
        if self.environment is None:
            return Path(sys.executable)
        if not install and not environment.is_installed(self.environment):
            return None
        return environment.python_of(self.environment)

    def run(
        self, arguments: Sequence[object], *, variables: Mapping[str, str] | None = None, timeout: float = 900.0
    ) -> dict[str, Any]:
        """Runs the script and gives what its last line says.

        Raises:
            SideError: It failed, took longer than `timeout` seconds, or its last line is not JSON.
        """
        python = self.interpreter(install=True)
        command = [str(python), "-m", f"benchmarks.peers.{self.script}", *map(str, arguments)]
        shown = f"{self.name} ({' '.join(command[1:])})"
        try:
            done = subprocess.run(
                command,
                cwd=self.root,
                env={**os.environ, "PYTHONPATH": str(self.root), **(variables or {})},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            raise SideError(f"{shown} did not end within {timeout:.0f} s.") from None
        if done.returncode != 0:
            raise SideError(f"{shown} ended with {done.returncode}:\n{_tail(done.stderr or done.stdout)}")
        try:
            return dict(json.loads(done.stdout.strip().splitlines()[-1]))
        except (IndexError, ValueError):
            raise SideError(f"{shown} did not end with a line of JSON, but with:\n{_tail(done.stdout)}") from None


def _tail(text: str, lines: int = 15) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])
