"""Targets: the kinds of places in which jobs run. Each submits a launcher, and gives the launcher its machines."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from torch_estimator import files
from torch_estimator.cluster.task import Task
from torch_estimator.errors import InvalidValueError
from torch_estimator.jobs.directory import JobDirectory, JobEvent, JobSpec, Machine, ended_here, is_gone, role_of
from torch_estimator.jobs.gpus import VISIBLE, Gpus, gpus_here
from torch_estimator.launch.layout import Layout, Program, free_ports
from torch_estimator.launch.lines import WriteLine
from torch_estimator.launch.process import LocalProcess, RunningProcess, Start
from torch_estimator.runs.locks import Holder
from torch_estimator.runs.state_file import from_json

T = TypeVar("T")


class Target(Protocol):
    """A kind of place. The command that submits a job calls `check` and `submit`; its launcher calls `start`."""

    SETTINGS: tuple[str, ...]
    """Keys that a target of this kind may have in ``estimator.toml``."""

    INTERPRETER: str = sys.executable
    """The Python that runs the program, unless ``estimator.toml`` names another."""

    HAS_TIMES: bool = False
    """Whether the lines of the roles begin with the time already."""

    def check(self, spec: JobSpec, url: str, package: Path | None = None) -> None:
        """Raise a UserError if the job, with its directory at `url`, cannot run here; nothing has been made yet."""

    def submit(self, job: JobDirectory, spec: JobSpec, environ: Mapping[str, str]) -> None:
        """Start the launcher, which gets a complete environment, and return."""

    def plan(self, spec: JobSpec, url: str, package: Path) -> str:
        """Return what `submit` would run, for people."""

    def check_cancel(self, job: JobDirectory, launched: JobEvent) -> None:
        """Raise a UserError if `cancel` cannot reach the launcher, or would reach another job's; nothing changes."""

    def cancel(self, job: JobDirectory, launched: JobEvent) -> None:
        """Ask the launcher to end the job."""

    def ended(self, job: JobDirectory, launched: JobEvent) -> str | None:
        """Return how a launcher has certainly ended, without a word; None where it may still run."""

    def leaves(self, job: JobDirectory) -> bool:
        """Return whether the roles go on when the launcher gets a signal."""
        return False

    def requeue(self, job: JobDirectory, spec: JobSpec, environ: Mapping[str, str]) -> bool:
        """In the launcher, after a signal, have the job go on later or without it; return False if it is to end."""
        return False

    def clean(self, job: JobDirectory, spec: JobSpec) -> str:
        """In the launcher, remove what the target has of a job that has ended; return why that failed, if it did."""
        return ""

    def start(
        self, job: JobDirectory, spec: JobSpec, program: Program
    ) -> contextlib.AbstractContextManager[tuple[list[str], Start]]:
        """In the launcher, wait for the machines; give the addresses of the roles that have one, and their `Start`."""


