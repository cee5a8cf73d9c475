"""Number of threads for a forward pass or a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

_WORTH_SHARING = 20_000_000
_WORTH_A_CALL = 40_000_000
_AS_CHEAP_AS_READING = 50_000


def rows_worth_a_call(module: nn.Module) -> int:
    """Return the number of rows from which the overhead of a call is negligible for a module."""
    return max(1, _WORTH_A_CALL // max(1, getattr(module, "multiply_adds_per_row", _WORTH_A_CALL)))


def threads_for(module: nn.Module, rows: int, *, beside_input: bool = False) -> int:
    """Return the number of threads to run a module on.

    Waking threads for a matrix product of some microseconds costs more than it saves, and much more on a machine with
    other work: 90 steps/s instead of 570 for the census model at batch 40 on two busy cores. The choice is made only
    for modules that set ``multiply_adds_per_row``; other modules keep torch's number of threads.

    Args:
        module: The module to run.
        rows: Number of rows in the batch.
        beside_input: Whether an input thread reads ahead at the same time. A cheap module leaves one core to it.
    """
    per_row = getattr(module, "multiply_adds_per_row", None)
    threads = torch.get_num_threads()
    if per_row is None:
        return threads
    if per_row * rows <= _WORTH_SHARING:
        return 1
    return max(1, threads - 1) if beside_input and per_row <= _AS_CHEAP_AS_READING else threads


@contextmanager
def sized_threads(module: nn.Module, rows: int, *, beside_input: bool = False) -> Iterator[None]:
    """Run the body on the number of threads that `threads_for` returns."""
    threads = torch.get_num_threads()
    wanted = threads_for(module, rows, beside_input=beside_input)
    if wanted == threads:
        yield
        return
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
