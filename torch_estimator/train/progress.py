"""A progress bar on a terminal; elsewhere the log lines are the progress."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType

from torch_estimator.hooks.hook import Hook, RunContext
from torch_estimator.train.screen import Screen, logged_above

_REFRESH_SECS = 0.1
_REFRESH_SECS = 0.1
_SMOOTHING = 0.3
_SCREEN = Screen()


class ProgressBar:
    """A bar over steps with a line of figures beside it; does nothing where stderr is not a terminal.

    Log lines printed meanwhile appear above the bar.

    Args:
        title: In front of the bar.
        total: Steps at its end, or None.
        initial: Steps at its beginning.
        hidden: Whether another process shows it.
        clock: Gives the seconds.
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
        told = logging.getLogger("torch_estimator").isEnabledFor(logging.INFO)
        self.visible = not hidden and sys.stderr.isatty() and told
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
        """Whether it is shown, and so long after the last time that drawing it anew is worth it."""
        return self.visible and self._clock() >= self._drawn + _REFRESH_SECS

    def move_to(self, step: int, **figures: str) -> None:
        """Moves the bar to ``step``, if it is due."""
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
