"""Sides measured in turn, A B A B, so that what the machine does meanwhile meets all of them alike."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.protocol.side import SideError

Result = Mapping[str, Any]


@dataclass(slots=True)
class Measured:
    """What every side reported, round by round, and why sides were given up, by name of the side."""

    results: dict[str, list[Result]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def values(self, side: str, key: str) -> list[float]:
        """What a side reported as `key`, by round; empty where it did not."""
        return [result[key] for result in self.results.get(side, []) if result.get(key) is not None]

    def median(self, side: str, key: str) -> float | None:
        """The median over the rounds; None where there is nothing."""
        values = self.values(side, key)
        return statistics.median(values) if values else None

    def ratio(self, key: str, over: str, under: str) -> float | None:
        """The median over rounds of one side's value divided by another side's in the same round."""
        pairs = zip(self.values(over, key), self.values(under, key), strict=False)
        ratios = [one / other for one, other in pairs]
        return statistics.median(ratios) if ratios else None

    def versions(self) -> dict[str, str]:
        """The version of every library that reported one, by the name that it reported, else that of the side."""
        first = {side: results[0] for side, results in self.results.items() if results}
        return {
            str(result.get("peer", side)): str(result["version"])
            for side, result in first.items()
            if "version" in result
        }


def alternate(sides: Mapping[str, Callable[[], Result]], rounds: int, progress: str = "") -> Measured:
    """Measure every side once a round; a side that fails is named on standard error, and left out from then on.

    `sides` has, by name, what runs a side once. Each run is announced on standard error, after the text `progress`.
    """
    measured = Measured()
    for number in range(1, rounds + 1):
        for name in _alive(sides, measured):
            print(f"{progress} {number}/{rounds}: {name}", file=sys.stderr, flush=True)
            try:
                measured.results.setdefault(name, []).append(sides[name]())
            except SideError as error:
                print(f"{name} is left out: {error}", file=sys.stderr, flush=True)
                measured.failures[name] = str(error)
                del measured.results[name]
    return measured


def _alive(sides: Iterable[str], measured: Measured) -> list[str]:
    return [name for name in sides if name not in measured.failures]
