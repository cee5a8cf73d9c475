"""A progress bar for terminals. If stderr is not a terminal, log lines show the progress instead."""

from __future__ import annotations

import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType

from torch_estimator.hooks.hook import Hook, RunContext

_REFRESH_SECS = 0.1
_SMOOTHING = 0.3


class Screen:
    """Status lines at the bottom of the terminal that stderr is connected to. Each progress bar owns one line.

    Every change is made by a single write, so that the terminal does not flicker.
    """

    def __init__(self) -> None:
        self._lines: dict[object, str] = {}
        self._drawn = 0
        self._lock = threading.RLock()

    def show(self, owner: object, line: str) -> None:
        """Set the text of the line of ``owner``. The line of a new owner is added at the bottom."""
        with self._lock:
            self._lines[owner] = line
            self._draw("")

    def remove(self, owner: object) -> None:
        """Remove the line of ``owner``."""
        with self._lock:
            del self._lines[owner]
            self._draw("")

    def print(self, text: str) -> None:
        """Print ``text`` above the status lines."""
        with self._lock:
            self._draw(f"{text}\n")

    def _draw(self, above: str) -> None:
        to_the_first = "\r" + "\x1b[A" * (self._drawn - 1) + "\x1b[J"
        self._drawn = len(self._lines)
        sys.stderr.write(to_the_first + above + "\n".join(self._lines.values()))
        sys.stderr.flush()


class _Above(logging.Handler):
    """Log handler that prints above a screen's status lines, in the format of the handler that it replaces."""

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
    """While the body runs, print the terminal output of ``loggers`` above the status lines of ``screen``."""
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


_SCREEN = Screen()


class ProgressBar:
    """Progress bar that counts steps and shows figures such as the loss; hidden if stderr is not a terminal.

    While the bar is shown, log lines appear above it. It is full at `total` steps, if that is known; `hidden` says that
    another process shows it.
    """

    def __init__(
        self,
        title: str,
        *,
        total: int | None,
        initial: int = 0,
        hidden: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        is_logging = logging.getLogger("torch_estimator").isEnabledFor(logging.INFO)
        self.visible = not hidden and sys.stderr.isatty() and is_logging
        self._title = title
        self._total = total
        self._initial = self._step = initial
        self._clock = clock
        self._started = self._drawn = clock()
        self._rate: float | None = None
        self._stack = ExitStack()

    def __enter__(self) -> ProgressBar:
        if self.visible:
            self._draw({})
            self._stack.callback(_SCREEN.remove, self)
            self._stack.enter_context(
                logged_above(_SCREEN, [logging.getLogger("torch_estimator"), logging.getLogger()])
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    @property
    def due(self) -> bool:
        """Whether the bar must be redrawn: it is visible and was last drawn 0.1 s ago or earlier."""
        return self.visible and self._clock() >= self._drawn + _REFRESH_SECS

    def move_to(self, step: int, **figures: str) -> None:
        """Move the bar to a step, with the texts of figures after it, and redraw it, if it is due."""
        if not self.due:
            return
        now = self._clock()
        rate = (step - self._step) / (now - self._drawn)
        self._rate = rate if self._rate is None else _SMOOTHING * rate + (1 - _SMOOTHING) * self._rate
        self._step, self._drawn = step, now
        self._draw(figures)

    def _draw(self, figures: dict[str, str]) -> None:
        from tqdm import tqdm

        line = tqdm.format_meter(
            self._step,
            self._total,
            self._drawn - self._started,
            ncols=shutil.get_terminal_size().columns,
            prefix=self._title,
            ascii=not (sys.stderr.encoding or "").lower().startswith("utf"),
            unit="step",
            rate=self._rate,
            postfix=", ".join(f"{name}={value}" for name, value in figures.items()),
            initial=self._initial,
        )
        _SCREEN.show(self, line)


class ProgressHook(Hook):
    """Hook that moves a progress bar while training runs."""

    every_secs = _REFRESH_SECS

    def __init__(self, bar: ProgressBar) -> None:
        self._bar = bar

    def after_step(self, context: RunContext) -> None:
        # Read the loss only if the bar will be drawn, because reading waits for the GPU.
        if self._bar.due:
            self._bar.move_to(context.global_step, loss=f"{context.loss:.4g}")
