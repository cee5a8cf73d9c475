"""Tensors in temporary files that are mapped into memory: the system can write them out when memory runs short."""

from __future__ import annotations

import logging
import mmap
import os
import tempfile

import torch

from torch_estimator import files

logger = logging.getLogger("torch_estimator")


def mapped_zeros(rows: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """Return zeros ``[rows, dim]`` in a file in the directory for temporary files, which TMPDIR names.

    The file has no name, and is gone with the tensor. If the disk has no room for it, return a tensor in memory.
    """
    size = rows * dim * dtype.itemsize
    try:
        with tempfile.TemporaryFile(prefix="torch-estimator-") as file:
            # Reserve the room now: writing to a mapped page that has no room on the disk would kill this process.
            os.posix_fallocate(file.fileno(), 0, size)
            memory = mmap.mmap(file.fileno(), size)
        if hasattr(mmap, "MADV_RANDOM"):
            # Where memory is short, a lookup reads its own page of the file, and not 32 of them.
            memory.madvise(mmap.MADV_RANDOM)
    except (OSError, AttributeError) as error:
        logger.warning(
            "A table of %d bytes takes memory, since %s has no room for it (%s); name another place in TMPDIR.",
            size,
            tempfile.gettempdir(),
            files.reason(error),
        )
        return torch.zeros(rows, dim, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype).view(rows, dim)
