"""Whether what was promised holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.protocol.table import number


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One promise and what was measured.

    `what` was measured, with the unit if it has one; `value` is None if it could not be. `upper` says whether `limit`
    is the most, not the least. `digits` are places after the point; None for three significant figures.
    """

    what: str
    value: float | None
    limit: float
    upper: bool
    digits: int | None = None

    @property
    def holds(self) -> bool | None:
        """None where nothing was measured."""
        if self.value is None:
            return None
        return self.value <= self.limit if self.upper else self.value >= self.limit

    def __str__(self) -> str:
        if self.holds is None:
            return self.measured()
        return f"{self.measured()}, {'holds' if self.holds else 'DOES NOT HOLD'}"

    def measured(self) -> str:
        """What was promised and measured, without a judgement."""
        promised = f"{self.what}: {'at most' if self.upper else 'at least'} {self.limit:g}"
        if self.value is None:
            return f"{promised}: not measured"
        return f"{promised}: {number(self.value) if self.digits is None else f'{self.value:.{self.digits}f}'}"


def at_least(what: str, limit: float, value: float | None, digits: int | None = None) -> Verdict:
    """
    >>> print(at_least("steps/s over TF 2.15", 8, 9.31))
    steps/s over TF 2.15: at least 8: 9.31, holds
    >>> print(at_least("AUC", 0.9099, 0.90512, digits=4))
    AUC: at least 0.9099: 0.9051, DOES NOT HOLD
    """
    return Verdict(what=what, value=value, limit=limit, upper=False, digits=digits)


def at_most(what: str, limit: float, value: float | None, digits: int | None = None) -> Verdict:
    """
    >>> print(at_most("seconds to the first step", 6, None))
    seconds to the first step: at most 6: not measured
    """
    return Verdict(what=what, value=value, limit=limit, upper=True, digits=digits)


def conclude(verdicts: Sequence[Verdict], *, failed: Sequence[str] = (), quick: bool = False) -> int:
    """Prints the verdicts and gives the exit status: 1 where a promise does not hold or a side failed.

    A promise that was not measured, since its peer was left out, counts neither way. A quick run is too short to
    judge by: only a side that failed makes its status 1.
    """
    if quick:
        print("A quick run, too short to judge by:")
    for verdict in verdicts:
        print(verdict.measured() if quick else verdict)
    broken = not quick and any(verdict.holds is False for verdict in verdicts)
    return int(broken or bool(failed))
