"""A progress bar on a terminal; elsewhere the log lines are the progress."""

from __future__ import annotations

import logging
import sys
from types import TracebackType
from typing import Any

from torch_estimator.hooks.hook import Hook, RunContext

_REFRESH_STEPS = 10


class ProgressBar:
    """A bar over steps with a line of figures beside it; does nothing where stderr is not a terminal.

    Log lines printed meanwhile appear above the bar.
    """

    def __init__(self, title: str, *, total: int | None, initial: int = 0) -> None:
        self._bar: Any = None
        if sys.stderr.isatty() and logging.getLogger("torch_estimator").isEnabledFor(logging.INFO):
            from tqdm import tqdm
            from tqdm.contrib.logging import logging_redirect_tqdm

            self._bar = tqdm(total=total, initial=initial, desc=title, unit="step", leave=False, dynamic_ncols=True)
            self._redirect = logging_redirect_tqdm([logging.getLogger("torch_estimator")])

    def __enter__(self) -> ProgressBar:
        if self._bar is not None:
            self._redirect.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._redirect.__exit__(kind, error, traceback)
            self._bar.close()

    @property
    def visible(self) -> bool:
        """Whether there is a terminal to draw on."""
        return self._bar is not None

    def move_to(self, step: int, **figures: str) -> None:
        """Moves the bar to ``step``."""
        if self._bar is not None:
            self._bar.set_postfix(figures, refresh=False)
            self._bar.update(step - self._bar.n)


class ProgressHook(Hook):
    """Moves a bar along with training."""

    every_n_steps = _REFRESH_STEPS

    def __init__(self, bar: ProgressBar) -> None:
        self._bar = bar

    def after_step(self, context: RunContext) -> None:
        self._bar.move_to(context.global_step, loss=f"{context.loss:.4g}")
