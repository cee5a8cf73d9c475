"""Time that goes from event to event, and what can be busy."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable

from benchmarks.simulation.costs import Machine

Event = Callable[[], object]

_TURN_SECS = 50e-6


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


class Station:
    """Serves so many at a time, in the order of their coming: cores, or a network card.

    Args:
        clock: Of the simulation.
        places: How many it serves at once.
        crowding: By how much all that it does takes longer where none of several places is free.
        turn: Seconds after which a thread lets the next one have the core.

    Attributes:
        turn: The same.
        busy_secs: What it has served, in seconds of one place.
    """

    def __init__(self, clock: Clock, places: float = 1, *, crowding: float = 1.0, turn: float = math.inf) -> None:
        self.turn = turn
        self.busy_secs = 0.0
        self._clock = clock
        self._free = places
        self._crowding = crowding
        self._waiting: deque[tuple[float, Event, Event | None]] = deque()

    def serve(self, secs: float, done: Event, begun: Event | None = None) -> None:
        """Serves for so many seconds, as soon as there is a place."""
        if self._free:
            self._begin(secs, done, begun)
        else:
            self._waiting.append((secs, done, begun))

    def _begin(self, secs: float, done: Event, begun: Event | None) -> None:
        self._free -= 1
        if not self._free:
            secs *= self._crowding
        self.busy_secs += secs
        if begun is not None:
            begun()
        self._clock.after(secs, lambda: self._end(done))

    def _end(self, done: Event) -> None:
        self._free += 1
        if self._waiting:
            self._begin(*self._waiting.popleft())
        done()


class Thread:
    """Does one thing after the other, each on a core.

    Args:
        cores: Of its machine.

    Attributes:
        busy_secs: What it has done, in seconds.
    """

    def __init__(self, cores: Station) -> None:
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
        self._go_on(secs)

    def _go_on(self, left: float) -> None:
        turn = self._cores.turn
        if left > turn:
            self._cores.serve(turn, lambda: self._go_on(left - turn))
        else:
            self._cores.serve(left, self._done)

    def _done(self) -> None:
        _, done = self._todo.popleft()
        if self._todo:
            self._next()
        done()


def enough_cores(clock: Clock) -> Station:
    """Those of a machine whose threads never wait for one."""
    return Station(clock, math.inf)


def shared_cores(clock: Clock, machine: Machine) -> Station:
    """Those of a machine on which all processes run, a short turn each, as a system that is fair has it."""
    return Station(clock, machine.cores, crowding=machine.crowding, turn=_TURN_SECS)
