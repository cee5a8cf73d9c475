"""How many threads a step is worth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

_WORTH_SHARING = 20_000_000
_WORTH_A_CALL = 40_000_000
_AS_CHEAP_AS_READING = 50_000


def rows_worth_a_call(module: nn.Module) -> int:
    """Rows for which the time of a call itself does not count, in a module that says its ``multiply_adds_per_row``."""
    return max(1, _WORTH_A_CALL // max(1, getattr(module, "multiply_adds_per_row", _WORTH_A_CALL)))


def threads_for(module: nn.Module, rows: int, *, beside_input: bool = False) -> int:
    """How many threads a step is worth.

    Waking threads for a matrix product of some microseconds costs more than it saves, and very much more on a machine
    that is busy otherwise: 90 steps/s instead of 570 for the census model at batch 40 on two busy cores. Only modules
    that say their ``multiply_adds_per_row`` are judged; the others keep the threads they have.

    Args:
        module: About to be run.
        rows: In the batch.
        beside_input: Whether a thread reads ahead meanwhile, to which one is left where it has as much to do.
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
    """Runs the body on as many threads as it is worth; see `threads_for`."""
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
