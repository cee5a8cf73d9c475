"""One training as a parameter server sees it: its parameters, its global step, its workers and their input cursors."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np

from torch_estimator.errors import ClusterError
from torch_estimator.parameter_server.membership import Membership, StalenessBound
from torch_estimator.parameter_server.plan import CURSOR, INCARNATION, SINCE, Start
from torch_estimator.parameter_server.protocol import Header, Kind, Push
from torch_estimator.parameter_server.shard import Shard, check_finite

MOST_UNDER_WAY = 2
"""Maximum number of pushes of one worker that are under way at once; pipelined steps have two."""


class OtherRunError(ClusterError):
    """A message belongs to another training than the server's."""


class Run:
    """One training, from the chief's START on.

    Args:
        server: Name of the server, for messages.
        run_id: Number of the training.
        start: What the chief has sent.
        shard: The parameters that the chief has sent.
        clock: Returns monotonic seconds.

    Attributes:
        run_id: Number of the training.
        plan: The plan of the parameters.
        about: Properties that must be identical in all workers.
        shard: The parameters.
        step: The global step: that of START, and one more for each push that was applied.
        members: The workers.
        staleness: How far the workers are ahead of each other.
        stop_requested: Whether a worker has asked all others to stop.
    """

    def __init__(self, server: str, run_id: int, start: Start, shard: Shard, clock: Callable[[], float]) -> None:
        self._server = server
        self.run_id = run_id
        self.plan = start.plan
        self.about = start.about
        self.shard = shard
        self.step = start.step
        self._last_step = start.last_step
        self.members = Membership(server, start.names, start.silence_secs, clock)
        self.staleness = StalenessBound(start.max_staleness)
        self.stop_requested = False
        # For each worker, the message numbers of the last pushes of its current process that were applied.
        self._applied: dict[int, deque[int]] = defaultdict(lambda: deque(maxlen=MOST_UNDER_WAY))
        # Input cursors by rank, and the number of batches that each rank has trained on since its cursor.
        self._cursors: dict[str, Any] = dict(start.cursors)
        self._since = {int(rank): cursor.get(SINCE, 0) for rank, cursor in start.cursors.items()}

    @property
    def is_over(self) -> bool:
        """Whether no further push is applied, because the last step is reached or a worker has stopped all others."""
        return self.stop_requested or (self._last_step is not None and self.step >= self._last_step)

    def is_of(self, header: Header) -> bool:
        """Return whether a message belongs to this training."""
        return header.run_id == self.run_id

    def check(self, header: Header) -> None:
        """Check that a message belongs to this training, and that it is from the latest process of its worker.

        A process that has just started knows neither the run id nor its incarnation. It learns them from the replies to
        STATUS and HELLO, which are therefore always answered.

        Raises:
            OtherRunError: The message belongs to another training.
            ClusterError: There is no such worker, or another process has replaced the sender.
        """
        self.members.check_rank(header.worker)
        if not self.is_of(header):
            if header.kind not in (Kind.HELLO, Kind.STATUS):
                raise OtherRunError(
                    "It holds another training by now; see whether two programs have the same parameter servers, "
                    "which hold one training at a time."
                )
        elif header.kind is not Kind.HELLO:
            self.members.check_incarnation(header.worker, header.incarnation)

    def exchange(self, header: Header, push: Push | None, route: Any, *, over: bool) -> Kind | None:
        """Apply a push, if there is one and it was not applied before; return the kind of the reply.

        A worker sends a push again whenever its connection was lost, since it cannot know whether the push or only the
        reply was lost. To apply every push exactly once, the server remembers the numbers of the last pushes of each
        worker. Two numbers are enough: a worker never has more than two pushes under way, and after a lost connection
        it sends only these again, in any order.

        A process that was started again counts from one, so its first exchange clears the numbers. Pushes of its
        predecessor may still arrive after that; they are refused because of their lower incarnation. A server that was
        started again remembers no numbers. It holds the parameters of a checkpoint, which is usually older than the
        push, and applies the push to these.

        Args:
            header: The header of the exchange.
            push: The gradients.
            route: Routing id of the connection that the exchange came through.
            over: Whether training is over.

        Returns:
            OK; OVER if training is over, so that nothing is applied any more; None if the worker is too far ahead of
            the slowest one, so that the reply must be held back. In the last case the push has been applied.
        """
        worker = header.worker
        if self.members.note_exchange(worker, header.incarnation, route):
            self._applied.pop(worker, None)
            self.staleness.forget(worker)
        reachable = self.members.reachable()
        self.staleness.join(worker, reachable)
        if push is not None and header.number not in self._applied[worker]:
            if over:
                return Kind.OVER
            check_finite(push, self.plan)
            self._apply(push, worker)
            self.step += 1
            self._since[worker] = self._since.get(worker, 0) + 1
            self._applied[worker].append(header.number)
            self.staleness.count_step(worker)
        if over:
            return Kind.OVER
        return Kind.OK if self.staleness.allows(worker, reachable) else None

    def report_cursor(self, worker: int, cursor: dict[str, Any]) -> None:
        """Store the input cursor of a worker, for a process that may have to replace it."""
        self._cursors[str(worker)] = cursor
        self._since[worker] = 0

    def greeting(self, worker: int) -> dict[str, Any]:
        """Return the content of the reply to HELLO: `about`, and the cursor and incarnation of the worker."""
        return {
            **self.about,
            CURSOR: self._cursors.get(str(worker)),
            SINCE: self._since.get(worker, 0),
            INCARNATION: self.members.incarnation(worker),
        }

    def cursors(self) -> dict[str, Any]:
        """Return the cursors of all workers, as a checkpoint holds them."""
        return {rank: {**one, SINCE: self._since.get(int(rank), 0)} for rank, one in self._cursors.items()}

    def _apply(self, push: Push, worker: int) -> None:
        try:
            # Ignore overflow here: it makes the next loss NaN, which ends the training with a clear error.
            with np.errstate(all="ignore"):
                self.shard.apply(push)
        # Settings or state that do not fit an optimizer can raise anything. Both come from the workers, so refuse the
        # message.
        except Exception as error:
            raise ClusterError(
                f"{self._server} cannot update its parameters as {self.members.name(worker)} asks "
                f"({type(error).__name__}: {error}); see the settings of the optimizers."
            ) from error
