"""Rendezvous: how the processes of a group find each other, at the start and after a process was lost.

All processes know one address, the chief's, at which they reach the group's key-value store (see
`torch_estimator.distributed.generation`). A generation of the group forms in five steps:

1. The chief (rank 0) increments the number of the newest generation. All other processes wait for a generation that no
   process has joined under their rank. A process that has lost a peer does the same as one that has just started. So
   survivors and replacements join the same new generation, in whichever order they arrive.
2. Each process announces itself under its rank. The announcement holds its incarnation (a random id), its purpose, and
   its *status*, which describes the training state that it holds. The first announcement for a rank counts. A second
   process with the same ``TF_CONFIG`` waits, and gives up with an error if the first one keeps sending heartbeats.
3. Each process waits until all have announced themselves. If another process dies before that, a later generation
   begins, and all processes start over with it.
4. The chief writes the list of members. Usually these are all ranks. In an elastic group, the chief leaves out ranks
   whose processes are gone. It knows that from the TCP connections of the previous generation, which the kernel closes
   when a process dies.
5. The members compare their purposes, initialize torch.distributed, and connect the mesh for all-gathers. If that
   fails, for example because one more process has died, they try again from step 1.

If an elastic group has left out a process and the process comes back, it finds that the list of members is written
already. If the process holds a training state, that state is outdated: the process ends (`LeftBehind`) and the launcher
starts it anew. If it holds none, it announces itself. The chief's heartbeat notices that, and the group then forms a
generation that includes the process.

torchrun, Slurm and Ray Train start all processes again when one of them dies. With them, and for forked replicas, a
group forms only once.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import math
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]  # documented

from torch_estimator.cluster.addresses import LOOPBACK, split_address, unresolved
from torch_estimator.cluster.environment import SLURM
from torch_estimator.cluster.task import Task
from torch_estimator.distributed.errors import LeftBehind, TrainingOver, short_reason
from torch_estimator.distributed.generation import (
    FILE_PREFIX,
    Announcement,
    ForeignMembersError,
    Generation,
    begin_generation,
    forget_store,
    is_open,
    is_started_by_torchrun,
    newest_generation,
    open_store,
)
from torch_estimator.distributed.mesh import AllGatherMesh
from torch_estimator.distributed.network import gloo_listening_on, interface_to
from torch_estimator.errors import ClusterError

# torch 2.14 has a public name for this function, and warns where the old one is used.
_set_timeout = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout

logger = logging.getLogger("torch_estimator")

COLLECTIVE_SECS = 7200.0
"""How long a collective waits for all processes. It is long because the chief may evaluate between two steps."""

# Limit the time to connect, since a process may die before it connects. gloo waits for up to five times as long.
_CONNECT_SECS = 5.0
# Use a mesh only in groups up to this size. In larger ones each process would hold too many connections, while torch's
# ring all-gather needs two.
MAX_MESH_SIZE = 32
_LOG_EVERY_SECS = 10.0
_POLL_SECS = 0.05
# A store counts as silent if it has not answered for longer than two attempts to connect take.
_SILENT_SECS = 2 * _CONNECT_SECS
# All survivors notice a loss at about the same time, so a process that is absent for longer than this may be gone.
_GONE_SECS = 3.0
# A process that was about to connect when another one was lost may take this long to notice the loss.
_CONNECTING_SECS = 6 * _CONNECT_SECS
# Wait for this long for another process with the same rank to end, once its heartbeats have shown that it is alive.
_SAME_RANK_SECS = 10.0

# The newest generation that this process has joined at each address.
_JOINED: dict[tuple[str, int], int] = {}


@dataclass(frozen=True, slots=True)
class FormedGeneration:
    """A generation that has formed, with this process as one of its members.

    `ranks` are ascending. `statuses` holds by rank the status that each member has announced; empty for ranks that are
    not members. `mesh` is None if the members use the connections of `torch.distributed`.
    """

    generation: Generation
    ranks: list[int]
    statuses: list[str]
    mesh: AllGatherMesh | None


class Rendezvous:
    """Makes this process a member of each generation of its group.

    `check` is called about 20 times a second while this process waits, and raises if the process has to stop waiting.
    With `elastic`, the chief may form a generation without processes that are gone. `is_repeatable` says whether the
    group may form another generation after it has lost a process. It may not if the launcher starts all processes
    again, as torchrun, Slurm and Ray Train do, nor if the processes were forked.
    """

    def __init__(
        self,
        task: Task,
        backend: str,
        *,
        wait_secs: float,
        check: Callable[[], None],
        elastic: bool,
        purpose: str,
    ) -> None:
        assert task.rendezvous is not None
        self._task = task
        self._rank, self._size = task.rank, task.num_workers
        self._backend = backend
        self._wait_secs = wait_secs
        self._check = check
        self._elastic = elastic
        self._purpose = purpose
        self._incarnation = secrets.token_hex(8)
        # Whether the launcher has initialized torch.distributed. Ray Train does so, and also shuts it down.
        self._is_initialized_outside = dist.is_initialized()
        self._is_file = task.rendezvous.startswith(FILE_PREFIX)
        self.is_repeatable = not (
            self._is_initialized_outside or is_started_by_torchrun() or task.source == SLURM or self._is_file
        )
        self._address = ("", 0) if self._is_file else split_address(task.rendezvous, "the chief's address")
        is_on_one_machine = self._is_file or self._address[0] in LOOPBACK
        self._interface = "lo" if is_on_one_machine else interface_to(*self._address)
        self._generation: Generation | None = None
        # On the chief of an elastic group: the half-closed mesh of the previous generation. Its connections show which
        # processes are still alive.
        self._previous_mesh: AllGatherMesh | None = None
        self._may_miss = False
        self._absence_secs = _GONE_SECS
        # The thread that forms a generation. The calling thread clears this attribute when it gives up, and the forming
        # thread reads it. The attributes below are written by the forming thread and read by the calling thread.
        self._forming: threading.Thread | None = None
        self._is_connecting = False
        self._waits_for, self._progress_at = "", 0.0

    # The following methods run in the calling thread.

    def form(self, status: str, *, may_miss: bool) -> FormedGeneration:
        """Wait for all other processes and form a generation with them. See `Group.form`."""
        self._may_miss = may_miss and self._rank == 0 and self._elastic and self.is_repeatable
        self._absence_secs = _GONE_SECS
        self._progress_at = time.monotonic()
        # Make the requests in a thread. If the chief's process is suspended (by SIGSTOP, for example), a request to its
        # store blocks until the chief runs again, and cannot be interrupted. If this process gives up, it leaves the
        # thread running.
        outcomes: queue.SimpleQueue[FormedGeneration | BaseException] = queue.SimpleQueue()
        self._forming = threading.Thread(target=self._form, args=(status, outcomes), name="rendezvous", daemon=True)
        self._forming.start()
        try:
            outcome = self._wait_for_outcome(outcomes)
        finally:
            thread, self._forming = self._forming, None
            thread.join(_CONNECT_SECS if self._is_connecting else _POLL_SECS)
        if isinstance(outcome, ForeignMembersError):
            raise ClusterError(
                f"{self._task} has found {outcome.text!r} at {self._task.rendezvous} as the ranks of the members, "
                "which its chief has not written; see whether another program uses that address."
            ) from outcome
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _wait_for_outcome(
        self, outcomes: queue.SimpleQueue[FormedGeneration | BaseException]
    ) -> FormedGeneration | BaseException:
        logged_at = time.monotonic()
        deadline = logged_at + self._wait_secs
        while True:
            self._check()
            with contextlib.suppress(queue.Empty):
                return outcomes.get(timeout=_POLL_SECS)
            now = time.monotonic()
            # Raise here only if the store is silent. While the store answers, the thread itself notices the deadline,
            # and its error can name the processes that it waits for.
            answers = now < self._progress_at + _SILENT_SECS
            if now > deadline and not answers:
                raise ClusterError(self._failure_text(TimeoutError("timed out")))
            if now > logged_at + _LOG_EVERY_SECS:
                logged_at = now
                problem = "" if answers else self._address_problem()
                silent = f"{self._chief}, which does not answer{f' ({problem})' if problem else ''}"
                waits_for = self._waits_for if answers else silent
                logger.info("%s waits at %s for %s.", self._task, self._task.rendezvous, waits_for)

    def waits_for(self) -> list[str]:
        """Return for whom this process waits in `form`, in words. Other threads may call this."""
        waits_for = self._waits_for or (self._chief if self._rank else "")
        return [waits_for] if self._forming is not None and waits_for else []

    def disconnect(self, mesh: AllGatherMesh | None) -> None:
        """End the connections of a generation.

        The chief of an elastic group only stops sending. It keeps the connections until the next generation has formed,
        because they show which processes are alive.
        """
        if mesh is not None:
            self.close_previous_mesh()
            if self._rank == 0 and self._elastic:
                mesh.shut_down_sending()
                self._previous_mesh = mesh
            else:
                mesh.close()
        with contextlib.suppress(RuntimeError):
            if dist.is_initialized() and not self._is_initialized_outside:
                dist.destroy_process_group()

    def close_previous_mesh(self) -> None:
        """Close the mesh of the previous generation, which shows which of its processes are alive."""
        if self._previous_mesh is not None:
            self._previous_mesh.close()
            self._previous_mesh = None

    # `_form`, and the methods that it calls, run in the thread that forms a generation.

    def _form(self, status: str, outcomes: queue.SimpleQueue[FormedGeneration | BaseException]) -> None:
        deadline = time.monotonic() + self._wait_secs
        try:
            while (formed := self._try_and_recover(status, deadline)) is None:
                pass
            if self._forming is not threading.current_thread():
                # Disconnect: the caller has given up and will not use the group.
                self.disconnect(formed.mesh)
            outcomes.put(formed)
        except BaseException as error:
            outcomes.put(error)

    def _try_and_recover(self, status: str, deadline: float) -> FormedGeneration | None:
        """Try once to form a generation; return None if another attempt may succeed."""
        try:
            return self._try(status, deadline)
        except ClusterError:
            raise
        except (RuntimeError, ValueError, OSError) as error:
            if time.monotonic() > deadline or not self.is_repeatable or _is_port_in_use(error):
                raise ClusterError(self._failure_text(error)) from error
            # Connect to the store again and retry. Either the chief has died together with its store, or another
            # process has died while all processes were connecting.
            self._generation = None
            forget_store(self._address)
            self.disconnect(None)
            time.sleep(0.05)
            return None

    def _try(self, status: str, deadline: float) -> FormedGeneration | None:
        """Try to form a generation in the five steps of the module's docstring; return None to start over."""
        if self._rank and self._connects_to_chief():
            self._wait_for_listener(deadline)
        left_secs = max(1.0, deadline - time.monotonic())
        store = open_store(self._task, self._address, left_secs)

        # 1. Begin a generation, or wait for one.
        generation = begin_generation(store, self._size) if self._rank == 0 else self._next_generation(store, deadline)
        self._generation = generation
        if status and generation.excludes(self._rank):
            raise LeftBehind(self._task)

        # 2. Announce this process.
        announcement = Announcement(self._incarnation, self._purpose, status)
        if not generation.announce(self._rank, announcement, is_exclusive=self._is_file):
            return None
        _JOINED[self._address] = generation.number

        # 3. Wait until all other processes have announced themselves.
        began = time.monotonic()
        while (absent := generation.absent(self._size)) and not generation.has_members():
            if not generation.is_newest():
                return None
            is_absence_short = time.monotonic() <= began + self._absence_secs
            if self._may_miss and not is_absence_short and not self._is_any_alive(absent):
                break
            self._sleep_or_give_up(self._names(absent), deadline)
        # In a second attempt, wait longer for absent ranks: their processes may still be connecting for the first one.
        self._absence_secs = _CONNECTING_SECS

        # 4. As the chief, write the list of members. Then find out whether this process is a member.
        if self._rank == 0:
            generation.set_members(rank for rank in range(self._size) if rank not in absent)
        if generation.excludes(self._rank):
            if status:
                raise LeftBehind(self._task)
            self._wait_to_be_admitted(generation, deadline)
            return None

        # 5. Check that all members have the same purpose, and connect.
        members = generation.members()
        announcements = {rank: generation.announcement(rank) for rank in members}
        try:
            self._check_purposes({rank: one.purpose for rank, one in announcements.items()})
        except ClusterError:
            is_chief = self._rank == 0
            generation.wait_until_all_have_read(is_chief=is_chief, members=members, most_secs=_GONE_SECS)
            raise
        connect_secs = min(left_secs, _CONNECT_SECS if self.is_repeatable else _CONNECTING_SECS)
        mesh = self._connect(generation.store, members, connect_secs)
        self.close_previous_mesh()
        statuses = [announcements[rank].status if rank in announcements else "" for rank in range(self._size)]
        return FormedGeneration(generation, members, statuses, mesh)

    def _connects_to_chief(self) -> bool:
        """Return whether the chief's process serves the store and this process is not connected to it yet."""
        is_served_by_chief = bool(self._address[0]) and not (self._is_initialized_outside or is_started_by_torchrun())
        return is_served_by_chief and not is_open(self._address)

    def _wait_for_listener(self, deadline: float) -> None:
        """Wait until the chief accepts connections. torch would wait, too, but log a warning for each attempt."""
        while True:
            try:
                socket.create_connection(self._address, timeout=_POLL_SECS * 20).close()
                return
            except OSError:
                if self._forming is not threading.current_thread() or time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_SECS)

    def _next_generation(self, store: Store, deadline: float) -> Generation:
        """Wait for a generation that no process has joined under this rank; return it.

        If this process itself has joined the newest generation, that generation is over, and the chief is about to
        begin the next one. If another process has joined it under this rank, there are two cases. Either that process
        has died and this one replaces it; then the chief is about to begin the next generation. Or that process is
        alive, and two processes were started with the same place in the cluster. Heartbeats tell the cases apart: if
        they go on, this process waits `_SAME_RANK_SECS` longer and then raises an error.
        """
        first_seen: tuple[int, int] | None = None
        gives_up_at = math.inf
        while True:
            if self._generation is not None and self._generation.is_over():
                raise TrainingOver
            newest = newest_generation(store)
            generation = Generation(store, newest, self._size)
            if newest and not generation.has_announced(self._rank):
                return generation
            if newest and _JOINED.get(self._address) != newest:
                beats = generation.beats(self._rank)
                if first_seen is None:
                    first_seen = newest, beats
                elif gives_up_at == math.inf and first_seen[0] == newest and beats > first_seen[1]:
                    gives_up_at = time.monotonic() + _SAME_RANK_SECS
                self._sleep_or_give_up(
                    f"another process that runs as {self._names([self._rank])} to end",
                    min(deadline, gives_up_at),
                    secs=min(self._wait_secs, _SAME_RANK_SECS),
                    advice="two have the same TF_CONFIG",
                )
            else:
                self._sleep_or_give_up(self._chief, deadline)

    def _wait_to_be_admitted(self, generation: Generation, deadline: float) -> None:
        """Wait until the other processes, which have gone on without this process, begin a new generation."""
        logger.info("The group continues without %s; waiting until the chief admits it again.", self._task)
        while generation.is_newest():
            if generation.is_over():
                raise TrainingOver
            self._sleep_or_give_up(self._chief, deadline)

    def _connect(self, store: Store, members: Sequence[int], connect_secs: float) -> AllGatherMesh | None:
        self._progress_at, self._waits_for = time.monotonic() + 5 * connect_secs, "connections to all of them"
        self._is_connecting = True
        try:
            self._init_process_group(store, members, connect_secs)
            if len(members) <= MAX_MESH_SIZE or self._elastic:
                return AllGatherMesh(store, self._rank, members, self._address, connect_secs)
            return None
        finally:
            self._is_connecting = False

    def _init_process_group(self, store: Store, members: Sequence[int], connect_secs: float) -> None:
        if self._is_initialized_outside:
            return
        # Reset torch's counter of process groups. torch names a group by this counter, and all members need the same
        # name, but a replacement has tried to make fewer groups than the survivors.
        dist.distributed_c10d._world.group_count = 0
        with gloo_listening_on(self._interface):
            dist.init_process_group(
                self._backend,
                store=store,
                rank=members.index(self._rank),
                world_size=len(members),
                timeout=datetime.timedelta(seconds=connect_secs),
            )
        _set_timeout(datetime.timedelta(seconds=max(COLLECTIVE_SECS, self._wait_secs)))

    def _check_purposes(self, purposes: Mapping[int, str]) -> None:
        for rank, purpose in purposes.items():
            if purpose != purposes[0]:
                chief, other = (f"{self._task.name_of_rank(one)} is to {purposes[one]}" for one in (0, rank))
                raise ClusterError(f"{chief}, but {other}; have all of them call the same, in the same order.")

    def _is_any_alive(self, absent: Collection[int]) -> bool:
        """Return whether any absent rank is alive, that is, still holds its connection of the previous generation."""
        return self._previous_mesh is not None and not self._previous_mesh.alive_peers().isdisjoint(absent)

    def _sleep_or_give_up(
        self,
        waits_for: str,
        deadline: float,
        *,
        secs: float | None = None,
        advice: str = "all run and can reach that address",
    ) -> None:
        """Sleep for 10 ms between two readings of the store; raise after the deadline, or if the caller has given up.

        The deadline is by `time.monotonic`. The error names the wait of `secs`; None for
        ``session_creation_timeout_secs``.
        """
        if self._forming is not threading.current_thread():
            raise ClusterError("The process has stopped waiting for the others.")
        self._progress_at, self._waits_for = time.monotonic(), waits_for
        if self._progress_at > deadline:
            wait = self._whole_wait if secs is None or secs == self._wait_secs else f"{secs:g} s"
            raise ClusterError(
                f"{self._task} waited {wait} at {self._task.rendezvous} for {waits_for}; see whether {advice}."
            )
        time.sleep(0.01)

    # The following members make parts of messages for logs and errors.

    def _names(self, ranks: Iterable[int]) -> str:
        return ", ".join(map(self._task.name_of_rank, ranks))

    @property
    def _chief(self) -> str:
        return self._task.name_of_rank(0) if self._rank else "itself"

    @property
    def _whole_wait(self) -> str:
        return f"{self._wait_secs:g} s (session_creation_timeout_secs of RunConfig)"

    def _failure_text(self, error: Exception) -> str:
        where = self._task.rendezvous
        if _is_port_in_use(error):
            return f"{self._task} cannot listen on {where}: the port is in use; end what uses it, or name another port."
        host, _ = self._address
        advice = "that is an address of this machine" if host and self._rank == 0 else "it runs and can be reached"
        return (
            f"{self._task} waited {self._whole_wait} for {self._chief} at {where}; see whether {advice} "
            f"({self._address_problem() or short_reason(error)})."
        )

    def _address_problem(self) -> str:
        """Return what seems wrong with the chief's address, seen from this machine, or an empty string."""
        host, port = self._address
        return unresolved(host, port) if host else ""


def _is_port_in_use(error: Exception) -> bool:
    return "EADDRINUSE" in str(error) or "already in use" in str(error)
