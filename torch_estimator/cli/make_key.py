"""``estimator make-key``: write the key with which the processes of a cluster authenticate each other."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_ABOUT = """\
Writes a new secret key, which only you can read. With it parameter servers and workers encrypt their messages, and let
nobody else in: set TORCH_ESTIMATOR_KEY_FILE to the file, or to a copy of it, for all of them."""


def add_to(commands: Commands) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser("make-key", help="make the secret key of a cluster", description=_ABOUT)
    parser.add_argument("file", metavar="FILE", help="where to write it; nothing may be there")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Write a new key file."""
    from torch_estimator.parameter_server.encryption import KEY_FILE, make_key_file

    make_key_file(options.file)
    print(f"Wrote {options.file}; set {KEY_FILE} to it for all processes of the cluster.")
