"""What the processes of a group write into their key-value store to form one generation of the group.

A group is formed again after each loss of a process; each time is one *generation*, with a number that the chief counts
up. The store is one of torch's: served by the chief's process as long as that lives, by the launcher (torchrun, Ray
Train), or a file on one machine. It holds

- the number of the newest generation, and
- for each generation, behind a prefix with its number: an announcement of each process that has joined, the ranks that
  the chief has accepted as members, and whether the chief has ended the training.

A store outlives the groups that use it, so nothing of an earlier generation may be mistaken for the current one: that
is why each generation has its own prefix. The module `rendezvous` says which process writes what, and when.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # documented
from torch.distributed.rendezvous import rendezvous

from torch_estimator.cluster.task import Task
from torch_estimator.distributed.heartbeat import beats_of

FILE_PREFIX = "file:"
"""What the address of a store begins with that is a file."""

_NEWEST = "torch-estimator generation"
_ANNOUNCEMENT = "rank {} is here"
_MEMBERS = "members"
_READERS = "have read all announcements"
_OVER = "over"
_ONE_FAILED = "one has failed"
_LEFT = "left"


@dataclass(frozen=True, slots=True)
class Announcement:
    """What one process says of itself when it joins a generation.

    Attributes:
        incarnation: Random name of the process; another process with the same rank has another one.
        purpose: What the process wants to do with the others: ``train`` or ``evaluate``.
        status: What the process holds of the training, as text; empty for a process that has just been started.
    """

    incarnation: str
    purpose: str
    status: str

    def as_text(self) -> str:
        """Return what `from_text` takes."""
        return f"{self.incarnation} {self.purpose} {self.status}"

    @classmethod
    def from_text(cls, text: str) -> Announcement:
        """Return the announcement that `as_text` was called on."""
        return cls(*text.split(" ", 2))


class ForeignMembersError(Exception):
    """The store names members that the chief has not written; it takes what any program writes.

    Args:
        text: The content of the store.
    """

    def __init__(self, text: bytes) -> None:
        super().__init__(text)
        self.text = text[:100].decode(errors="replace")


class Generation:
    """The part of the store that belongs to one generation.

    Args:
        store: The whole store.
        number: Number of the generation, from 1.
        size: Number of processes in the group.

    Attributes:
        number: Number of the generation.
        store: The store behind the prefix of this generation.
    """

    def __init__(self, store: Store, number: int, size: int) -> None:
        self.number = number
        self._size = size
        self.store: Store = PrefixStore(f"torch-estimator {number}", store)
        self._whole = store

    def is_newest(self) -> bool:
        """Return whether the chief has begun no later generation."""
        return newest_generation(self._whole) == self.number

    def announce(self, rank: int, announcement: Announcement, *, is_exclusive: bool) -> bool:
        """Write the announcement of a rank; return False where another process has written one for it.

        Args:
            rank: Rank of this process.
            announcement: What the others shall know of this process.
            is_exclusive: Whether no other process can announce itself under this rank, so that nothing has to be
                checked. That is so for forked replicas, whose store is a file and has no compare-and-set.
        """
        key, text = _ANNOUNCEMENT.format(rank), announcement.as_text()
        if is_exclusive:
            self.store.set(key, text)
            return True
        return bool(self.store.compare_set(key, "", text) == text.encode())

    def announcement(self, rank: int) -> Announcement:
        """Return the announcement of a rank; wait for it where there is none yet."""
        return Announcement.from_text(self.store.get(_ANNOUNCEMENT.format(rank)).decode())

    def has_announced(self, rank: int) -> bool:
        """Return whether there is an announcement of a rank."""
        return bool(self.store.check([_ANNOUNCEMENT.format(rank)]))

    def absent(self, size: int) -> list[int]:
        """Return the ranks below `size` without an announcement."""
        return [rank for rank in range(size) if not self.has_announced(rank)]

    def first_announced(self, ranks: Iterable[int]) -> int | None:
        """Return the first of these ranks that has an announcement, or None."""
        return next((rank for rank in ranks if self.has_announced(rank)), None)

    def set_members(self, ranks: Iterable[int]) -> None:
        """Write the ranks of the members; only the chief does, once.

        Raises:
            ForeignMembersError: Another program has written into the store.
        """
        if self.has_members():
            raise ForeignMembersError(self.store.get(_MEMBERS))
        self.store.set(_MEMBERS, " ".join(map(str, ranks)))

    def has_members(self) -> bool:
        """Return whether the chief has written the members."""
        return bool(self.store.check([_MEMBERS]))

    def members(self) -> list[int]:
        """Return the ranks of the members; wait for them where the chief has not written them.

        Raises:
            ForeignMembersError: Another program has written them.
        """
        text = self.store.get(_MEMBERS)
        try:
            ranks = [int(rank) for rank in text.decode().split()]
        except ValueError:
            raise ForeignMembersError(text) from None
        if ranks[:1] != [0] or ranks != sorted(set(ranks)) or ranks[-1] >= self._size:
            raise ForeignMembersError(text)
        return ranks

    def excludes(self, rank: int) -> bool:
        """Return whether the members are known and a rank is not one of them."""
        return self.has_members() and rank not in self.members()

    def beats(self, rank: int) -> int:
        """Return how many heartbeats the process of a rank has published in this generation."""
        return beats_of(self.store, rank)

    def end_training(self) -> None:
        """Tell processes that lose their peers from now on that there is nothing to rejoin."""
        self.store.set(_OVER, "")

    def is_over(self) -> bool:
        """Return whether `end_training` was called."""
        return bool(self.store.check([_OVER]))

    def note_failure(self) -> None:
        """Note that this process ends because of its own error, not because it has lost another process."""
        self.store.set(_ONE_FAILED, "")

    def has_failure(self) -> bool:
        """Return whether `note_failure` was called by any process."""
        return bool(self.store.check([_ONE_FAILED]))

    def wait_until_all_have_read(self, *, is_chief: bool, members: Collection[int], most_secs: float) -> None:
        """Have the chief stay until all members have read the announcements: its process may serve the store."""
        deadline = time.monotonic() + most_secs
        readers = self.store.add(_READERS, 1)
        while is_chief and readers < len(members) and time.monotonic() < deadline:
            time.sleep(0.01)
            readers = self.store.add(_READERS, 0)

    def wait_until_all_leave(self, members: Collection[int], *, most_secs: float) -> None:
        """Wait until all members have called this."""
        deadline = time.monotonic() + most_secs
        left = self.store.add(_LEFT, 1)
        while left < len(members) and time.monotonic() < deadline:
            time.sleep(0.005)
            left = self.store.add(_LEFT, 0)


def newest_generation(store: Store) -> int:
    """Return the number of the newest generation, or 0 where there is none."""
    return int(store.add(_NEWEST, 0))


def begin_generation(store: Store, size: int) -> Generation:
    """Return a new generation of a group of so many processes; only the chief begins one."""
    return Generation(store, store.add(_NEWEST, 1), size)


# Stores that this process has opened, by address. A store stays open while the process lives: the chief's process
# serves it, and the next training of the same program uses it again.
_OPEN_STORES: dict[tuple[str, int], Store] = {}


def open_store(task: Task, address: tuple[str, int], wait_secs: float) -> Store:
    """Return the store of a group; connect to it, or begin to serve it, at the first call.

    Args:
        task: The place of this process, which names the store.
        address: Host and port of the store; unused for a file.
        wait_secs: Seconds to wait for a connection.
    """
    if task.rendezvous is not None and task.rendezvous.startswith(FILE_PREFIX):
        return FileStore(task.rendezvous.removeprefix(FILE_PREFIX), task.num_workers)
    if dist.is_initialized():
        # Ray Train has initialized torch.distributed before it called the program.
        return dist.distributed_c10d._get_default_store()
    timeout = datetime.timedelta(seconds=wait_secs)
    if address not in _OPEN_STORES:
        if task.ranks and is_started_by_torchrun():
            # torchrun's agent may serve the store at this address already, which torch finds out.
            _OPEN_STORES[address], _, _ = next(rendezvous("env://", task.rank, task.num_workers, timeout=timeout))
        else:
            is_chief = task.rank == 0
            _OPEN_STORES[address] = TCPStore(*address, is_master=is_chief, timeout=timeout, wait_for_workers=False)
    return _OPEN_STORES[address]


def is_open(address: tuple[str, int]) -> bool:
    """Return whether this process is connected to the store at an address."""
    return address in _OPEN_STORES


def forget_store(address: tuple[str, int]) -> None:
    """Have the next `open_store` connect anew, since the process that served the store is gone."""
    _OPEN_STORES.pop(address, None)


def is_started_by_torchrun() -> bool:
    """Return whether torchrun has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ
