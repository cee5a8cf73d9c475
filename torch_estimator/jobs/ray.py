"""Jobs on a Ray cluster: the launcher is a driver of the cluster, and each role's process is in an actor.

The command that submits a job runs on a node of the cluster, and so does its launcher. Ray ends a driver's actors when
the driver has ended, and an actor's process ends with the actor, so that nothing outlives the launcher.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import logging
import os
import queue
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_estimator import files
from torch_estimator.cluster.task import CHIEF, PARAMETER_SERVER, Task
from torch_estimator.errors import ClusterError, InvalidValueError, UserError
from torch_estimator.jobs.directory import JobDirectory, JobSpec, role_of
from torch_estimator.jobs.package import local_package
from torch_estimator.jobs.targets import Local, layout_of, machines_of, settings_of
from torch_estimator.launch.layout import Program, free_ports
from torch_estimator.launch.lines import WriteLine
from torch_estimator.launch.process import LocalProcess, Start

_AUTO = "auto"
_SIGNALS = "signals"
_CONNECT_SECS = 10.0
# Send lines in batches, since each message costs the launcher about a millisecond.
_GATHER_SECS = 0.1
# An actor keeps at most this many lines. The role's process then waits in its next print until the launcher has them.
_MOST_LINES = 10_000
_MOST_BATCHES = 2
_POLL_SECS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What ``estimator.toml`` may have for a target of this kind.

    `address` is that of the cluster's head, `cpus` are the cores of each role whose machine type names none, and
    `start_secs` is the time that the cluster has to make room for the job.
    """

    address: str = _AUTO
    cpus: float = 1.0
    start_secs: float = 60.0

    def __post_init__(self) -> None:
        for name in ("cpus", "start_secs"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name!r}: expected more than 0, but got {getattr(self, name):g}")

    def head(self) -> str:
        """Return the address HOST:PORT, or "auto" for the cluster that this machine is a node of; raise a UserError."""
        address = os.environ.get("RAY_ADDRESS") or _AUTO if self.address == _AUTO else self.address
        host, colon, port = address.rpartition(":")
        if address != _AUTO and not (colon and port.isdecimal() and "/" not in host):
            raise InvalidValueError(
                f"the address of a Ray cluster must be auto or HOST:PORT, but got {address!r}; submit the job on a "
                "node of the cluster."
            )
        if colon:
            # Ray itself would try for minutes.
            try:
                socket.create_connection((host, int(port)), _CONNECT_SECS).close()
            except OSError as error:
                raise _no_cluster(address, files.reason(error)) from error
        return address


class Ray(Local):
    """A Ray cluster, in which this machine is a node."""

    SETTINGS = tuple(one.name for one in dataclasses.fields(Settings))

    def check(self, spec: JobSpec, url: str, package: Path | None = None) -> None:
        """Raise a UserError if Ray is not installed, or no cluster answers."""
        if importlib.util.find_spec("ray") is None:
            raise InvalidValueError(
                f"target {spec.target} needs Ray, which is not installed; pip install 'torch-estimator[ray]'."
            )
        _bundles(spec)
        address = settings_of(Settings, spec).head()
        if address == _AUTO:
            # Only Ray can say whether this machine is a node of a cluster.
            with _connected(address):
                pass

    @contextlib.contextmanager
    def start(self, job: JobDirectory, spec: JobSpec, program: Program) -> Iterator[tuple[list[str], Start]]:
        """Wait for the resources of all roles and start an actor for each."""
        import ray

        bundles = _bundles(spec)
        with _connected(settings_of(Settings, spec).head()):
            make = functools.partial(_make, bundles, _reserved(spec, bundles))
            actors = {role: make(role) for role in bundles}
            count = len(layout_of(spec).addressed) if spec.is_cluster else 0
            addresses: list[str] = []
            # Two roles of one node might happen to choose the same port.
            while len(set(addresses)) < len(actors):
                try:
                    # This waits for all actors, so that a node that cannot start one ends the job.
                    addresses = ray.get([actor.address.remote() for actor in actors.values()])
                except ray.exceptions.RayError as error:
                    raise ClusterError(f"Ray could not start the roles: {_reason(error)}.") from error
            run = (job.jobs, job.name, program, spec.folder, dict(os.environ))
            yield addresses[:count], functools.partial(RayProcess, actors, make, run)


