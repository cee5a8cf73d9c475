"""Command line ``python -m torch_estimator.parameter_server``: runs the parameter server that TF_CONFIG names.

The server is ready within half a second, because it does not run the user's program, which would import torch.
"""

import argparse
import math
import sys
from collections.abc import Sequence

from torch_estimator.cluster.environment import task_from_environment
from torch_estimator.cluster.task import PARAMETER_SERVER, WAIT_SECS
from torch_estimator.errors import InvalidValueError, exit_on_user_error
from torch_estimator.parameter_server.process import run_parameter_server


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m torch_estimator.parameter_server", description="The parameter server that TF_CONFIG names."
    )
    parser.add_argument(
        "--session-creation-timeout-secs",
        type=_positive_seconds,
        default=WAIT_SECS,
        metavar="SECS",
        help="how long to wait for the chief, and for workers to come back (default: %(default)g)",
    )
    parser.add_argument(
        "--serve-until-sigterm",
        action="store_true",
        help="wait for the chief without a time limit, and serve one training after another until SIGTERM",
    )
    return parser


def main(arguments: Sequence[str]) -> None:
    """Run the parameter server until training ends. For a wrong setting, print one sentence and exit with status 2."""
    args = make_parser().parse_args(arguments)
    with exit_on_user_error():
        task = task_from_environment()
        if task.type != PARAMETER_SERVER:
            raise InvalidValueError(
                f"{task.source or 'The environment'} says that this process is {task}, which is no parameter server; "
                f"TF_CONFIG must have a task of type {PARAMETER_SERVER!r}."
            )
        wait_secs = math.inf if args.serve_until_sigterm else args.session_creation_timeout_secs
        run_parameter_server(task, wait_secs=wait_secs, serves_until_sigterm=args.serve_until_sigterm)


def _positive_seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be positive, but got {text}")
    return value


if __name__ == "__main__":
    main(sys.argv[1:])
