"""The tasks of a job: their roles, their ports, and the command and environment that start each."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch_estimator import files
from torch_estimator.activity import Records
from torch_estimator.cluster.process_start import JOB_BEGAN
from torch_estimator.cluster.task import CHIEF, EVALUATOR, PARAMETER_SERVER, WORKER, Task, role_of
from torch_estimator.cluster.tf_config import tf_config_of
from torch_estimator.errors import InvalidValueError
from torch_estimator.log import LOG_FORMAT

# Linux gives ports from 32,768 on to outgoing connections, so choose lower ports. Otherwise an outgoing connection
# could take the port of a process that is being restarted.
_CHOSEN_FROM = range(10_000, 32_000)
_LAST_PORT = 65_535
_ATTEMPTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Tasks of a cluster: one chief, given numbers of workers and parameter servers, and an evaluator if wanted.

    The number of workers does not include the chief. Without parameter servers, chief and workers train synchronously.
    Raise an InvalidValueError if a number is negative.

    >>> Layout(worker_count=1, parameter_server_count=1).addressed
    ['chief', 'worker', 'ps']
    """

    worker_count: int = 2
    parameter_server_count: int = 0
    evaluator: bool = False

    def __post_init__(self) -> None:
        for name in ("worker_count", "parameter_server_count"):
            if getattr(self, name) < 0:
                raise InvalidValueError(f"{name} must be 0 or more, but got {getattr(self, name)}.")

    @property
    def addressed(self) -> list[str]:
        """Types of the tasks that need an address, the chief first; these are all tasks except the evaluator."""
        return [CHIEF] + [WORKER] * self.worker_count + [PARAMETER_SERVER] * self.parameter_server_count

    def tasks(self, addresses: Sequence[str]) -> list[Task]:
        """Return all tasks of the cluster, the chief first and the evaluator last.

        The addresses, ``host:port``, are those of the tasks of `addressed`, in the same order.
        """
        by_type: dict[str, list[str]] = {}
        for type, address in zip(self.addressed, addresses, strict=True):
            by_type.setdefault(type, []).append(address)
        cluster = {type: tuple(each) for type, each in by_type.items()}
        tasks = [Task(type=type, id=id, cluster=cluster) for type, each in cluster.items() for id in range(len(each))]
        if self.evaluator:
            tasks.append(Task(type=EVALUATOR, cluster=cluster))
        return tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A Python module with its arguments: the program that the tasks of a job run.

    Imports start in the parent folder of `package_path`, the folder of the package that contains the module, or in the
    current folder if it is None. `interpreter` is the Python that runs the module, as a path or a name. `began` is the
    start of the job in seconds since 1970; restarted tasks read it from their environment, to tell files of this job
    from files of an earlier one. `records` says where the processes write what they do, if anywhere. Raise an
    InvalidValueError if the folder or the module does not exist.
    """

    module_name: str
    package_path: str | None = None
    arguments: tuple[str, ...] = ()
    interpreter: str = sys.executable
    began: float = field(default_factory=time.time)
    records: Records | None = None

    def __post_init__(self) -> None:
        if os.sep in self.module_name or not all(self.module_name.split(".")):
            raise InvalidValueError(
                f"module_name must be a name with dots, such as trainer.task, but got {self.module_name!r}."
            )
        path = Path(self.package_path or ".")
        # A module of one file is a package of its own.
        if not path.is_dir() and not (path.is_file() and path.name == f"{self.module_name}.py"):
            what = "is no folder" if path.exists() else "does not exist"
            raise InvalidValueError(
                f"package_path {self.package_path!r} {what}; name the folder of the package that "
                f"{self.module_name} is in."
            )
        place = self.root.joinpath(*self.module_name.split("."))
        if not (place.with_suffix(".py").is_file() or (place / "__main__.py").is_file()):
            raise InvalidValueError(
                f"there is no module {self.module_name} in {self.root}: neither {place}.py nor {place}/__main__.py is "
                "there; package_path must name the folder of the package that it is in."
            )

    @property
    def root(self) -> Path:
        """The folder from which Python imports the module."""
        return Path.cwd() if self.package_path is None else Path(os.path.abspath(self.package_path)).parent

    def command(self, task: Task) -> list[str]:
        """Return the command line that runs `task`."""
        return command_of(task, self.interpreter, self.module_name, self.arguments)

    def environ(self, task: Task, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return `environ` extended for the process that runs `task`, which it reads from ``TF_CONFIG``."""
        paths = [str(self.root), *filter(None, [environ.get("PYTHONPATH")])]
        return {
            **environ,
            "TF_CONFIG": tf_config_of(task, environ.get("TF_CONFIG", "{}")),
            **environ_of(self.began, environ),
            "PYTHONPATH": os.pathsep.join(paths),
            **(self.records.environ(role_of(task)) if self.records is not None else {}),
        }


def command_of(task: Task, interpreter: str, module_name: str, arguments: Sequence[str]) -> list[str]:
    """Return the command line that runs a task.

    A parameter server does not run the program. So it starts in a fraction of a second, and it serves until the
    launcher stops it.
    """
    # Without -P, Python would look for modules in the current folder before it looks in those of PYTHONPATH.
    if task.type == PARAMETER_SERVER:
        return [interpreter, "-P", "-m", "torch_estimator.parameter_server", "--serve-until-sigterm"]
    return [interpreter, "-P", "-m", module_name, *arguments]


def environ_of(began: float, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return variables of every task of a job that began at a time, unless `environ` has others."""
    given = environ or {}
    return {
        JOB_BEGAN: str(began),
        "PYTHONUNBUFFERED": "1",
        # The launcher itself begins each line with the time and the role.
        LOG_FORMAT: given.get(LOG_FORMAT, "plain"),
        # torch warns about a lost connection with a C++ stack trace. The package reports it in one sentence.
        "TORCH_CPP_LOG_LEVEL": given.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
    }


def free_ports(count: int, start: int | None = None) -> list[int]:
    """Return free TCP ports of this machine: `count` consecutive ones from `start` on, or random ones.

    Raise an InvalidValueError if a port from `start` on does not exist or is in use, or if too few are free.
    """
    # Keep all sockets bound until every port is chosen, so that no port is chosen twice.
    with contextlib.ExitStack() as bound:
        if start is None:
            return _random_ports(count, bound)
        if not (start > 0 and start + count - 1 <= _LAST_PORT):
            raise InvalidValueError(
                f"start_port must leave room for {count} ports from 1 to {_LAST_PORT}, but got {start}; name another "
                "port."
            )
        ports = list(range(start, start + count))
        for port in ports:
            try:
                _bind(port, bound)
            except OSError as error:
                raise InvalidValueError(
                    f"port {port}, of those from start_port {start} on, cannot be used: {files.reason(error)}; name "
                    "another start_port, or leave it out."
                ) from error
        return ports


def _random_ports(count: int, bound: contextlib.ExitStack) -> list[int]:
    ports: list[int] = []
    for port in random.sample(_CHOSEN_FROM, _ATTEMPTS):
        if len(ports) == count:
            return ports
        with contextlib.suppress(OSError):
            _bind(port, bound)
            ports.append(port)
    raise InvalidValueError(f"this machine has no {count} free ports; start fewer processes.")


def _bind(port: int, bound: contextlib.ExitStack) -> None:
    listener = bound.enter_context(socket.socket())
    # The servers set this option, too. It lets a socket bind a port on which a connection was just closed.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", port))
