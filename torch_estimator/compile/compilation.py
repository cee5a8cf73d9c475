"""Background process that traces and compiles a training step while the training goes on.

It is a forked process, and not a thread or a new program, for these reasons:

- Tracing takes real steps. In a fork they change copies of the weights, the optimizers, the random generators and
  every Python object of the user, so that the training never notices them.
- A fork has a copy of the model, even of closures and lambdas that cannot be pickled, and does not import torch again.
- Inductor and the C++ compiler take seconds of Python, which a thread would take from the training. They can also
  crash, or need more memory than there is; then only the fork dies, and the training goes on in Python.

A fork also has a drawback. Only the forking thread exists in it, so code that waits for another thread of the parent
would wait for ever. Therefore the child computes on a single thread and ends with ``os._exit``. A lock that another
thread holds at the moment of the fork stays locked in the child. Libraries have such locks, so rarely a child is stuck.
Then it is killed, and the caller may start another one.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn

import torch
from torch import Tensor

from torch_estimator.compile.building import build
from torch_estimator.compile.key import CacheKey
from torch_estimator.compile.precompiled_headers import PrecompiledHeaders
from torch_estimator.compile.trace_checks import CannotBeCompiled, reason_of
from torch_estimator.compile.tracing import trace
from torch_estimator.errors import UserError
from torch_estimator.processes.child import signal_name
from torch_estimator.processes.forked import fork
from torch_estimator.runs.state_file import StateFile
from torch_estimator.train.batches import TensorBatch
from torch_estimator.train.step import TrainStep

logger = logging.getLogger("torch_estimator")

SUPPORTED = sys.platform == "linux"
"""Whether steps can be compiled in a forked process on this system."""

# Names of the files in the working directory of a compilation.
_OUTCOME = "outcome.json"
_LOG = "compilation.log"
_LEFT = "left"

_MAX_SECS = 900.0
# A child that does nothing is stuck after so many checks.
_CHECK_SECS = 1.0
_STUCK_CHECKS = 60
_POLL_SECS = 0.02
_NICENESS = 10

_left_running: list[Compilation] = []
"""Compilations whose trainings have ended first, until this process has collected their exit status."""


class Compilation:
    """Handle of a forked process that compiles a step. The constructor starts the process.

    The compiling process may outlive the training process, to finish a step for later runs. It ends after 15 minutes at
    most, even if the training process was killed by SIGKILL. It keeps no files of the training process open.

    Args:
        step: The step to compile.
        state: The tensors that the step reads and writes.
        batch: A batch of the layout to compile for.
        folder: Where to build the library.
        reserved: A locked file. The child holds the lock until it ends; here the file is closed.
        keep: Moves the built folder to the cache and returns its new path; None if later runs cannot use the step.
        compute_key: Returns the cache key of everything that the step depends on at the time of the call.
        threads: Number of threads that the compiled step runs with.
        headers: Precompiled headers for the C++ compiler.
        is_background: Whether the process gets a lower priority than the training.

    Attributes:
        is_stuck: Whether the process was killed because it did nothing for a minute.
    """

    def __init__(
        self,
        step: TrainStep,
        state: Sequence[Tensor],
        batch: TensorBatch,
        folder: Path,
        *,
        reserved: BinaryIO,
        keep: Callable[[Path], Path] | None,
        compute_key: Callable[[], CacheKey],
        threads: int,
        headers: PrecompiledHeaders,
        is_background: bool = False,
    ) -> None:
        self._folder = folder
        self._work = work = Path(tempfile.mkdtemp(prefix="torch-estimator-"))
        self._is_kept = keep is not None
        self._started = time.monotonic()
        self.is_stuck = False
        self._last_call = ""
        # The next check whether the process does something, the checks in which it did nothing, and its CPU time.
        self._next_check = self._started
        self._idle_checks = 0
        self._ticks: int | None = None

        def build_and_keep() -> Path:
            if is_background:
                os.nice(_NICENESS)
            graph, inputs = trace(step, state, batch, compute_key)
            build(graph, inputs, folder, work=work, threads=threads, headers=headers)
            return folder if keep is None else keep(folder)

        # Collect the exit status of earlier compilations that were left running.
        # An ended child stays in the process table until its parent asks for its status.
        _left_running[:] = [one for one in _left_running if not one.is_over()]
        parent = os.getpid()
        # In a group of its own, which includes the C++ compiler, so that both can be killed together.
        child = fork(may_outlive=True)
        if child is None:
            _build_and_exit(parent, folder, work, reserved, build_and_keep)
        self._child = child
        reserved.close()

    def is_over(self) -> bool:
        """Return whether the compiling process has ended, successfully or not.

        Kill the process after 15 minutes, or if it has done nothing for a minute.
        """
        if self._child.has_ended():
            return True
        if self._does_nothing() or time.monotonic() - self._started > _MAX_SECS:
            self._last_call = self._find_last_call()
            self.stop()
        return self._child.status is not None

    def _find_last_call(self) -> str:
        """Return where the process is, such as " (last in f, file, line 3)"; an empty text if that is not known."""
        with contextlib.suppress(OSError):
            # On this signal, the child writes its stack to the log.
            os.kill(self._child.pid, signal.SIGUSR1)
            for _ in range(50):
                time.sleep(_POLL_SECS)
                log = (self._work / _LOG).read_text(errors="replace")
                if called := re.search(r'most recent call first\):\n  File "(.*)", line (\d+) in (.*)\n', log):
                    return f" (last in {called[3]}, {called[1]}, line {called[2]})"
        return ""

    def _does_nothing(self) -> bool:
        """Return whether the process is stuck. Check at most once a second."""
        now = time.monotonic()
        if now >= self._next_check:
            # Count checks instead of seconds, because this process may have been stopped together with the child.
            self._next_check = now + _CHECK_SECS
            before, self._ticks = self._ticks, _ticks_of_idle(self._child.pid)
            self._idle_checks = self._idle_checks + 1 if self._ticks is not None and self._ticks == before else 0
            self.is_stuck = self._idle_checks >= _STUCK_CHECKS
        return self.is_stuck

    def wait(self) -> None:
        """Wait until the compiling process has ended."""
        while not self.is_over():
            time.sleep(_POLL_SECS)

    def leave(self) -> None:
        """Let the compiling process go on alone if later runs can use the step; kill the process otherwise."""
        # Create the file before checking whether the process runs. A process that ends later finds it and cleans up.
        (self._work / _LEFT).touch()
        if not self._is_kept or self.is_over():
            self.stop()
        else:
            _left_running.append(self)
            logger.info("The training ended before its step was compiled; compiling goes on for later runs.")

    def stop(self) -> None:
        """Kill the compiling process if it is running, and remove its files."""
        self._child.kill()
        self.remove()

    def remove(self) -> None:
        """Remove all files of the compilation that are not in the cache. A library that is loaded stays usable."""
        shutil.rmtree(self._work, ignore_errors=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def result(self) -> Path | str:
        """Return the folder of the compiled step, or the reason of the failure in words that fit after "because"."""
        outcome = StateFile(str(self._work / _OUTCOME), dict[str, str]).read()
        if outcome is None:
            if self.is_stuck:
                return f"the compiling process did nothing for a minute{self._last_call}"
            if time.monotonic() - self._started > _MAX_SECS:
                return f"compiling took more than {_MAX_SECS:.0f} seconds{self._last_call}"
            status = self._child.status
            return "the compiling process died" + (f" of {signal_name(status)}" if status and status < 0 else "")
        return Path(outcome["built"]) if "built" in outcome else outcome["failure"]


def _build_and_exit(parent: int, folder: Path, work: Path, reserved: BinaryIO, build: Callable[[], Path]) -> NoReturn:
    """Compile a step in the child process, write the outcome to a file, and exit.

    The lock on `reserved` lasts until the end of this process; `parent` is the process id of the training.
    """
    try:
        _close_files(keep=reserved.fileno())
        # Reset the signal handlers inherited from the parent. On SIGTERM, they would save a checkpoint, for instance.
        # On SIGCHLD, they may collect the exit status of the C++ compiler.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        # Let the kernel end this process after 15 minutes, even if no parent is left to kill it.
        signal.alarm(int(_MAX_SECS) + 1)
        log = os.open(work / _LOG, os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        faulthandler.register(signal.SIGUSR1, file=log, all_threads=False)
        warnings.simplefilter("ignore")
        # Leave the parent's garbage alone. Destroying it could delete files of the parent, or wait for its threads.
        # Keep that of this process, too: collecting it takes a fifth of the time, to free 30 MB.
        gc.freeze()
        gc.disable()
        # A fork copies only one thread, so waiting for the threads of torch's thread pool would never end.
        torch.set_num_threads(1)
        try:
            outcome = {"built": str(build())}
        except (CannotBeCompiled, UserError) as error:
            traceback.print_exc()
            outcome = {"failure": str(error).removesuffix(".")}
        except Exception as error:
            # Neither the user nor a check has foreseen this. A name may be missing in another version of PyTorch.
            traceback.print_exc()
            outcome = {"failure": reason_of(error)}
        StateFile(str(work / _OUTCOME), dict[str, str]).write(outcome)
    except BaseException:
        traceback.print_exc()
    finally:
        if os.getppid() != parent or (work / _LEFT).exists():
            # Remove the files here, because the parent has ended or no longer waits for this process.
            # A finished step has already been moved to the cache.
            shutil.rmtree(work, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)
        # Exit without running exit handlers and flushing buffers, because both are copies from the parent.
        os._exit(0)


def _close_files(*, keep: int) -> None:
    """Close all inherited files except `keep`, so that the parent's ports, locks and pipes close when the parent ends.

    Each descriptor is redirected to the null device instead of being closed. A Python object of the parent may still
    close its descriptor by number in this process. If that number were free, it could belong to a new file by then.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in (keep, null):
            os.dup2(null, number, inheritable=number < 3)


def _ticks_of_idle(process: int) -> int | None:
    """Return the CPU time of a process and its ended children if it sleeps and has no children; None otherwise."""
    try:
        state, *fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        children = Path(f"/proc/{process}/task/{process}/children").read_text()
    except OSError:
        return None
    return sum(map(int, fields[10:14])) if state == "S" and not children else None
