"""One training as a parameter server sees it: its parameters, its global step, and the input cursors of its workers."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Set
from typing import Any

import numpy as np

from torch_estimator.errors import ClusterError
from torch_estimator.parameter_server.membership import StalenessBound
from torch_estimator.parameter_server.plan import AT_MOST, CURSOR, SINCE, Start
from torch_estimator.parameter_server.protocol import Header, Kind, Push
from torch_estimator.parameter_server.shard import Shard, check_finite

MOST_UNDER_WAY = 2
"""How many pushes of one worker may be under way at once: two where steps are pipelined."""


class Run:
    """One training, from the chief's START on.

    Args:
        server: Name of the server, for messages.
        start: What the chief has sent.
        shard: The parameters that the chief has sent.

    Attributes:
        plan: What the parameters are.
        about: What all workers have to agree on.
        shard: The parameters.
        step: The global step: that of START, and one more for each push that was applied.
        staleness: How far the workers are ahead of each other.
        stop_requested: Whether a worker has asked all others to stop.
    """

    def __init__(self, server: str, start: Start, shard: Shard) -> None:
        self._server = server
        self._names = start.names
        self._last_step = start.last_step
        self.plan = start.plan
        self.about = start.about
        self.shard = shard
        self.step = start.step
        self.staleness = StalenessBound(start.max_staleness)
        self.stop_requested = False
        # For each worker the pushes applied last, as incarnation and number.
        self._applied: dict[int, deque[tuple[int, int]]] = defaultdict(lambda: deque(maxlen=MOST_UNDER_WAY))
        ranks = range(len(start.names))
        self._cursors: dict[str, Any] = dict(start.cursors)
        # How many batches each worker has trained on since its cursor, and for which workers that is an upper bound.
        self._since = {rank: self._cursors.get(str(rank), {}).get(SINCE, 0) + start.lost for rank in ranks}
        self._is_bound = set(ranks if start.lost else ())

    @property
    def is_over(self) -> bool:
        """Whether no further push is applied, since the last step is reached or a worker has stopped all others."""
        return self.stop_requested or (self._last_step is not None and self.step >= self._last_step)

    def exchange(self, header: Header, push: Push | None, reachable: Set[int], *, over: bool) -> Kind | None:
        """Apply a push, if there is one and it was not applied before; return the kind of the reply.

        A worker sends a push again whenever its connection was lost, since it cannot know whether the push or only the
        reply was lost. So that every push is applied exactly once, the server remembers the last pushes of each worker
        by incarnation and number. Two are enough, because a worker never has more than two under way, and it may send
        these two again in any order. A server that was restarted remembers nothing, and need not: it holds the
        parameters of a checkpoint, in which the push is not applied.

        Args:
            header: The header of the exchange.
            push: The gradients.
            reachable: Ranks of the workers that this one has to keep pace with.
            over: Whether training is over.

        Returns:
            OK; OVER where nothing is applied any more; None where the worker is too far ahead of the slowest one, so
            that the reply has to be held back. The push of a reply that is held back is applied.
        """
        worker = header.worker
        self.staleness.join(worker, header.incarnation, reachable)
        if push is not None and (header.incarnation, header.number) not in self._applied[worker]:
            if over:
                return Kind.OVER
            check_finite(push, self.plan)
            self._apply(push, worker)
            self.step += 1
            self._since[worker] = self._since.get(worker, 0) + 1
            self._applied[worker].append((header.incarnation, header.number))
            self.staleness.count_step(worker)
        if over:
            return Kind.OVER
        return Kind.OK if self.staleness.allows(worker, reachable) else None

    def report_cursor(self, worker: int, cursor: dict[str, Any]) -> None:
        """Keep the input cursor of a worker, for the process that may have to replace it."""
        self._cursors[str(worker)] = cursor
        self._since[worker] = 0
        self._is_bound.discard(worker)

    def cursor(self, worker: int) -> dict[str, Any]:
        """Return the cursor of a worker, and how many batches it has trained on since."""
        return {
            CURSOR: self._cursors.get(str(worker)),
            SINCE: self._since.get(worker, 0),
            AT_MOST: worker in self._is_bound,
        }

    def cursors(self) -> dict[str, Any]:
        """Return the cursors of all workers, as a checkpoint holds them."""
        return {rank: {**one, SINCE: self._since.get(int(rank), 0)} for rank, one in self._cursors.items()}

    def _apply(self, push: Push, worker: int) -> None:
        try:
            # A parameter that overflows here shows in the worker's next loss, which ends the training with a sentence.
            with np.errstate(all="ignore"):
                self.shard.apply(push)
        # Settings and state that make no sense to an optimizer can fail in any way, and both were sent.
        except Exception as error:
            raise ClusterError(
                f"{self._server} cannot update its parameters as {self._names[worker]} asks "
                f"({type(error).__name__}: {error}); see the settings of the optimizers."
            ) from error
