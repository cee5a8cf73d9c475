"""Time that goes from event to event, and what can be busy."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable

from benchmarks.simulation.costs import Machine

Event = Callable[[], object]


class Clock:
    """Runs events in the order of their times.

    Attributes:
        now: Seconds since the beginning.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Event]] = []
        self._order = itertools.count()

    def after(self, secs: float, event: Event) -> None:
        """Has an event come so many seconds from now; of those at the same time, the one that was told of first."""
        heapq.heappush(self._events, (self.now + secs, next(self._order), event))

    def run_until(self, is_so: Callable[[], bool]) -> None:
        """Runs events until something is so, or there are none left."""
        while self._events and not is_so():
            self.now, _, event = heapq.heappop(self._events)
            event()


class Line:
    """Does one thing after the other, in the order of their coming: a thread with a core of its own, a network card.

    Args:
        clock: Of the simulation.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._free_at = 0.0
        self._told_secs = 0.0

    @property
    def busy_secs(self) -> float:
        """For how long it has been busy."""
        return self._told_secs - max(0.0, self._free_at - self._clock.now)

    def take(self, secs: float) -> float:
        """Keeps it busy for so many seconds after all that it was told before; gives the seconds until they begin."""
        now = self._clock.now
        begins = max(self._free_at, now)
        self._free_at = begins + secs
        self._told_secs += secs
        return begins - now

    def do(self, secs: float, done: Event) -> None:
        """Does something that takes so many seconds."""
        self._clock.after(self.take(secs) + secs, done)


class Cores:
    """Those that many threads share, a short turn each, as a system that is fair has it.

    Args:
        clock: Of the simulation.
        machine: How many there are.
        turn: Seconds after which a thread lets the next one have the core.
    """

    def __init__(self, clock: Clock, machine: Machine, *, turn: float = 50e-6) -> None:
        self._clock = clock
        self._free = machine.cores
        self._crowding = machine.crowding
        self._turn = turn
        self._waiting: deque[tuple[float, Event]] = deque()

    def run(self, secs: float, done: Event) -> None:
        """Runs for so many seconds, as soon as there is a core and as often as it takes."""
        if self._free:
            self._begin(secs, done)
        else:
            self._waiting.append((secs, done))

    def _begin(self, secs: float, done: Event) -> None:
        self._free -= 1
        turn = min(secs, self._turn)
        self._clock.after(turn if self._free else turn * self._crowding, lambda: self._end(secs - turn, done))

    def _end(self, left: float, done: Event) -> None:
        self._free += 1
        if left > 0.0:
            self._waiting.append((left, done))
        if self._waiting:
            self._begin(*self._waiting.popleft())
        if left <= 0.0:
            done()


class Thread:
    """Does one thing after the other on cores that it shares.

    Args:
        cores: Of its machine.

    Attributes:
        busy_secs: What it was given to do, in seconds.
    """

    def __init__(self, cores: Cores) -> None:
        self.busy_secs = 0.0
        self._cores = cores
        self._todo: deque[tuple[float, Event]] = deque()

    def do(self, secs: float, done: Event) -> None:
        """Does something that takes so many seconds, after all that it was told before."""
        self._todo.append((secs, done))
        if len(self._todo) == 1:
            self._next()

    def _next(self) -> None:
        secs, _ = self._todo[0]
        self.busy_secs += secs
        self._cores.run(secs, self._done)

    def _done(self) -> None:
        _, done = self._todo.popleft()
        if self._todo:
            self._next()
        done()


def threads_of(clock: Clock, machine: Machine | None) -> Callable[[], Line | Thread]:
    """Makes threads: on the cores of one machine, or each on one of its own."""
    if machine is None:
        return lambda: Line(clock)
    cores = Cores(clock, machine)
    return lambda: Thread(cores)
