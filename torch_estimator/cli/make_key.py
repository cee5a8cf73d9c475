"""Command ``estimator make-key``: write the secret key with which the processes of a cluster encrypt their messages."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_ABOUT = """\
Writes a new secret key that only you can read. Parameter servers, chief and workers that have the key encrypt their
messages and refuse connections without it: set TORCH_ESTIMATOR_KEY_FILE to the file, or to a copy of it, for all of
them."""


def add_to(commands: Commands) -> None:
    """Add the command ``make-key`` and its argument to the parser."""
    parser = commands.add_parser("make-key", help="make the secret key of a cluster", description=_ABOUT)
    parser.add_argument("file", metavar="FILE", help="the new file; it must not exist yet")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Write a new key file, and print how to use it."""
    from torch_estimator.parameter_server.encryption import KEY_FILE, make_key_file

    make_key_file(options.file)
    print(f"Wrote {options.file}; set {KEY_FILE} to it for all processes of the cluster.")
