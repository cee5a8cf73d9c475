"""Processes that train together, and what they tell each other."""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # documented
from torch.distributed.rendezvous import rendezvous

from torch_estimator.cluster.addresses import LOOPBACK, split_address
from torch_estimator.cluster.slurm import SLURM
from torch_estimator.cluster.task import Task
from torch_estimator.distribute.interface import interface_to
from torch_estimator.distribute.lost import PeerBack, PeerLost, TrainingOver
from torch_estimator.distribute.mesh import Mesh
from torch_estimator.distribute.watch import Watch
from torch_estimator.errors import ClusterError

# Its name since torch 2.13.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

logger = logging.getLogger("torch_estimator")

_FILE = "file:"
_INTERFACE = "GLOO_SOCKET_IFNAME"

_STORES: dict[tuple[str, int], Store] = {}
_GENERATION = "torch-estimator generation"
_HERE = "rank {} is here"
_MEMBERS = "members"
_OVER = "over"

# An evaluation by the chief may come between two steps.
_STEP_SECS = 7200.0
_LEAVE_SECS = 30.0
# One may die while they connect; gloo tries for five times as long.
_CONNECT_SECS = 5.0
# Above, a ring has fewer connections.
_MOST_IN_MESH = 32
_SAY_EVERY_SECS = 10.0
# Those who have noticed that one is gone meet at once.
_GONE_SECS = 3.0
# Those who were about to form a group when another one was lost may take so long to notice.
_FORMING_SECS = 6 * _CONNECT_SECS


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

    Attributes:
        rank: Of this process, 0 for the chief.
        size: How many they are when all are there.
        here: The ranks of those that are there.
        statuses: By rank, what each has said of itself to `meet`.

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
    ) -> None:
        assert task.rendezvous is not None
        self.rank, self.size = task.rank, task.num_workers
        self.here = list(range(self.size))
        self.statuses: list[str] = []
        self._elastic = elastic
        self._back: int | None = None
        self._is_over = False
        # Of the generation before, for the chief: it tells who is still there.
        self._before: Mesh | None = None
        self._may_miss = False
        self._patience = _GONE_SECS
        self._task = task
        self._backend = backend
        self._wait_secs = wait_secs
        self._silence_secs = silence_secs
        self._watch: Watch | None = None
        self._mesh: Mesh | None = None
        # By whoever has started this process, as Ray Train does, and who will also end it.
        self._was_there = dist.is_initialized()
        is_file = task.rendezvous.startswith(_FILE)
        self._may_form_again = not (self._was_there or _is_of_torchrun() or task.source == SLURM or is_file)
        self._goes_on = replaceable and self._may_form_again
        self._look = watch
        self._store: Store | None = None
        self._said = 0.0
        self._address = ("", 0) if is_file else split_address(task.rendezvous, "the chief's address")
        self._interface = "lo" if is_file or self._address[0] in LOOPBACK else interface_to(*self._address)
        self.meet("")

    def meet(self, status: str, *, may_miss: bool = False) -> None:
        """Waits for all others, to be a group with them; leaves those it was one with before.

        Args:
            status: What the others shall know of this process; empty where it has nothing that they need.
            may_miss: For the chief: whether it knows all that one whose process has ended will need when it is back, so
                that an elastic group can be formed without that one.

        Raises:
            ClusterError: They did not come within ``wait_secs``.
            TrainingOver: The chief has ended the training that this was a group for.
        """
        self._leave()
        self._may_miss = may_miss and self.rank == 0 and self._elastic and self._goes_on
        self._patience = _GONE_SECS
        self._said = time.monotonic()
        deadline = self._said + self._wait_secs
        while True:
            try:
                if self._forms(status, deadline):
                    return
            except ClusterError:
                raise
            except (RuntimeError, ValueError, OSError) as error:
                if time.monotonic() > deadline or not self._may_form_again or _is_in_use(error):
                    raise ClusterError(self._why_not(error)) from error
                # The chief is gone, or another one while all connected.
                self._store = None
                _STORES.pop(self._address, None)
                self._leave()
                time.sleep(0.05)

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
        if self._back is not None and not self._is_over:
            raise PeerBack(f"{self.name(self._back)} is back.")
        with self._noticing(), self._watched():
            if self._mesh is not None and not sent.is_cuda:
                self._mesh.gather(sent, received, max(_STEP_SECS, self._wait_secs))
            elif not self.absent:
                _all_gather(received.view(-1), sent)
            else:
                those = received.new_empty(len(self.here), len(sent))
                _all_gather(those.view(-1), sent)
                received[self.here] = those

    def gather_texts(self, text: str) -> list[str]:
        """Gives everybody everybody's text, by rank; empty for those that are not there.

        Raises:
            PeerLost: Another process is gone.
        """
        own = torch.tensor(list(text.encode()), dtype=torch.uint8)
        lengths = torch.zeros(self.size, 1, dtype=torch.int64)
        self.gather(torch.tensor([len(own)]), lengths)
        longest = int(lengths.max())
        padded, received = torch.zeros(longest, dtype=torch.uint8), torch.empty(self.size, longest, dtype=torch.uint8)
        padded[: len(own)] = own
        self.gather(padded, received)
        return [
            bytes(row[: int(length)].tolist()).decode() for row, length in zip(received, lengths[:, 0], strict=True)
        ]

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

    def is_over(self) -> None:
        """For the chief: whoever may lose it from now on need not wait for it to come back."""
        self._is_over = True
        with contextlib.suppress(RuntimeError):
            if self._store is not None:
                self._store.set(_OVER, "")

    def close(self, *, politely: bool) -> None:
        """Leaves the others.

        Args:
            politely: Whether to wait until all have the last message, part of which may still be on its way when this
                process has all of it.
        """
        with contextlib.suppress(RuntimeError):
            if politely:
                self._wait_for_all()
        self._leave()
        self._forget_before()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        assert self._watch is not None
        self._watch.arrive()
        yield
        self._watch.go_on()

    def _leave(self) -> None:
        if self._watch is not None:
            self._watch.end()
            self._watch = None
        self._back = None
        if self._mesh is not None:
            self._forget_before()
            if self.rank == 0 and self._elastic:
                self._mesh.leave()
                self._before = self._mesh
            else:
                self._mesh.close()
            self._mesh = None
        with contextlib.suppress(RuntimeError):
            if dist.is_initialized() and not self._was_there:
                dist.destroy_process_group()

    def _wait_for_all(self) -> None:
        assert self._store is not None
        deadline = time.monotonic() + _LEAVE_SECS
        left = self._store.add("left", 1)
        while left < len(self.here) and time.monotonic() < deadline:
            time.sleep(0.005)
            left = self._store.add("left", 0)

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(politely=error is None)

    @contextlib.contextmanager
    def _noticing(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, OSError) as error:
            text = f"{self._task} has lost another process of the cluster ({_reason(error)})"
            if not self._goes_on:
                text += "; see its log, and start all of them again: training goes on from the last checkpoint."
            raise PeerLost(text) from error

    def _forms(self, status: str, deadline: float) -> bool:
        """Forms the newest generation; returns whether none has begun meanwhile."""
        left = max(1.0, deadline - time.monotonic())
        store = _store(self._task, self._address, left)
        if self.rank and self._store is not None and self._store.check([_OVER]):
            raise TrainingOver
        generation = store.add(_GENERATION, 1) if self.rank == 0 else self._awaited(store, deadline)
        self._store = _of_generation(store, generation)
        self._store.set(_HERE.format(self.rank), f"here {status}")
        began = time.monotonic()
        while (absent := self._absent()) and not self._store.check([_MEMBERS]):
            if store.add(_GENERATION, 0) != generation:
                return False
            if self._may_miss and time.monotonic() > began + self._patience and not self._alive(absent):
                break
            self._wait_for(absent, deadline)
        self._patience = _FORMING_SECS
        if self.rank == 0:
            self._store.set(_MEMBERS, " ".join(str(rank) for rank in range(self.size) if rank not in absent))
        here = [int(rank) for rank in self._store.get(_MEMBERS).decode().split()]
        if self.rank not in here:
            self._wait_for_turn(store, generation, status, deadline)
            return False
        self.here = here
        self.statuses = [self._status(rank) if rank in here else "" for rank in range(self.size)]
        connect_secs = min(left, _CONNECT_SECS if self._may_form_again else _FORMING_SECS)
        if not self._was_there:
            with _gloo_through(self._interface):
                dist.init_process_group(
                    self._backend,
                    store=self._store,
                    rank=here.index(self.rank),
                    world_size=len(here),
                    timeout=datetime.timedelta(seconds=connect_secs),
                )
            dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=max(_STEP_SECS, self._wait_secs)))
        if len(here) <= _MOST_IN_MESH or self._elastic:
            self._mesh = Mesh(self._store, self.rank, here, self._address, connect_secs)
        self._forget_before()
        self._watch = Watch(self._store, self.rank, here, self.name, self._silence_secs, self._look_for_absent)
        return True

    def _absent(self) -> list[int]:
        assert self._store is not None
        return [rank for rank in range(self.size) if not self._store.check([_HERE.format(rank)])]

    def _status(self, rank: int) -> str:
        assert self._store is not None
        return self._store.get(_HERE.format(rank)).decode().partition(" ")[2]

    def _alive(self, absent: Sequence[int]) -> bool:
        """Whether one of those that have not come has not ended."""
        return self._before is not None and not self._before.alive().isdisjoint(absent)

    def _forget_before(self) -> None:
        if self._before is not None:
            self._before.close()
            self._before = None

    def _wait_for_turn(self, store: Store, generation: int, status: str, deadline: float) -> None:
        """Waits until the others, who have gone on without this process, form the next generation with it."""
        if status:
            raise ClusterError(
                f"{self._task} was away for too long: the others have gone on without it; start it again."
            )
        assert self._store is not None
        logger.info("The others have gone on without %s; waiting for them to take it up again.", self._task)
        while store.add(_GENERATION, 0) == generation:
            if self._store.check([_OVER]):
                raise TrainingOver
            self._wait_for([0], deadline)

    def _look_for_absent(self) -> None:
        """For the chief: whether one that the others have gone on without is back."""
        if self.rank == 0 and self._store is not None:
            self._back = next((rank for rank in self.absent if self._store.check([_HERE.format(rank)])), None)

    def _awaited(self, store: Store, deadline: float) -> int:
        """The newest generation, once neither this process nor the one in whose place it has come has a part in it."""
        while True:
            if self._store is not None and self._store.check([_OVER]):
                raise TrainingOver
            newest = store.add(_GENERATION, 0)
            if newest and not _of_generation(store, newest).check([_HERE.format(self.rank)]):
                return newest
            self._wait_for([0], deadline)

    def _wait_for(self, ranks: Iterable[int], deadline: float) -> None:
        self._look()
        now = time.monotonic()
        names = ", ".join(map(self.name, ranks))
        if now > deadline:
            raise ClusterError(
                f"{self._task} waited {self._told_wait} at {self._task.rendezvous} for {names}; see whether all run "
                "and can reach that address."
            )
        if now > self._said + _SAY_EVERY_SECS:
            self._said = now
            logger.info("%s waits at %s for %s.", self._task, self._task.rendezvous, names)
        time.sleep(0.01)

    @property
    def _told_wait(self) -> str:
        return f"{self._wait_secs:g} s (session_creation_timeout_secs of RunConfig)"

    def _why_not(self, error: Exception) -> str:
        where = self._task.rendezvous
        if _is_in_use(error):
            return f"{self._task} cannot listen on {where}: the port is in use; end what uses it, or name another port."
        return (
            f"{self._task} waited {self._told_wait} for {self.name(0)} at {where}; see whether it runs and can be "
            f"reached ({_reason(error)})."
        )


