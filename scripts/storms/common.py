"""What all storms share: options, a process whose output is read as it comes, and the verdict."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data" / "census"

SILENCE_SECS = 300.0
"""A job that prints nothing for so long hangs, and the storm fails."""


class StormError(Exception):
    """Something that must not happen, for which the storm ends."""


class Child:
    """A process, run in the root of the repository, whose output is read as it comes.

    `variables` are environment variables beside those of this process. Each line is added to `log_file` with its time,
    and to `lines`, which `changed` guards, as time and text. With `own_group`, Ctrl-C in a terminal does not reach the
    process.
    """

    def __init__(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        *,
        log_file: Path | None = None,
        own_group: bool = False,
    ) -> None:
        self.log_file = log_file
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            process_group=0 if own_group else None,
        )
        self.lines: list[tuple[float, str]] = []
        self.changed = threading.Condition()
        self.is_over = False
        self._read_so_far = 0
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def read(self, secs: float) -> tuple[float, str] | None:
        """Return the time and the text of the next line, or None if none comes for `secs`.

        Raise an EOFError if the process and all that write to its output have ended.
        """
        with self.changed:
            self.changed.wait_for(lambda: len(self.lines) > self._read_so_far or self.is_over, max(0.0, secs))
            if len(self.lines) > self._read_so_far:
                self._read_so_far += 1
                return self.lines[self._read_so_far - 1]
            if self.is_over:
                raise EOFError
            return None

    def close(self) -> None:
        """Kill the process if it still runs, and wait for the end of its output."""
        self.process.kill()
        self.process.wait()
        self.reader.join()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output, (self.log_file or Path(os.devnull)).open("a") as log:
            for text in output:
                at = time.monotonic()
                log.write(f"{at:.3f} {text}")
                log.flush()
                with self.changed:
                    self.lines.append((at, text.rstrip("\n")))
                    self.changed.notify_all()
        with self.changed:
            self.is_over = True
            self.changed.notify_all()


def existing(text: str) -> Path:
    """Return a path that must exist; a type of argparse."""
    path = Path(text)
    if not path.exists():
        raise argparse.ArgumentTypeError(f"{path} does not exist")
    return path


def add_census_files(parser: argparse.ArgumentParser) -> None:
    """Add ``--train-file`` and ``--eval-file``."""
    # argparse checks a default of type str, too.
    for kind, file in (("train", "adult.data.csv"), ("eval", "adult.test.csv")):
        parser.add_argument(
            f"--{kind}-file",
            type=existing,
            default=str(DATA / file),
            help=f"census rows to {kind} on (default: %(default)s)",
        )


def emptied(folder: Path) -> Path:
    """Return the absolute path of a folder, which is made anew."""
    folder = folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def words(settings: Mapping[str, object]) -> list[str]:
    """Return options and their values as words of a command line."""
    return [str(word) for setting in settings.items() for word in setting]


def conclude_storm(storm: Callable[[], Iterable[str]], success: str) -> int:
    """Run a storm, print a line for each sentence that it gives, and return the exit status: 0 if it gives none."""
    try:
        found = list(storm())
    except StormError as error:
        found = [str(error)]
    for sentence in found:
        print(f"FAULT: {sentence}")
    print("FAILED" if found else success)
    return 1 if found else 0
