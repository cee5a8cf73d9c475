"""Time that goes from event to event, and what can be busy."""

from __future__ import annotations

import heapq
import itertools
from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

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

    Attributes:
        stays_awake: See `Thread`; here it makes no difference.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._free_at = 0.0
        self._told_secs = 0.0
        self.stays_awake = False

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
    """Those that many threads share, as Linux has it: whoever wakes up goes to a core that is idle; or else waits for
    that of the thread that wakes it, if this is about to sleep, or for the one where it ran last, even if another one
    becomes idle meanwhile. Of those that wait for a core, the one that has run least goes first.

    A thread that waits without sleep keeps its core from falling asleep; it lets others have it at once, and falls
    asleep itself once they have had it for long.

    Args:
        clock: Of the simulation.
        machine: How many there are, and how long an idle one takes to wake.
        turn: Seconds after which a thread lets the next one have the core; the default is Linux's for two.
        patience: Seconds for which others may have the core of a thread that waits without sleep.
    """

    def __init__(self, clock: Clock, machine: Machine, *, turn: float = 1.4e-3, patience: float = 1e-4) -> None:
        self._clock = clock
        self._turn = turn
        self._patience = patience
        self._wake = machine.wake
        self._cores = [_Core() for _ in range(machine.cores)]
        self._threads = itertools.count()
        self._waker: Thread | None = None

    def home(self) -> int:
        """Where another thread begins."""
        return next(self._threads) % len(self._cores)

    def run(self, thread: Thread) -> None:
        """Has a thread do what it has to, as soon as there is a core and as often as it takes."""
        idle = [index for index, core in enumerate(self._cores) if not core.busy and core.awake is None]
        core = self._cores[thread.core]
        if core.awake is thread:
            core.awake = None
        elif idle:
            thread.core = thread.core if thread.core in idle else idle[0]
            self._cores[thread.core].busy = True
            self._clock.after(self._wake, lambda: self._begin(thread))
            return
        elif self._waker is not None and self._waker.is_done:
            # Its core is free in a moment.
            thread.core = self._waker.core
            core = self._cores[thread.core]
        if core.busy:
            insort(core.waiting, thread, key=_has_run)
        else:
            core.busy, core.taken_at = True, self._clock.now
            self._begin(thread)

    def _begin(self, thread: Thread, turn: float | None = None) -> None:
        turn = turn or self._turn
        secs = min(thread.left, turn)
        self._clock.after(secs, lambda: self._end(thread, secs, turn - secs))

    def _end(self, thread: Thread, secs: float, turn: float) -> None:
        core = self._cores[thread.core]
        self._waker = thread
        thread.has_run(secs)
        self._waker = None
        if thread.left and (turn > 0.0 or not core.waiting):
            self._begin(thread, turn)
            return
        if thread.left:
            insort(core.waiting, thread, key=_has_run)
        elif thread.stays_awake:
            core.awake, core.taken_at = thread, self._clock.now
        core.busy = bool(core.waiting)
        if core.waiting:
            self._begin(core.waiting.pop(0))
        elif self._clock.now > core.taken_at + self._patience:
            core.awake = None


@dataclass(slots=True)
class _Core:
    busy: bool = False
    waiting: list[Thread] = field(default_factory=list)
    awake: Thread | None = None
    # Since when others have had what a thread would be awake on.
    taken_at: float = 0.0


class Thread:
    """Does one thing after the other on cores that it shares.

    Args:
        cores: Of its machine.

    Attributes:
        busy_secs: What it was given to do, in seconds.
        core: Where it ran last.
        left: Seconds of what it is doing; 0 where it sleeps.
        ran_secs: For how long it has run.
        stays_awake: Whether it waits without sleep for what it is given next.
    """

    def __init__(self, cores: Cores) -> None:
        self.busy_secs = self.left = self.ran_secs = 0.0
        self.stays_awake = False
        self.core = cores.home()
        self._cores = cores
        self._todo: deque[tuple[float, Event]] = deque()

    @property
    def is_done(self) -> bool:
        """Whether it sleeps after what it is at."""
        return len(self._todo) < 2 and not self.stays_awake

    def do(self, secs: float, done: Event) -> None:
        """Does something that takes so many seconds, after all that it was told before."""
        self.busy_secs += secs
        self._todo.append((secs, done))
        if len(self._todo) == 1:
            self.left = secs
            self._cores.run(self)

    def has_run(self, secs: float) -> None:
        """Tells who waits for what it has done; they wake up, or give it more to do, before it goes to sleep."""
        self.left -= secs
        self.ran_secs += secs
        while self._todo and self.left <= 0.0:
            _, done = self._todo[0]
            done()
            self._todo.popleft()
            self.left = self._todo[0][0] if self._todo else 0.0


def _has_run(thread: Thread) -> float:
    return thread.ran_secs


def threads_of(clock: Clock, machine: Machine | None) -> Callable[[], Line | Thread]:
    """Makes threads: on the cores of one machine, or each on one of its own."""
    if machine is None:
        return lambda: Line(clock)
    cores = Cores(clock, machine)
    return lambda: Thread(cores)
