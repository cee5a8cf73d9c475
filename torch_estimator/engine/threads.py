"""How many threads a step is worth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

_WORTH_SHARING = 20_000_000


def rows_worth_a_thread(module: nn.Module) -> int:
    """Rows that keep one thread busy for a while, in a module that says its ``multiply_adds_per_row``."""
    return max(1, _WORTH_SHARING // max(1, getattr(module, "multiply_adds_per_row", _WORTH_SHARING)))


def threads_for(module: nn.Module, rows: int) -> int:
    """How many threads a step is worth.

    Waking threads for a matrix product of some microseconds costs more than it saves, and very much more on a machine
    that is busy otherwise: 90 steps/s instead of 570 for the census model at batch 40 on two busy cores. Only modules
    that say their ``multiply_adds_per_row`` are judged; the others keep the threads they have.

    Args:
        module: About to be run.
        rows: In the batch.
    """
    per_row = getattr(module, "multiply_adds_per_row", None)
    return torch.get_num_threads() if per_row is None or per_row * rows > _WORTH_SHARING else 1


@contextmanager
def sized_threads(module: nn.Module, rows: int) -> Iterator[None]:
    """Runs the body on as many threads as it is worth; see `threads_for`."""
    threads = torch.get_num_threads()
    wanted = threads_for(module, rows)
    if wanted == threads:
        yield
        return
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
