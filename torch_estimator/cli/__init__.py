"""Command line ``estimator``: one module per command, each with `add_to` (the parser) and `run`."""

from torch_estimator.cli.main import main

__all__ = ["main"]
