"""Log output of the package: printed to stderr, unless the program sets up logging itself."""

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
    """Print the package's log lines of level INFO and higher to stderr.

    Change the level with ``logging.getLogger("torch_estimator").setLevel``.
    """
    # Keep torch from printing a C++ stack trace for each lost connection, since the package logs a sentence about it.
    # The variable has an effect only if torch is imported later.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    logger = logging.getLogger("torch_estimator")
    if not any(isinstance(handler, _DefaultHandler) for handler in logger.handlers):
        logger.addHandler(_DefaultHandler())
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
