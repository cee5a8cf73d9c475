"""Compiling a step in a process of its own, beside the training."""

from __future__ import annotations

import contextlib
import ctypes
import json
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

import torch
from torch import Tensor

from torch_estimator.engine.batches import TensorBatch
from torch_estimator.engine.compiled.building import build
from torch_estimator.engine.compiled.tracing import CannotBeCompiled, trace
from torch_estimator.engine.fingerprint import Fingerprint
from torch_estimator.engine.step import TrainStep

SUPPORTED = sys.platform == "linux"

_OUTCOME = "outcome.json"
_LOG = "compilation.log"
_MOST_SECONDS = 900.0
_LOOK_EVERY_SECS = 0.02
_PR_SET_PDEATHSIG = 1


class Compilation:
    """One compilation, from its start.

    The process is a fork: it has the very model, and whatever it does to it, nobody sees. It ends with this process.

    Args:
        step: What to compile.
        state: The tensors that it reads and writes.
        batch: Of the shapes to compile for.
        folder: Where to build; what is in it after success is what `StepProgram` loads.
        fingerprint: Of all that the step depends on, as it is when called.
        threads: For how many threads.
    """

    def __init__(
        self,
        step: TrainStep,
        state: Sequence[Tensor],
        batch: TensorBatch,
        folder: Path,
        *,
        fingerprint: Callable[[], Fingerprint],
        threads: int,
    ) -> None:
        self.folder = folder
        self._work = work = Path(tempfile.mkdtemp(prefix="torch-estimator-"))
        self._started = time.monotonic()
        self._status: int | None = None
        parent = os.getpid()
        with warnings.catch_warnings():
            # The child starts no threads and waits for none.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process = os.fork()
        if self._process == 0:
            _build_and_exit(
                parent,
                folder,
                lambda: build(*trace(step, state, batch, fingerprint), folder, work=work, threads=threads),
            )

    def is_over(self) -> bool:
        """Whether it has ended, well or not; ends it where it takes far too long."""
        if self._status is None:
            try:
                process, status = os.waitpid(self._process, os.WNOHANG)
            except ChildProcessError:
                process, status = self._process, 0
            if process:
                self._status = status
                shutil.rmtree(self._work, ignore_errors=True)
            elif time.monotonic() - self._started > _MOST_SECONDS:
                self.stop()
        return self._status is not None

    def wait(self) -> None:
        """Waits for its end."""
        while not self.is_over():
            time.sleep(_LOOK_EVERY_SECS)

    def stop(self) -> None:
        """Ends it where it has not ended, and removes what it built."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                _, self._status = os.waitpid(self._process, 0)
            self._status = self._status or 0
            shutil.rmtree(self._work, ignore_errors=True)
            self.remove()

    def remove(self) -> None:
        """Removes what it built; what is loaded stays so."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def failure(self) -> str | None:
        """Why there is nothing to load, in words that fit after "because"; None after success."""
        try:
            outcome = json.loads((self.folder / _OUTCOME).read_text())
        except (OSError, ValueError):
            if time.monotonic() - self._started > _MOST_SECONDS:
                return f"compiling took more than {_MOST_SECONDS:.0f} seconds"
            return f"the compiling process died{_signal(self._status)}"
        return outcome["failure"]  # type: ignore[no-any-return]


def _build_and_exit(parent: int, folder: Path, build: Callable[[], None]) -> None:
    try:
        os.setpgid(0, 0)
        _end_with(parent)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        log = os.open(folder / _LOG, os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        warnings.simplefilter("ignore")
        # The parent's threads are not here: what would wait for them would wait for ever.
        torch.set_num_threads(1)
        failure = None
        try:
            build()
        except CannotBeCompiled as error:
            traceback.print_exc()
            failure = str(error)
        (folder / f"{_OUTCOME}.new").write_text(json.dumps({"failure": failure}))
        os.rename(folder / f"{_OUTCOME}.new", folder / _OUTCOME)
        if failure is None:
            os.unlink(folder / _LOG)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _end_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _signal(status: int | None) -> str:
    if status is None or not os.WIFSIGNALED(status):
        return ""
    return f" of {signal.Signals(os.WTERMSIG(status)).name}"
