"""Errors that are answers to requests."""

from __future__ import annotations

import errno
import socket


class RequestError(Exception):
    """A request cannot be answered as it is.

    The message is one sentence for the client; `retry_secs` is sent as ``Retry-After``, and `allow`, the methods that
    the path takes, as ``Allow``.
    """

    def __init__(self, status: int, message: str, *, retry_secs: int | None = None, allow: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_secs = retry_secs
        self.allow = allow


def option_to_change(error: Exception, port: str) -> str:
    """Return which option of the command line to change if the server cannot listen on its address."""
    is_host = isinstance(error, socket.gaierror) or getattr(error, "errno", None) == errno.EADDRNOTAVAIL
    return "--host" if is_host else port
