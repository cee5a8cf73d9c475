"""Lines at the bottom of a terminal that are drawn anew, and log lines above them."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class Screen:
    """What stands at the bottom of the terminal that stderr is.

    Every change is a single write: whatever reads the other end is woken once.
    """

    def __init__(self) -> None:
        self._lines: dict[object, str] = {}
        self._drawn = 0
        self._lock = threading.RLock()

    def show(self, owner: object, line: str) -> None:
        """Shows the line of ``owner``, below those that came before it."""
        with self._lock:
            self._lines[owner] = line
            self._draw("")

    def remove(self, owner: object) -> None:
        """Takes the line of ``owner`` away."""
        with self._lock:
            del self._lines[owner]
            self._draw("")

    def print(self, text: str) -> None:
        """Prints lines above all that is shown."""
        with self._lock:
            self._draw(f"{text}\n")

    def _draw(self, above: str) -> None:
        to_the_first = "\r" + "\x1b[A" * (self._drawn - 1) + "\x1b[J"
        self._drawn = len(self._lines)
        sys.stderr.write(to_the_first + above + "\n".join(self._lines.values()))
        sys.stderr.flush()


class _Above(logging.Handler):
    """Prints above a screen's lines what another handler would have printed across them."""

    def __init__(self, screen: Screen, original: logging.Handler) -> None:
        super().__init__(original.level)
        self.setFormatter(original.formatter)
        self.addFilter(original.filter)
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._screen.print(self.format(record))
        except Exception:
            self.handleError(record)


@contextmanager
def logged_above(screen: Screen, loggers: Sequence[logging.Logger]) -> Iterator[None]:
    """Has what ``loggers`` print on a terminal in the body appear above the lines of ``screen``."""
    replaced = [
        (logger.handlers, handler, _Above(screen, handler))
        for logger in loggers
        for handler in logger.handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream in (sys.stdout, sys.stderr)
        if handler.stream.isatty()
    ]
    for handlers, handler, above in replaced:
        handlers[handlers.index(handler)] = above
    try:
        yield
    finally:
        for handlers, handler, above in replaced:
            if above in handlers:
                handlers[handlers.index(above)] = handler
