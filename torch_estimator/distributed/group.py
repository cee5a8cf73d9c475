"""A group of processes that train one model together, and the collectives that they call.

`Group` combines the rendezvous, the heartbeat and the all-gather mesh. A process makes one `Group` per training. If a
collective raises `PeerLost`, the survivors call `rejoin`: they leave the broken generation, wait for the replacement of
the lost process, and form a new generation with it. The session that uses the group then sends the training's state to
the replacement; see `torch_estimator.distributed.peer_recovery`.

An *elastic* group does not wait for the replacement. It goes on without the lost ranks, which are then `absent`, until
the chief's heartbeat finds that one of them has announced itself. The chief's next collective then raises `PeerBack`.
This breaks the generation on purpose: the other members get `PeerLost`, all members call `rejoin`, and the new
generation includes the process that is back.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from types import TracebackType

import torch
import torch.distributed as dist
from torch import Tensor

from torch_estimator import activity
from torch_estimator.cluster.task import REPLICA, Task
from torch_estimator.distributed.errors import PeerBack, PeerLost, TrainingOver, short_reason
from torch_estimator.distributed.heartbeat import Heartbeat
from torch_estimator.distributed.rendezvous import COLLECTIVE_SECS, FormedGeneration, Rendezvous
from torch_estimator.errors import ClusterError

# Use the name that the installed version of torch knows: torch 2.13 has renamed the function.
_all_gather_into = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

logger = logging.getLogger("torch_estimator")

_LEAVE_SECS = 30.0
# After SIGTERM or Ctrl-C, a process waits in a collective for its peers for at most this many seconds.
_PREEMPTION_GRACE_SECS = 5.0
# Check at most once in this many seconds whether the training has ended. The check reads the model directory, which may
# be on slow storage.
_CHECK_OVER_SECS = 1.0
# A process that has failed sends this number in place of the length of its message.
_FAILED = -1


class Group:
    """All processes that train or evaluate one model together. The constructor waits until all have connected.

    Args:
        task: The place of this process in the cluster.
        backend: Backend of torch.distributed, ``gloo`` or ``nccl``.
        wait_secs: How long to wait for the other processes.
        silence_secs: How long this process waits in a collective before it logs which processes it waits for.
        check_peers: Called while this process waits for the others to connect; raises if waiting is in vain.
        replaceable: Whether a new process can take over the work of a lost one. It has no effect if the launcher starts
            all processes again when one of them dies.
        elastic: Whether the group goes on without lost processes, and admits them when they are back.
        purpose: ``train`` or ``evaluate``; must be the same in all processes.

    Attributes:
        rank: Rank of this process; 0 is the chief.
        size: Number of ranks, present or not.
        present: Ranks of the members, ascending.
        statuses: By rank, the status that each member passed to `form`; empty for absent ranks.
        check_preempted: Called while this process waits, with three arguments: the names of the processes that it waits
            for, the time since when it waits (by `time.monotonic`), and how many seconds it may still wait after a
            signal has asked it to end. Raises if the process has to end. It is not called in collectives of
            `torch.distributed`, which cannot be interrupted, nor in groups that cannot form again.
        is_over: Called about once a second while this process waits for the group to form; returns whether the chief
            has ended the training. A chief that was killed after its last checkpoint is restarted only to finish the
            job, and does not come back to the group.

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
        self.is_over: Callable[[], bool] = lambda: False
        self._over_checked_at = 0.0
        self._task = task
        self._silence_secs = silence_secs
        self._collective_secs = max(COLLECTIVE_SECS, wait_secs)

        def check() -> None:
            check_peers()
            self.check_preempted("others", 0.0, 0.0)
            self._check_over()

        self._rendezvous = Rendezvous(task, backend, wait_secs=wait_secs, check=check, elastic=elastic, purpose=purpose)
        self._can_rejoin = replaceable and self._rendezvous.is_repeatable
        self._formed: FormedGeneration | None = None
        self._heartbeat: Heartbeat | None = None
        # On the chief of an elastic group: an absent rank whose process has come back.
        self._returned: int | None = None
        self._admits_nobody = self._reports_failure = self._has_lost_peer = False
        self._waiting_since = 0.0
        # The ranks that a collective waits for, once it has waited for half a second; empty if they are not known.
        self._missing: Sequence[int] = ()
        self._activity = contextlib.ExitStack()
        if task.type != REPLICA:
            self._activity.enter_context(activity.waiting(self._waits_for))
        self.form()

    def form(self, status: str = "", *, may_miss: bool = False) -> None:
        """Wait for all other processes and form a new generation of the group with them.

        `status` describes the training state that this process holds; empty if it holds none. The chief of an elastic
        group passes `may_miss` if the group may form without lost processes, because the chief holds everything that
        they will need when they are back. Raise `LeftBehind` if an elastic group has gone on without this process, and
        `TrainingOver` if the chief has ended the training.
        """
        self._disconnect()
        self._missing = ()
        with activity.OTHERS:
            formed = self._rendezvous.form(status, may_miss=may_miss and self._can_rejoin)
        self._formed = formed
        self._has_lost_peer = False
        self.present, self.statuses = formed.ranks, formed.statuses
        self._heartbeat = Heartbeat(
            formed.generation.store,
            self.rank,
            self.present,
            self.name,
            self._silence_secs,
            self._look_for_returned,
        )

    def rejoin(self, lost: PeerLost, status: str = "", *, may_miss: bool = False) -> None:
        """Form the group again, as `form` does, after a collective has raised `lost`.

        Raise `lost` itself if the lost process cannot be replaced.
        """
        if not self._can_rejoin:
            raise lost
        if isinstance(lost, PeerBack):
            logger.info("%s", lost)
        else:
            logger.warning("%s; waiting for it to come back.", str(lost).removesuffix("."))
        self.form(status, may_miss=may_miss)

    def _check_over(self) -> None:
        now = time.monotonic()
        if now >= self._over_checked_at + _CHECK_OVER_SECS:
            self._over_checked_at = now
            if self.is_over():
                raise TrainingOver

    @property
    def is_formed(self) -> bool:
        """Whether this process is connected to the others; False while it waits for them."""
        return self._formed is not None

    @property
    def absent(self) -> list[int]:
        """Ranks of the lost processes without which an elastic group has gone on."""
        return [rank for rank in range(self.size) if rank not in self.present]

    @property
    def is_training_under_way(self) -> bool:
        """Whether a member had already trained when this generation formed."""
        return any(self.statuses)

    def name(self, rank: int) -> str:
        """Return the name of a rank in the cluster, such as ``worker 0``."""
        return self._task.name_of_rank(rank)

    # The following methods are collectives: all members have to call them in the same order.

    def all_gather(self, sent: Tensor, received: Tensor) -> None:
        """Send a tensor ``[n]`` to all members and receive the tensors of all, by rank, in `received` ``[size, n]``.

        Rows of absent ranks stay as they are. Size and dtype must be the same in all processes. Raise `PeerLost` if
        another process is gone. On the chief, raise `PeerBack` if an absent process is back; the other members then
        lose the chief.
        """
        if self._returned is not None and not self._admits_nobody and not self._reports_failure:
            raise PeerBack(f"{self.name(self._returned)} is back.")
        with self._detecting_loss(), self.waiting():
            if self._formed is not None and self._formed.mesh is not None and not sent.is_cuda:
                self._formed.mesh.all_gather(sent, received, self._collective_secs, self._check_while_waiting)
            elif not self.absent:
                _all_gather_into(received.view(-1), sent)
            else:
                rows = received.new_empty(len(self.present), len(sent))
                _all_gather_into(rows.view(-1), sent)
                received[self.present] = rows

    def all_gather_texts(self, text: str) -> list[str]:
        """Send a string to all members; return the strings of all members by rank. Absent ranks have an empty string.

        Raise `PeerLost` if another process is gone, or has failed in the body of `reporting_failure`.
        """
        data = text.encode()
        lengths = self._gather_lengths(len(data))
        longest = max(lengths)
        padded, received = torch.zeros(longest, dtype=torch.uint8), torch.empty(self.size, longest, dtype=torch.uint8)
        padded[: len(data)] = _as_tensor(data)
        self.all_gather(padded, received)
        return [row[:length].numpy().tobytes().decode() for row, length in zip(received, lengths, strict=True)]

    def gather_to_chief(self, data: bytes) -> tuple[list[int], list[bytes]]:
        """Send bytes, such as a whole batch, from each member to the chief only.

        Return the number of bytes by rank, on all members; and the bytes by rank on the chief, an empty list elsewhere.
        Raise `PeerLost` as `all_gather_texts` does.
        """
        lengths = self._gather_lengths(len(data))
        with self._detecting_loss(), self.waiting():
            if self._formed is not None and self._formed.mesh is not None:
                mesh, check = self._formed.mesh, self._check_while_waiting
                return lengths, mesh.gather_to_chief(data, lengths, self._collective_secs, check)
            padded = torch.zeros(max(lengths), dtype=torch.uint8)
            padded[: len(data)] = _as_tensor(data)
            rows = [torch.empty_like(padded) for _ in self.present] if self.rank == 0 else None
            dist.gather(padded, rows, group_dst=0)
            received = dict(zip(self.present, rows or (), strict=False))
            texts = [received[rank][:length].numpy().tobytes() for rank, length in enumerate(lengths) if received]
            return lengths, texts

    def broadcast(self, tensors: Iterable[Tensor], source: int = 0) -> None:
        """Overwrite tensors, in place, with those of the member `source`; raise `PeerLost` if another process is gone.

        Their number, shapes and dtypes must be the same in all processes.
        """
        with self._detecting_loss(), self.waiting():
            for tensor in tensors:
                whole = tensor.contiguous()
                dist.broadcast(whole, self.present.index(source))
                if whole is not tensor:
                    tensor.copy_(whole)

    @contextlib.contextmanager
    def reporting_failure(self) -> Iterator[None]:
        """Context manager: if the body raises, the next exchange of texts or bytes raises `PeerLost` in other members.

        Without this report the others would wait there for a process that has already failed. While the body runs, the
        chief admits no returning process, since that would break the generation in the middle of the members' work.
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
        """Context manager: if the body takes longer than ``silence_secs``, the heartbeat logs which peers are late."""
        assert self._heartbeat is not None
        self._waiting_since = time.monotonic()
        self._heartbeat.enter_collective()
        with activity.OTHERS:
            yield
        self._missing = ()
        self._heartbeat.leave_collective()

    # The following methods end the membership of this process.

    def admit_nobody(self, *, is_over: bool) -> None:
        """As the chief, stop admitting lost processes that come back, because the training ends.

        If the training is complete (`is_over`), a process that loses its peers from now on must not wait for them.
        """
        self._admits_nobody = True
        with contextlib.suppress(RuntimeError):
            if self._formed is not None and is_over:
                self._formed.generation.end_training()

    def leave(self, *, wait: bool) -> None:
        """Disconnect this process from the group; with `wait`, once all members leave.

        If this process exited at once, its last message to the peers could be lost, since it may still be in the
        kernel's buffers.
        """
        if wait:
            # Wait in a thread, so that this process can give up: the store of a chief that is stopped never answers.
            waiting = threading.Thread(target=self._wait_until_all_leave, name="leaving", daemon=True)
            waiting.start()
            waiting.join(_LEAVE_SECS if not self._has_lost_peer else _LEAVE_SECS / 10)
        self._disconnect()
        self._rendezvous.close_previous_mesh()
        self._activity.close()

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._formed is not None and isinstance(error, Exception) and not isinstance(error, PeerLost):
            with contextlib.suppress(RuntimeError):
                self._formed.generation.note_failure()
        self.leave(wait=error is None)

    def _wait_until_all_leave(self) -> None:
        if self._formed is not None:
            with contextlib.suppress(RuntimeError):
                self._formed.generation.wait_until_all_leave(self.present, most_secs=_LEAVE_SECS)

    def _disconnect(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat = None
        self._returned = None
        self._rendezvous.disconnect(self._formed.mesh if self._formed is not None else None)
        self._formed = None

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
        self._missing = sorted(missing)
        if self._can_rejoin:
            waits_for = ", ".join(map(self.name, self._missing))
            self.check_preempted(waits_for, self._waiting_since, _PREEMPTION_GRACE_SECS)

    def _waits_for(self) -> list[str]:
        heartbeat = self._heartbeat
        if heartbeat is not None and self._missing:
            return [self.name(rank) for rank in self._missing]
        return self._rendezvous.waits_for() if heartbeat is None else heartbeat.waits_for()

    def _look_for_returned(self) -> None:
        """On the chief, record an absent rank whose process has come back. Called with each heartbeat."""
        if self.rank == 0 and self._formed is not None:
            self._returned = self._formed.generation.first_announced(self.absent)

    @contextlib.contextmanager
    def _detecting_loss(self) -> Iterator[None]:
        """Context manager that raises `PeerLost` if a connection breaks in its body."""
        try:
            yield
        except (RuntimeError, OSError) as error:
            self._has_lost_peer = True
            text = f"{self._task} has lost another process of the cluster ({short_reason(error)})"
            if not self._can_rejoin:
                text += "; see its log, and start all of them again: training goes on from the last checkpoint."
            # Do not ask the launcher for a restart if a peer has recorded that it failed: the peer would fail again.
            restart_all = not (self._can_rejoin or self._has_any_failed())
            raise PeerLost(text, restart_all=restart_all) from error

    def _has_any_failed(self) -> bool:
        """Return whether a member has recorded its own failure; False if the store is gone."""
        with contextlib.suppress(RuntimeError):
            return self._formed is not None and self._formed.generation.has_failure()
        return False


def _as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
