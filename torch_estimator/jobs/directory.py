"""A job as a directory: what was asked for, what happened, and what its processes printed.

    JOBS/NAME/job.json              what was asked for, a `JobSpec`
    JOBS/NAME/events/00000001.json  what happened, a small file for each `JobEvent`, as object stores cannot append
    JOBS/NAME/logs/worker-0.log     lines of a role, each after its time; see `torch_estimator.jobs.logs`
    JOBS/NAME/package/              copy of the package, which each start runs
    JOBS/NAME/activity/worker-0.json  what a role does, where the launcher is to notice a hang; see `activity`
    JOBS/NAME/key                   secret of the parameter servers

Nobody else keeps anything of a job, so that a copy of its directory is complete, and a reader needs no server.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch_estimator import files
from torch_estimator.cluster.task import role_of as role_of
from torch_estimator.errors import InvalidValueError
from torch_estimator.log import time_text
from torch_estimator.runs.locks import Holder, kernel
from torch_estimator.runs.numbered_files import NumberedFiles
from torch_estimator.runs.state_file import StateFile

State = Literal["QUEUED", "PREPARING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLING", "CANCELLED"]

FINAL: tuple[State, ...] = ("SUCCEEDED", "FAILED", "CANCELLED")

ENVIRONMENT = "TORCH_ESTIMATOR_JOBS"
"""Environment variable that names the directory of all jobs."""

JOB_FILE = "job.json"

# Names that a message about a job that is not there looks at.
_MOST_LOOKED_AT = 100

_MEMORY = re.compile(r"(\d+)([KMGT]?)i?")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a role needs; 0 and "" leave it to the target. `memory` is a text such as ``14Gi``."""

    cpus: int = 0
    memory: str = ""
    gpus: int = 0

    @property
    def memory_bytes(self) -> int:
        """The memory in bytes; raise an InvalidValueError if the text is none.

        >>> Machine(memory="14Gi").memory_bytes / 1024**3, Machine().memory_bytes
        (14.0, 0)
        """
        match = _MEMORY.fullmatch(self.memory or "0")
        if match is None:
            raise InvalidValueError(f"the memory of a machine type must be such as 14Gi, but got {self.memory!r}.")
        return int(match[1]) << 10 * " KMGT".index(match[2] or " ")


LAUNCHER_MODULE = "torch_estimator.jobs.launcher"
"""What a target starts for a job that is one training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What was asked for when a job was submitted, the content of ``job.json``.

    `machines` has a machine for each type of task that asks for one. `folder` is the directory in which the command ran
    and in which the program runs, and `job_dir` is passed to the program as ``--job-dir``. The values of the arguments
    that `secret_arguments` names are not in `arguments`. The other times are in seconds; 0 means no limit. `study` is
    what the room `tuning` keeps of a job that is a study of several trainings. `launcher` is the module that the target
    starts.
    """

    name: str
    created: float
    target: str
    module_name: str
    folder: str
    arguments: list[str] = field(default_factory=list)
    job_dir: str | None = None
    package: str = ""
    package_sha256: str = ""
    tier: str = "BASIC"
    is_cluster: bool = False
    worker_count: int = 0
    parameter_server_count: int = 0
    evaluator: bool = False
    machines: dict[str, Machine] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    secret_arguments: list[str] = field(default_factory=list)
    interpreter: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    max_restarts: int = 3
    finish_secs: float = 600.0
    stop_secs: float = 10.0
    hang_secs: float = 0.0
    max_running_secs: float = 0.0
    study: dict[str, Any] | None = None
    launcher: str = LAUNCHER_MODULE
    version: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """Something that happened to a job, at a `time` in seconds since 1970, after which it was in a `state`.

    The state is None where the event does not change it. `role` names the task, such as ``worker-0``. For ``launched``,
    `pid`, `host` and `place` say where the launcher runs; see `Holder`. The place can also be that of another system,
    such as ``Slurm job 12``.
    """

    kind: Literal[
        "submitted",
        "launched",
        "waiting",
        "started",
        "restarted",
        "exited",
        "ending",
        "cancelling",
        "requeued",
        "ended",
    ]
    time: float
    state: State | None = None
    role: str = ""
    pid: int | None = None
    status: int | None = None
    reason: str = ""
    host: str | None = None
    place: str | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """State of a job, the reason for it in a sentence, and the time since when it has had it.

    `host` is that of a launcher that cannot be seen from this machine; the state is then that of the last event.
    """

    state: State
    reason: str
    since: float
    host: str = ""

    @property
    def shown(self) -> str:
        """The state, for people."""
        return f"{self.state} on {self.host}" if self.host else self.state


