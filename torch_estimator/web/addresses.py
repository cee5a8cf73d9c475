"""Addresses of other sites, to which pages link."""

from __future__ import annotations

import re

from torch_estimator.errors import InvalidValueError


def checked_address(name: str, given: str) -> str:
    """Return the address of another site, without a slash at its end, or raise an InvalidValueError if it is none.

    >>> checked_address("--server", "http://127.0.0.1:8501/")
    'http://127.0.0.1:8501'
    """
    if re.fullmatch(r"https?://[^\s\"'<>]+", given) is None:
        raise InvalidValueError(f"{name} must be an address such as http://127.0.0.1:8501, but got {given!r}.")
    return given.rstrip("/")
