"""Lines of many processes on one stdout and stderr."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from typing import IO, TextIO

_COLORS = (32, 33, 34, 35, 36)

# Of one line, which is held in memory: a process may write without end and without a newline.
_MOST_BYTES = 2**20


class Output:
    """A stream that several threads write whole lines to.

    Args:
        stream: Of this process.
        beside: Another one, which may lead to the same place.
        on_failure: Called where nothing can be written any more.
    """

    def __init__(self, stream: TextIO, *, beside: Output | None = None, on_failure: Callable[[OSError], None]) -> None:
        self._file = stream.fileno()
        self._colored = stream.isatty() and "NO_COLOR" not in os.environ
        self._on_failure = on_failure
        shared = beside is not None and os.path.sameopenfile(self._file, beside._file)
        self._lock: threading.Lock = beside._lock if beside is not None and shared else threading.Lock()
        self._has_failed = False

    def prefix(self, name: str, color: int) -> bytes:
        """What lines of one process begin with; colored on a terminal only."""
        text = f"[{name}]"
        return (f"\x1b[{_COLORS[color % len(_COLORS)]}m{text}\x1b[0m " if self._colored else f"{text} ").encode()

    def write(self, line: bytes) -> None:
        """Writes all of it, with nothing in between."""
        with self._lock:
            if self._has_failed:
                return
            try:
                while line:
                    line = line[os.write(self._file, line) :]
            except OSError as error:
                self._has_failed = True
                self._on_failure(error)


class Copying:
    """A thread that copies what a process writes, line by line; a line of more than 1 MiB is broken there.

    Args:
        pipe: Where the process writes to.
        output: Where it goes.
        prefix: What each line begins with.
    """

    def __init__(self, pipe: IO[bytes], output: Output, prefix: bytes) -> None:
        self._pipe, self._output, self._prefix = pipe, output, prefix
        self._is_writing = False
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def wait(self, secs: float) -> bool:
        """Waits until everything is copied of a process that has ended; returns whether it is.

        Whoever else may still write to the pipe is not waited for.
        """
        self._thread.join(secs)
        if self._thread.is_alive():
            return not (self._is_writing or select.select([self._pipe], [], [], 0)[0])
        self._pipe.close()
        return True

    def _copy(self) -> None:
        while line := self._pipe.readline(_MOST_BYTES):
            self._is_writing = True
            self._output.write(self._prefix + line.removesuffix(b"\n") + b"\n")
            self._is_writing = False
