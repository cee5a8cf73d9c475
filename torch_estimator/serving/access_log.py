"""The access log: one JSON object a request."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

import orjson

from torch_estimator.serving.http import Scope

if TYPE_CHECKING:
    from torch_estimator.serving.app import Answered


class AccessLog:
    """Writes one line of JSON for each request.

    Args:
        path: The file, ``-`` for stdout, or None for no log. Several processes may append to the same file.
    """

    def __init__(self, path: str | None) -> None:
        self._file: TextIO | None = None
        if path is not None:
            self._file = sys.stdout if path == "-" else open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115

    def write(self, scope: Scope, answered: Answered, secs: float) -> None:
        """Write the line of one request.

        Args:
            scope: The request.
            answered: What it was for.
            secs: Seconds that it took.
        """
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
        self._file.write(orjson.dumps(line).decode() + "\n")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None and self._file is not sys.stdout:
            self._file.close()
