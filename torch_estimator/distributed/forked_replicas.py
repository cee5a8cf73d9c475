"""Processes of one machine that train together, forked from the one that the user has started."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import torch

from torch_estimator import errors
from torch_estimator.cluster.task import REPLICA, Task
from torch_estimator.distributed.lost import PeerLost
from torch_estimator.errors import ClusterError, InvalidValueError, UserError

logger = logging.getLogger("torch_estimator")

_PR_SET_PDEATHSIG = 1
_LEAVE_SECS = 30.0
_LOOK_EVERY_SECS = 0.01


class Replicas:
    """Forks a process for every replica but the first, which is this process; all of them run the body.

    A forked process ends with its body, or with this process. What ends it before its time is raised here.

    Args:
        devices: Of each replica, as torch calls them.
        purpose: What they do, for the log.

    Attributes:
        task: Which replica this process is.

    Raises:
        ClusterError: Another replica has failed or was killed.
        UserError: As raised in another replica.
        InvalidValueError: This process cannot be forked.
    """

    task: Task

    def __init__(self, devices: Sequence[str], purpose: str = "Training") -> None:
        self._devices = tuple(devices)
        self._purpose = purpose
        self._children: dict[int, int] = {}
        self._statuses: dict[int, int] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Replicas:
        self._check()
        self._folder = Path(tempfile.mkdtemp(prefix="torch-estimator-"))
        self.task = self._task(0)
        try:
            if len(self._devices) > 1:
                logger.info("%s on %d replicas: %s.", self._purpose, len(self._devices), ", ".join(self._devices))
                self._fork()
            self._begin()
        except BaseException as error:
            if self.task.rank:
                self._leave(error)
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.task.rank:
            self._leave(error)
        try:
            self._stack.close()
            cause = self._awaited() if error is None or isinstance(error, ClusterError) else None
        finally:
            self._end()
        if cause is not None:
            raise cause from error

    def watch(self) -> None:
        """Raises where another replica has failed, so that there is nothing to wait for."""
        self._reap()
        if any(self._statuses.values()):
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

    def _check(self) -> None:
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
        parent = os.getpid()
        die_with_parent = _dying_with_parent()
        # Whatever is still in a buffer would be printed once by each.
        sys.stdout.flush()
        sys.stderr.flush()
        for rank in range(1, len(self._devices)):
            with warnings.catch_warnings():
                # Python 3.12 warns of threads; none of them is needed in the child.
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child:
                self._children[rank] = child
                continue
            self.task = self._task(rank)
            self._children = {}
            die_with_parent(parent)
            # Ctrl-C goes to all; the parent decides.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            logger.addFilter(_WarningsOf(self.task))
            return

    def _begin(self) -> None:
        if len(self._devices) > 1:
            self._stack.callback(torch.set_num_threads, torch.get_num_threads())
            # Threads of this process are not in its children: whoever waited for them there would do so for ever.
            torch.set_num_threads(1)
        if self.task.device != "cpu":
            if torch.cuda._is_in_bad_fork():
                raise _cuda_is_in_use()
            self._stack.enter_context(torch.cuda.device(self.task.device))

    def _leave(self, error: BaseException | None) -> NoReturn:
        """Ends a forked process, which must not return into code that is its parent's."""
        status = 1
        try:
            if error is None:
                status = 0
            elif not isinstance(error, ClusterError):
                (self._folder / f"{self.task.rank}.new").write_text(json.dumps(_told(error)))
                os.rename(self._folder / f"{self.task.rank}.new", self._folder / f"{self.task.rank}.json")
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)

    def _awaited(self) -> Exception | None:
        """Waits until the others have ended, or one of them says why it cannot go on."""
        deadline = time.monotonic() + _LEAVE_SECS
        while len(self._statuses) < len(self._children) and time.monotonic() < deadline:
            self._reap()
            cause = self._cause()
            if cause is not None:
                return cause
            time.sleep(_LOOK_EVERY_SECS)
        for rank in self._children.keys() - self._statuses.keys():
            logger.warning("replica %d has not ended within %d s after training; ending it.", rank, _LEAVE_SECS)
        return self._cause()

    def _cause(self) -> Exception | None:
        for rank in self._children:
            told = self._folder / f"{rank}.json"
            if told.exists():
                return _raised_in(rank, **json.loads(told.read_text()))
        for rank, status in self._statuses.items():
            if os.WIFSIGNALED(status):
                name = signal.Signals(os.WTERMSIG(status)).name
                return PeerLost(
                    f"replica {rank} was ended by {name}; start again, and training goes on from the last checkpoint.",
                    is_over=True,
                )
        return None

    def _reap(self, how: int = os.WNOHANG) -> None:
        for rank, child in self._children.items():
            if rank in self._statuses:
                continue
            try:
                process, status = os.waitpid(child, how)
            except ChildProcessError:
                # Whoever ignores SIGCHLD has no children to wait for.
                process, status = child, 0
            if process:
                self._statuses[rank] = status

    def _end(self) -> None:
        for rank, child in self._children.items():
            if rank not in self._statuses:
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
        self._reap(0)
        shutil.rmtree(self._folder, ignore_errors=True)


class _WarningsOf(logging.Filter):
    """Lets warnings of a replica through, and says whose they are."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self._prefix = f"{task}: "

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg = f"{self._prefix}{record.msg}"
        return record.levelno >= logging.WARNING


def _dying_with_parent() -> Callable[[int], None]:
    """Prepares, before a fork, what has the child killed as soon as its parent is gone; on Linux only."""
    if sys.platform != "linux":
        return lambda parent: None
    prctl = ctypes.CDLL(None).prctl

    def die_with(parent: int) -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return die_with


def _told(error: BaseException) -> dict[str, str]:
    return {
        "kind": type(error).__name__ if isinstance(error, UserError) else "",
        "text": str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}",
        "trace": "".join(traceback.format_exception(error)),
    }


def _raised_in(rank: int, *, kind: str, text: str, trace: str) -> Exception:
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
