"""The workers of a server: which of them train, which are reachable, and how far one may be ahead of the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence, Set
from typing import Any

from torch_estimator.errors import ClusterError

logger = logging.getLogger("torch_estimator")

_WARN_EVERY_SECS = 60.0
_MOST_SECS_IDLE = 10.0


class Membership:
    """Membership of the workers in one training, as one parameter server sees it.

    A worker is *active* from its first message until it leaves, or until it has sent nothing for ``silence_secs`` (None
    for any time). It is *reachable* if it is active and its connection is open. The end of the training waits for
    active workers; bounded staleness and a server that shuts down wait for reachable ones.

    A process that replaces another one has a higher incarnation. From its first exchange on it is the process of its
    rank, and messages of lower incarnations are refused. So if two processes have the same TF_CONFIG, the later one
    trains, and the earlier one ends with an error.
    """

    def __init__(
        self, server: str, names: Sequence[str], silence_secs: float | None, clock: Callable[[], float]
    ) -> None:
        self._server = server
        self._names = list(names)
        self._silence_secs = silence_secs
        self._clock = clock
        self._seen: dict[int, float] = {}
        self._left: set[int] = set()
        self._silent: set[int] = set()
        self._disconnected: set[int] = set()
        # By worker, the ZeroMQ routing ids of its last exchange (push or pull) and of its last message of any type. The
        # two ids differ while a second process of the same rank has sent HELLO or STATUS, but no exchange.
        self._exchange_routes: dict[int, Any] = {}
        self._last_routes: dict[int, Any] = {}
        self._incarnations: dict[int, int] = {}

    def name(self, worker: int) -> str:
        """Return the name of a worker."""
        return self._names[worker]

    def incarnation(self, worker: int) -> int:
        """Return the incarnation (process number) of a worker's latest process, or 0 if there was none."""
        return self._incarnations.get(worker, 0)

    def check_rank(self, worker: int) -> None:
        """Raise if the training has no worker of this rank."""
        if not 0 <= worker < len(self._names):
            raise ClusterError(
                f"{self._server} serves {', '.join(self._names)}, and has heard of a process that would be number "
                f"{worker + 1} of them; see whether that has another TF_CONFIG, or belongs to another cluster."
            )

    def check_incarnation(self, worker: int, incarnation: int) -> None:
        """Raise if a newer process has replaced the process that sent a message."""
        if incarnation < self.incarnation(worker):
            raise ClusterError(
                f"Another process has come as {self._names[worker]} since; see whether two have the same TF_CONFIG."
            )

    def note_message(self, worker: int, route: Any) -> None:
        """Record that a worker has sent a message, and when."""
        self._last_routes[worker] = route
        self._seen[worker] = self._clock()
        if worker in self._silent or worker in self._disconnected:
            self._silent.discard(worker)
            self._disconnected.discard(worker)
            logger.info("%s is back.", self._names[worker])

    def note_exchange(self, worker: int, incarnation: int, route: Any) -> bool:
        """Make the sender of an exchange the current process of its rank; return whether that process is new.

        HELLO and STATUS have no such effect, because they may come from a process of another training. Such a process
        ends when it has read the reply.
        """
        is_new = incarnation != self.incarnation(worker)
        self._incarnations[worker] = incarnation
        self._exchange_routes[worker] = route
        return is_new

    def keep_waiting(self, worker: int, incarnation: int) -> bool:
        """Return whether a worker still waits for a reply. If so, measure the worker's silence from now on.

        A worker that waits for a reply sends nothing, which must not count as silence.
        """
        if worker not in self._seen or worker in self._disconnected or incarnation < self.incarnation(worker):
            return False
        self._seen[worker] = self._clock()
        return True

    def leave(self, worker: int) -> None:
        """Record that a worker no longer trains."""
        self._left.add(worker)

    def join(self, worker: int) -> None:
        """Record that a worker is about to train, even if it had left."""
        self._left.discard(worker)

    def restart_silence_clocks(self) -> None:
        """Measure the silence of all workers from now on. Called after this server was stopped for a while."""
        self._seen = dict.fromkeys(self._seen, self._clock())

    def active(self) -> set[int]:
        """Return the ranks of the active workers, whether or not their connection is open."""
        return set(self._seen) - self._left - self._silent

    def reachable(self) -> set[int]:
        """Return the ranks of active workers whose connection is open."""
        return self.active() - self._disconnected

    def status(self) -> dict[str, list[int]]:
        """Return the ranks of workers that are active, that have left, and that are silent."""
        return {"active": sorted(self.active()), "left": sorted(self._left), "silent": sorted(self._silent)}

    def find_silent(self) -> set[int]:
        """Log and return the workers that have become silent (no message for ``silence_secs``) since the last call."""
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

    def find_disconnected(self, is_connected: Callable[[Any], bool]) -> set[int]:
        """Log and return the workers whose connection has ended since the last call."""
        found = set()
        for worker in self.reachable():
            routes = [self._last_routes[worker]]
            if worker in self._exchange_routes:
                routes.append(self._exchange_routes[worker])
            if not any(map(is_connected, routes)):
                found.add(worker)
        self._disconnected |= found
        for worker in found:
            logger.warning("The connection to %s has ended; no other worker waits for it.", self._names[worker])
        return found


class StalenessBound:
    """Bounded staleness: a worker more than `most` steps ahead of the slowest one has to wait for it.

    See Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", 2013. The step
    count of a process that joins, or joins again, starts at the count of the slowest worker. Otherwise the other
    workers would have to wait until the process had taken as many steps as they have. None stands for no bound.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._steps: dict[int, int] = {}

    def join(self, worker: int, others: Set[int]) -> None:
        """Start counting the steps of a worker, unless they are already being counted."""
        if worker not in self._steps:
            self._steps[worker] = self._slowest(others - {worker}) or 0

    def count_step(self, worker: int) -> None:
        """Count a step of a worker."""
        self._steps[worker] += 1

    def forget(self, worker: int) -> None:
        """Stop counting a worker's steps, so that no other worker waits for it until it joins again."""
        self._steps.pop(worker, None)

    def allows(self, worker: int, others: Set[int]) -> bool:
        """Return whether a worker may go on: its lead over the slowest other worker is within the bound."""
        if self._most is None:
            return True
        slowest = self._slowest(others - {worker})
        return slowest is None or self._steps.get(worker, 0) - slowest <= self._most

    def _slowest(self, workers: Set[int]) -> int | None:
        return min((self._steps[worker] for worker in workers if worker in self._steps), default=None)


class IdleWatch:
    """Writes log messages and enforces time limits while a server waits for the chief or for its workers.

    A server without parameters waits for the chief. A server with parameters ends only if it has had no connection at
    all for ``wait_secs``: a connected worker may compute for a long time without sending anything.
    """

    def __init__(self, name: str, address: str, wait_secs: float, clock: Callable[[], float]) -> None:
        self._name = name
        self._address = address
        self._wait_secs = wait_secs
        self._since = self._logged_at = clock()
        # Time since which no worker has had steps left to take; None while there is such a worker.
        self._idle_since: float | None = None
        # Time since which there has been no connection; None while there is one.
        self._alone_since: float | None = None

    def check_wait_for_chief(self, now: float, is_over: Callable[[], bool], *, logs: bool) -> bool:
        """Check how long the server has waited for the chief's parameters; return whether training is already over.

        `is_over` says whether the chief has recorded the end of the training in the model directory; it is called once
        a minute.
        """
        waited = now - self._since
        if waited > self._wait_secs:
            raise ClusterError(
                f"{self._name} waited {self._wait_secs:g} s (session_creation_timeout_secs) for the chief to give it "
                f"its parameters; see whether that runs, and looks for {self._name} at {self._address}."
            )
        if now <= self._logged_at + _WARN_EVERY_SECS:
            return False
        self._logged_at = now
        if is_over():
            return True
        if logs:
            logger.warning("%s has waited %.0f s for the chief to give it its parameters.", self._name, waited)
        return False

    def check_wait_for_workers(
        self, now: float, step: int, *, connections: int, is_active: bool, is_over: bool
    ) -> None:
        """Check how long the server has waited for workers or, if `is_over`, for the chief to end the training."""
        self._alone_since = None if connections else self._alone_since or now
        if connections and is_active and not is_over:
            self._idle_since = None
            return
        self._idle_since = self._idle_since or now
        waits_for = "the chief to save that and to end it" if is_over else "the chief or a worker to come back"
        if self._alone_since is not None and now > self._alone_since + self._wait_secs:
            raise ClusterError(
                f"{self._name} waited {self._wait_secs:g} s (session_creation_timeout_secs) for {waits_for}, and "
                f"none has, from global step {step} on; see their logs, and start all of them "
                "again: training goes on from the last checkpoint."
            )
        if now > self._idle_since + _MOST_SECS_IDLE and now > self._logged_at + _WARN_EVERY_SECS:
            self._logged_at = now
            logger.warning("%s is at global step %d, and waits for %s.", self._name, step, waits_for)