def _store(task: Task, address: tuple[str, int], wait_secs: float) -> Store:
    """Where all leave notes for each other: a file, or served by the chief as long as its process lives."""
    if task.rendezvous is not None and task.rendezvous.startswith(_FILE):
        return FileStore(task.rendezvous.removeprefix(_FILE), task.num_workers)
    if dist.is_initialized():
        return dist.distributed_c10d._get_default_store()
    wait = datetime.timedelta(seconds=wait_secs)
    if address not in _STORES:
        if task.ranks and _is_of_torchrun():
            # Whoever started the processes serves it.
            _STORES[address], _, _ = next(rendezvous("env://", task.rank, task.num_workers, timeout=wait))
        else:
            chief = task.rank == 0
            _STORES[address] = TCPStore(*address, is_master=chief, timeout=wait, wait_for_workers=False)
    return _STORES[address]


@contextlib.contextmanager
def _gloo_through(interface: str | None) -> Iterator[None]:
    """Has gloo listen there, unless the user has named an interface; it reads the environment when a group is made."""
    if interface is None or _INTERFACE in os.environ:
        yield
        return
    os.environ[_INTERFACE] = interface
    try:
        yield
    finally:
        # Other groups, and the processes that this one starts, lead elsewhere.
        del os.environ[_INTERFACE]


def _of_generation(store: Store, generation: int) -> Store:
    # A store that outlives a group still holds what the one before has written.
    return PrefixStore(f"torch-estimator {generation}", store)


def _is_of_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ


def _is_in_use(error: Exception) -> bool:
    return "EADDRINUSE" in str(error) or "already in use" in str(error)


def _reason(error: Exception) -> str:
    """What gloo says, without the line of its source and its advice."""
    return re.sub(r"^\[[^\]]*\] ", "", str(error).partition("\n")[0]).partition(". ")[0].strip()
