"""Large copies within host memory, as fast as its bandwidth allows."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

_PAGE_BYTES = 4096
# Pieces so large are written past the caches, which spares reading what is overwritten anyway.
_PIECE_BYTES = 64 * 1024 * 1024
_SMALL_BYTES = 1024 * 1024
_MOST_THREADS = 8

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def host_memory(size: int) -> Tensor:
    """Returns `size` bytes of any content, in huge pages where the system has them.

    The system makes a page when it is first written to; with small ones that takes longer than the writing.
    """
    # Unlike torch's, numpy's large arrays ask for huge pages.
    return torch.from_numpy(np.empty(size, np.uint8))


def touch(memory: Tensor) -> None:
    """Has the system make the pages of `memory` now, so that nobody waits for them later."""
    for start in range(0, len(memory), _PIECE_BYTES):
        memory[start : start + _PIECE_BYTES : _PAGE_BYTES].fill_(0)


def copy_all(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copies the second of each pair into the first, which is contiguous, in host memory and of the same dtype.

    Copies from other devices may still be on their way when it returns.
    """
    pieces: list[tuple[_Bytes, _Bytes]] = []
    for target, source in pairs:
        if target.nbytes >= _SMALL_BYTES and _is_plain(source):
            pieces += _pieces(as_bytes(target), as_bytes(source))
        else:
            target.copy_(source, non_blocking=True)
    _copy_in_threads(pieces)


def _is_plain(tensor: Tensor) -> bool:
    """Whether the bytes in memory are the values in order."""
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def as_bytes(tensor: Tensor) -> _Bytes:
    """Return the bytes of a contiguous tensor in host memory, which are not copied."""
    return tensor.reshape(-1).view(torch.uint8).numpy()


def _pieces(target: _Bytes, source: _Bytes) -> list[tuple[_Bytes, _Bytes]]:
    starts = range(0, len(target), _PIECE_BYTES)
    return [(target[start : start + _PIECE_BYTES], source[start : start + _PIECE_BYTES]) for start in starts]


def _copy_in_threads(pieces: Sequence[tuple[_Bytes, _Bytes]]) -> None:
    left = iter(pieces)

    def work() -> None:
        # Taking from a list's iterator is atomic, and copying leaves the interpreter to other threads.
        for target, source in left:
            np.copyto(target, source)

    # For less than a piece each, waking threads on a busy machine takes longer than copying.
    worth = sum(len(target) for target, _ in pieces) // _PIECE_BYTES
    helpers = min(torch.get_num_threads(), _MOST_THREADS, worth) - 1
    if helpers < 1:
        work()
        return
    with concurrent.futures.ThreadPoolExecutor(helpers, thread_name_prefix="copy") as pool:
        shared = [pool.submit(work) for _ in range(helpers)]
        work()
        for one in shared:
            one.result()
