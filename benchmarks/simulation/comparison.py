"""Simulated steps per second beside those that were measured on one machine."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.protocol import Measured
from benchmarks.simulation import replicas, served
from benchmarks.simulation.costs import Machine, Network
from benchmarks.simulation.measured import SLEEP_MS, TOGETHER, WAYS, exchanges_of, side_of, worker_of


@dataclass(frozen=True, slots=True)
class Compared:
    """Steps per second of one kind of cluster.

    Attributes:
        way: How it trains.
        workers: How many train.
        measured: By round.
        simulated: By round, from costs measured in the same run.
    """

    way: str
    workers: int
    measured: Sequence[float]
    simulated: Sequence[float]

    @staticmethod
    def middle(rates: Sequence[float]) -> float | None:
        """The median over rounds."""
        return statistics.median(rates) if rates else None

    @property
    def error(self) -> float | None:
        """By how many hundredths the simulation is off, more or less: the median over rounds."""
        errors = [100 * (told / real - 1) for told, real in zip(self.simulated, self.measured, strict=False)]
        return statistics.median(errors) if errors else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """What all processes share.

    Attributes:
        machine: Its cores; between them, a message takes no time but the work of the two transports.
        call: Seconds of a collective of two processes that carries nothing.
    """

    machine: Machine
    call: float


def compare(measured: Measured, here: Here) -> list[Compared]:
    """Simulates all that was measured."""
    compared = []
    for way in WAYS:
        for workers in (1, 2):
            reports = measured.results.get(side_of(way, workers), [])
            told = [_served(report, here, way, workers) for report in reports]
            compared.append(Compared(way, workers, [workers / report["wall"] for report in reports], told))
    reports = measured.results.get(side_of(TOGETHER, 2), [])
    told = [_together(report, here) for report in reports]
    return [*compared, Compared(TOGETHER, 2, [1 / report["wall"] for report in reports], told)]


def _served(report: Mapping[str, Any], here: Here, way: str, workers: int) -> float:
    exchanges = exchanges_of(report)
    pause = SLEEP_MS / 1000 if SLEEP_MS in WAYS[way] else 0.0
    return served.train(
        worker_of(report, pause=pause),
        exchanges,
        Network(),
        workers=workers,
        pipeline=way == "pipelined",
        machine=here.machine,
        rounds=2000,
    ).steps_per_s


def _together(report: Mapping[str, Any], here: Here) -> float:
    return replicas.train(
        worker_of(report),
        report["message"]["bytes"],
        Network(),
        workers=2,
        call=report["stages"]["gather"],
        update=update_secs(report, 2),
        machine=here.machine,
        steps=2000,
    )


def update_secs(report: Mapping[str, Any], workers: int) -> float:
    """Seconds that a synchronous worker takes from what it received to its next batch."""
    two = report["stages"]["exchange"] + report["stages"]["update"]
    return float(two + (workers - 2) * report["message"]["each"])
