"""Who trains with a parameter server, and who of them is there."""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch_estimator.errors import ClusterError

logger = logging.getLogger("torch_estimator")

# A process that was replaced says no more for long.
_MOST_LIVES = 16


@dataclass(slots=True)
class Lives:
    """Connections of workers, by the number that each has made up.

    Attributes:
        at_work: Those that train.
        over: Those of trainings that have ended: what they bring late is not for the next one.
    """

    at_work: set[int] = field(default_factory=set)
    over: set[int] = field(default_factory=set)

    def end(self) -> None:
        """At the end of a training."""
        self.over |= self.at_work
        self.at_work = set()


class Presence:
    """Keeps in mind who was heard when, by rank.

    Args:
        server: What the cluster calls the server.
        clock: Seconds that only go forward.
    """

    def __init__(self, server: str, clock: Callable[[], float]) -> None:
        self._server = server
        self._clock = clock
        self._names: list[str] = []
        self._silence_secs: float | None = None
        self._seen: dict[int, float] = {}
        self._left: set[int] = set()
        self._silent: set[int] = set()
        self._gone: set[int] = set()
        # Of steps, and of anything: it may be one that is refused, or the next one in its place.
        self._routes: dict[int, Any] = {}
        self._heard: dict[int, Any] = {}
        self._lives: dict[int, int] = {}
        self._past: dict[int, deque[int]] = defaultdict(lambda: deque(maxlen=_MOST_LIVES))

    def begin(self, names: Sequence[str], silence_secs: float | None) -> None:
        """Knows from now on who they are; nobody was heard yet.

        Args:
            names: Of all that train.
            silence_secs: How long one may say nothing before the log says so; None for ever.
        """
        self._names, self._silence_secs = list(names), silence_secs
        for known in (self._seen, self._left, self._silent, self._gone, self._routes, self._heard):
            known.clear()

    def name(self, worker: int) -> str:
        """What the cluster calls a worker."""
        return self._names[worker]

    def check(self, worker: int, life: int) -> None:
        """Raises where a message is not of one that trains here, or of a process that another one has replaced.

        Raises:
            ClusterError: It is not.
        """
        if not self._names:
            return
        if not 0 <= worker < len(self._names):
            raise ClusterError(
                f"{self._server} serves {', '.join(self._names)}, and has heard of a process that would be number "
                f"{worker + 1} of them; see whether that has another TF_CONFIG, or belongs to another cluster."
            )
        if life in self._past[worker]:
            raise ClusterError(
                f"Another process has come as {self._names[worker]} since; see whether two have the same TF_CONFIG."
            )

    def hear(self, worker: int, route: Any) -> None:
        """To be called with each message; `route` leads back to where it came from."""
        if not self._names:
            return
        self._heard[worker] = route
        self._seen[worker] = self._clock()
        if worker in self._silent or worker in self._gone:
            self._silent.discard(worker)
            self._gone.discard(worker)
            logger.info("%s is back.", self._names[worker])

    def train(self, worker: int, life: int, route: Any) -> None:
        """To be called with each step of a process, which others may have tried in vain to be; `route` leads to it."""
        if self._lives.get(worker, life) != life:
            self._past[worker].append(self._lives[worker])
        self._lives[worker] = life
        self._routes[worker] = route

    def waits(self, worker: int, life: int) -> bool:
        """Whether one that is kept waiting still is there; it may say nothing for as long as that takes."""
        if worker in self._gone or life in self._past[worker]:
            return False
        self._seen[worker] = self._clock()
        return True

    def leave(self, worker: int) -> None:
        """It trains no more."""
        self._left.add(worker)

    def come(self, worker: int) -> None:
        """It is about to train, also if it had left."""
        self._left.discard(worker)

    def was_away(self) -> None:
        """To be called where the server itself was stopped: whoever it has not heard meanwhile may have spoken."""
        self._seen = dict.fromkeys(self._seen, self._clock())

    def active(self) -> set[int]:
        """Those that train, also if their connections have ended."""
        return set(self._seen) - self._left - self._silent

    def connected(self) -> set[int]:
        """Those that train and can be waited for."""
        return self.active() - self._gone

    def whereabouts(self) -> dict[str, list[int]]:
        """Ranks of those that train, that have left, and that have said nothing for long."""
        return {"active": sorted(self.active()), "left": sorted(self._left), "silent": sorted(self._silent)}

    def look_for_silence(self) -> set[int]:
        """Says who has sent nothing for long; returns those of whom that was not said before."""
        secs = self._silence_secs
        if secs is None:
            return set()
        now = self._clock()
        found = {worker for worker in self.active() if now > self._seen[worker] + secs}
        self._silent |= found
        for worker in found:
            logger.warning(
                "%s has sent nothing for %g s (silence_secs of ParameterServerStrategy): it hangs, or is gone.",
                self._names[worker],
                secs,
            )
        return found

    def look_for_gone(self, reaches: Callable[[Any], bool]) -> set[int]:
        """Says whose connection has ended; returns those of whom that was not said before.

        Args:
            reaches: Whether what a message came from is still there.
        """
        found = set()
        for worker in self.connected():
            routes = [self._heard[worker], *([self._routes[worker]] if worker in self._routes else [])]
            if not any(map(reaches, routes)):
                found.add(worker)
        self._gone |= found
        for worker in found:
            logger.warning("The connection to %s has ended; nobody waits for its steps.", self._names[worker])
        return found
