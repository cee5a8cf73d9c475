"""The command ``estimator``."""

from torch_estimator.cli.main import main

__all__ = ["main"]