class Role:
    """The actor of one process of a role, on the node that Ray has chosen."""

    def __init__(self) -> None:
        self._process: LocalProcess | None = None
        self._has_started = threading.Event()

    def address(self) -> str:
        """Return an address on this node at which others can reach the process."""
        return f"{_host()}:{free_ports(1)[0]}"

    def run(
        self, jobs: str, name: str, program: Program, folder: str, environ: Mapping[str, str], task: Task
    ) -> Iterator[list[tuple[bytes, bool]] | int]:
        """Run the process to its end; generate its lines in batches, and at last its exit status."""
        os.environ.update(
            (key, value)
            for key, value in environ.items()
            if key not in os.environ or key == "PYTHONPATH" or key.startswith("TORCH_ESTIMATOR_")
        )
        job = JobDirectory(jobs, name)
        try:
            _check_node(job, program, folder, task)
            os.chdir(folder)
            with local_package(job) as package:
                path = package / Path(program.package_path or "").name
                yield from self._run(dataclasses.replace(program, package_path=str(path)), task)
        except UserError as error:
            yield [(f"error: {error}".encode(), True)]
            yield error.exit_status

    def _run(self, program: Program, task: Task) -> Iterator[list[tuple[bytes, bool]] | int]:
        items: queue.Queue[tuple[bytes, bool] | int] = queue.Queue(_MOST_LINES)
        # The kernel ends the process when this thread ends, which is that of all calls but signals.
        process = LocalProcess(program, task, lambda line, is_stderr: items.put((line, is_stderr)), items.put)
        self._process = process
        self._has_started.set()
        status: int | None = None
        # The process may have ended while its last lines are still in the pipe.
        while status is None or not process.wait_for_lines(0.0) or not items.empty():
            batch: list[tuple[bytes, bool] | int] = []
            with contextlib.suppress(queue.Empty):
                batch.append(items.get(timeout=None if status is None else _POLL_SECS))
                time.sleep(_GATHER_SECS if status is None else 0.0)
                while len(batch) < _MOST_LINES:
                    batch.append(items.get_nowait())
            status = next((one for one in batch if isinstance(one, int)), status)
            lines = [one for one in batch if not isinstance(one, int)]
            if lines:
                yield lines
        yield status

    def send(self, number: int) -> None:
        """Send a signal to the process, once it has started."""
        self._has_started.wait()
        if self._process is not None:
            self._process.send(number)


def _host() -> str:
    import ray

    return str(ray.util.get_node_ip_address())


def _check_node(job: JobDirectory, program: Program, folder: str, task: Task) -> None:
    """Raise a ClusterError if the role cannot run on this node."""
    host = _host()
    # Nobody connects to a worker, or to the chief of a job with parameter servers.
    is_asked_for = task.type == PARAMETER_SERVER or (task.type == CHIEF and PARAMETER_SERVER not in task.cluster)
    if is_asked_for and task.address is not None and task.address.rpartition(":")[0] != host:
        raise ClusterError(
            f"the node of {role_of(task)} is gone, and Ray has placed it at {host}, while the others look for it at "
            f"{task.address}; jobs resume {job.name} goes on from the last checkpoint."
        )
    for path in (folder, *([job.package] if job.is_local else [])):
        if not os.path.isdir(files.as_url(path)):
            raise ClusterError(
                f"{role_of(task)} is at {host}, which has no folder {path}; all nodes of the Ray cluster have to see "
                "the directory in which the job was submitted, and --jobs, under one name (--jobs may be a URL)."
            )
    if shutil.which(program.interpreter) is None:
        raise ClusterError(
            f"{role_of(task)} is at {host}, which has no Python {program.interpreter}; name one that all nodes have as "
            "interpreter of the target in estimator.toml."
        )


