"""How the process of a trial is started, watched and ended.

The process outlives the controller that started it, so that it has a process group of its own, writes its log itself,
and says on disk how it ended. A forked one finds the libraries that the trials before have used imported already.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import logging
import multiprocessing.util
import os
import random
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import NoReturn, Protocol, runtime_checkable

from torch_estimator import files
from torch_estimator.compile.sources import package_of_module
from torch_estimator.initial_values import truncated_normal, uniform
from torch_estimator.jobs.request import SECRETS
from torch_estimator.processes.forked import fork
from torch_estimator.runs.locks import Holder
from torch_estimator.torch_import import without_collections
from torch_estimator.tuning.directory import StudyDirectory, Trial
from torch_estimator.tuning.trial import Body, process_variables, run_trial
from torch_estimator.versions import own_sources

# What trainings import late, such as for their export. Trials of other programs lose little by it.
_PRELOADED = (
    "torch_estimator.models",
    "torch_estimator.executors.train_and_evaluate",
    "torch_estimator.export.writer",
    "torch_estimator.export.exported_model",
)


class Process(Protocol):
    """The process of a trial."""

    @property
    def pid(self) -> int | None:
        """Process id on this machine; None if it runs elsewhere."""

    def has_ended(self) -> bool:
        """Return whether the process has ended."""

    @property
    def status(self) -> int | None:
        """Exit status, -n if signal n ended it; None if nobody can know that but the process."""


@runtime_checkable
class Remote(Process, Protocol):
    """The process of a trial that gets no signals from here."""

    def end(self) -> None:
        """Have it save and end."""


class Start(Protocol):
    """Starts the process of a trial, which runs to its next rung or its end."""

    def __call__(self, trial: Trial) -> Process:
        """Start the process of a trial."""

    def adopt(self, trial: Trial) -> Process | None:
        """Return the process of a trial that another controller has started; None if there is none."""


class _Here:
    """Base class of what starts processes on this machine."""

    _directory: StudyDirectory

    def adopt(self, trial: Trial) -> Process | None:
        holder = self._directory.holder(trial.number)
        return None if holder is None else Adopted(self._directory, trial.number, holder)


class Fresh(_Here):
    """Starts a new interpreter for each trial. It implements `Start`."""

    def __init__(self, directory: StudyDirectory, environ: Mapping[str, str]) -> None:
        self._directory = directory
        self._environ = dict(environ)
        interpreter = directory.job.spec().interpreter or sys.executable
        self._command = [interpreter, "-P", "-m", "torch_estimator.tuning.trial", directory.job.url]

    def __call__(self, trial: Trial) -> Process:
        with _log(self._directory, trial) as log:
            process = subprocess.Popen(
                [*self._command, str(trial.number)],
                env={"PYTHONUNBUFFERED": "1", **self._environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return _Child(process)


class _Child:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid: int | None = process.pid

    def has_ended(self) -> bool:
        if self._process.poll() is None:
            return False
        # Kill the processes that it left running; nothing else would end them.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return True

    @property
    def status(self) -> int | None:
        return self._process.returncode


class Forked(_Here):
    """Forks this process for each trial, which then runs a body, or the job's program. It implements `Start`.

    Before, it imports the libraries that earlier trials have imported. Where that made this process unfit for forks,
    `instead` starts this trial and all others, and `say` hears why. Only a fork has a function of a notebook or a
    closure.
    """

    def __init__(
        self,
        directory: StudyDirectory,
        body: Body | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        instead: Start | None = None,
        say: Callable[[str], object] = lambda text: None,
    ) -> None:
        self._directory = directory
        self._body = body
        self._environ = environ or {}
        self._instead = instead
        self._say = say
        self._is_unfit = False

    def __call__(self, trial: Trial) -> Process:
        if not self._is_unfit:
            self._import_libraries()
        if self._is_unfit and self._instead is not None:
            return self._instead(trial)
        for stream in (sys.stdout, sys.stderr):
            # What is in the buffer would be printed twice.
            stream.flush()
        with _log(self._directory, trial) as log:
            child = fork(may_outlive=True)
            return child if child is not None else self._run(trial, log)

    def _import_libraries(self) -> None:
        # The process of a function has what the function uses, which need not be PyTorch.
        wanted = [*(_PRELOADED if self._body is None else ()), *_read_imported(self._directory)]
        for name in wanted:
            if name in sys.modules or self._is_unfit:
                continue
            # Some modules are there for one program only.
            with contextlib.suppress(Exception):
                without_collections(importlib.import_module)(name)
            if self._instead is not None and (problem := _unfit_for_forks()):
                self._is_unfit = True
                self._say(f"Each trial gets a process of its own, because {name}, which they import, {problem}.")
        if "torch" in sys.modules:
            _do_what_trials_need()

    def _run(self, trial: Trial, log: int) -> NoReturn:
        status, before, inherited = 1, set(sys.modules), dict(os.environ)
        handlers = _forget_the_parents_end()
        try:
            os.environ.update(self._environ)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            os.dup2(log, 1)
            os.dup2(log, 2)
            # A notebook's streams belong to its own process.
            sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115  # it is open to the end
            sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
            _draw_seeds()
            status = run_trial(self._directory, trial.number, self._body)
            if _environment_is_kept(self._directory, trial, inherited):
                _write_imported(self._directory, before)
            _end_as_python_does(handlers)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status & 0xFF)


def _do_what_trials_need() -> None:
    """Do once what a process keeps: compute texts for the keys of compiled steps, and quantiles; import onnxruntime."""
    from torch_estimator.compile.environment import machine
    from torch_estimator.export.exported_model import import_onnxruntime

    machine(), own_sources(), _is_of_library("torch"), truncated_normal(), uniform(), import_onnxruntime()


def _forget_the_parents_end() -> int:
    """Let nothing run at the end of this process that its parent registered; return how many log handlers it has."""
    atexit._clear()
    # Modules that are imported already do not register themselves again.
    for one in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        one.atexit = False
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    multiprocessing.process._children = set()  # type: ignore[attr-defined]
    multiprocessing.util._finalizer_registry.clear()  # type: ignore[attr-defined]
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]
    # What exists now is not looked at by `_end_as_python_does`.
    gc.freeze()
    return len(logging._handlerList)  # type: ignore[attr-defined]


def _end_as_python_does(handlers: int) -> None:
    """Wait for threads and processes, run what was registered for the end, and write what is left in buffers.

    The first `handlers` of logging are the parent's.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    logging.shutdown(logging._handlerList[handlers:])  # type: ignore[attr-defined]
    for one in gc.get_objects():
        if isinstance(one, io.BufferedWriter | io.TextIOWrapper) and not one.closed:
            with contextlib.suppress(OSError, ValueError):
                one.flush()


