"""Where the processes of a group meet, again and again: each time they are a generation of it."""

from __future__ import annotations

import contextlib
import datetime
import logging
import math
import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # documented
from torch.distributed.rendezvous import rendezvous

from torch_estimator.cluster.addresses import LOOPBACK, split_address, unresolved
from torch_estimator.cluster.environment import SLURM
from torch_estimator.cluster.task import Task
from torch_estimator.distributed.heartbeat import rounds_of
from torch_estimator.distributed.interface import interface_to
from torch_estimator.distributed.lost import LeftBehind, TrainingOver, reason
from torch_estimator.distributed.mesh import Mesh
from torch_estimator.errors import ClusterError

logger = logging.getLogger("torch_estimator")

_FILE = "file:"
_INTERFACE = "GLOO_SOCKET_IFNAME"

_STORES: dict[tuple[str, int], Store] = {}
# The newest generation at an address that this process has come to.
_CAME: dict[tuple[str, int], int] = {}
_GENERATION = "torch-estimator generation"
_HERE = "rank {} is here"
_MEMBERS = "members"
_READ = "have read what all are there for"
_OVER = "over"

STEP_SECS = 7200.0
"""How long to wait for an exchange: an evaluation by the chief may come between two steps."""

# One may die while they connect; gloo tries for five times as long.
_CONNECT_SECS = 5.0
# Above, a ring has fewer connections.
_MOST_IN_MESH = 32
_SAY_EVERY_SECS = 10.0
_LOOK_EVERY_SECS = 0.05
# Longer than two of them take to connect.
_MOST_SECS_TO_ANSWER = 2 * _CONNECT_SECS
# Those who have noticed that one is gone meet at once.
_GONE_SECS = 3.0
# Those who were about to form a group when another one was lost may take so long to notice.
_FORMING_SECS = 6 * _CONNECT_SECS
# For another process with the same place that is about to end.
_MOST_SECS_TO_MISS = 10.0
_DOUBLE = ", which is there already as another process, to end"


@dataclass(frozen=True, slots=True)
class Generation:
    """Those who have met.

    Attributes:
        store: Where they leave notes for each other.
        here: Their ranks.
        statuses: By rank, what each has said of itself; empty for those who are not there.
        mesh: Their connections; None where they use those of `torch.distributed`.
    """

    store: Store
    here: list[int]
    statuses: list[str]
    mesh: Mesh | None

    def look_for(self, ranks: Iterable[int]) -> int | None:
        """The first of those ranks that wants to be in the next one."""
        return next((rank for rank in ranks if self.store.check([_HERE.format(rank)])), None)

    def tell_end(self) -> None:
        """Whoever loses the others from now on need not wait for them."""
        self.store.set(_OVER, "")


