"""Generations: each is one formation of a process group, with its own entries in the group's key-value store.

A group is formed again whenever a process was lost. Each time begins a new *generation*, whose number the chief counts
up. The store is one of `torch.distributed`. It is served by the chief's process while that lives, or by the launcher
(torchrun, Ray Train), or it is a file if all processes are on one machine. It holds

- the number of the newest generation, and
- for each generation, under a key prefix with its number: an announcement of each process that has joined, the ranks
  that the chief has accepted as members, and whether the chief has ended the training.

Each generation has its own prefix because a store outlives the groups that use it: an entry of an earlier generation
must not be mistaken for a current one. The module `rendezvous` says which process writes which entry, and when.
"""

from __future__ import annotations

import datetime
import logging
import os
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # documented
from torch.distributed.rendezvous import rendezvous

from torch_estimator.cluster.task import Task
from torch_estimator.distributed.heartbeat import beats_of

logger = logging.getLogger("torch_estimator")

FILE_PREFIX = "file:"
"""Prefix of the address of a store that is a file."""

_NEWEST = "torch-estimator generation"
_ANNOUNCEMENT = "rank {} is here"
_MEMBERS = "members"
_READERS = "have read all announcements"
_OVER = "over"
_ONE_FAILED = "one has failed"
_LEFT = "left"


@dataclass(frozen=True, slots=True)
class Announcement:
    """Entry that a process writes into the store when it joins a generation.

    Attributes:
        incarnation: Random id of the process. It tells apart two processes with the same rank.
        purpose: ``train`` or ``evaluate``.
        status: Description of the training state that the process holds (see `peer_recovery.Status`), as text; empty
            for a process that has just been started.
    """

    incarnation: str
    purpose: str
    status: str

    def as_text(self) -> str:
        """Return the announcement as text, for the store."""
        return f"{self.incarnation} {self.purpose} {self.status}"

    @classmethod
    def from_text(cls, text: str) -> Announcement:
        """Make an announcement from text that `as_text` has returned."""
        return cls(*text.split(" ", 2))


class ForeignMembersError(Exception):
    """The store holds a list of members that the chief has not written. Other programs can write into the store."""

    def __init__(self, text: bytes) -> None:
        super().__init__(text)
        self.text = text[:100].decode(errors="replace")


class Generation:
    """The entries of the store that belong to one generation; generations are numbered from 1."""

    def __init__(self, store: Store, number: int, size: int) -> None:
        self.number = number
        self._size = size
        self.store: Store = PrefixStore(f"torch-estimator {number}", store)
        self._whole = store

    def is_newest(self) -> bool:
        """Return whether this is the newest generation, that is, the chief has begun no later generation."""
        return newest_generation(self._whole) == self.number

    def announce(self, rank: int, announcement: Announcement, *, is_exclusive: bool) -> bool:
        """Write this process's announcement; return False if another process has announced itself under the same rank.

        If no other process can have this rank (`is_exclusive`), the entry is written without a check. This is the case
        for forked replicas, whose store is a file and has no compare-and-set.
        """
        key, text = _ANNOUNCEMENT.format(rank), announcement.as_text()
        if is_exclusive:
            self.store.set(key, text)
            return True
        return bool(self.store.compare_set(key, "", text) == text.encode())

    def announcement(self, rank: int) -> Announcement:
        """Return the announcement of a rank; wait for it if there is none yet."""
        return Announcement.from_text(self.store.get(_ANNOUNCEMENT.format(rank)).decode())

    def has_announced(self, rank: int) -> bool:
        """Return whether the process of a rank has announced itself."""
        return bool(self.store.check([_ANNOUNCEMENT.format(rank)]))

    def absent(self, size: int) -> list[int]:
        """Return the ranks below `size` without an announcement."""
        return [rank for rank in range(size) if not self.has_announced(rank)]

    def first_announced(self, ranks: Iterable[int]) -> int | None:
        """Return the first of these ranks that has an announcement, or None."""
        return next((rank for rank in ranks if self.has_announced(rank)), None)

    def set_members(self, ranks: Iterable[int]) -> None:
        """As the chief, write the list of members, once per generation; raise if another program has written there."""
        if self.has_members():
            raise ForeignMembersError(self.store.get(_MEMBERS))
        self.store.set(_MEMBERS, " ".join(map(str, ranks)))

    def has_members(self) -> bool:
        """Return whether the chief has written the members."""
        return bool(self.store.check([_MEMBERS]))

    def members(self) -> list[int]:
        """Return the ranks of the members; wait until the chief has written them."""
        text = self.store.get(_MEMBERS)
        try:
            ranks = [int(rank) for rank in text.decode().split()]
        except ValueError:
            raise ForeignMembersError(text) from None
        if ranks[:1] != [0] or ranks != sorted(set(ranks)) or ranks[-1] >= self._size:
            raise ForeignMembersError(text)
        return ranks

    def excludes(self, rank: int) -> bool:
        """Return whether the chief has written a list of members that does not contain `rank`."""
        return self.has_members() and rank not in self.members()

    def beats(self, rank: int) -> int:
        """Return the number of heartbeats that the process of a rank has published in this generation."""
        return beats_of(self.store, rank)

    def end_training(self) -> None:
        """Mark the training as over: processes that lose their peers from now on must not wait to rejoin the group."""
        self.store.set(_OVER, "")

    def is_over(self) -> bool:
        """Return whether the chief has marked the training as over with `end_training`."""
        return bool(self.store.check([_OVER]))

    def note_failure(self) -> None:
        """Record that this process ends because of its own error, not because it has lost another process."""
        self.store.set(_ONE_FAILED, "")

    def has_failure(self) -> bool:
        """Return whether any process has recorded that it ends because of its own error."""
        return bool(self.store.check([_ONE_FAILED]))

    def wait_until_all_have_read(self, *, is_chief: bool, members: Collection[int], most_secs: float) -> None:
        """Record that this process has read all announcements; on the chief, wait until all members have done so.

        The chief's process may serve the store, so the store may be gone once the chief ends.
        """
        deadline = time.monotonic() + most_secs
        readers = self.store.add(_READERS, 1)
        while is_chief and readers < len(members) and time.monotonic() < deadline:
            time.sleep(0.01)
            readers = self.store.add(_READERS, 0)

    def wait_until_all_leave(self, members: Collection[int], *, most_secs: float) -> None:
        """Wait until all members have called this method, at most for ``most_secs`` seconds."""
        deadline = time.monotonic() + most_secs
        left = self.store.add(_LEFT, 1)
        while left < len(members) and time.monotonic() < deadline:
            time.sleep(0.005)
            left = self.store.add(_LEFT, 0)


