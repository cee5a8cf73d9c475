"""Log output: visible on stderr by default, and left to the program as soon as it sets up logging itself."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any


class _DefaultHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Handler that prints to the current ``sys.stderr`` unless the root logger has handlers."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter("%(levelname)s:torch_estimator:%(message)s"))

    @property
    def stream(self) -> object:
        return sys.stderr

    def filter(self, record: logging.LogRecord) -> Any:
        return not logging.getLogger().handlers and super().filter(record)


def set_up_logging() -> None:
    """Show the package's log lines from INFO on.

    Change the level with ``logging.getLogger("torch_estimator").setLevel``.
    """
    # Without this, torch prints a C++ stack trace for each lost connection; the package logs one sentence instead. It
    # has an effect only if torch is imported later.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    logger = logging.getLogger("torch_estimator")
    if not any(isinstance(handler, _DefaultHandler) for handler in logger.handlers):
        logger.addHandler(_DefaultHandler())
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
