"""Workers that train with asynchronous parameter servers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.simulation.clock import Clock, Event, Line, Thread, threads_of
from benchmarks.simulation.costs import Exchange, Machine, Network, Worker

_LEAST_MESSAGES = 2000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulated cluster does.

    Attributes:
        steps_per_s: Of all workers together.
        busy: By what may be short, the share of the time in which the busiest of its kind was busy.
    """

    steps_per_s: float
    busy: dict[str, float]


def train(
    worker: Worker,
    exchanges: Sequence[Exchange],
    network: Network,
    *,
    workers: int,
    pipeline: bool = False,
    machine: Machine | None = None,
    rounds: int = 6,
) -> Outcome:
    """Lets workers train; counts `rounds` steps of each, some thousand messages at least, after half as many more.

    Args:
        worker: Each of them.
        exchanges: With each server.
        network: Between any two processes.
        workers: How many.
        pipeline: Whether a worker computes while its gradients are on their way.
        machine: On which all processes run; None gives each one of its own with as many cores as it has threads.
    """
    clock = Clock()
    threads = threads_of(clock, machine)
    draw = random.Random(0)
    servers = [_Process(clock, threads) for _ in exchanges]
    steps = 0

    def stepped() -> None:
        nonlocal steps
        steps += 1

    period = sum(worker.compute) / len(worker.compute) + worker.pause
    for _ in range(workers):
        trainer = _Trainer(clock, threads, worker, exchanges, network, servers, pipeline, draw, stepped)
        # Not all at once, as nobody starts a cluster.
        clock.after(draw.random() * period, trainer.step)
    counted = max(rounds * workers, _LEAST_MESSAGES // len(exchanges))
    clock.run_until(lambda: steps >= counted // 2)
    began, before, had = clock.now, steps, [one.busy() for one in servers]
    clock.run_until(lambda: steps >= before + counted)
    took = clock.now - began
    busy = {
        kind: max((one.busy()[kind] - then[kind]) / took for one, then in zip(servers, had, strict=True))
        for kind in had[0]
    }
    return Outcome((steps - before) / took, busy)


class _Process:
    def __init__(self, clock: Clock, threads: Callable[[], Line | Thread]) -> None:
        self.thread, self.io, self.input = threads(), threads(), threads()
        self.into, self.out = Line(clock), Line(clock)

    def busy(self) -> dict[str, float]:
        return {
            "server's thread": self.thread.busy_secs,
            "server's transport": self.io.busy_secs,
            "server's network": max(self.into.busy_secs, self.out.busy_secs),
        }


class _Trainer(_Process):
    def __init__(
        self,
        clock: Clock,
        threads: Callable[[], Line | Thread],
        worker: Worker,
        exchanges: Sequence[Exchange],
        network: Network,
        servers: Sequence[_Process],
        pipeline: bool,
        draw: random.Random,
        stepped: Event,
    ) -> None:
        super().__init__(clock, threads)
        self._clock = clock
        self._worker = worker
        self._network = network
        self._pipeline = pipeline
        self._draw = draw
        self._stepped = stepped
        self._pack = sum(one.pack for one in exchanges)
        self._unpack = sum(one.unpack for one in exchanges)
        self._roads = [self._road(one, server) for one, server in zip(exchanges, servers, strict=True)]
        self._sent = 0
        self._answered = [0] * len(self._roads)
        self._waits = False

    def step(self) -> None:
        """Takes one, and then the next, for ever."""
        if self._worker.pause:
            self._clock.after(self._worker.pause, self._train)
        else:
            self._train()

    def _train(self) -> None:
        self.thread.do(self._draw.choice(self._worker.compute) + self._pack, self._send)
        self.input.do(self._worker.beside, _nothing)

    def _send(self) -> None:
        self._sent += 1
        self.thread.stays_awake = True
        for index, road in enumerate(self._roads):
            _go(road, partial(self._came, index))
        self._waits = True
        self._look()

    def _came(self, index: int) -> None:
        self._answered[index] += 1
        self._look()

    def _look(self) -> None:
        # Pipelined, the next step needs what was asked for before the last message.
        if self._waits and min(self._answered) >= self._sent - self._pipeline:
            self._waits = self.thread.stays_awake = False
            self.thread.do(self._unpack, self._end)

    def _end(self) -> None:
        self._stepped()
        self.step()

    def _road(self, exchange: Exchange, server: _Process) -> list[Callable[[Event], None]]:
        """All that a message and its answer go through."""
        return [
            partial(self.io.do, exchange.worker_io / 2),
            partial(self._carry, exchange.up, self, server),
            partial(server.io.do, exchange.server_io / 2),
            lambda done: server.thread.do(self._draw.choice(exchange.handle), done),
            partial(server.io.do, exchange.server_io / 2),
            partial(self._carry, exchange.down, server, self),
            partial(self.io.do, exchange.worker_io / 2),
        ]

    def _carry(self, size: float, source: _Process, target: _Process, done: Event) -> None:
        """The first byte arrives while the last is still to be sent."""
        secs = size / self._network.bytes_per_s
        if not secs and not self._network.latency:
            # Within one machine the sender itself wakes who receives it.
            done()
            return
        latency = source.out.take(secs) + self._network.latency
        self._clock.after(latency, lambda: target.into.do(secs, done))


def _go(road: Sequence[Callable[[Event], None]], done: Event, at: int = 0) -> None:
    if at == len(road):
        done()
    else:
        road[at](lambda: _go(road, done, at + 1))


def _nothing() -> None:
    pass
