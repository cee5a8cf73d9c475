"""Entry point of ``estimator``: parse the command line, run the command, turn errors into exit statuses."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from torch_estimator.cli import local, make_key, predict, predict_batch, serve, show
from torch_estimator.errors import INTERRUPTED, UserError, printable

# Modules of the commands. To add a command, write a module with `add_to` and list it here.
_COMMANDS = (show, predict, predict_batch, serve, local, make_key)

# Exit status of a program that SIGPIPE terminated, as shells report it.
BROKEN_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``estimator``.

    Args:
        arguments: Arguments after the program's name; None takes those of this process.

    Returns:
        The exit status: 2 for a mistake of the user, the status of the job for ``local train``, otherwise 0.
    """
    parser = argparse.ArgumentParser(prog="estimator", description="Runs training jobs and exported models.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add_to(commands)
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        message = f"unrecognized arguments: {' '.join(unknown)}"
        if "error" in options:
            options.error(f"{message}; those of the program go behind --")
        parser.error(message)
    try:
        status: int | None = options.run(options)
        sys.stdout.flush()
    except UserError as error:
        print(f"estimator: error: {printable(str(error))}", file=sys.stderr)
        return UserError.exit_status
    except BrokenPipeError:
        # Redirect stdout to /dev/null, because Python flushes stdout when it exits, and would raise the error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    return status or 0
