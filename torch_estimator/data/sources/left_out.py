"""Rows that are left out with `ignore_errors`: which they are, and one line of the log about them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import pyarrow as pa

from torch_estimator.errors import RowError

logger = logging.getLogger("torch_estimator")

Damage = tuple[int, int, str]
"""The number of a file, a position in it, and why the row there is left out."""


class LeftOut:
    """The rows that a reader has left out. Each is logged once, although it is read in every epoch.

    `noun` is what a row is called; `named` is a function from the number of a file and a position in it to their names
    in a message.
    """

    def __init__(self, noun: str, named: Callable[[int, int], str]) -> None:
        self._noun = noun
        self._named = named
        self._known: set[tuple[int, int]] = set()

    def report(self, damage: Sequence[Damage]) -> None:
        """Log how many rows were left out that were not logged before, and the first of them."""
        new = [one for one in damage if one[:2] not in self._known]
        if not new:
            return
        self._known.update(one[:2] for one in new)
        file, position, reason = new[0]
        logger.warning(
            "Left out %d %s%s, %d so far; the first of these is %s: %s.",
            len(new),
            self._noun,
            "" if len(new) == 1 else "s",
            len(self._known),
            self._named(file, position),
            reason,
        )


def reason(error: RowError) -> str:
    """Return the reason for which a row is left out: its column and what is wrong there."""
    return f"column {error.column!r}: {error.problem}"


def wrong_rows(rows: int, use: Callable[[int, int], object]) -> dict[int, RowError | pa.ArrowInvalid]:
    """Return the rows that cannot be used, and why, by halving until each part can be used or is a single row.

    ``use(start, stop)`` raises an error if one of these rows cannot be used; `stop` is exclusive.
    """
    wrong: dict[int, RowError | pa.ArrowInvalid] = {}

    def halve(start: int, stop: int) -> None:
        try:
            use(start, stop)
        except (RowError, pa.ArrowInvalid) as error:
            if stop - start == 1:
                wrong[start] = error
                return
            middle = (start + stop) // 2
            halve(start, middle)
            halve(middle, stop)

    halve(0, rows)
    return wrong
