"""Numbers on a command line, checked before any work begins."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def at_least(smallest: int) -> Callable[[str], int]:
    """A type of argparse: integers from `smallest` on."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = smallest - 1
        if number < smallest:
            raise argparse.ArgumentTypeError(f"must be an integer of at least {smallest}, but got {text!r}")
        return number

    return parse


def positive(text: str) -> float:
    """A type of argparse: finite numbers above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, but got {text!r}")
    return number
