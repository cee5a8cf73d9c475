"""Larger clusters, simulated from what was measured in small ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.simulation import replicas, served
from benchmarks.simulation.costs import Exchange, Network, Worker

_LINEAR = 0.9
_SHORT = 0.9
_FEW_MESSAGES = 4000


@dataclass(frozen=True, slots=True)
class Curve:
    """Batches per second by how many train.

    Attributes:
        rates: By workers.
        busy: By workers, the share of the time in which the busiest of its kind was busy.
    """

    rates: Mapping[int, float]
    busy: Mapping[int, Mapping[str, float]]

    @property
    def linear_to(self) -> int:
        """The most workers that have nine tenths of as many times the rate of the fewest, as have all fewer ones."""
        fewest = min(self.rates)
        most = fewest
        for workers in sorted(self.rates):
            if self.rates[workers] < _LINEAR * self.rates[fewest] * workers / fewest:
                break
            most = workers
        return most

    @property
    def bottleneck(self) -> str | None:
        """What is busy nearly all of the time with the most workers."""
        busy = self.busy.get(max(self.rates), {})
        short = [kind for kind, share in busy.items() if share >= _SHORT]
        return max(short, key=lambda kind: busy[kind]) if short else None


def served_curve(worker: Worker, exchanges: Sequence[Exchange], network: Network, workers: Sequence[int]) -> Curve:
    """Asynchronous training with parameter servers."""
    found = {
        count: served.train(
            worker,
            exchanges,
            network,
            workers=count,
            rounds=6 if count * len(exchanges) < _FEW_MESSAGES else 2,
        )
        for count in workers
    }
    return Curve(
        {count: one.steps_per_s for count, one in found.items()}, {count: one.busy for count, one in found.items()}
    )


def replicas_curve(
    worker: Worker,
    size: float,
    network: Network,
    workers: Sequence[int],
    *,
    call: float,
    update: Callable[[int], float],
    reduces: bool,
) -> Curve:
    """Synchronous training: batches of all workers together.

    Args:
        worker: Each of them.
        size: Bytes of a worker's message.
        network: Between neighbours.
        workers: How many.
        call: Seconds of work at both ends of a message.
        update: Seconds of an update, by workers.
        reduces: Whether messages are added up on their way, not collected.
    """
    rates = {
        count: count
        * replicas.train(worker, size, network, workers=count, call=call, update=update(count), reduces=reduces)
        for count in workers
    }
    return Curve(rates, {})
