"""What several command lines take, checked before any work begins."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Literal

import torch_estimator as te

COMPILE: dict[str, Literal["auto"] | bool] = {"auto": "auto", "always": True, "never": False}
"""Choices of ``--compile``, and what they are in a `RunConfig`."""


def leaves_evaluating(config: te.RunConfig) -> bool:
    """Whether this process is of a cluster, in which another one evaluates."""
    return bool(config.cluster_spec) or config.num_worker_replicas + config.num_ps_replicas > 1


def at_least(smallest: int) -> Callable[[str], int]:
    """A type of argparse: integers from `smallest` on."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = smallest - 1
        if number < smallest:
            raise argparse.ArgumentTypeError(f"must be an integer of at least {smallest}, but got {text!r}")
        return number

    return parse


def positive(text: str) -> float:
    """A type of argparse: finite numbers above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, but got {text!r}")
    return number
