"""Initial values of large tables that functions make: the chief calls them, and servers read the rows from files."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np
import torch

from torch_estimator import files
from torch_estimator.checkpoint.row_file import RowFileWriter, SavedRows, SomeRows
from torch_estimator.errors import CheckpointError
from torch_estimator.feature_column.table import Table, draw_values
from torch_estimator.initial_values import Distribution
from torch_estimator.train.mapped_memory import mapped_zeros

logger = logging.getLogger("torch_estimator")

_ROWS = 1 << 16


@contextlib.contextmanager
def made_here(tables: Iterable[Table], known: Collection[str], model_dir: str) -> Iterator[dict[str, list[SavedRows]]]:
    """Until the block ends, give files in `model_dir` with what functions make of variables that are not `known`."""
    found: dict[str, list[SavedRows]] = {}
    paths: list[str] = []
    try:
        for table in tables:
            pieces = () if table.initial is None else table.initial[1]
            own = [one.name for one in pieces if one.initializer and not isinstance(one.initializer, Distribution)]
            if missing := [name for name in own if name not in known]:
                # The saver removes files with this beginning, which a killed process has left behind.
                path = files.join(model_dir, f"{files.TEMPORARY_PREFIX}model.ckpt-initial-{len(paths)}")
                paths.append(os.path.abspath(path) if files.is_local(path) else path)
                digest = _write(table, missing, paths[-1])
                found |= {name: [SavedRows(paths[-1], name, 0, digest)] for name in missing}
        yield found
    finally:
        for path in paths:
            files.remove_tree(path)


def _write(table: Table, names: Collection[str], path: str) -> int:
    """Draw the initial values of a table, and write some of its variables into a file; return its digest.

    Each function gets its whole variable, in a temporary file that is mapped into memory, and draws the numbers that it
    draws in a process that trains alone.
    """
    assert table.initial is not None
    seed, pieces = table.initial
    weight = mapped_zeros(table.rows + 1, table.dim, table.weight.dtype)
    logger.info(
        "Functions make the initial values of %s. They are called here, which takes %d bytes of the disk of temporary "
        "files and as many of model_dir until the parameter servers have read them.",
        ", ".join(map(repr, names)),
        weight.nbytes,
    )
    draw_values(weight, pieces, seed)
    dtype = np.dtype(str(weight.dtype).removeprefix("torch."))
    placed = [one for one in table.pieces if one.name in names]
    try:
        with files.opened_to_write(path) as file:
            kind: dict[str, Any] = {"width": table.dim, "dtype": dtype, "first": 0, "step": 1}
            some = [SomeRows(name=one.name, count=one.rows, **kind) for one in placed]
            writer = RowFileWriter(file, some)
            for one in placed:
                for rows in torch.split(weight[one.offset : one.offset + one.rows], _ROWS):
                    writer.write(rows.numpy())
            return writer.finish()
    except OSError as error:
        raise CheckpointError(
            f"Initial values cannot be written to {path}: {files.reason(error)}; use another model_dir."
        ) from error