class Local(Target):
    """This machine: the launcher is a process of its own session, which survives the terminal."""

    SETTINGS: tuple[str, ...] = ()

    def check(self, spec: JobSpec, url: str, package: Path | None = None) -> None:
        if shutil.which(spec.interpreter) is None:
            raise InvalidValueError(
                f"the interpreter of target {spec.target}, {spec.interpreter}, cannot be run; mend estimator.toml."
            )
        wanted, here = sum(_gpus_of(spec).values()), len(gpus_here())
        if wanted > here:
            raise InvalidValueError(
                f"the job asks for {wanted} GPUs, and this machine has {here}; choose other machine types, or another "
                "tier."
            )

    def submit(self, job: JobDirectory, spec: JobSpec, environ: Mapping[str, str]) -> None:
        with contextlib.ExitStack() as stack:
            # The launcher's own lines go to its log. Here is what Python says if it cannot start.
            stderr = subprocess.DEVNULL
            if job.is_local:
                path = files.join(job.logs, "launcher.stderr")
                stderr = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                stack.callback(os.close, stderr)
            process = subprocess.Popen(
                _command(spec, job.url),
                cwd=spec.folder,
                env=dict(environ),
                stdin=subprocess.PIPE,
                stdout=stderr,
                stderr=stderr,
                start_new_session=True,
            )
        holder = Holder.this_process()
        # From now on, readers see whether the launcher is there. It waits for this event, so that its own come later.
        job.add("launched", "PREPARING", pid=process.pid, host=holder.host, place=holder.place)
        assert process.stdin is not None
        process.stdin.close()
        # While this process follows the log, nobody else can collect the launcher's exit status.
        threading.Thread(target=process.wait, daemon=True).start()

    def plan(self, spec: JobSpec, url: str, package: Path) -> str:
        return " ".join(_command(spec, url))

    def check_cancel(self, job: JobDirectory, launched: JobEvent) -> None:
        here = Holder.this_process()
        if launched.place != here.place or launched.pid is None:
            raise InvalidValueError(f"job {job.name} runs on {launched.host}; cancel it there.")
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            check_runs(files.read_text(f"/proc/{launched.pid}/cmdline").rstrip("\0").rpartition("\0")[2], job)

    def cancel(self, job: JobDirectory, launched: JobEvent) -> None:
        with contextlib.suppress(ProcessLookupError):
            if launched.pid is not None and not is_gone(launched):
                os.kill(launched.pid, signal.SIGTERM)

    def ended(self, job: JobDirectory, launched: JobEvent) -> str | None:
        return ended_here(launched)

    @contextlib.contextmanager
    def start(self, job: JobDirectory, spec: JobSpec, program: Program) -> Iterator[tuple[list[str], Start]]:
        layout = layout_of(spec)
        wanted = _gpus_of(spec)
        gpus = Gpus(gpus_here())
        given = iter(gpus.take(sum(wanted.values())))
        extra = {role: {VISIBLE: ",".join(next(given) for _ in range(count))} for role, count in wanted.items()}
        try:
            ports = free_ports(len(layout.addressed)) if spec.is_cluster else []
            yield [f"localhost:{port}" for port in ports], functools.partial(_start_here, program, extra)
        finally:
            gpus.release()


def _start_here(
    program: Program,
    extra: Mapping[str, Mapping[str, str]],
    task: Task,
    write: WriteLine,
    on_exit: Callable[[int], None],
) -> RunningProcess:
    return LocalProcess(program, task, write, on_exit, extra.get(role_of(task), {}))


def settings_of(kind: type[T], spec: JobSpec) -> T:
    """Return what ``estimator.toml`` has for the job's target, as a dataclass; raise an InvalidValueError."""
    try:
        found: T = from_json(kind, spec.settings)
    except ValueError as error:
        raise InvalidValueError(f"target {spec.target}: {error}; mend estimator.toml.") from error
    return found


def check_runs(url: str, job: JobDirectory) -> None:
    """Raise an InvalidValueError if the directory that a launcher runs is not that of the job, but of a copy, say.

    The directory is empty if the launcher has just ended.
    """
    is_same = url == job.url or (job.is_local and os.path.exists(url) and os.path.samefile(url, job.url))
    if url and not is_same:
        raise InvalidValueError(f"the launcher of {job.url} runs {url}; cancel that job.")


def layout_of(spec: JobSpec) -> Layout:
    """Return the tasks of a job that is a cluster."""
    return Layout(
        worker_count=spec.worker_count, parameter_server_count=spec.parameter_server_count, evaluator=spec.evaluator
    )


def tasks_of(spec: JobSpec, addresses: Sequence[str]) -> list[Task]:
    """Return the tasks of a job, given the address of each that has one."""
    return layout_of(spec).tasks(addresses) if spec.is_cluster else [Task()]


def machines_of(spec: JobSpec) -> dict[str, Machine]:
    """Return the machine that each role of a job asks for, in the order of `tasks_of`."""
    tasks = tasks_of(spec, ["localhost:1"] * len(layout_of(spec).addressed))
    return {role: spec.machines.get(role.rpartition("-")[0], Machine()) for role in map(role_of, tasks)}


def _gpus_of(spec: JobSpec) -> dict[str, int]:
    """Return the number of GPUs of each role, if any role asks for one."""
    wanted = {role: machine.gpus for role, machine in machines_of(spec).items()}
    return wanted if any(wanted.values()) else {}


def _command(spec: JobSpec, url: str) -> list[str]:
    return [sys.executable, "-P", "-m", spec.launcher, url]