class JobDirectory:
    """The directory of one job in the directory or URL of all jobs."""

    def __init__(self, jobs: str, name: str) -> None:
        self.jobs = jobs
        self.name = name
        self.url = files.join(jobs, name)
        self._spec_file = StateFile(
            files.join(self.url, JOB_FILE), JobSpec, error=InvalidValueError, cure="restore it from a copy"
        )

    @property
    def is_local(self) -> bool:
        """Whether the directory is on a local path."""
        return files.is_local(self.url)

    @property
    def logs(self) -> str:
        """Directory of the logs."""
        return files.join(self.url, "logs")

    @property
    def package(self) -> str:
        """Directory of the copied package, from which Python imports it."""
        return files.join(self.url, "package")

    @property
    def activity(self) -> str:
        """Directory of what the roles do."""
        return files.join(self.url, "activity")

    @property
    def key(self) -> str:
        """File with the secret of the parameter servers."""
        return files.join(self.url, "key")

    @property
    def _events(self) -> NumberedFiles:
        return NumberedFiles(files.join(self.url, "events"))

    def spec(self) -> JobSpec:
        """Return what was asked for, or raise an InvalidValueError if there is no such job."""
        spec = self._spec_file.read()
        if spec is None:
            # Of what is in the directory, not everything is a job.
            others = (name for name in names(self.jobs)[:_MOST_LOOKED_AT] if name != self.name)
            is_job = (name for name in others if files.exists(files.join(self.jobs, name, JOB_FILE)))
            there = ", ".join(itertools.islice(is_job, 10))
            raise InvalidValueError(
                f"there is no job {self.name} in {self.jobs}, but {there or 'none at all'}; --jobs or {ENVIRONMENT} "
                "names another directory."
            )
        return spec

    def check_new(self) -> None:
        """Raise an InvalidValueError for a name that is taken or not allowed."""
        if not _NAME.fullmatch(self.name):
            raise InvalidValueError(
                "the name of a job must be a letter and then letters, digits, _ or -, at most 128 in all, but got "
                f"{self.name!r}."
            )
        if files.exists(self.url) and not (files.is_dir(self.url) and not files.listdir(self.url)):
            raise InvalidValueError(f"there is a job {self.name} in {self.jobs} already; choose another name.")

    def create(self) -> None:
        """Make the directory of a new job, or refuse a name that is taken or not allowed."""
        self.check_new()
        self.make()

    def make(self) -> None:
        """Make the directory."""
        files.makedirs(self.logs)
        files.makedirs(self._events.url)
        if self.is_local:
            os.chmod(self.url, 0o700)

    def write(self, spec: JobSpec) -> None:
        """Write ``job.json``, which only the user can read."""
        with private_files(self.url):
            self._spec_file.write(spec)

    def add(self, kind: Any, state: State | None = None, **details: Any) -> None:
        """Add an event. Launcher and commands may do so at the same time."""
        self._events.add(JobEvent(kind=kind, time=time.time(), state=state, **details))

    def is_cancelled(self) -> bool:
        """Return whether the job was cancelled since its launcher has started."""
        for event in self._events_backwards():
            if event.kind in ("cancelling", "launched"):
                return event.kind == "cancelling"
        return False

    def next_event(self) -> str:
        """Return the path of the file that the next event would have."""
        return self._events.path(max(self._events.numbers(), default=0) + 1)

    def events(self) -> list[JobEvent]:
        """Return all events, the oldest first."""
        return list(reversed(list(self._events_backwards())))

    def status(self, ended: Callable[[JobEvent], str | None] | None = None) -> Status:
        """Return the state of the job. If its launcher was killed, nobody else says that the job has ended.

        `ended` is that of the job's target; see `torch_estimator.jobs.kinds.status_of`.
        """
        found, launched = self._last_state()
        why = None
        if found is not None and found.state not in FINAL and launched is not None:
            why = (ended or ended_here)(launched)
            if why is not None:
                # The launcher may have written its last event after the first look, and before it ended.
                found, launched = self._last_state()
        if found is None or found.state is None:
            return Status("QUEUED", "it is being submitted.", 0.0)
        if found.state not in FINAL and why is None and launched is not None and _is_elsewhere(launched):
            said = f"its event of {time_text(found.time)} says so; whether it still runs cannot be seen from here."
            return Status(found.state, said, found.time, str(launched.host))
        if found.state in FINAL or why is None:
            return Status(found.state, found.reason, found.time)
        if found.state == "CANCELLING":
            return Status("CANCELLED", found.reason, found.time)
        return Status("FAILED", f"{why}{self._last_words()}; jobs resume {self.name} goes on.", found.time)

    def _last_words(self) -> str:
        """Return what a launcher on this machine that left no event said at last, if anything."""
        try:
            said = files.read_text(files.join(self.logs, "launcher.stderr")).split("\n")
        except (OSError, UnicodeDecodeError):
            return ""
        last = next((line for line in reversed(said) if line.strip()), "")
        return f", after {last.rstrip('.')!r} in logs/launcher.stderr" if last else ""

    def _last_state(self) -> tuple[JobEvent | None, JobEvent | None]:
        """Return the last event with a state and, unless that ended the job, the last start of the launcher."""
        launched: JobEvent | None = None
        found: JobEvent | None = None
        for event in self._events_backwards():
            # A job may end while it is being cancelled.
            was_late = found is not None and found.kind == "cancelling" and launched is None and event.state in FINAL
            if (found is None and event.state is not None) or was_late:
                found = event
            if event.kind == "launched":
                launched = event
            if found is not None and (found.state in FINAL or launched is not None):
                break
        return found, launched

    def launched(self) -> JobEvent | None:
        """Return the last start of the launcher; None if it has not started."""
        return next((event for event in self._events_backwards() if event.kind == "launched"), None)

    def _events_backwards(self) -> Iterator[JobEvent]:
        events = self._events
        for number in reversed(events.numbers()):
            event = StateFile(events.path(number), JobEvent, error=InvalidValueError).read()
            if event is not None:
                yield event


