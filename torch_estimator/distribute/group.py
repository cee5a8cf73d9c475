"""Processes that train together, and what they tell each other."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import time
from collections.abc import Iterable, Iterator
from types import TracebackType

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # documented
from torch.distributed.rendezvous import rendezvous

from torch_estimator.cluster.addresses import split_address
from torch_estimator.cluster.task import Task
from torch_estimator.distribute.interface import interface_to
from torch_estimator.errors import ClusterError

# Its name since torch 2.13.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

_LOOPBACK = ("localhost", "127.0.0.1", "::1")

_GROUPS = itertools.count()
_STORES: dict[tuple[str, int], Store] = {}
_HERE = "rank {} is here"

# An evaluation by the chief may come between two steps.
_STEP_SECS = 7200.0
_LEAVE_SECS = 30.0


class Group:
    """All processes that train a model together; making one waits for the others.

    Args:
        task: This process.
        backend: ``gloo`` or ``nccl``.
        wait_secs: How long to wait for the others.

    Attributes:
        rank: Of this process, 0 for the chief.
        size: How many they are.

    Raises:
        ClusterError: They did not come, or the chief's address cannot be used.
    """

    def __init__(self, task: Task, backend: str, *, wait_secs: float) -> None:
        assert task.rendezvous is not None
        self.rank, self.size = task.rank, task.num_workers
        self._task = task
        # By whoever has started this process, as Ray Train does, and who will also end it.
        self._was_there = dist.is_initialized()
        host, port = split_address(task.rendezvous, "the chief's address")
        interface = "lo" if host in _LOOPBACK else interface_to(host, port)
        if interface is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        try:
            # A store that outlives a group still holds what the one before has written.
            self._store = PrefixStore(f"torch-estimator {next(_GROUPS)}", _store(task, host, port, wait_secs))
            self._meet(wait_secs)
            if not self._was_there:
                dist.init_process_group(
                    backend,
                    store=self._store,
                    rank=self.rank,
                    world_size=self.size,
                    timeout=datetime.timedelta(seconds=max(_STEP_SECS, wait_secs)),
                )
        except (RuntimeError, ValueError) as error:
            if isinstance(error, ClusterError):
                raise
            raise ClusterError(self._why_not(error, wait_secs)) from error

    def gather(self, sent: Tensor, received: Tensor) -> None:
        """Gives everybody everybody's tensor.

        Args:
            sent: ``[n]``, of the same size everywhere.
            received: ``[size, n]``, filled.

        Raises:
            ClusterError: Another process is gone.
        """
        with self._noticing():
            _all_gather(received.view(-1), sent)

    def gather_texts(self, text: str) -> list[str]:
        """Gives everybody everybody's text, by rank.

        Raises:
            ClusterError: Another process is gone.
        """
        own = torch.tensor(list(text.encode()), dtype=torch.uint8)
        lengths = torch.empty(self.size, 1, dtype=torch.int64)
        self.gather(torch.tensor([len(own)]), lengths)
        longest = int(lengths.max())
        padded, received = torch.zeros(longest, dtype=torch.uint8), torch.empty(self.size, longest, dtype=torch.uint8)
        padded[: len(own)] = own
        self.gather(padded, received)
        return [
            bytes(row[: int(length)].tolist()).decode() for row, length in zip(received, lengths[:, 0], strict=True)
        ]

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Fills tensors with those of the chief.

        Raises:
            ClusterError: Another process is gone.
        """
        with self._noticing():
            for tensor in tensors:
                whole = tensor.contiguous()
                dist.broadcast(whole, 0)
                if whole is not tensor:
                    tensor.copy_(whole)

    def name(self, rank: int) -> str:
        """What the cluster calls the process of a rank."""
        return self._task.name_of_rank(rank)

    def close(self, *, politely: bool) -> None:
        """Leaves the others.

        Args:
            politely: Whether to wait until all have the last message, part of which may still be on its way when this
                process has all of it.
        """
        with contextlib.suppress(RuntimeError):
            if politely:
                self._wait_for_all()
            if not self._was_there:
                dist.destroy_process_group()

    def _wait_for_all(self) -> None:
        deadline = time.monotonic() + _LEAVE_SECS
        left = self._store.add("left", 1)
        while left < self.size and time.monotonic() < deadline:
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
        except RuntimeError as error:
            raise ClusterError(
                f"{self._task} has lost another process of the cluster ({_first_line(error)}); see its log, and start "
                "all of them again: training goes on from the last checkpoint."
            ) from error

    def _meet(self, wait_secs: float) -> None:
        self._store.set(_HERE.format(self.rank), "")
        deadline = time.monotonic() + wait_secs
        absent = list(range(self.size))
        while absent:
            absent = [rank for rank in absent if not self._store.check([_HERE.format(rank)])]
            if absent and time.monotonic() > deadline:
                names = ", ".join(map(self.name, absent))
                raise ClusterError(
                    f"{self._task} waited {_told(wait_secs)} at {self._task.rendezvous} for {names}; see whether all "
                    "run and can reach that address."
                )
            time.sleep(0.01)

    def _why_not(self, error: Exception, wait_secs: float) -> str:
        where, text = self._task.rendezvous, str(error)
        if "EADDRINUSE" in text or "already in use" in text:
            return f"{self._task} cannot listen on {where}: the port is in use; end what uses it, or name another port."
        return (
            f"{self._task} waited {_told(wait_secs)} for {self.name(0)} at {where}; see whether it runs and can be "
            f"reached ({_first_line(error)})."
        )


def _store(task: Task, host: str, port: int, wait_secs: float) -> Store:
    """Where all leave notes for each other; served by the chief as long as its process lives."""
    if dist.is_initialized():
        return dist.distributed_c10d._get_default_store()
    wait = datetime.timedelta(seconds=wait_secs)
    if (host, port) not in _STORES:
        if task.ranks and "TORCHELASTIC_RUN_ID" in os.environ:
            # Whoever started the processes serves it.
            _STORES[host, port], _, _ = next(rendezvous("env://", task.rank, task.num_workers, timeout=wait))
        else:
            chief = task.rank == 0
            _STORES[host, port] = TCPStore(host, port, is_master=chief, timeout=wait, wait_for_workers=False)
    return _STORES[host, port]


def _told(wait_secs: float) -> str:
    return f"{wait_secs:g} s (session_creation_timeout_secs of RunConfig)"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].strip()
