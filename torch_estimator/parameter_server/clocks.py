"""How far those who train may be ahead of each other."""

from __future__ import annotations

from collections.abc import Set


class Clocks:
    """Counts the steps of each worker; whoever is too far ahead of the slowest has to wait for it.

    Bounded staleness as of Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
    Server", 2013. Who comes, or comes again, begins where the slowest is.

    Args:
        most: Steps that one may be ahead; None for any number.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._steps: dict[int, int] = {}
        self._lives: dict[int, int] = {}

    def meet(self, worker: int, life: int, active: Set[int]) -> None:
        """To be called where a worker asks for parameters; `active` are those that train."""
        if self._lives.get(worker) != life:
            self._lives[worker] = life
            self._steps[worker] = self._slowest(active - {worker}) or 0

    def tick(self, worker: int) -> None:
        """A step of a worker."""
        self._steps[worker] = self._steps.get(worker, 0) + 1

    def rest(self, worker: int) -> None:
        """Nobody waits for a worker until it asks for parameters again."""
        self._lives.pop(worker, None)
        self._steps.pop(worker, None)

    def may_go_on(self, worker: int, active: Set[int]) -> bool:
        """Whether a worker is not too far ahead."""
        if self._most is None:
            return True
        slowest = self._slowest(active - {worker})
        return slowest is None or self._steps.get(worker, 0) - slowest <= self._most

    def _slowest(self, workers: Set[int]) -> int | None:
        return min((self._steps[worker] for worker in workers if worker in self._steps), default=None)
