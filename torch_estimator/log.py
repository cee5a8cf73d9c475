"""Where log lines go: to the program's own logging where it has one, else to stderr, to be watched."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any


class _DefaultHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Prints to today's stderr, unless the program has set up logging itself."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter("%(levelname)s:torch_estimator:%(message)s"))

    @property
    def stream(self) -> object:
        return sys.stderr

    def filter(self, record: logging.LogRecord) -> Any:
        return not logging.getLogger().handlers and super().filter(record)


def set_up_logging() -> None:
    """Makes the package's INFO lines visible; ``logging.getLogger("torch_estimator").setLevel`` changes what is.

    Where torch is imported later, it shows no stack of a connection that is lost; the package says so in a sentence.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    logger = logging.getLogger("torch_estimator")
    if not any(isinstance(handler, _DefaultHandler) for handler in logger.handlers):
        logger.addHandler(_DefaultHandler())
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
