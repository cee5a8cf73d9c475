"""One side of a comparison: a script in a process and an environment of its own that ends with a JSON line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from benchmarks.peers import environment

ROOT = Path(__file__).resolve().parents[2]


class SideError(Exception):
    """A side that did not run or did not report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A script of `benchmarks/peers`, and what it runs in.

    Tables show `name`. `script` is a module below `benchmarks.peers`, such as `tensorflow_census`, in the checkout
    `root`. `environment` is a folder of `.bench/`, or None for the interpreter of this process. `arguments` come before
    those of `run`.
    """

    name: str
    script: str
    environment: str | None = None
    arguments: tuple[str, ...] = ()
    root: Path = ROOT

    def missing(self, *, install: bool) -> str | None:
        """Why it cannot run, None where it can; an environment that is not there is made first, if so wished."""
        if not (self.root / "benchmarks" / "peers" / f"{self.script}.py").is_file():
            return f"benchmarks/peers/{self.script}.py is not there"
        if self.environment is None or environment.is_installed(self.environment):
            return None
        if not install:
            return f"its environment is not installed (python -m benchmarks.peers.environment {self.environment})"
        try:
            environment.python_of(self.environment)
        except subprocess.SubprocessError as error:
            return f"its environment could not be installed: {error}"
        return None

    def command(self, arguments: Sequence[object]) -> list[str]:
        """The command line that runs it."""
        python = Path(sys.executable) if self.environment is None else environment.python_of(self.environment)
        return [str(python), "-m", f"benchmarks.peers.{self.script}", *self.arguments, *map(str, arguments)]

    def run(
        self, arguments: Sequence[object], *, variables: Mapping[str, str] | None = None, timeout: float = 900.0
    ) -> dict[str, Any]:
        """Run the script; return what its last line says, and as `wall_s` the seconds from its start to its end.

        Raise a SideError if it fails, takes longer than `timeout` seconds, or its last line is not JSON.
        """
        command = self.command(arguments)
        shown = f"{self.name} ({' '.join(command[1:])})"
        # Files, since a pipe would be waited for until the side's own children, such as a compiler, have ended, too.
        with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
            started = time.perf_counter()
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env={**os.environ, "PYTHONPATH": str(self.root), **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            try:
                status = process.wait(timeout)
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if isinstance(error, subprocess.TimeoutExpired):
                    raise SideError(f"{shown} did not end within {timeout:.0f} s.") from None
                raise
            seconds = time.perf_counter() - started
            said, complained = _written(out), _written(err)
        if status != 0:
            raise SideError(f"{shown} ended with {status}:\n{_tail(complained or said)}")
        try:
            return {**json.loads(said.splitlines()[-1]), "wall_s": seconds}
        except (IndexError, TypeError, ValueError):
            raise SideError(f"{shown} did not end with a line of JSON, but with:\n{_tail(said)}") from None


def _written(file: IO[str]) -> str:
    file.seek(0)
    return file.read().strip()


def ready(sides: Mapping[str, Side], *, install: bool) -> dict[str, Side]:
    """Return the sides that can run; print why each of the others is left out.

    With `install`, a missing environment is made. If that fails, the benchmark ends, because it would say nothing of
    what was to be measured.
    """
    found = {}
    for name, side in sides.items():
        missing = side.missing(install=install)
        if missing and install:
            sys.exit(f"{side.name}: {missing}; leave it out with --peers, which takes the names of the others.")
        if missing:
            print(f"{side.name} is left out: {missing}.", file=sys.stderr)
        else:
            found[name] = side
    return found


def _tail(text: str, lines: int = 15) -> str:
    return "\n".join(text.splitlines()[-lines:])
