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
    """Those that many threads share, as Linux has it: whoever wakes up goes to a core that is idle, or else waits for
    the one where it ran last, even if another one becomes idle meanwhile.

    Args:
        clock: Of the simulation.
        machine: How many there are.
        turn: Seconds after which a thread lets the next one have the core; the default is Linux's for two.
    """

    def __init__(self, clock: Clock, machine: Machine, *, turn: float = 1.4e-3) -> None:
        self._clock = clock
        self._turn = turn
        self._busy = [False] * machine.cores
        self._waiting: list[deque[tuple[Thread, float, Event]]] = [deque() for _ in self._busy]
        self._threads = itertools.count()

    def home(self) -> int:
        """Where another thread begins."""
        return next(self._threads) % len(self._busy)

    def run(self, thread: Thread, secs: float, done: Event) -> None:
        """Runs for so many seconds, as soon as there is a core and as often as it takes."""
        idle = [core for core, busy in enumerate(self._busy) if not busy]
        if idle:
            self._begin(thread.core if thread.core in idle else idle[0], thread, secs, done)
        else:
            self._waiting[thread.core].append((thread, secs, done))

    def _begin(self, core: int, thread: Thread, secs: float, done: Event) -> None:
        self._busy[core] = True
        thread.core = core
        turn = min(secs, self._turn)
        self._clock.after(turn, lambda: self._end(thread, secs - turn, done))

    def _end(self, thread: Thread, left: float, done: Event) -> None:
        core = thread.core
        self._busy[core] = False
        if left > 0.0:
            self._waiting[core].append((thread, left, done))
        if self._waiting[core]:
            self._begin(core, *self._waiting[core].popleft())
        if left <= 0.0:
            done()


class Thread:
    """Does one thing after the other on cores that it shares.

    Args:
        cores: Of its machine.

    Attributes:
        busy_secs: What it was given to do, in seconds.
        core: Where it ran last.
    """

    def __init__(self, cores: Cores) -> None:
        self.busy_secs = 0.0
        self.core = cores.home()
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
        self._cores.run(self, secs, self._done)

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
