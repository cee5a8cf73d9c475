"""Command line ``estimator``. Each command is a module: `add_to` defines its options, and `run` runs it."""

from torch_estimator.cli.main import main

__all__ = ["main"]
