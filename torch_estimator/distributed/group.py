"""A group of processes that train one model together, and the collectives that they call.

`Group` joins a rendezvous, its heartbeat and its all-gather mesh. A process makes one `Group` per training. When a
collective raises `PeerLost`, the survivors call `rejoin`: they leave the generation that is broken and wait for the
process that replaces the lost one, which forms a new generation with them. What the members then hand to the
replacement is up to the session that uses the group; see `torch_estimator.distributed.peer_recovery`.

An *elastic* group does not wait for the replacement. It goes on without the lost ranks, which are then `absent`, until
the chief's heartbeat sees one of them announce itself. The next collective of the chief then raises `PeerBack`; that
breaks the generation, all members lose each other on purpose, and the next generation includes the process that is
back.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from types import TracebackType

import torch
import torch.distributed as dist
from torch import Tensor

from torch_estimator.cluster.task import Task
from torch_estimator.distributed.errors import PeerBack, PeerLost, short_reason
from torch_estimator.distributed.heartbeat import Heartbeat
from torch_estimator.distributed.rendezvous import COLLECTIVE_SECS, Membership, Rendezvous
from torch_estimator.errors import ClusterError

# torch 2.13 has renamed it.
_all_gather_into = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

logger = logging.getLogger("torch_estimator")

_LEAVE_SECS = 30.0
# After SIGTERM or Ctrl-C, how long a process stays for peers that are about to enter the same collective.
_PREEMPTION_GRACE_SECS = 5.0
# Sent in place of a length by a process that has failed.
_FAILED = -1


class Group:
    """All processes that train or evaluate one model together. The constructor waits for the others.

    Args:
        task: The place of this process in the cluster.
        backend: Backend of torch.distributed, ``gloo`` or ``nccl``.
        wait_secs: How long to wait for the other processes.
        silence_secs: How long this process waits in a collective before it logs whom it waits for.
        check_peers: Called while this process waits for the others; raises where that is in vain.
        replaceable: Whether a new process can take over what a lost one held. Even then not where the launcher starts
            all processes again.
        elastic: Whether the group goes on without lost processes, and admits them when they are back.
        purpose: ``train`` or ``evaluate``; all processes have to give the same.

    Attributes:
        rank: Rank of this process; 0 is the chief.
        size: Number of ranks, present or not.
        present: Ranks of the members, ascending.
        statuses: By rank, the status that each member gave to `form`; empty for absent ranks.
        check_preempted: Called while this process waits, with three arguments: whom it waits for, since when (by
            `time.monotonic`), and for how many seconds more it may wait after a signal has asked it to end. Raises
            where the process has to end. Not called in a collective of `torch.distributed`, which cannot be
            interrupted, nor in groups that cannot form again.

    Raises:
        ClusterError: The others did not come in time, or the chief's address cannot be used.
    """

    def __init__(
        self,
        task: Task,
        backend: str,
        *,
        wait_secs: float,
        silence_secs: float,
        check_peers: Callable[[], None] = lambda: None,
        replaceable: bool = True,
        elastic: bool = False,
        purpose: str = "train",
    ) -> None:
        self.rank, self.size = task.rank, task.num_workers
        self.present = list(range(self.size))
        self.statuses: list[str] = []
        self.check_preempted: Callable[[str, float, float], None] = lambda waits_for, since, secs: None
        self._task = task
        self._silence_secs = silence_secs
        self._collective_secs = max(COLLECTIVE_SECS, wait_secs)

        def check() -> None:
            check_peers()
            self.check_preempted("others", 0.0, 0.0)

        self._rendezvous = Rendezvous(task, backend, wait_secs=wait_secs, check=check, elastic=elastic, purpose=purpose)
        self._can_rejoin = replaceable and self._rendezvous.is_repeatable
        self._membership: Membership | None = None
        self._heartbeat: Heartbeat | None = None
        # For the chief of an elastic group: an absent rank that has announced itself.
        self._returned: int | None = None
        self._admits_nobody = self._reports_failure = self._has_lost_peer = False
        self._waiting_since = 0.0
        self.form()

    def form(self, status: str = "", *, may_miss: bool = False) -> None:
        """Wait for all other processes and form a new generation of the group with them.

        Args:
            status: What the others shall know of what this process holds; empty where it holds nothing they need.
            may_miss: For the chief: whether it holds all that a lost process will need when it is back, so that an
                elastic group can form without that process.

        Raises:
            ClusterError: The others did not come within ``wait_secs``.
            LeftBehind: An elastic group has gone on without this process, whose state is outdated.
            TrainingOver: The chief has ended the training.
        """
        self._disconnect()
        membership = self._rendezvous.form(status, may_miss=may_miss and self._can_rejoin)
        self._membership = membership
        self._has_lost_peer = False
        self.present, self.statuses = membership.ranks, membership.statuses
        self._heartbeat = Heartbeat(
            membership.generation.store,
            self.rank,
            self.present,
            self.name,
            self._silence_secs,
            self._look_for_returned,
        )

    def rejoin(self, lost: PeerLost, status: str = "", *, may_miss: bool = False) -> None:
        """Form the group again after the loss of a process.

        Args:
            lost: The error that a collective has raised.
            status: As in `form`.
            may_miss: As in `form`.

        Raises:
            PeerLost: The same error, where a lost process cannot be replaced.
            ClusterError, LeftBehind, TrainingOver: As in `form`.
        """
        if not self._can_rejoin:
            raise lost
        if isinstance(lost, PeerBack):
            logger.info("%s", lost)
        else:
            logger.warning("%s; waiting for it to come back.", lost)
        self.form(status, may_miss=may_miss)

    @property
    def is_formed(self) -> bool:
        """Whether this process is connected to the others; not while it waits for them."""
        return self._membership is not None

    @property
    def absent(self) -> list[int]:
        """Ranks that an elastic group has gone on without."""
        return [rank for rank in range(self.size) if rank not in self.present]

    @property
    def is_training_under_way(self) -> bool:
        """Whether a member had already trained when this generation formed."""
        return any(self.statuses)

    def name(self, rank: int) -> str:
        """Return what the cluster calls a rank, such as ``worker 0``."""
        return self._task.name_of_rank(rank)

    # Collectives. All members have to call the same ones in the same order.

    def all_gather(self, sent: Tensor, received: Tensor) -> None:
        """Send a tensor to all members and receive theirs.

        Args:
            sent: The tensor of this process, ``[n]``; of the same size and dtype in all processes.
            received: ``[size, n]``. Each row is filled with the tensor of that rank; rows of absent ranks stay as they
                are.

        Raises:
            PeerLost: Another process is gone.
            PeerBack: On the chief: an absent process is back. The other members then lose the chief.
        """
        if self._returned is not None and not self._admits_nobody and not self._reports_failure:
            raise PeerBack(f"{self.name(self._returned)} is back.")
        with self._detecting_loss(), self.waiting():
            if self._membership is not None and self._membership.mesh is not None and not sent.is_cuda:
                self._membership.mesh.all_gather(sent, received, self._collective_secs, self._check_while_waiting)
            elif not self.absent:
                _all_gather_into(received.view(-1), sent)
            else:
                rows = received.new_empty(len(self.present), len(sent))
                _all_gather_into(rows.view(-1), sent)
                received[self.present] = rows

    def all_gather_texts(self, text: str) -> list[str]:
        """Send a text to all members; return the texts by rank, empty for absent ranks.

        Raises:
            PeerLost: Another process is gone, or has failed in the body of `reporting_failure`.
        """
        data = text.encode()
        lengths = self._gather_lengths(len(data))
        longest = max(lengths)
        padded, received = torch.zeros(longest, dtype=torch.uint8), torch.empty(self.size, longest, dtype=torch.uint8)
        padded[: len(data)] = _as_tensor(data)
        self.all_gather(padded, received)
        return [row[:length].numpy().tobytes().decode() for row, length in zip(received, lengths, strict=True)]

    def gather_to_chief(self, data: bytes) -> tuple[list[int], list[bytes]]:
        """Send bytes to the chief, of which there may be many.

        Returns:
            By rank the number of bytes, in all processes; and, on the chief only, the bytes themselves.

        Raises:
            PeerLost: As in `all_gather_texts`.
        """
        lengths = self._gather_lengths(len(data))
        with self._detecting_loss(), self.waiting():
            if self._membership is not None and self._membership.mesh is not None:
                mesh, check = self._membership.mesh, self._check_while_waiting
                return lengths, mesh.gather_to_chief(data, lengths, self._collective_secs, check)
            padded = torch.zeros(max(lengths), dtype=torch.uint8)
            padded[: len(data)] = _as_tensor(data)
            rows = [torch.empty_like(padded) for _ in self.present] if self.rank == 0 else None
            dist.gather(padded, rows, group_dst=0)
            received = dict(zip(self.present, rows or (), strict=False))
            texts = [received[rank][:length].numpy().tobytes() for rank, length in enumerate(lengths) if received]
            return lengths, texts

    def broadcast(self, tensors: Iterable[Tensor], source: int = 0) -> None:
        """Fill tensors, in place, with those of one member.

        Args:
            tensors: As many, of the same shapes and dtypes, in all processes.
            source: Rank of the member.

        Raises:
            PeerLost: Another process is gone.
        """
        with self._detecting_loss():
            for tensor in tensors:
                whole = tensor.contiguous()
                dist.broadcast(whole, self.present.index(source))
                if whole is not tensor:
                    tensor.copy_(whole)

    @contextlib.contextmanager
    def reporting_failure(self) -> Iterator[None]:
        """Report an exception in the body to the other members, in their next call for texts or bytes.

        Without it they would wait there for a process that does not come. While the body runs, no returning process is
        admitted, since that would break the generation in the middle of the members' work.
        """
        self._reports_failure = True
        try:
            yield
        except ClusterError:
            raise
        except BaseException:
            with contextlib.suppress(ClusterError):
                self._all_gather_numbers(_FAILED)
            raise
        finally:
            self._reports_failure = False

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Have the heartbeat log whom this process waits for, if the body takes longer than ``silence_secs``."""
        assert self._heartbeat is not None
        self._waiting_since = time.monotonic()
        self._heartbeat.enter_collective()
        yield
        self._heartbeat.leave_collective()

    # Leaving.

    def admit_nobody(self, *, is_over: bool) -> None:
        """Have the chief admit no process any more, since the training ends.

        Args:
            is_over: Whether a process that loses the others from now on has nothing to wait for.
        """
        self._admits_nobody = True
        with contextlib.suppress(RuntimeError):
            if self._membership is not None and is_over:
                self._membership.generation.end_training()

    def leave(self, *, wait: bool) -> None:
        """Leave the group.

        Args:
            wait: Whether to wait until all members leave. A process that exits at once would cut off the last message
                to its peers, which may still be in the kernel's buffers.
        """
        if wait:
            # In a thread, since the store of a stopped chief does not answer.
            waiting = threading.Thread(target=self._wait_until_all_leave, name="leaving", daemon=True)
            waiting.start()
            waiting.join(_LEAVE_SECS if not self._has_lost_peer else _LEAVE_SECS / 10)
        self._disconnect()
        self._rendezvous.close_previous_mesh()

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._membership is not None and isinstance(error, Exception) and not isinstance(error, PeerLost):
            with contextlib.suppress(RuntimeError):
                self._membership.generation.note_failure()
        self.leave(wait=error is None)

    def _wait_until_all_leave(self) -> None:
        if self._membership is not None:
            with contextlib.suppress(RuntimeError):
                self._membership.generation.wait_until_all_leave(self.present, most_secs=_LEAVE_SECS)

    def _disconnect(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat = None
        self._returned = None
        self._rendezvous.disconnect(self._membership.mesh if self._membership is not None else None)
        self._membership = None

    # Inside collectives.

    def _gather_lengths(self, own: int) -> list[int]:
        lengths = self._all_gather_numbers(own)
        if _FAILED in lengths:
            raise PeerLost(f"{self.name(lengths.index(_FAILED))} has failed; its log says why")
        return lengths

    def _all_gather_numbers(self, own: int) -> list[int]:
        numbers = torch.zeros(self.size, 1, dtype=torch.int64)
        self.all_gather(torch.tensor([own]), numbers)
        return [int(number) for number in numbers]

    def _check_while_waiting(self, missing: Collection[int]) -> None:
        if self._can_rejoin:
            waits_for = ", ".join(map(self.name, sorted(missing)))
            self.check_preempted(waits_for, self._waiting_since, _PREEMPTION_GRACE_SECS)

    def _look_for_returned(self) -> None:
        """Note an absent process that has announced itself; called with each heartbeat."""
        if self.rank == 0 and self._membership is not None:
            self._returned = self._membership.generation.first_announced(self.absent)

    @contextlib.contextmanager
    def _detecting_loss(self) -> Iterator[None]:
        """Raise `PeerLost` where a connection breaks in the body."""
        try:
            yield
        except (RuntimeError, OSError) as error:
            self._has_lost_peer = True
            text = f"{self._task} has lost another process of the cluster ({short_reason(error)})"
            if not self._can_rejoin:
                text += "; see its log, and start all of them again: training goes on from the last checkpoint."
            # A peer that has failed by itself would fail again, so the launcher need not start all processes again.
            restart_all = not (self._can_rejoin or self._has_any_failed())
            raise PeerLost(text, restart_all=restart_all) from error

    def _has_any_failed(self) -> bool:
        """Return whether a member has noted its own failure; False where the store is gone."""
        with contextlib.suppress(RuntimeError):
            return self._membership is not None and self._membership.generation.has_failure()
        return False


def _as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
