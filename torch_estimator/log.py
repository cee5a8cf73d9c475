"""Log output of the package: printed to stderr, unless the program sets up logging itself.

In a cluster each line begins with the time and the role of the process. `LOG_FORMAT` names the formats.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any

from torch_estimator.cluster.environment import task_from_environment
from torch_estimator.errors import UserError

LOG_FORMAT = "TORCH_ESTIMATOR_LOG_FORMAT"
"""Environment variable: ``json`` for one JSON object per line, ``plain`` for lines without time and role."""


def log_format() -> str:
    """Return the format of log lines: ``json``, ``plain``, or another text for the default."""
    return os.environ.get(LOG_FORMAT, "")


def time_text(seconds: float | None = None) -> str:
    """Return a time (by default the current one) as log lines show it: local time with its offset from UTC."""
    seconds = time.time() if seconds is None else seconds
    local = time.localtime(seconds)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', local)}.{int(seconds % 1 * 1000):03}{time.strftime('%z', local)}"


def json_line(message: str, *, process: str, level: str = "INFO", seconds: float | None = None) -> str:
    """Return a log line as a JSON object."""
    return json.dumps({"time": time_text(seconds), "level": level, "process": process, "message": message})


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message = super().format(record)
        try:
            task = task_from_environment()
        except UserError:
            # RunConfig reports the mistake in the environment.
            role = ""
        else:
            role = str(task) if task.is_of_cluster else ""
        if log_format() == "json":
            return json_line(message, process=role, level=record.levelname, seconds=record.created)
        line = f"{record.levelname}:torch_estimator:{message}"
        return f"{time_text(record.created)} {role} {line}" if role and log_format() != "plain" else line


class _DefaultHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Handler that prints to the current ``sys.stderr`` unless the root logger has handlers."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(_Formatter())

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
