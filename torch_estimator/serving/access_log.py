"""The access log: one JSON object a request."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from typing import TYPE_CHECKING, TextIO

import orjson

from torch_estimator import files
from torch_estimator.errors import InvalidValueError
from torch_estimator.web.http import Scope

if TYPE_CHECKING:
    from torch_estimator.serving.app import Answered

logger = logging.getLogger("torch_estimator")


class AccessLog:
    """Writes one line of JSON for each request to a file, to stdout (``-``) or nowhere (None).

    Several processes may append to the same file.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._has_failed = False
        self._file: TextIO | None = None
        if path is None:
            return
        try:
            self._file = sys.stdout if path == "-" else open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115
        except OSError as error:
            raise InvalidValueError(f"the access log {path} cannot be opened: {files.reason(error)}.") from error

    def write(self, scope: Scope, answered: Answered, secs: float) -> None:
        """Write the line of one request."""
        if self._file is None:
            return
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "client": (scope.get("client") or [""])[0],
            "verb": scope["method"],
            "path": scope["path"],
            "status": answered.status,
            "model": answered.model,
            "version": answered.version,
            "instances": answered.instances,
            "milliseconds": round(secs * 1000, 3),
            "traceparent": answered.traceparent,
        }
        try:
            self._file.write(orjson.dumps(line).decode() + "\n")
        except OSError as error:
            # A full disk must not fail requests.
            if not self._has_failed:
                logger.warning("The access log %s cannot be written: %s", self._path, files.reason(error))
            self._has_failed = True
        else:
            self._has_failed = False

    def close(self) -> None:
        """Close the file."""
        if self._file is not None and self._file is not sys.stdout:
            with contextlib.suppress(OSError):
                self._file.close()
