"""Numbered lines, of which it is known how many there are even if their process is killed."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path


def me() -> str:
    """This role, such as ``worker-0``."""
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    return f"{task.get('type', 'chief')}-{task.get('index', 0)}"


class Numbered:
    """Prints ``line PID NUMBER xxx end`` and then notes in a file in `folder` how many lines this process has printed.

    A kill between the two leaves one line that was not noted, and never half a line.
    """

    def __init__(self, folder: Path, padding: int = 40) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._pid = os.getpid()
        self._padding = "x" * padding
        self._file = os.open(folder / f"{me()}.{self._pid}", os.O_WRONLY | os.O_CREAT, 0o600)
        self._count = 0

    def print(self) -> None:
        """Print the next line by one write, which a pipe takes whole."""
        os.write(1, f"line {self._pid} {self._count} {self._padding} end\n".encode())
        self._count += 1
        os.pwrite(self._file, self._count.to_bytes(8, "little"), 0)

    def print_always(self, pause_secs: float) -> None:
        """Print lines in a thread as long as this process runs."""

        def run() -> None:
            while True:
                self.print()
                time.sleep(pause_secs)

        threading.Thread(target=run, daemon=True).start()
