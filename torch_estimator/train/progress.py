"""A progress bar on a terminal; elsewhere the log lines are the progress."""

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
    """The last lines of the terminal that stderr is connected to.

    Every change is a single write, so that the terminal redraws once.
    """

    def __init__(self) -> None:
        self._lines: dict[object, str] = {}
        self._drawn = 0
        self._lock = threading.RLock()

    def show(self, owner: object, line: str) -> None:
        """Show the line of ``owner``, below the lines of earlier owners."""
        with self._lock:
            self._lines[owner] = line
            self._draw("")

    def remove(self, owner: object) -> None:
        """Remove the line of ``owner``."""
        with self._lock:
            del self._lines[owner]
            self._draw("")

    def print(self, text: str) -> None:
        """Print lines above the lines that are shown."""
        with self._lock:
            self._draw(f"{text}\n")

    def _draw(self, above: str) -> None:
        to_the_first = "\r" + "\x1b[A" * (self._drawn - 1) + "\x1b[J"
        self._drawn = len(self._lines)
        sys.stderr.write(to_the_first + above + "\n".join(self._lines.values()))
        sys.stderr.flush()


class _Above(logging.Handler):
    """Log handler that prints above the lines of a screen, in place of another handler."""

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
    """Have the terminal output of ``loggers`` appear above the lines of ``screen`` in the body."""
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
    """A bar of steps with some figures behind it; invisible where stderr is not a terminal.

    While it is shown, log lines appear above it.

    Args:
        title: Text in front of the bar.
        total: Number of steps at its end, or None.
        initial: Number of steps at its beginning.
        hidden: Whether another process shows the bar.
        clock: Returns seconds that only go forward.
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
        """Whether the bar is shown, and was not drawn within the last tenth of a second."""
        return self.visible and self._clock() >= self._drawn + _REFRESH_SECS

    def move_to(self, step: int, **figures: str) -> None:
        """Move the bar to a step, if it is due."""
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
    """Moves a bar along with training."""

    every_secs = _REFRESH_SECS

    def __init__(self, bar: ProgressBar) -> None:
        self._bar = bar

    def after_step(self, context: RunContext) -> None:
        # Reading the loss waits for the device.
        if self._bar.due:
            self._bar.move_to(context.global_step, loss=f"{context.loss:.4g}")
