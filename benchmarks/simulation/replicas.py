"""Workers that train synchronously, each with its neighbour in a ring."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.simulation.clock import Clock, threads_of
from benchmarks.simulation.costs import Machine, Network, Worker

_STEPS = 12


def all_gather(began: Sequence[float], size: float, network: Network, *, call: float = 0.0) -> list[float]:
    """When each has what all of them sent, `size` bytes each: what it got last, each hands on to the next.

    Args:
        began: When each one came.
        size: Bytes of one's message.
        network: Between neighbours.
        call: Seconds of work at both ends of a message.
    """
    return _round_the_ring(began, len(began) - 1, size, network, call)


def all_reduce(began: Sequence[float], size: float, network: Network, *, call: float = 0.0) -> list[float]:
    """When each has the sum of all, `size` bytes: once round the ring to add up its pieces, once more to hand them on.

    See `all_gather`.
    """
    count = len(began)
    return _round_the_ring(began, 2 * (count - 1), size / count, network, call)


def _round_the_ring(began: Sequence[float], rounds: int, size: float, network: Network, call: float) -> list[float]:
    hop = network.latency + call + size / network.bytes_per_s
    at = list(began)
    for _ in range(rounds):
        # Nobody can hand on what the one before has not got, nor get two at once.
        at = [max(mine, before) + hop for mine, before in zip(at, [at[-1], *at[:-1]], strict=True)]
    return at


def train(
    worker: Worker,
    size: float,
    network: Network,
    *,
    workers: int,
    call: float,
    update: float,
    reduces: bool = False,
    machine: Machine | None = None,
    steps: int = _STEPS,
) -> float:
    """Steps per second, each of one batch of every worker.

    Args:
        worker: Each of them.
        size: Bytes of a worker's message.
        network: Between neighbours.
        workers: How many.
        call: See `all_gather`.
        update: Seconds from what was received to the next batch.
        reduces: Whether messages are added up on their way, not collected.
        machine: On which all processes run; None gives each one of its own.
        steps: How many to take.
    """
    exchange = partial(all_reduce if reduces else all_gather, size=size, network=network, call=call)
    return _Replicas(worker, workers, machine, exchange, update).steps_per_s(steps)


class _Replicas:
    def __init__(
        self,
        worker: Worker,
        workers: int,
        machine: Machine | None,
        exchange: Callable[[Sequence[float]], list[float]],
        update: float,
    ) -> None:
        self._clock = clock = Clock()
        threads = threads_of(clock, machine)
        self._worker = worker
        self._threads = [threads() for _ in range(workers)]
        self._inputs = [threads() for _ in range(workers)]
        self._exchange = exchange
        self._update = update
        self._draw = random.Random(0)
        self._ready: dict[int, float] = {}
        self._steps = [0] * workers

    def steps_per_s(self, steps: int) -> float:
        for one in range(len(self._threads)):
            self._begin(one)
        self._clock.run_until(lambda: min(self._steps) >= steps)
        return steps / self._clock.now

    def _begin(self, one: int) -> None:
        if self._worker.pause:
            self._clock.after(self._worker.pause, lambda: self._train(one))
        else:
            self._train(one)

    def _train(self, one: int) -> None:
        self._threads[one].do(self._draw.choice(self._worker.compute), lambda: self._computed(one))
        self._inputs[one].do(self._worker.beside, lambda: None)

    def _computed(self, one: int) -> None:
        self._ready[one] = self._clock.now
        if len(self._ready) == len(self._threads):
            began = [self._ready[each] for each in range(len(self._threads))]
            self._ready.clear()
            for each, at in enumerate(self._exchange(began)):
                self._clock.after(max(0.0, at - self._clock.now), partial(self._received, each))

    def _received(self, one: int) -> None:
        self._threads[one].do(self._update, lambda: self._end(one))

    def _end(self, one: int) -> None:
        self._steps[one] += 1
        self._begin(one)