class RayProcess:
    """Process of a role, as the job sees it. With its first three arguments given, it implements `Start`.

    Args:
        actors: Actors that have no process yet, by role.
        make: Makes another actor for a role. Each runs one process only.
        run: First arguments of `Role.run`.
        task: As for `Start`.
        write: As for `Start`.
        on_exit: As for `Start`.
    """

    def __init__(
        self,
        actors: dict[str, Any],
        make: Callable[[str], Any],
        run: tuple[Any, ...],
        task: Task,
        write: WriteLine,
        on_exit: Callable[[int], None],
    ) -> None:
        self._actor = actors.pop(role_of(task), None) or make(role_of(task))
        self._write, self._on_exit = write, on_exit
        streaming = self._actor.run.options(num_returns="streaming", _generator_backpressure_num_objects=_MOST_BATCHES)
        self._thread = threading.Thread(target=self._follow, args=(streaming.remote(*run, task),), daemon=True)
        self._thread.start()

    @property
    def pid(self) -> None:
        """None, since the process may be on another machine."""

    def send(self, number: int) -> None:
        """Send a signal to the process. SIGKILL ends the actor, which works also before Ray has placed it."""
        import ray

        if number == signal.SIGKILL:
            ray.kill(self._actor)
        else:
            self._actor.send.options(concurrency_group=_SIGNALS).remote(number)

    def wait_for_lines(self, secs: float) -> bool:
        """Wait until all lines are written; they are, once the exit is reported."""
        self._thread.join(secs)
        return not self._thread.is_alive()

    def _follow(self, items: Any) -> None:
        import ray

        status = 1
        try:
            for item in items:
                part = ray.get(item)
                if isinstance(part, int):
                    status = part
                else:
                    for line, is_stderr in part:
                        self._write(line, is_stderr)
        except Exception as error:
            is_dead = isinstance(error, ray.exceptions.RayActorError)
            status = -signal.SIGKILL if is_dead else 1
            self._write(f"Ray has ended its actor: {_reason(error)}.".encode(), True)
        ray.kill(self._actor)
        self._on_exit(status)


def _no_cluster(address: str, reason: str) -> ClusterError:
    return ClusterError(
        f"no Ray cluster can be used at {address}: {reason}; see whether it runs, whether this machine is a node of "
        "it, and, where it asks for a token, whether RAY_AUTH_MODE=token and the token are set here, too."
    )


@contextlib.contextmanager
def _connected(address: str) -> Iterator[None]:
    """Be a driver of the cluster during the body."""
    import ray

    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise _no_cluster(address, _reason(error)) from error
    finally:
        # Ray has put a handler of its own there.
        signal.signal(signal.SIGTERM, before)
    try:
        yield
    finally:
        ray.shutdown()


def _bundles(spec: JobSpec) -> dict[str, dict[str, float]]:
    """Return the resources of each role, as Ray names them."""
    cpus = settings_of(Settings, spec).cpus
    return {
        role: {"CPU": one.cpus or cpus, "GPU": one.gpus, "memory": one.memory_bytes}
        for role, one in machines_of(spec).items()
    }


def _reserved(spec: JobSpec, bundles: Mapping[str, Mapping[str, float]]) -> Any:
    """Return a placement group with the resources of all roles; wait until the cluster has them."""
    import ray
    from ray.util.placement_group import placement_group

    secs = settings_of(Settings, spec).start_secs
    group = placement_group(list(bundles.values()), strategy="SPREAD")
    deadline = time.monotonic() + secs
    # Signals are handled between two waits only.
    while not group.wait(min(1.0, secs)):
        if time.monotonic() >= deadline:
            has = ray.cluster_resources()
            wanted = {name: sum(bundle[name] for bundle in bundles.values()) for name in ("CPU", "GPU", "memory")}
            numbers = [f"{wanted[name]:g} {name} of {has.get(name, 0):g}" for name in ("CPU", "GPU")]
            if wanted["memory"]:
                numbers.append(f"{wanted['memory'] / 2**30:g} GiB memory of {has.get('memory', 0) / 2**30:.1f}")
            raise ClusterError(
                f"the Ray cluster has had no room for {len(bundles)} roles within {secs:g} s: they need "
                f"{' and '.join(numbers)} in all; add nodes, or ask for less with cpus of target {spec.target} or with "
                "other machine types."
            )
    return group


def _make(bundles: Mapping[str, Mapping[str, float]], group: Any, role: str) -> Any:
    """Start the actor of a role."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    place = PlacementGroupSchedulingStrategy(group, list(bundles).index(role))
    # Only the job starts a role again.
    actor = ray.remote(concurrency_groups={_SIGNALS: 1}, max_restarts=0)(Role)
    needs = bundles[role]
    numbers = {"num_cpus": needs["CPU"], "num_gpus": needs["GPU"], "memory": needs["memory"]}
    return actor.options(**numbers, scheduling_strategy=place).remote()


def _reason(error: BaseException) -> str:
    """Return the first sentence of the last line, in which Ray says why."""
    return str(error).strip().rpartition("\n")[2].partition(". ")[0].strip().rstrip(".")
