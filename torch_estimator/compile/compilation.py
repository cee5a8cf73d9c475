"""Compiling a step in a process of its own, beside the training."""

from __future__ import annotations

import contextlib
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
from pathlib import Path
from typing import BinaryIO, NoReturn

import torch
from torch import Tensor

from torch_estimator.compile.building import build
from torch_estimator.compile.cache_key import Fingerprint
from torch_estimator.compile.tracing import CannotBeCompiled, trace
from torch_estimator.errors import UserError
from torch_estimator.train.batches import TensorBatch
from torch_estimator.train.step import TrainStep

logger = logging.getLogger("torch_estimator")

SUPPORTED = sys.platform == "linux"

_OUTCOME = "outcome.json"
_LOG = "compilation.log"
_LEFT = "left"
_MOST_SECONDS = 900.0
_LOOK_EVERY_SECS = 0.02
_LESS_PRIORITY = 10

_left_running: list[Compilation] = []
"""Compilations that their trainings have left, until this process has taken note that they ended."""


class Compilation:
    """One compilation, from its start.

    The process is a fork: it has the very model, and whatever it does to it, nobody sees. It may outlive this process
    to finish what later runs will find: for `_MOST_SECONDS` at most, also where this process is killed by SIGKILL. It
    keeps none of the files of this process open.

    Args:
        step: What to compile.
        state: The tensors that it reads and writes.
        batch: Of the shapes to compile for.
        folder: Where to build.
        machine: The file that keeps what the compiler finds out about the machine; None where nothing is kept.
        reserved: Closed here; the process keeps it open to its end.
        keep: Gives what was built its place among the compiled steps of all runs and returns where that is; None where
            it is of no use to others.
        fingerprint: Of all that the step depends on, as it is when called.
        threads: For how many threads.
        is_background: Whether it has a lower priority than the training.
    """

    def __init__(
        self,
        step: TrainStep,
        state: Sequence[Tensor],
        batch: TensorBatch,
        folder: Path,
        *,
        machine: Path | None,
        reserved: BinaryIO,
        keep: Callable[[Path], Path] | None,
        fingerprint: Callable[[], Fingerprint],
        threads: int,
        is_background: bool = False,
    ) -> None:
        self._folder = folder
        self._work = work = Path(tempfile.mkdtemp(prefix="torch-estimator-"))
        self._is_kept = keep is not None
        self._started = time.monotonic()
        self._status: int | None = None

        def build_and_keep() -> Path:
            if is_background:
                os.nice(_LESS_PRIORITY)
            traced = trace(step, state, batch, fingerprint)
            build(*traced, folder, work=work, machine=machine, threads=threads)
            return folder if keep is None else keep(folder)

        # An ended process whose parent does not ask for its status stays in the system's table of processes.
        _left_running[:] = [one for one in _left_running if not one.is_over()]
        parent = os.getpid()
        with warnings.catch_warnings():
            # The child starts no threads and waits for none.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process = os.fork()
        if self._process == 0:
            _build_and_exit(parent, folder, work, reserved, build_and_keep)
        reserved.close()

    def is_over(self) -> bool:
        """Whether it has ended, well or not; ends it where it takes far too long."""
        if self._status is None:
            try:
                process, status = os.waitpid(self._process, os.WNOHANG)
            except ChildProcessError:
                process, status = self._process, 0
            if process:
                self._status = status
            elif time.monotonic() - self._started > _MOST_SECONDS:
                self.stop()
        return self._status is not None

    def wait(self) -> None:
        """Waits for its end."""
        while not self.is_over():
            time.sleep(_LOOK_EVERY_SECS)

    def leave(self) -> None:
        """Wait for it no longer; it goes on where later runs will find what it builds."""
        # Before the look: a process that ends after it removes its files itself.
        (self._work / _LEFT).touch()
        if not self._is_kept or self.is_over():
            self.stop()
        else:
            _left_running.append(self)
            logger.info("The training ended before its step was compiled; compiling goes on for later runs.")

    def stop(self) -> None:
        """Ends it where it has not ended, and removes what it left."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                _, self._status = os.waitpid(self._process, 0)
            self._status = self._status or 0
        self.remove()

    def remove(self) -> None:
        """Removes what is of no use to later runs; what is loaded stays so."""
        shutil.rmtree(self._work, ignore_errors=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def result(self) -> Path | str:
        """Where to load the step from; or why there is nothing to load, in words that fit after "because"."""
        try:
            outcome = json.loads((self._work / _OUTCOME).read_text())
        except (OSError, ValueError):
            if time.monotonic() - self._started > _MOST_SECONDS:
                return f"compiling took more than {_MOST_SECONDS:.0f} seconds"
            return f"the compiling process died{_signal(self._status)}"
        return Path(outcome["built"]) if "built" in outcome else str(outcome["failure"])


def _build_and_exit(parent: int, folder: Path, work: Path, reserved: BinaryIO, build: Callable[[], Path]) -> NoReturn:
    try:
        _let_go_of_files(but=reserved.fileno())
        os.setpgid(0, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(int(_MOST_SECONDS) + 1)
        log = os.open(work / _LOG, os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        warnings.simplefilter("ignore")
        # The parent's threads are not here: what would wait for them would wait for ever.
        torch.set_num_threads(1)
        try:
            outcome = {"built": str(build())}
        except (CannotBeCompiled, UserError) as error:
            traceback.print_exc()
            outcome = {"failure": str(error).removesuffix(".")}
        (work / f"{_OUTCOME}.new").write_text(json.dumps(outcome))
        os.rename(work / f"{_OUTCOME}.new", work / _OUTCOME)
    except BaseException:
        traceback.print_exc()
    finally:
        if os.getppid() != parent or (work / _LEFT).exists():
            # Nobody is left who would do it; what is kept has gone to its place.
            shutil.rmtree(work, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


def _let_go_of_files(*, but: int) -> None:
    """The parent's ports, locks and pipes are not to outlive it here."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in (but, nothing):
            # The number stays taken: whoever has it here may close it yet, which must not be a file of ours by then.
            os.dup2(nothing, number, inheritable=number < 3)


def _signal(status: int | None) -> str:
    if status is None or not os.WIFSIGNALED(status):
        return ""
    return f" of {signal.Signals(os.WTERMSIG(status)).name}"
