"""Command ``estimator local train``: run a training program on this machine, as gcloud's command of this name does."""

from __future__ import annotations

import argparse
import contextlib
import functools
import tempfile
from typing import TYPE_CHECKING

from torch_estimator.cluster.task import Task
from torch_estimator.errors import InvalidValueError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_EPILOG = """\
Each line of output begins with the role of its process. A process that is killed or fails is restarted, and the others
keep running. With parameter servers they continue to train; without, they wait for the restarted process and send it
the state that it lost. If that is impossible, they exit with status 143 and are restarted, too. Status 2 means that
the user has to act, and ends the job. After the chief has finished, only the evaluator is restarted. The exit status
is 0 if all processes have finished successfully. Ctrl-C (130) and SIGTERM (143) stop all of them; the second one kills
them at once. On Linux they are also killed when this command is killed. Processes inherit this command's environment,
such as a TORCH_ESTIMATOR_KEY_FILE (see estimator make-key). Those of a cluster share the cores: without an
OMP_NUM_THREADS each computes on as many threads as there are cores for it."""


def add_to(commands: Commands) -> None:
    """Add the command ``local train`` and its options to the parser."""
    local = commands.add_parser("local", help="run a training program on this machine")
    train = local.add_subparsers(required=True, metavar="COMMAND").add_parser(
        "train",
        help="run a training program, in one process or as a cluster of them",
        description="Runs a training program on this machine, in one process or, with --distributed, in several.",
        epilog=_EPILOG,
    )
    add = train.add_argument
    add("--module-name", required=True, metavar="NAME", help="module to run, such as trainer.task")
    add("--package-path", metavar="DIR", help="folder of its package; imports start in the parent (default: here)")
    add("--job-dir", metavar="DIR", help="passed to the program as --job-dir DIR, after its other arguments")
    add("--distributed", action="store_true", help="run a chief and others as a cluster, each with a TF_CONFIG")
    add("--worker-count", type=int, metavar="N", help="workers in addition to the chief (default: 2)")
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
        help="add a process that evaluates and exports; the chief of a cluster does not",
    )
    add("--start-port", type=int, metavar="PORT", help="first of consecutive ports (default: any free ones)")
    add(
        "--max-restarts",
        type=int,
        default=3,
        metavar="N",
        help="restarts of each process in the whole job (default: 3)",
    )
    add(
        "--finish-secs",
        type=float,
        default=600.0,
        metavar="SECS",
        help="time for the others to finish after the chief, before they are stopped (default: 600)",
    )
    add(
        "--stop-secs",
        type=float,
        default=10.0,
        metavar="SECS",
        help="time for a process to exit after SIGTERM, before it is killed (default: 10)",
    )
    add(
        "--hang-secs",
        type=float,
        default=0.0,
        metavar="SECS",
        help="end and restart a process without progress for this time that waits for no other (default: 0, never)",
    )
    add(
        "--metrics-port",
        metavar="[HOST:]PORT",
        help="port at which the chief serves the state of all roles to Prometheus (default: none; HOST: 127.0.0.1)",
    )
    add("arguments", nargs="*", metavar="-- ARGS", help="arguments of the program")
    train.set_defaults(run=run, error=train.error)


def run(options: argparse.Namespace) -> int:
    """Run the training program as the options say; return the exit status of the job."""
    # Import the launcher only here, because it needs POSIX, and the other commands do not.
    from torch_estimator.activity import Records
    from torch_estimator.activity.metrics_port import METRICS_PORT, check_free
    from torch_estimator.launch.job import Job, Limits
    from torch_estimator.launch.layout import Program
    from torch_estimator.launch.process import LocalProcess

    job_dir = () if options.job_dir is None else ("--job-dir", options.job_dir)
    limits = Limits(
        max_restarts=options.max_restarts,
        finish_secs=options.finish_secs,
        stop_secs=options.stop_secs,
        hang_secs=options.hang_secs,
    )
    settings = {}
    if options.metrics_port is not None:
        check_free(options.metrics_port, "--metrics-port")
        settings[METRICS_PORT] = options.metrics_port
    with contextlib.ExitStack() as stack:
        records = None
        if limits.hang_secs:
            records = Records(stack.enter_context(tempfile.TemporaryDirectory()), limits.hang_secs)
        program = Program(
            module_name=options.module_name,
            package_path=options.package_path,
            arguments=(*options.arguments, *job_dir),
            records=records,
        )
        start = functools.partial(LocalProcess, program, settings=settings)
        return Job(start, _tasks(options), limits, records=records).run()


def _tasks(options: argparse.Namespace) -> list[Task]:
    """Return the tasks of a cluster on this machine, or the only task of a job without a cluster."""
    from torch_estimator.launch.layout import Layout, free_ports

    cluster_options = ("worker_count", "parameter_server_count", "evaluator", "start_port")
    given = {name: getattr(options, name) for name in cluster_options if getattr(options, name) is not None}
    if options.distributed:
        start_port = given.pop("start_port", None)
        layout = Layout(**given)
        return layout.tasks([f"localhost:{port}" for port in free_ports(len(layout.addressed), start_port)])
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise InvalidValueError(f"{names} can be given together with --distributed only; add it.")
    return [Task()]
