"""Choice of the number of threads for a forward pass or a training step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

_WORTH_SHARING = 20_000_000
_WORTH_A_CALL = 40_000_000
_AS_CHEAP_AS_READING = 50_000


def rows_worth_a_call(module: nn.Module) -> int:
    """Return the number of rows above which the overhead of calling a module is negligible."""
    return max(1, _WORTH_A_CALL // max(1, getattr(module, "multiply_adds_per_row", _WORTH_A_CALL)))


def threads_for(module: nn.Module, rows: int, *, with_input_thread: bool = False) -> int:
    """Return the number of CPU threads on which to run a module for a batch.

    For a matrix product of a few microseconds, waking threads costs more than it saves. On a machine with other work it
    costs far more: 90 steps/s instead of 570 for the census model with batches of 40 rows on two busy cores. So small
    batches run on one thread. This applies only to modules that set ``multiply_adds_per_row``; other modules keep
    torch's number of threads. If an input thread reads ahead at the same time, a cheap module leaves one core to that
    thread.
    """
    per_row = getattr(module, "multiply_adds_per_row", None)
    threads = torch.get_num_threads()
    if per_row is None:
        return threads
    if per_row * rows <= _WORTH_SHARING:
        return 1
    return max(1, threads - 1) if with_input_thread and per_row <= _AS_CHEAP_AS_READING else threads


@contextmanager
def sized_threads(module: nn.Module, rows: int, *, with_input_thread: bool = False) -> Iterator[None]:
    """Run the body with a number of CPU threads that suits the module and the batch; see `threads_for`."""
    threads = torch.get_num_threads()
    wanted = threads_for(module, rows, with_input_thread=with_input_thread)
    if wanted == threads:
        yield
        return
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
