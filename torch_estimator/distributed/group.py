"""Processes that train together, and what they tell each other."""

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
from torch_estimator.distributed.heartbeat import Watch
from torch_estimator.distributed.lost import PeerBack, PeerLost, reason
from torch_estimator.distributed.rendezvous import STEP_SECS, Generation, Meeting
from torch_estimator.errors import ClusterError

# Its name since torch 2.13.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

logger = logging.getLogger("torch_estimator")

_LEAVE_SECS = 30.0
# For others that are about to come to an exchange, when this process has to go.
_MOST_SECS_TO_COME = 5.0
_FAILED = -1
_ONE_FAILED = "one has failed"


class Group:
    """All processes that train a model together; making one waits for the others.

    A group that has lost a process forms again with the one that comes in its place, as the next generation; not where
    the launcher starts all of them again, as torchrun, Slurm and Ray Train do.

    Args:
        task: This process.
        backend: ``gloo`` or ``nccl``.
        wait_secs: How long to wait for the others.
        silence_secs: How long to wait for one of them in an exchange before the log names it.
        watch: Called while waiting for them; raises where that is in vain.
        replaceable: Whether one that comes in the place of another can have what that one held.
        elastic: Whether to form again without those that are gone, and with them once they are back.
        purpose: What they meet for, in a word.

    Attributes:
        rank: Of this process, 0 for the chief.
        size: How many they are when all are there.
        here: The ranks of those that are there.
        statuses: By rank, what each has said of itself to `meet`.
        heed: Called while waiting, with whom for, since when, and for how many seconds more it may; raises where this
            process has to go. Not in an exchange of `torch.distributed`, which lasts until all are there, nor in one of
            those that could not meet again.

    Raises:
        ClusterError: They did not come, or the chief's address cannot be used.
    """

    def __init__(
        self,
        task: Task,
        backend: str,
        *,
        wait_secs: float,
        silence_secs: float,
        watch: Callable[[], None] = lambda: None,
        replaceable: bool = True,
        elastic: bool = False,
        purpose: str = "train",
    ) -> None:
        self.rank, self.size = task.rank, task.num_workers
        self.here = list(range(self.size))
        self.statuses: list[str] = []
        self._task = task
        self._silence_secs = silence_secs
        self._most_secs = max(STEP_SECS, wait_secs)
        self.heed: Callable[[str, float, float], None] = lambda whom, since, secs: None

        def look() -> None:
            watch()
            self.heed("others", 0.0, 0.0)

        self._meeting = Meeting(task, backend, wait_secs=wait_secs, watch=look, elastic=elastic, purpose=purpose)
        self._goes_on = replaceable and self._meeting.may_happen_again
        self._met: Generation | None = None
        self._watch: Watch | None = None
        self._back: int | None = None
        self._is_over = self._shares_work = self._has_lost = False
        self._exchange_began = 0.0
        self.meet("")

    def meet(self, status: str, *, may_miss: bool = False) -> None:
        """Waits for all others, to be a group with them; leaves those it was one with before.

        Args:
            status: What the others shall know of this process; empty where it has nothing that they need.
            may_miss: For the chief: whether it knows all that one whose process has ended will need when it is back, so
                that an elastic group can be formed without that one.

        Raises:
            ClusterError: They did not come within ``wait_secs``.
            LeftBehind: An elastic group has gone on without this process, which holds what is of no use any more.
            TrainingOver: The chief has ended the training that this was a group for.
        """
        self._leave()
        self._met = self._meeting.meet(status, may_miss=may_miss and self._goes_on)
        self._has_lost = False
        self.here, self.statuses = self._met.here, self._met.statuses
        self._watch = Watch(self._met.store, self.rank, self.here, self.name, self._silence_secs, self._look_for_absent)

    def meet_another(self, lost: PeerLost, status: str = "", *, may_miss: bool = False) -> None:
        """Waits for the one that comes in the place of one that is lost; see `meet`.

        Raises:
            PeerLost: The same one: it is of no use to wait.
        """
        if not self._goes_on:
            raise lost
        if isinstance(lost, PeerBack):
            logger.info("%s", lost)
        else:
            logger.warning("%s; waiting for it to come back.", lost)
        self.meet(status, may_miss=may_miss)

    @property
    def has_met(self) -> bool:
        """Whether this process is in a group with the others; not while it waits for one."""
        return self._met is not None

    @property
    def absent(self) -> list[int]:
        """The ranks of those that the others have gone on without."""
        return [rank for rank in range(self.size) if rank not in self.here]

    @property
    def was_under_way(self) -> bool:
        """Whether one of them has trained already when they met."""
        return any(self.statuses)

    def gather(self, sent: Tensor, received: Tensor) -> None:
        """Gives everybody everybody's tensor.

        Args:
            sent: ``[n]``, of the same size everywhere.
            received: ``[size, n]``, filled but for the rows of those that are not there.

        Raises:
            PeerLost: Another process is gone.
            PeerBack: One that was gone is back; the others, too, then lose this process.
        """
        if self._back is not None and not self._is_over and not self._shares_work:
            raise PeerBack(f"{self.name(self._back)} is back.")
        with self._noticing(), self.watched():
            if self._met is not None and self._met.mesh is not None and not sent.is_cuda:
                self._met.mesh.gather(sent, received, self._most_secs, self._heed_in_exchange)
            elif not self.absent:
                _all_gather(received.view(-1), sent)
            else:
                those = received.new_empty(len(self.here), len(sent))
                _all_gather(those.view(-1), sent)
                received[self.here] = those

    def gather_texts(self, text: str) -> list[str]:
        """Gives everybody everybody's text, by rank; empty for those that are not there.

        Raises:
            PeerLost: Another process is gone, or has failed in what it does with the others.
        """
        data = text.encode()
        lengths = self._lengths_of_all(len(data))
        longest = max(lengths)
        padded, received = torch.zeros(longest, dtype=torch.uint8), torch.empty(self.size, longest, dtype=torch.uint8)
        padded[: len(data)] = _as_tensor(data)
        self.gather(padded, received)
        return [row[:length].numpy().tobytes().decode() for row, length in zip(received, lengths, strict=True)]

    def collect(self, data: bytes) -> tuple[list[int], list[bytes]]:
        """Gives the chief everybody's bytes, of which there may be many.

        Returns:
            By rank how many bytes there are, and, for the chief only, what they are.

        Raises:
            PeerLost: As in `gather_texts`.
        """
        lengths = self._lengths_of_all(len(data))
        with self._noticing(), self.watched():
            if self._met is not None and self._met.mesh is not None:
                return lengths, self._met.mesh.collect(data, lengths, self._most_secs, self._heed_in_exchange)
            padded = torch.zeros(max(lengths), dtype=torch.uint8)
            padded[: len(data)] = _as_tensor(data)
            rows = [torch.empty_like(padded) for _ in self.here] if self.rank == 0 else None
            dist.gather(padded, rows, group_dst=0)
            given = dict(zip(self.here, rows or (), strict=False))
            return lengths, [given[rank][:length].numpy().tobytes() for rank, length in enumerate(lengths) if given]

    @contextlib.contextmanager
    def sharing_work(self) -> Iterator[None]:
        """Where the body fails, the others are told with what they gather or collect next; who is back has to wait."""
        self._shares_work = True
        try:
            yield
        except ClusterError:
            raise
        except BaseException:
            with contextlib.suppress(ClusterError):
                self._lengths(_FAILED)
            raise
        finally:
            self._shares_work = False

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Names those that this process waits for in the body for too long."""
        assert self._watch is not None
        self._exchange_began = time.monotonic()
        self._watch.arrive()
        yield
        self._watch.go_on()

    def _lengths_of_all(self, own: int) -> list[int]:
        lengths = self._lengths(own)
        if _FAILED in lengths:
            raise PeerLost(f"{self.name(lengths.index(_FAILED))} has failed; its log says why")
        return lengths

    def _lengths(self, own: int) -> list[int]:
        lengths = torch.zeros(self.size, 1, dtype=torch.int64)
        self.gather(torch.tensor([own]), lengths)
        return [int(length) for length in lengths]

    def broadcast(self, tensors: Iterable[Tensor], source: int = 0) -> None:
        """Fills tensors with those of one of them.

        Raises:
            PeerLost: Another process is gone.
        """
        with self._noticing():
            for tensor in tensors:
                whole = tensor.contiguous()
                dist.broadcast(whole, self.here.index(source))
                if whole is not tensor:
                    tensor.copy_(whole)

    def name(self, rank: int) -> str:
        """What the cluster calls the process of a rank."""
        return self._task.name_of_rank(rank)

    def is_over(self, *, for_good: bool) -> None:
        """For the chief: nobody is taken up again.

        Args:
            for_good: Whether whoever loses it from now on need not wait for it to come back.
        """
        self._is_over = True
        with contextlib.suppress(RuntimeError):
            if self._met is not None and for_good:
                self._met.tell_end()

    def close(self, *, politely: bool) -> None:
        """Leaves the others.

        Args:
            politely: Whether to wait until all have the last message, part of which may still be on its way when this
                process has all of it.
        """
        if politely:
            # A chief that is stopped does not answer.
            waiting = threading.Thread(target=self._wait_for_all, name="leaving", daemon=True)
            waiting.start()
            waiting.join(_LEAVE_SECS if not self._has_lost else _LEAVE_SECS / 10)
        self._leave()
        self._meeting.forget()

    def _heed_in_exchange(self, missing: Collection[int]) -> None:
        if self._goes_on:
            whom = ", ".join(map(self.name, sorted(missing)))
            self.heed(whom, self._exchange_began, _MOST_SECS_TO_COME)

    def _leave(self) -> None:
        if self._watch is not None:
            self._watch.end()
            self._watch = None
        self._back = None
        self._meeting.leave(self._met.mesh if self._met is not None else None)
        self._met = None

    def _wait_for_all(self) -> None:
        if self._met is None:
            return
        store, count = self._met.store, len(self.here)
        deadline = time.monotonic() + _LEAVE_SECS
        with contextlib.suppress(RuntimeError):
            left = store.add("left", 1)
            while left < count and time.monotonic() < deadline:
                time.sleep(0.005)
                left = store.add("left", 0)

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._met is not None and isinstance(error, Exception) and not isinstance(error, PeerLost):
            with contextlib.suppress(RuntimeError):
                self._met.store.set(_ONE_FAILED, "")
        self.close(politely=error is None)

    @contextlib.contextmanager
    def _noticing(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, OSError) as error:
            self._has_lost = True
            text = f"{self._task} has lost another process of the cluster ({reason(error)})"
            if not self._goes_on:
                text += "; see its log, and start all of them again: training goes on from the last checkpoint."
            raise PeerLost(text, is_over=not (self._goes_on or self._has_one_failed())) from error

    def _has_one_failed(self) -> bool:
        """Whether one of them has said that it fails, where that can be asked."""
        with contextlib.suppress(RuntimeError):
            return self._met is not None and self._met.store.check([_ONE_FAILED])
        return False

    def _look_for_absent(self) -> None:
        """For the chief: whether one that the others have gone on without is back."""
        if self.rank == 0 and self._met is not None:
            self._back = self._met.look_for(self.absent)


def _as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
