"""Large tables of models with a checkpoint: in temporary files that all of them share, or read where they are used."""

from __future__ import annotations

import copy
import os
import weakref
from collections.abc import Callable, Collection, Hashable

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from torch_estimator import files
from torch_estimator.checkpoint.checkpoint import Checkpoint
from torch_estimator.checkpoint.format import STATE_NAME
from torch_estimator.checkpoint.saved_tensors import SavedTensors, saved_rows
from torch_estimator.feature_column.table import Table, tables_of
from torch_estimator.optim.companions import AVERAGE
from torch_estimator.train.mapped_memory import mapped_zeros

_mapped: weakref.WeakValueDictionary[Hashable, torch.Tensor] = weakref.WeakValueDictionary()


class StoredTable:
    """The rows of a table in the files of a checkpoint, of which each block is read when it is asked for.

    It has what `export.graph` needs of a numpy array, float32 ``[rows + 1, dim]``, or ``[rows + 1]`` after `ravel`. The
    last row is zero, as in `Table.weight`. Moving averages take the place of variables that have them.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, table: Table, checkpoint: Checkpoint) -> None:
        self.shape: tuple[int, ...] = (table.rows + 1, table.dim)
        self._dim = table.dim
        self._parts = []
        for piece in table.pieces:
            average = f"{piece.name}/{AVERAGE}"
            saved, name = (
                (checkpoint.slots, average) if average in checkpoint.slots else (checkpoint.variables, piece.name)
            )
            self._parts.append((piece, saved, name))

    @property
    def nbytes(self) -> int:
        """Size of all rows in bytes."""
        return self.dtype.itemsize * self.size

    @property
    def size(self) -> int:
        """Number of elements."""
        return len(self) * self._dim

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> npt.NDArray[np.float32]:
        start, stop, _ = rows.indices(len(self))
        block = np.zeros((stop - start, self._dim), self.dtype)
        for piece, saved, name in self._parts:
            first, last = max(start, piece.offset), min(stop, piece.offset + piece.rows)
            if first < last:
                found = saved_rows(saved, name, first - piece.offset, last - piece.offset)
                block[first - start : last - start] = found.numpy()
        return block.reshape(-1, *self.shape[1:])

    def ravel(self) -> StoredTable:
        """Return the same rows, of one number each, without their second dimension."""
        assert self._dim == 1
        flat = copy.copy(self)
        flat.shape = self.shape[:1]
        return flat


def map_tables(
    module: nn.Module, checkpoint: Checkpoint, stored: Collection[Table] = ()
) -> tuple[set[str], Callable[[], None]]:
    """Give the large tables of a model new memory in files, or that of another model with the same checkpoint.

    Those in `stored` get a `StoredTable` instead, and no numbers in their weight. Return the names of variables that
    have the checkpoint's values already, and a function to call when all others have them, too, so that other models
    can share their memory.
    """
    tables = [one for one in tables_of(module) if one.is_in_file]
    if isinstance(checkpoint.variables, SavedTensors):
        for table in stored:
            table.stored = StoredTable(table, checkpoint)
            table.weight = nn.Parameter(torch.empty_like(table.weight, device="meta"), table.weight.requires_grad)
            tables.remove(table)
    identity = _identity_of(checkpoint) if tables else None
    known = {piece.name for table in stored if table.stored is not None for piece in table.pieces}
    new: list[tuple[Hashable, torch.Tensor]] = []
    for table in tables:
        key = identity, table.pieces, table.dim, table.weight.dtype
        shared = None if identity is None else _mapped.get(key)
        if shared is not None:
            known |= {piece.name for piece in table.pieces}
        # Free the memory of the last checkpoint first.
        table.mapped = None
        table.weight.data = table.weight.data.new_empty(0, table.dim)
        table.mapped = mapped_zeros(table.rows + 1, table.dim, table.weight.dtype) if shared is None else shared
        # The parameter stays the same object, which another module may hold, too.
        table.weight.data = table.mapped
        new.append((key, table.mapped))

    def share() -> None:
        if identity is not None:
            _mapped.update(new)

    return known, share


def _identity_of(checkpoint: Checkpoint) -> Hashable:
    """Return what no other checkpoint has, not even one that replaces this one under its name; None if unknown."""
    path = files.join(checkpoint.path, STATE_NAME)
    if not files.is_local(path) or not files.exists(path):
        return None
    found = os.stat(path)
    return os.path.abspath(path), found.st_ino, found.st_mtime_ns
