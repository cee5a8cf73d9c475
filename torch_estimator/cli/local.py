"""``estimator local train``: runs a training program on this machine, as ``gcloud ai-platform local train`` does."""

from __future__ import annotations

import argparse
import functools
from typing import TYPE_CHECKING

from torch_estimator.cluster.task import Task
from torch_estimator.errors import InvalidValueError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_ENDING = """\
Lines of the processes begin with their role. A process that is killed, or ends with another status than 0 and 2, is
started again (once the chief has ended well, only the evaluator), and the others run on: with parameter servers they
train on, without any those that train wait for it and hand it what they hold; where that cannot be, they end with
status 143 to be started again, too. Status 2 says that the user has to act: it ends the job. The exit status is 0
where all processes have ended well, and 130 or 143 after Ctrl-C or SIGTERM, which stop them all; a second one kills
them at once. On Linux they are also killed when this command is killed. Processes get this command's environment, such
as a TORCH_ESTIMATOR_KEY_FILE (see estimator make-key)."""


def add_to(commands: Commands) -> None:
    """Adds the commands."""
    local = commands.add_parser("local", help="run a training program on this machine")
    train = local.add_subparsers(required=True, metavar="COMMAND").add_parser(
        "train",
        help="run a training program, in one process or as a cluster of them",
        description="Runs a training program on this machine, in one process or, with --distributed, in several.",
        epilog=_ENDING,
    )
    add = train.add_argument
    add("--module-name", required=True, metavar="NAME", help="what to run, such as trainer.task")
    add("--package-path", metavar="DIR", help="folder of its package; imports begin in the parent (default: here)")
    add("--job-dir", metavar="DIR", help="handed to the program as --job-dir DIR, after its other arguments")
    add("--distributed", action="store_true", help="run a chief and others, told by TF_CONFIG who they are")
    add("--worker-count", type=int, metavar="N", help="workers beside the chief (default: 2)")
    add(
        "--parameter-server-count",
        type=int,
        metavar="N",
        help="parameter servers; without any the chief and its workers train in step (default: 0)",
    )
    add(
        "--evaluator",
        action="store_true",
        default=None,
        help="one more process, which evaluates and exports; the chief of a cluster does not",
    )
    add("--start-port", type=int, metavar="PORT", help="first of consecutive ports (default: any free ones)")
    add(
        "--max-restarts",
        type=int,
        default=3,
        metavar="N",
        help="how often each process that dies is started again, in the whole job (default: 3)",
    )
    add(
        "--finish-secs",
        type=float,
        default=600.0,
        metavar="SECS",
        help="how long the others may go on after the chief has ended well, before they are stopped (default: 600)",
    )
    add(
        "--stop-secs",
        type=float,
        default=10.0,
        metavar="SECS",
        help="how long a process that is told to stop may take until it is killed (default: 10)",
    )
    add("arguments", nargs="*", metavar="-- ARGS", help="for the program")
    train.set_defaults(run=run, error=train.error)


def run(options: argparse.Namespace) -> int:
    """Runs the job; returns its exit status."""
    # What needs POSIX is not imported for the other commands.
    from torch_estimator.launch.job import Job
    from torch_estimator.launch.limits import Limits
    from torch_estimator.launch.local_process import LocalProcess
    from torch_estimator.launch.program import Program

    job_dir = () if options.job_dir is None else ("--job-dir", options.job_dir)
    program = Program(
        module_name=options.module_name,
        package_path=options.package_path,
        arguments=(*options.arguments, *job_dir),
    )
    limits = Limits(max_restarts=options.max_restarts, finish_secs=options.finish_secs, stop_secs=options.stop_secs)
    return Job(functools.partial(LocalProcess, program), _tasks(options), limits).run()


def _tasks(options: argparse.Namespace) -> list[Task]:
    from torch_estimator.launch.layout import Layout
    from torch_estimator.launch.ports import free_ports

    counts = ("worker_count", "parameter_server_count", "evaluator", "start_port")
    given = {name: getattr(options, name) for name in counts if getattr(options, name) is not None}
    if options.distributed:
        start_port = given.pop("start_port", None)
        layout = Layout(**given)
        return layout.tasks([f"localhost:{port}" for port in free_ports(len(layout.addressed), start_port)])
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise InvalidValueError(f"{names} can be given together with --distributed only; add it.")
    return [Task()]
