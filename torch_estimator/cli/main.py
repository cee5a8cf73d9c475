"""Parses the command line, runs a command, and turns what goes wrong into a sentence and a status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from torch_estimator.cli import local, make_key, predict, show
from torch_estimator.errors import INTERRUPTED, UserError, printable

USER_ERROR = 2
BROKEN_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs ``estimator``; returns the exit status, 2 where the user has to act, and that of a job which it runs."""
    parser = _parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        told = f"unrecognized arguments: {' '.join(unknown)}"
        if "error" in options:
            options.error(f"{told}; those of the program go behind --")
        parser.error(told)
    try:
        status: int | None = options.run(options)
        sys.stdout.flush()
    except UserError as error:
        print(f"estimator: error: {printable(str(error))}", file=sys.stderr)
        return USER_ERROR
    except BrokenPipeError:
        # What is left in the buffer would raise once more when Python closes it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    return status or 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="estimator", description="Runs training jobs and exported models.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    show.add_to(commands)
    predict.add_to(commands)
    local.add_to(commands)
    make_key.add_to(commands)
    return parser