def newest_generation(store: Store) -> int:
    """Return the number of the newest generation in a store, or 0 if there is none."""
    return int(store.add(_NEWEST, 0))


def begin_generation(store: Store, size: int) -> Generation:
    """Begin a new generation for a group of `size` processes and return it. Called by the chief only."""
    return Generation(store, store.add(_NEWEST, 1), size)


# Stores that this process has opened, by address. A store stays open until its server is gone, because the
# chief's process serves it, and because the next training of the same program uses it again.
_OPEN_STORES: dict[tuple[str, int], Store] = {}


def open_store(task: Task, address: tuple[str, int], wait_secs: float) -> Store:
    """Return the store of a group at `address`, which is unused if the task's ``rendezvous`` is a file.

    The first call connects to the store; on the chief, it may start to serve it.
    """
    if task.rendezvous is not None and task.rendezvous.startswith(FILE_PREFIX):
        return FileStore(task.rendezvous.removeprefix(FILE_PREFIX), task.num_workers)
    if dist.is_initialized():
        # Use the store of the launcher: Ray Train initializes torch.distributed before it runs the user's program.
        return dist.distributed_c10d._get_default_store()
    timeout = datetime.timedelta(seconds=wait_secs)
    if address not in _OPEN_STORES:
        if task.ranks and is_started_by_torchrun():
            # Let torch open the store, because torch knows whether torchrun's agent serves one at this address already.
            _OPEN_STORES[address], _, _ = next(rendezvous("env://", task.rank, task.num_workers, timeout=timeout))
        else:
            is_chief = task.rank == 0
            _OPEN_STORES[address] = TCPStore(*address, is_master=is_chief, timeout=timeout, wait_for_workers=False)
            if is_chief:  # torch's store listens on all interfaces, whatever the host is.
                logger.info("%s listens on port %d (all interfaces, *).", task, address[1])
    return _OPEN_STORES[address]


def is_open(address: tuple[str, int]) -> bool:
    """Return whether this process is connected to the store at an address."""
    return address in _OPEN_STORES


def forget_store(address: tuple[str, int]) -> None:
    """Forget the open store at an address, so that `open_store` connects again. Called when its server is gone."""
    _OPEN_STORES.pop(address, None)


def is_started_by_torchrun() -> bool:
    """Return whether torchrun has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ
