"""One training as a parameter server sees it: parameters, global step, workers, and their positions in the input."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import numpy as np

from torch_estimator.errors import ClusterError
from torch_estimator.parameter_server.large_table import RowWriting
from torch_estimator.parameter_server.membership import Membership, StalenessBound
from torch_estimator.parameter_server.plan import CURSOR, INCARNATION, SINCE, Start
from torch_estimator.parameter_server.protocol import Header, Kind, Push
from torch_estimator.parameter_server.shard import Shard, check_finite

MOST_UNDER_WAY = 2
"""Maximum number of pushes of one worker that are under way at once; pipelined steps have two."""


class OtherRunError(ClusterError):
    """A request belongs to another training than this server holds."""


class Run:
    """State of one training on a server, made when the chief sends START (the parameters that the server must hold).

    `about` holds properties that must be identical in all workers. `step` is the global step of START, plus the number
    of pushes (gradients of one step) applied since.
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
        self.writing: RowWriting | None = None
        # By worker, the numbers of the last messages whose gradients were applied; see `exchange`.
        self._applied: dict[int, deque[int]] = defaultdict(lambda: deque(maxlen=MOST_UNDER_WAY))
        # By rank, the input cursor (position in the input), and the number of batches trained on since that cursor.
        self._cursors: dict[str, Any] = dict(start.cursors)
        self._since = {int(rank): cursor.get(SINCE, 0) for rank, cursor in start.cursors.items()}

    @property
    def is_writing(self) -> bool:
        """Whether rows of large tables are being written into a checkpoint."""
        return self.writing is not None and self.writing.is_running

    @property
    def is_over(self) -> bool:
        """Whether training is over: the last step is reached, or a worker has asked all other workers to stop."""
        return self.stop_requested or (self._last_step is not None and self.step >= self._last_step)

    def is_of(self, header: Header) -> bool:
        """Return whether a message carries the run id of this training."""
        return header.run_id == self.run_id

    def check(self, header: Header) -> None:
        """Raise if a message belongs to another training, or if a newer process has replaced the process that sent it.

        A process that has just started knows neither the run id nor its incarnation. The replies to STATUS and HELLO
        contain both, so these two requests are always answered.
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
        """Apply the gradients in a request (a push), unless they were applied before; return the type of the reply.

        A worker sends a push again whenever its connection was lost, since it cannot know whether the push or only the
        reply was lost. To apply every push exactly once, the server remembers the numbers of the last pushes of each
        worker. Two numbers are enough: a worker never has more than two pushes without a reply, and after a lost
        connection it sends only these two again, in any order.

        A process that was started again counts from one, so its first exchange clears the numbers. Pushes of its
        predecessor may still arrive after that; they are refused because of their lower incarnation. A server that was
        started again remembers no numbers. It holds the parameters of a checkpoint, which is usually older than the
        push, and applies the push to these parameters.

        Return OK; OVER if training is over, so that nothing is applied any more; None if the worker is too far ahead of
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
        """Store a worker's input cursor, from which a process that replaces the worker continues."""
        self._cursors[str(worker)] = cursor
        self._since[worker] = 0

    def greeting(self, worker: int) -> dict[str, Any]:
        """Return the reply to a worker's HELLO: the training's properties, and the worker's cursor and incarnation."""
        return {
            **self.about,
            CURSOR: self._cursors.get(str(worker)),
            SINCE: self._since.get(worker, 0),
            INCARNATION: self.members.incarnation(worker),
        }

    def cursors(self) -> dict[str, Any]:
        """Return the input cursors of all workers by rank, for a checkpoint."""
        return {rank: {**one, SINCE: self._since.get(int(rank), 0)} for rank, one in self._cursors.items()}

    def _apply(self, push: Push, worker: int) -> None:
        try:
            # Ignore overflow here: it makes the next loss NaN, which ends the training with a clear error.
            with np.errstate(all="ignore"):
                self.shard.apply(push)
        # Settings or state that do not fit an optimizer can raise any error. Both come from workers: refuse the push.
        except Exception as error:
            raise ClusterError(
                f"{self._server} cannot update its parameters as {self.members.name(worker)} asks "
                f"({type(error).__name__}: {error}); see the settings of the optimizers."
            ) from error