def _unfit_for_forks() -> str:
    """Return what in this process a fork could not use; empty if there is nothing."""
    if threading.active_count() > 1:
        return f"starts a thread ({threading.enumerate()[-1].name})"
    return "uses a GPU" if has_used_gpu() else ""


def has_used_gpu() -> bool:
    """Return whether this process has used a GPU, which none of its forks can then."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def _environment_is_kept(directory: StudyDirectory, trial: Trial, inherited: Mapping[str, str]) -> bool:
    """Return whether the program left its environment as it was. Else libraries may read there what it has set."""
    own = {*process_variables(directory, trial), SECRETS, "PYTHONPATH"}
    changed = {key for key, _ in os.environ.items() ^ inherited.items()}
    return changed <= own


def _write_imported(directory: StudyDirectory, before: set[str]) -> None:
    """Add what this process has imported of libraries to the names that `Forked` imports before the next trial."""
    names = [name for name in sys.modules if name not in before and _is_of_library(name)]
    if names:
        known = dict.fromkeys([*_read_imported(directory), *names])
        files.write_atomic(directory.imported, json.dumps(list(known)).encode())


def _is_of_library(module: str) -> bool:
    return module.startswith("torch_estimator.") or package_of_module(module) is not None


def _read_imported(directory: StudyDirectory) -> list[str]:
    try:
        names: list[str] = json.loads(files.read_text(directory.imported))
    except FileNotFoundError:
        return []
    return names


def _draw_seeds() -> None:
    """Seed all random generators anew, as a fresh process does. Otherwise each fork would draw the same numbers."""
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].seed()


class Adopted:
    """The process of a trial that another controller started. Nobody but itself can say how it ends."""

    status = None

    def __init__(self, directory: StudyDirectory, number: int, holder: Holder) -> None:
        self._directory, self._number = directory, number
        self.pid = holder.pid if holder.place == Holder.this_process().place else None

    def has_ended(self) -> bool:
        return self._directory.holder(self._number) is None


def send(process: Process, number: int) -> None:
    """Send a signal to the process of a trial and to what it started."""
    if isinstance(process, Remote):
        process.end()
    elif process.pid is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)


@contextlib.contextmanager
def _log(directory: StudyDirectory, trial: Trial) -> Iterator[int]:
    log = os.open(directory.log(trial.number), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        yield log
    finally:
        os.close(log)