def names(jobs: str) -> list[str]:
    """Return the names of the jobs in a directory, sorted."""
    return sorted(name for one in files.listdir(jobs) if _NAME.fullmatch(name := one.strip("/")))


def ended_here(launched: JobEvent) -> str | None:
    """Return that a launcher on this machine has ended; None where it may still run."""
    return f"its launcher (process {launched.pid} on {launched.host}) was killed" if is_gone(launched) else None


def is_gone(launched: JobEvent) -> bool:
    """Return whether the launcher has certainly ended: its process, or the system that it ran on."""
    if launched.pid is None or launched.place is None or launched.host != Holder.this_process().host:
        return False
    # Another kernel means that the machine has been started again. A lock cannot conclude that: machines may share a
    # name.
    was_restarted = not launched.place.startswith(kernel())
    return was_restarted or Holder(pid=launched.pid, place=launched.place).has_ended()


def _is_elsewhere(launched: JobEvent) -> bool:
    """Return whether the launcher is a process of another machine or container."""
    return launched.pid is not None and launched.place != Holder.this_process().place


@contextlib.contextmanager
def private_files(url: str) -> Iterator[None]:
    """Let only the user read the local files that the body makes. The umask is that of the whole process."""
    if not files.is_local(url):
        yield
        return
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def jobs_directory(given: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """Return the directory or URL of all jobs: the given one, else that of the environment, else ``jobs``."""
    url = files.as_url(given or environ.get(ENVIRONMENT) or "jobs")
    return os.path.abspath(url) if files.is_local(url) else url
