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
from typing import Any, Literal, TypeVar

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
class InStep:
    """A training in step, or of one process alone, for which `computing` and `input` are those of each process.

    With `reads_ahead`, the input is hidden. The time for the network grows with a power of the number of other
    processes.
    """

    computing: tuple[float, ...]
    input: tuple[float, ...]
    network: float
    saving: float
    reads_ahead: bool
    power: float

    def rate(self) -> float:
        """Return the batches per second of all processes together."""
        if self.reads_ahead:
            secs = max(max(self.computing) + self.network + self.saving, *self.input)
        else:
            secs = max(map(sum, zip(self.computing, self.input, strict=True))) + self.network + self.saving
        return len(self.computing) / secs

    def shorter(self, part: Part, factor: float) -> InStep:
        """Return the training with a part of the time multiplied by a factor.

        What a process takes longer than the median is time that the others wait, and no part of its own.
        """
        if part == "computing":
            return replace(self, computing=_shortened(self.computing, factor, 1.0))
        if part == "input":
            return replace(self, input=_shortened(self.input, factor, 1.0))
        if part == "others":
            computing, input = (_shortened(values, 1.0, factor) for values in (self.computing, self.input))
            return replace(self, computing=computing, input=input)
        if part == "network":
            return replace(self, network=self.network * factor)
        return replace(self, saving=self.saving * factor) if part == "saving" else self

    def with_worker(self) -> InStep:
        """Return the training with one more process."""
        count = len(self.computing)
        return replace(
            self,
            computing=(*self.computing, statistics.median_low(self.computing)),
            input=(*self.input, statistics.median_low(self.input)),
            network=self.network * (count / (count - 1)) ** self.power if count > 1 else 0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WithServers:
    """A training with parameter servers: mean times of all workers' steps, and of each server for one message."""

    workers: int
    computing: float
    input: float
    servers: tuple[float, ...]
    network: float
    others: float
    saving: float
    reads_ahead: bool
    irregularity: float

    def rate(self) -> float:
        """Return the batches per second of all workers together."""
        thinking = self.computing + self.network + self.others + self.saving
        if not self.reads_ahead:
            return closed_network(self.workers, thinking + self.input, max(self.servers), self.irregularity)
        rate = closed_network(self.workers, thinking, max(self.servers), self.irregularity)
        return min(rate, self.workers / self.input)

    def shorter(self, part: Part, factor: float) -> WithServers:
        """Return the training with a part of the time multiplied by a factor."""
        if part == "servers":
            return replace(self, servers=_times(self.servers, factor))
        shorter: dict[str, Any] = {part: getattr(self, part) * factor}
        return replace(self, **shorter)

    def with_worker(self) -> WithServers:
        """Return the training with one more worker."""
        return replace(self, workers=self.workers + 1)

    def with_server(self) -> WithServers:
        """Return the training with one more server, to which the others hand over their share of the parameters."""
        count, most = len(self.servers), max(self.servers)
        share = sum(self.servers) / (count + 1)
        is_even = most < _UNEVEN * sum(self.servers) / count
        return replace(self, servers=(share if is_even else max(share, most),) * (count + 1))


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
        computing=tuple(one.computing for one in processes),
        input=tuple(one.reading if reads_ahead else one.input for one in processes),
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
    model = WithServers(
        workers=workers,
        computing=mean.computing,
        input=mean.reading or mean.input,
        servers=tuple(servers),
        network=0.0,
        others=mean.others,
        saving=mean.saving,
        reads_ahead=mean.reading > 0,
        irregularity=0.0,
    )
    # Queues explain the whole wait, or as much of it as they can.
    most = min(1.0, (1 - service / mean.servers) / others) if others and mean.servers > service else 0.0
    found = []
    for irregularity in (most, 0.0):
        # Below zero, this is by how much pipelined steps compute while servers work for them.
        network = mean.servers - service / (1 - irregularity * others)
        found += _with_any_network(replace(model, network=network, irregularity=irregularity))
    return found


def _with_any_network(model: M) -> list[M]:
    """Return a model; and others with a faster network if that changes nothing, as servers or the input are at work."""
    fastest = replace(model, network=0.0)
    if model.network <= 0 or fastest.rate() > _SATURATED * model.rate():
        return [model]
    return [replace(model, network=model.network / 2), model, fastest]


def _times(values: Sequence[float], factor: float) -> tuple[float, ...]:
    return tuple(value * factor for value in values)


def _shortened(values: Sequence[float], factor: float, factor_above: float) -> tuple[float, ...]:
    """Return values whose part up to their median is multiplied by one factor, and the rest by another."""
    middle = statistics.median_low(values)
    return tuple(min(one, middle) * factor + max(0.0, one - middle) * factor_above for one in values)
