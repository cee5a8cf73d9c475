"""Replicas on one machine: processes forked from the program that the user has started.

`ForkedReplicas` is a context manager that forks one process for every replica but the first, and then runs its body in
all of them:

- All replicas share a temporary directory. It holds the store through which they form their group, and the errors of
  replicas that have failed.
- A forked process ends at the end of the body (`os._exit`). It must not return into the program, which goes on in the
  first replica only.
- The first replica waits at the end of the body for all others. If another replica has failed, the first one raises
  that error. Errors that are meant for users, such as a line of a file that cannot be read, keep their type.
- The kernel kills a forked process as soon as the first replica has ended, so that no process is left behind.

Forking shares the memory of the dataset and takes 0.1 s, while starting a program anew takes seconds. It has two
limits. The parent's threads do not exist in a forked process, so torch computes on one thread in each replica. And a
process that has used CUDA cannot be forked.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import torch

from torch_estimator import errors
from torch_estimator.cluster.task import REPLICA, Task
from torch_estimator.distributed.errors import PeerLost
from torch_estimator.errors import ClusterError, InvalidValueError, UserError
from torch_estimator.processes.child import signal_name
from torch_estimator.processes.forked import ForkedChild, fork
from torch_estimator.runs.state_file import StateFile

logger = logging.getLogger("torch_estimator")

_END_SECS = 30.0
_POLL_SECS = 0.01


class ForkedReplicas:
    """Context manager that forks a process for every replica but the first, which is this process. All run its body.

    It raises the `UserError` of another replica, or a `ClusterError` if one has failed otherwise or was killed.
    `purpose`, such as ``Training``, is for the log.
    """

    task: Task

    def __init__(self, devices: Sequence[str], purpose: str = "Training") -> None:
        self._devices = tuple(devices)
        self._purpose = purpose
        self._children: dict[int, ForkedChild] = {}
        self._stack = ExitStack()

    def __enter__(self) -> ForkedReplicas:
        self._check_can_fork()
        self._folder = Path(tempfile.mkdtemp(prefix="torch-estimator-"))
        self.task = self._task(0)
        try:
            if len(self._devices) > 1:
                logger.info("%s on %d replicas: %s.", self._purpose, len(self._devices), ", ".join(self._devices))
                self._fork()
            self._set_up()
        except BaseException as error:
            if self.task.rank:
                self._exit(error)
            self._clean_up()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.task.rank:
            self._exit(error)
        try:
            self._stack.close()
            # Prefer the error of another replica. If this replica has a ClusterError, that is often only the
            # consequence: it lost a peer, and the peer's own error says why.
            cause = self._wait_for_others() if error is None or isinstance(error, ClusterError) else None
        finally:
            self._clean_up()
        if cause is not None:
            raise cause from error

    def check(self) -> None:
        """Raise if another replica has failed, because it will never reply."""
        if any(child.has_ended() and child.status for child in self._children.values()):
            raise ClusterError("Another replica has failed; its log says why.")

    def _task(self, rank: int) -> Task:
        return Task(
            type=REPLICA,
            id=rank,
            ranks=len(self._devices),
            rendezvous=f"file:{self._folder / 'store'}",
            source="MirroredStrategy",
            device=self._devices[rank],
        )

    def _check_can_fork(self) -> None:
        if len(self._devices) == 1:
            return
        if not hasattr(os, "fork"):
            raise InvalidValueError(
                f"MirroredStrategy with {len(self._devices)} replicas forks this process, which {sys.platform} cannot; "
                "use one replica."
            )
        if self._devices[0] != "cpu" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            raise _cuda_is_in_use()

    def _fork(self) -> None:
        # Flush before forking; otherwise every process would print the text that is still in the buffers.
        sys.stdout.flush()
        sys.stderr.flush()
        for rank in range(1, len(self._devices)):
            child = fork()
            if child is not None:
                self._children[rank] = child
                continue
            self.task = self._task(rank)
            self._children = {}
            # Ignore Ctrl-C, which a terminal sends to all processes: the parent alone decides when the replicas end.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            logger.addFilter(_WarningsOfReplica(self.task))
            return

    def _set_up(self) -> None:
        if len(self._devices) > 1:
            self._stack.callback(torch.set_num_threads, torch.get_num_threads())
            # Compute on one thread. The threads of torch's pool do not exist in a forked process, which would wait for
            # them forever. The first replica uses one thread, too: the result of a sum can depend on the number of
            # threads, and all replicas have to compute the same numbers.
            torch.set_num_threads(1)
        if self.task.device != "cpu":
            if torch.cuda._is_in_bad_fork():
                raise _cuda_is_in_use()
            self._stack.enter_context(torch.cuda.device(self.task.device))

    def _exit(self, error: BaseException | None) -> NoReturn:
        """End this forked process; write its error to a file, which the first replica reads and raises."""
        status = 1
        try:
            if error is None:
                status = 0
            elif not isinstance(error, ClusterError):
                StateFile(str(self._folder / f"{self.task.rank}.json"), dict[str, str]).write(_as_json(error))
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)

    def _wait_for_others(self) -> Exception | None:
        """Wait at most `_END_SECS` until all other replicas have ended; return the error of a failed one, or None."""
        deadline = time.monotonic() + _END_SECS
        while self._running() and time.monotonic() < deadline:
            cause = self._cause()
            if cause is not None:
                return cause
            time.sleep(_POLL_SECS)
        for rank in self._running():
            logger.warning("replica %d has not ended within %d s after training; ending it.", rank, _END_SECS)
        return self._cause()

    def _cause(self) -> Exception | None:
        for rank in self._children:
            failure = StateFile(str(self._folder / f"{rank}.json"), dict[str, str]).read()
            if failure is not None:
                return _error_of(rank, **failure)
        for rank, child in self._children.items():
            if child.status is not None and child.status < 0:
                return PeerLost(
                    f"replica {rank} was ended by {signal_name(child.status)}; start again, and training goes on from "
                    "the last checkpoint.",
                    restart_all=True,
                )
        return None

    def _running(self) -> list[int]:
        """Return the ranks of the forked replicas that have not ended."""
        return [rank for rank, child in self._children.items() if not child.has_ended()]

    def _clean_up(self) -> None:
        """Kill replicas that have not ended, and delete the temporary directory."""
        for child in self._children.values():
            child.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


class _WarningsOfReplica(logging.Filter):
    """Log filter of a forked replica: keeps only warnings and errors, and puts the replica's name before each."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self._prefix = f"{task}: "

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg = f"{self._prefix}{record.msg}"
        return record.levelno >= logging.WARNING


def _as_json(error: BaseException) -> dict[str, str]:
    """Return the class, message and traceback of an error as a dict, from which `_error_of` makes an error."""
    return {
        "kind": type(error).__name__ if isinstance(error, UserError) else "",
        "text": str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}",
        "trace": "".join(traceback.format_exception(error)),
    }


def _error_of(rank: int, *, kind: str, text: str, trace: str) -> Exception:
    """Return the error that the first replica raises when another replica has failed.

    `kind` is the name of the class in `torch_estimator.errors`; empty for errors that are not meant for users, whose
    traceback is logged.
    """
    raised: type[Exception] | None = getattr(errors, kind, None)
    if raised is not None and raised is not errors.RowError:
        return raised(text)
    logger.error("replica %d has failed:\n%s", rank, trace.rstrip())
    return ClusterError(f"replica {rank} has failed; its traceback is above. {text}")


def _cuda_is_in_use() -> InvalidValueError:
    return InvalidValueError(
        "MirroredStrategy forks this process, which cannot be done any more once it has used CUDA, as an evaluation, a "
        "training or code of yours before this one did; start the program with 'estimator local train --distributed' "
        "or torchrun, and give it a MultiWorkerMirroredStrategy."
    )
