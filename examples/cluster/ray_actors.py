"""Runs a program in a Ray cluster, each process of it in an actor: `python -m examples.cluster.ray_actors --help`."""

from __future__ import annotations

import argparse
import functools
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

# Lines of several processes may well be the same; Ray would show them once.
os.environ.setdefault("RAY_DEDUP_LOGS", "0")

import ray
from ray.exceptions import RayActorError
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from torch_estimator import files
from torch_estimator.cluster.task import CHIEF, EVALUATOR, PARAMETER_SERVER, WORKER, Task
from torch_estimator.errors import ClusterError, UserError, exit_on_user_error
from torch_estimator.launch.job import Job, Limits
from torch_estimator.launch.layout import Layout, Program, free_ports
from torch_estimator.launch.lines import WriteLine
from torch_estimator.processes.child import Child

from ..options import at_least, positive

_SIGNALS = "signals"
_STRATEGIES = ("SPREAD", "PACK", "STRICT_SPREAD", "STRICT_PACK")


class Role:
    """The actor of one task, which Ray places, and makes anew where its process or its node is gone.

    The program is a process of its own, so that signals and exit statuses are what they are elsewhere, and is killed
    with the actor's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._child: Child | None = None

    def __repr__(self) -> str:
        """What lines begin with that Ray shows."""
        return self._name

    def address(self) -> str:
        """Where others can reach it."""
        return f"{ray.util.get_node_ip_address()}:{free_ports(1)[0]}"

    def run(self, program: Program, folder: str, task: Task) -> int:
        """Runs the task to its end; returns its exit status, that of a signal negative."""
        try:
            _check_place(task, ray.util.get_node_ip_address(), folder)
            # Where imports begin, and what names of files in the program's options are seen from.
            os.chdir(folder)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            return UserError.exit_status
        self._child = Child(program.command(task), program.environ(task))
        return self._child.wait()

    def send(self, number: int) -> None:
        """Sends the program a signal."""
        if self._child is not None:
            self._child.send(number)


def _check_place(task: Task, host: str, folder: str) -> None:
    # Nobody asks for workers, nor for a chief whose parameters are on servers, at their address.
    is_asked_for = task.type == PARAMETER_SERVER or (task.type == CHIEF and PARAMETER_SERVER not in task.cluster)
    if is_asked_for and task.address is not None and task.address.rpartition(":")[0] != host:
        raise ClusterError(
            f"the node of {task} is gone, and Ray has placed it at {host}, while the others look for it at "
            f"{task.address}; start the job again, which goes on from its last checkpoint."
        )
    if not os.path.isdir(folder):
        raise ClusterError(
            f"{task} is at {host}, which has no folder {folder}; all nodes have to see the program under one name."
        )


class Placed:
    """The program of a role, as the job sees it; its lines are left to Ray.

    Args:
        roles: Actors by task.
        program: What they run.
        task: Which one.
        write: Not used.
        on_end: Called from another thread with the exit status, that of a signal negative.
    """

    def __init__(
        self, roles: Mapping[str, Any], program: Program, task: Task, write: WriteLine, on_end: Callable[[int], None]
    ) -> None:
        self._role = roles[str(task)]
        done: Future[int] = self._role.run.remote(program, os.getcwd(), task).future()
        done.add_done_callback(lambda done: on_end(_status(done)))

    @property
    def pid(self) -> None:
        """None, since it may be on another machine."""

    def send(self, number: int) -> None:
        """Sends it a signal; a killed one is not made again."""
        if number == signal.SIGKILL:
            ray.kill(self._role)
        else:
            self._role.send.options(concurrency_group=_SIGNALS).remote(number)

    def wait_for_lines(self, secs: float) -> bool:
        """Ray shows them as they come."""
        return True


def _status(done: Future[int]) -> int:
    try:
        return done.result()
    except RayActorError:
        return -signal.SIGKILL
    except Exception as error:
        print(f"Ray could not run it: {error}", file=sys.stderr)
        return 1


@contextmanager
def _connected(secs: float) -> Iterator[None]:
    """Uses the cluster of RAY_ADDRESS, or one that runs here, or one of its own."""
    address = os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        if port.isdecimal():
            # Ray itself would try for minutes.
            socket.create_connection((host, int(port)), secs).close()
        ray.init()
    except OSError as error:
        raise ClusterError(
            f"no Ray cluster can be reached at RAY_ADDRESS={address!r}: {files.reason(error)}; see whether it runs "
            "there and, where it asks for a token, whether RAY_AUTH_MODE=token is set here, too."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _reserved(types: Sequence[str], options: argparse.Namespace) -> PlacementGroup:
    """Resources for actors, all or none."""
    trainer, other = {"CPU": options.cpus, "GPU": options.gpus}, {"CPU": options.cpus}
    bundles = [trainer if type in (CHIEF, WORKER) and options.gpus else other for type in types]
    group = placement_group(bundles, strategy=options.strategy)
    if not group.wait(options.start_secs):
        has = {name: ray.cluster_resources().get(name, 0.0) for name in ("CPU", "GPU")}
        raise ClusterError(
            f"the Ray cluster has had no room for {len(bundles)} actors ({options.strategy}) within "
            f"{options.start_secs:g} s: they need {options.cpus:g} CPU each and {options.gpus:g} GPU for those that "
            f"train, and it has {has['CPU']:g} CPU and {has['GPU']:g} GPU in all; add nodes, or ask for less with "
            "--cpus, --gpus or another --strategy."
        )
    return group


def _roles(types: Sequence[str], group: PlacementGroup, restarts: int) -> dict[str, Any]:
    """An actor for each bundle, by the name of its task."""
    made = ray.remote(concurrency_groups={_SIGNALS: 1}, max_restarts=restarts, max_task_retries=restarts)(Role)
    roles: dict[str, Any] = {}
    for index, (type, bundle) in enumerate(zip(types, group.bundle_specs, strict=True)):
        name = f"{type} {types[:index].count(type)}"
        place = PlacementGroupSchedulingStrategy(group, index)
        options = {"num_cpus": bundle["CPU"], "num_gpus": bundle.get("GPU", 0), "scheduling_strategy": place}
        roles[name] = made.options(**options).remote(name)
    return roles


def _addresses(roles: Sequence[Any]) -> list[str]:
    """One each; those of one node might happen to choose the same port."""
    while True:
        addresses: list[str] = ray.get([role.address.remote() for role in roles])
        if len(set(addresses)) == len(addresses):
            return addresses


def run(layout: Layout, program: Program, limits: Limits, options: argparse.Namespace) -> int:
    """Runs the job; returns its exit status."""
    types = [*layout.addressed, *([EVALUATOR] if layout.evaluator else [])]
    with _connected(options.start_secs):
        roles = _roles(types, _reserved(types, options), limits.max_restarts)
        tasks = layout.tasks(_addresses(list(roles.values())[: len(layout.addressed)]))
        return Job(functools.partial(Placed, roles, program), tasks, limits).run()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.cluster.ray_actors", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--module", default="examples.mnist.task", metavar="NAME", help="what to run; imports begin here")
    add("--workers", type=at_least(0), default=1, metavar="N", help="workers beside the chief")
    add("--ps", type=at_least(0), default=0, metavar="N", help="parameter servers; without any, all train in step")
    add("--evaluator", action="store_true", help="one more, which evaluates and exports; the chief does not")
    add("--cpus", type=positive, default=1.0, metavar="N", help="of each actor, or a part of one")
    add("--gpus", type=at_least(0), default=0, metavar="N", help="of the chief and each worker")
    add("--strategy", choices=_STRATEGIES, default="SPREAD", help="over nodes, or packed on few")
    add("--start-secs", type=positive, default=60.0, metavar="SECS", help="how long the cluster may take to have room")
    add("--max-restarts", type=at_least(0), default=3, metavar="N", help="how often each one is started again")
    add("--finish-secs", type=float, default=600.0, metavar="SECS", help="for the others, after the chief's end")
    add("--stop-secs", type=float, default=10.0, metavar="SECS", help="for who is told to stop, until it is killed")
    add("arguments", nargs="*", metavar="-- ARGS", help="for the program")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; what the user can mend ends it with one sentence and exit status 2."""
    options = _parser().parse_args(arguments)
    with exit_on_user_error():
        layout = Layout(worker_count=options.workers, parameter_server_count=options.ps, evaluator=options.evaluator)
        program = Program(module_name=options.module, arguments=tuple(options.arguments))
        limits = Limits(max_restarts=options.max_restarts, finish_secs=options.finish_secs, stop_secs=options.stop_secs)
        return run(layout, program, limits, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
