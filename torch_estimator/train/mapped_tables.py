"""Large tables of models that evaluate or predict: in temporary files, which all models with a checkpoint share."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Hashable

import torch
from torch import nn

from torch_estimator import files
from torch_estimator.checkpoint.checkpoint import Checkpoint
from torch_estimator.checkpoint.format import STATE_NAME
from torch_estimator.feature_column.table import Table
from torch_estimator.train.mapped_memory import mapped_zeros

_mapped: weakref.WeakValueDictionary[Hashable, torch.Tensor] = weakref.WeakValueDictionary()


def map_tables(module: nn.Module, checkpoint: Checkpoint) -> tuple[set[str], Callable[[], None]]:
    """Give the large tables of a model new memory in files, or that of another model with the same checkpoint.

    Return the names of variables that have the checkpoint's values already, and a function to call when all others have
    them, too, so that other models can share their memory.
    """
    tables = [one for one in module.modules() if isinstance(one, Table) and one.is_in_file]
    identity = _identity_of(checkpoint) if tables else None
    known: set[str] = set()
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
