"""How many batches per second a training takes, by closed formulas over the mean times of a step.

    in step      every step waits for the slowest process, and then for the exchange of gradients:

                     rate = n / (max(computing_i + input_i) + network + saving)

    with servers a closed queueing network: n workers compute (think) and send a message to all servers at once, which
                 answer one after the other, so that the server with most to do counts. Mean value analysis, solved for
                 n workers (Schweitzer, 1979), here with a factor for how irregular the times are:

                     response = service * (1 + irregularity * (n - 1) * response / (thinking + response))
                     rate     = min(n / (thinking + response), 1 / service)

                 Irregularity 1 is for exponential times (the machine-repair model). With 0 nobody queues before a
                 server is saturated, as with constant times.

Where a thread reads ahead, reading is hidden behind all of this and only bounds it: rate <= n / reading.

Not everything in these formulas is recorded. `models_in_step` and `models_with_servers` return a model for each
assumption under which the recorded times are possible, the likeliest first. What they predict differs by the error of
the formula.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

Part = Literal["computing", "input", "servers", "network", "others", "saving"]
PARTS: tuple[Part, ...] = ("computing", "input", "servers", "network", "others", "saving")

# A server that has this much more to do than the mean holds a parameter that no further server would divide.
_UNEVEN = 1.3
_SATURATED = 1.02
_LEAST_SECS = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """Mean seconds of one step of a process, by what it did or waited for.

    `reading` is for how long a thread worked that reads ahead; 0 if there is none.
    """

    computing: float
    input: float
    reading: float
    servers: float
    others: float
    saving: float

    @property
    def total(self) -> float:
        """Seconds from step to step."""
        return self.computing + self.input + self.servers + self.others + self.saving


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of a training: one more worker or server, or a part of the time multiplied by a factor."""

    worker: bool = False
    server: bool = False
    part: Part | None = None
    factor: float = 1.0

    def of(self, part: Part) -> float:
        """Return the factor of a part."""
        return self.factor if part == self.part else 1.0


_NO_CHANGE = Change()


@dataclass(frozen=True, slots=True, kw_only=True)
class InStep:
    """A training in step, or of one process alone, for which `computing` and `input` are those of each process.

    With `reads_ahead`, the input is hidden. The time for the network grows with a power of the number of other
    processes.
    """

    computing: list[float]
    input: list[float]
    network: float
    saving: float
    reads_ahead: bool
    power: float

    def rate(self, change: Change = _NO_CHANGE) -> float:
        """Return the batches per second of all processes together, after a change.

        What a process takes longer than the median is time that the others wait, and no part of its own.
        """
        computing = _shortened(self.computing, change.of("computing"), change.of("others"))
        input = _shortened(self.input, change.of("input"), change.of("others"))
        network = self.network * change.of("network")
        saving = self.saving * change.of("saving")
        if change.worker:
            others = len(computing) - 1
            network = network * ((others + 1) / others) ** self.power if others else 0.0
            computing.append(statistics.median_low(computing))
            input.append(statistics.median_low(input))
        if self.reads_ahead:
            secs = max(max(computing) + network + saving, *input)
        else:
            secs = max(map(sum, zip(computing, input, strict=True))) + network + saving
        return len(computing) / secs


@dataclass(frozen=True, slots=True, kw_only=True)
class WithServers:
    """A training with parameter servers: mean times of all workers' steps, and of each server for one message."""

    workers: int
    mean: StepTimes
    servers: Sequence[float]
    network: float
    irregularity: float

    def rate(self, change: Change = _NO_CHANGE) -> float:
        """Return the batches per second of all workers together, after a change.

        To one more server the others hand over its share of the parameters.
        """
        mean, workers, service = self.mean, self.workers + change.worker, max(self.servers)
        if change.server:
            share = sum(self.servers) / (len(self.servers) + 1)
            is_even = service < _UNEVEN * statistics.fmean(self.servers)
            service = share if is_even else max(share, service)
        service *= change.of("servers")
        input = (mean.reading or mean.input) * change.of("input")
        thinking = (
            mean.computing * change.of("computing")
            + self.network * change.of("network")
            + mean.others * change.of("others")
            + mean.saving * change.of("saving")
        )
        if not mean.reading:
            return closed_network(workers, thinking + input, service, self.irregularity)
        return min(closed_network(workers, thinking, service, self.irregularity), workers / input)


Model = InStep | WithServers
M = TypeVar("M", InStep, WithServers)


def closed_network(workers: int, thinking: float, service: float, irregularity: float) -> float:
    """Return the rate of a closed network of one station; see the formula above, of which this is the root."""
    most = service * (1 + irregularity * (workers - 1)) - thinking
    response = (most + math.sqrt(most**2 + 4 * service * thinking)) / 2
    rate = workers / max(thinking + response, _LEAST_SECS)
    return min(rate, 1 / service) if service else rate


def models_in_step(processes: Sequence[StepTimes]) -> list[InStep]:
    """Return the models under which processes in step have these times.

    The process that waits least is the one for which the others wait. Its own wait is for messages, one of each other
    process; and for those that are slower now and then, which grows less with their number.
    """
    saving = max(one.saving for one in processes)
    reads_ahead = any(one.reading for one in processes)
    model = InStep(
        computing=[one.computing for one in processes],
        input=[one.reading if reads_ahead else one.input for one in processes],
        network=max(0.0, min(one.others - (saving - one.saving) for one in processes)),
        saving=saving,
        reads_ahead=reads_ahead,
        power=1.0,
    )
    return [*_with_any_network(model), *_with_any_network(replace(model, power=0.5))]


def models_with_servers(workers: int, mean: StepTimes, servers: Sequence[float]) -> list[WithServers]:
    """Return the models under which steps have these times, and a message takes each server so long.

    A worker waits for the network, in queues and for the servers' work; only the sum and the work are recorded.
    """
    service = max(servers)
    # For how many of the other workers the busiest server works at a time.
    others = (workers - 1) * service / mean.total
    # Queues explain the whole wait, or as much of it as they can.
    most = min(1.0, (1 - service / mean.servers) / others) if others and mean.servers > service else 0.0
    found = []
    for irregularity in (most, 0.0):
        # Below zero, this is by how much pipelined steps compute while servers work for them.
        network = mean.servers - service / (1 - irregularity * others)
        model = WithServers(workers=workers, mean=mean, servers=servers, network=network, irregularity=irregularity)
        found += _with_any_network(model)
    return found


def _with_any_network(model: M) -> list[M]:
    """Return a model; and others with a faster network if that changes nothing, as servers or the input are at work."""
    fastest = replace(model, network=0.0)
    if model.network <= 0 or fastest.rate() > _SATURATED * model.rate():
        return [model]
    return [replace(model, network=model.network / 2), model, fastest]


def _shortened(values: Sequence[float], factor: float, factor_above: float) -> list[float]:
    """Return values whose part up to their median is multiplied by one factor, and the rest by another."""
    middle = statistics.median_low(values)
    return [min(one, middle) * factor + max(0.0, one - middle) * factor_above for one in values]