class Meeting:
    """How a process finds the others of its group.

    Args:
        task: This process.
        backend: ``gloo`` or ``nccl``.
        wait_secs: How long to wait for the others.
        watch: Called while waiting for them; raises where that is in vain.
        elastic: Whether the chief may go on without those that are gone.
        purpose: What they meet for, in a word.

    Attributes:
        may_happen_again: Whether processes that have lost one may meet the one that comes in its place; not where the
            launcher starts all of them again, as torchrun, Slurm and Ray Train do.
    """

    def __init__(
        self,
        task: Task,
        backend: str,
        *,
        wait_secs: float,
        watch: Callable[[], None],
        elastic: bool,
        purpose: str,
    ) -> None:
        assert task.rendezvous is not None
        self._task = task
        self._rank, self._size = task.rank, task.num_workers
        self._backend = backend
        self._wait_secs = wait_secs
        self._look = watch
        self._elastic = elastic
        self._purpose = purpose
        # By whoever has started this process, as Ray Train does, and who will also end it.
        self._was_there = dist.is_initialized()
        is_file = task.rendezvous.startswith(_FILE)
        self.may_happen_again = not (self._was_there or _is_of_torchrun() or task.source == SLURM or is_file)
        self._address = ("", 0) if is_file else split_address(task.rendezvous, "the chief's address")
        self._interface = "lo" if is_file or self._address[0] in LOOPBACK else interface_to(*self._address)
        self._store: Store | None = None
        # Of the generation before, for the chief of an elastic group: it tells who is still there.
        self._before: Mesh | None = None
        self._may_miss = False
        self._patience = _GONE_SECS
        self._life = secrets.token_hex(8)
        self._connects = False
        self._meets: threading.Thread | None = None
        self._waits_for, self._waits_at = "", 0.0

    def meet(self, status: str, *, may_miss: bool) -> Generation:
        """Waits for all others; see `Group.meet`.

        Raises:
            ClusterError: They did not come in time.
            LeftBehind: They have gone on without this process.
            TrainingOver: The chief has ended the training.
        """
        self._may_miss = may_miss and self._rank == 0 and self._elastic and self.may_happen_again
        self._patience = _GONE_SECS
        self._waits_at = time.monotonic()
        # Whoever asks a chief that is stopped waits for as long as it is; so another thread does.
        outcomes: queue.SimpleQueue[Generation | BaseException] = queue.SimpleQueue()
        self._meets = threading.Thread(target=self._meet, args=(status, outcomes), name="meeting", daemon=True)
        self._meets.start()
        try:
            outcome = self._awaited_outcome(outcomes)
        finally:
            meets, self._meets = self._meets, None
            meets.join(_CONNECT_SECS if self._connects else _LOOK_EVERY_SECS)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _awaited_outcome(self, outcomes: queue.SimpleQueue[Generation | BaseException]) -> Generation | BaseException:
        said = time.monotonic()
        deadline = said + self._wait_secs
        while True:
            self._look()
            with contextlib.suppress(queue.Empty):
                return outcomes.get(timeout=_LOOK_EVERY_SECS)
            now = time.monotonic()
            answers = now < self._waits_at + _MOST_SECS_TO_ANSWER
            if now > deadline and not answers:
                raise ClusterError(self._why_not(TimeoutError("timed out")))
            if now > said + _SAY_EVERY_SECS:
                said = now
                doubt = "" if answers else self._doubt()
                silent = f"{self._chief}, which does not answer{f' ({doubt})' if doubt else ''}"
                whom = self._waits_for if answers else silent
                logger.info("%s waits at %s for %s.", self._task, self._task.rendezvous, whom)

    def _meet(self, status: str, outcomes: queue.SimpleQueue[Generation | BaseException]) -> None:
        deadline = time.monotonic() + self._wait_secs
        try:
            while (generation := self._tries(status, deadline)) is None:
                pass
            if self._meets is not threading.current_thread():
                self.leave(generation.mesh)
            outcomes.put(generation)
        except BaseException as error:
            outcomes.put(error)

    def _tries(self, status: str, deadline: float) -> Generation | None:
        try:
            return self._forms(status, deadline)
        except ClusterError:
            raise
        except (RuntimeError, ValueError, OSError) as error:
            if time.monotonic() > deadline or not self.may_happen_again or _is_in_use(error):
                raise ClusterError(self._why_not(error)) from error
            # The chief is gone, or another one while all connected.
            self._store = None
            _STORES.pop(self._address, None)
            self.leave(None)
            time.sleep(0.05)
            return None

    def leave(self, mesh: Mesh | None) -> None:
        """Ends the connections of a generation, if there is one."""
        if mesh is not None:
            self.forget()
            if self._rank == 0 and self._elastic:
                mesh.leave()
                self._before = mesh
            else:
                mesh.close()
        with contextlib.suppress(RuntimeError):
            if dist.is_initialized() and not self._was_there:
                dist.destroy_process_group()

    def forget(self) -> None:
        """Asks no more who of the generation before is still there."""
        if self._before is not None:
            self._before.close()
            self._before = None

    def _forms(self, status: str, deadline: float) -> Generation | None:
        """The newest generation; None where another one has begun meanwhile."""
        if self._rank and self._is_to_connect():
            self._wait_for_chief(deadline)
        left = max(1.0, deadline - time.monotonic())
        store = _store(self._task, self._address, left)
        if self._rank and self._store is not None and self._store.check([_OVER]):
            raise TrainingOver
        number = store.add(_GENERATION, 1) if self._rank == 0 else self._awaited(store, deadline)
        mine = self._store = _of_generation(store, number)
        if status and self._is_without_me(mine):
            raise LeftBehind(self._task)
        if not self._is_first(mine, _HERE.format(self._rank), f"{self._life} {self._purpose} {status}"):
            return None
        _CAME[self._address] = number
        began = time.monotonic()
        while (absent := self._absent(mine)) and not mine.check([_MEMBERS]):
            if store.add(_GENERATION, 0) != number:
                return None
            if self._may_miss and time.monotonic() > began + self._patience and not self._alive(absent):
                break
            self._wait_for(absent, deadline)
        self._patience = _FORMING_SECS
        if self._rank == 0:
            if mine.check([_MEMBERS]):
                # Only this process says who is in a generation that it has just begun.
                raise self._senseless_members(mine.get(_MEMBERS))
            mine.set(_MEMBERS, " ".join(str(rank) for rank in range(self._size) if rank not in absent))
        if self._is_without_me(mine):
            if status:
                raise LeftBehind(self._task)
            self._wait_for_turn(store, number, deadline)
            return None
        here = self._members(mine)
        told = {rank: _told(mine, rank) for rank in here}
        try:
            self._check_purposes({rank: purpose for rank, (purpose, _) in told.items()})
        except ClusterError:
            self._let_all_read(mine, len(here))
            raise
        mesh = self._connected(mine, here, min(left, _CONNECT_SECS if self.may_happen_again else _FORMING_SECS))
        self.forget()
        return Generation(mine, here, [told.get(rank, ("", ""))[1] for rank in range(self._size)], mesh)

    def _is_first(self, store: Store, key: str, said: str) -> bool:
        """Says something that one process can say; returns whether this one was first."""
        if self._interface == "lo" and not self._address[0]:
            # A file knows no such thing; replicas have places of their own.
            store.set(key, said)
            return True
        return bool(store.compare_set(key, "", said) == said.encode())

    def _connected(self, store: Store, here: Sequence[int], connect_secs: float) -> Mesh | None:
        self._waits_at, self._waits_for = time.monotonic() + 5 * connect_secs, "connections to all of them"
        self._connects = True
        try:
            self._init_process_group(store, here, connect_secs)
            if len(here) <= _MOST_IN_MESH or self._elastic:
                return Mesh(store, self._rank, here, self._address, connect_secs)
            return None
        finally:
            self._connects = False

    def _is_to_connect(self) -> bool:
        """Whether there is no way to the chief's store yet, and it is the chief's own."""
        return bool(self._address[0]) and self._address not in _STORES and not (self._was_there or _is_of_torchrun())

    def _wait_for_chief(self, deadline: float) -> None:
        """Waits until something listens there; torch would tell all that it tries meanwhile."""
        while True:
            try:
                socket.create_connection(self._address, timeout=_LOOK_EVERY_SECS * 20).close()
                return
            except OSError:
                if self._meets is not threading.current_thread() or time.monotonic() > deadline:
                    raise
            time.sleep(_LOOK_EVERY_SECS)

    def _init_process_group(self, store: Store, here: Sequence[int], connect_secs: float) -> None:
        if self._was_there:
            return
        # It names groups by how many it has tried to make, and processes that were started anew have tried less often.
        dist.distributed_c10d._world.group_count = 0
        with _gloo_through(self._interface):
            dist.init_process_group(
                self._backend,
                store=store,
                rank=here.index(self._rank),
                world_size=len(here),
                timeout=datetime.timedelta(seconds=connect_secs),
            )
        dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=max(STEP_SECS, self._wait_secs)))

    def _check_purposes(self, purposes: Mapping[int, str]) -> None:
        for rank, purpose in purposes.items():
            if purpose != purposes[0]:
                chief, other = (f"{self._task.name_of_rank(one)} is to {purposes[one]}" for one in (0, rank))
                raise ClusterError(f"{chief}, but {other}; have all of them call the same, in the same order.")

    def _let_all_read(self, store: Store, count: int) -> None:
        """Has a chief stay that all others still ask."""
        deadline = time.monotonic() + _GONE_SECS
        have_read = store.add(_READ, 1)
        while self._rank == 0 and have_read < count and time.monotonic() < deadline:
            time.sleep(0.01)
            have_read = store.add(_READ, 0)

    def _absent(self, store: Store) -> list[int]:
        return [rank for rank in range(self._size) if not store.check([_HERE.format(rank)])]

    def _alive(self, absent: Sequence[int]) -> bool:
        """Whether one of those that have not come has not ended."""
        return self._before is not None and not self._before.alive().isdisjoint(absent)

    def _members(self, store: Store) -> list[int]:
        """Return the ranks that the chief has chosen; the store takes what anybody writes."""
        text = store.get(_MEMBERS)
        try:
            ranks = [int(rank) for rank in text.decode().split()]
        except ValueError:
            raise self._senseless_members(text) from None
        if ranks[:1] != [0] or ranks != sorted(set(ranks)) or ranks[-1] >= self._size:
            raise self._senseless_members(text)
        return ranks

    def _senseless_members(self, text: bytes) -> ClusterError:
        return ClusterError(
            f"{self._task} has found {text[:100].decode(errors='replace')!r} at {self._task.rendezvous} as the ranks "
            "of those that train, which its chief has not written; see whether another program uses that address."
        )

    def _is_without_me(self, store: Store) -> bool:
        return store.check([_MEMBERS]) and self._rank not in self._members(store)

    def _wait_for_turn(self, store: Store, number: int, deadline: float) -> None:
        """Waits until the others, who have gone on without this process, form the next generation with it."""
        assert self._store is not None
        logger.info("The others have gone on without %s; waiting for them to take it up again.", self._task)
        while store.add(_GENERATION, 0) == number:
            if self._store.check([_OVER]):
                raise TrainingOver
            self._wait_for([0], deadline)

    def _awaited(self, store: Store, deadline: float) -> int:
        """The newest generation, once neither this process nor the one in whose place it has come has a part in it."""
        # Of another process with this one's place: what it had told at first, and when to end since it lives.
        seen: tuple[int, int] | None = None
        ends_at = math.inf
        while True:
            if self._store is not None and self._store.check([_OVER]):
                raise TrainingOver
            newest = store.add(_GENERATION, 0)
            if newest and not _of_generation(store, newest).check([_HERE.format(self._rank)]):
                return newest
            if newest and _CAME.get(self._address) != newest:
                told = rounds_of(_of_generation(store, newest), self._rank)
                if seen is None:
                    seen = newest, told
                elif ends_at == math.inf and seen[0] == newest and told > seen[1]:
                    ends_at = time.monotonic() + _MOST_SECS_TO_MISS
                self._wait_for([self._rank], min(deadline, ends_at), _DOUBLE)
            else:
                self._wait_for([0], deadline)

    def _wait_for(self, ranks: Iterable[int], deadline: float, what: str = "") -> None:
        if self._meets is not threading.current_thread():
            raise ClusterError("Nobody waits for this any more.")
        self._waits_at = time.monotonic()
        self._waits_for = ", ".join(map(self._task.name_of_rank, ranks)) + what
        if self._waits_at > deadline:
            advice = "two have the same TF_CONFIG" if what else "all run and can reach that address"
            wait = f"{_MOST_SECS_TO_MISS:g} s" if what and self._wait_secs > _MOST_SECS_TO_MISS else self._told_wait
            raise ClusterError(
                f"{self._task} waited {wait} at {self._task.rendezvous} for {self._waits_for}; see whether {advice}."
            )
        time.sleep(0.01)

    @property
    def _told_wait(self) -> str:
        return f"{self._wait_secs:g} s (session_creation_timeout_secs of RunConfig)"

    def _why_not(self, error: Exception) -> str:
        where = self._task.rendezvous
        if _is_in_use(error):
            return f"{self._task} cannot listen on {where}: the port is in use; end what uses it, or name another port."
        host, _ = self._address
        advice = "that is an address of this machine" if host and self._rank == 0 else "it runs and can be reached"
        return (
            f"{self._task} waited {self._told_wait} for {self._chief} at {where}; see whether {advice} "
            f"({self._doubt() or reason(error)})."
        )

    @property
    def _chief(self) -> str:
        return self._task.name_of_rank(0) if self._rank else "itself"

    def _doubt(self) -> str:
        """What is wrong with the chief's address, as far as can be seen from here."""
        host, port = self._address
        return unresolved(host, port) if host else ""


def _told(store: Store, rank: int) -> tuple[str, str]:
    """What one of them is there for, and what it says of itself."""
    _, purpose, status = store.get(_HERE.format(rank)).decode().split(" ", 2)
    return purpose, status


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
