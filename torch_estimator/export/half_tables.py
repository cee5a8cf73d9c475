"""Tables of an export in float16: half the bytes, and how much quality that costs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from torch_estimator.errors import ExportError
from torch_estimator.export.graph import Array, GraphBuilder
from torch_estimator.feature_column.table import Table

logger = logging.getLogger("torch_estimator")


class HalfTables:
    """Rounds the tables of a graph to float16, and notes how far their numbers move."""

    def __init__(self, graph: GraphBuilder) -> None:
        self._squares = self._moved = self._most = 0.0
        self.names = graph.store_lookups_as(np.dtype(np.float16), self._rounded)
        if not self.names:
            logger.warning("The model has no table of which it only looks up rows, so its export is in float32.")

    def log(self) -> None:
        """Log how far numbers have moved; call this when the graph is written."""
        if self.names:
            share = (self._moved / self._squares) ** 0.5 if self._squares else 0.0
            logger.info(
                "Rounding tables to float16 (%d) has moved their numbers by %.2g of their size (root mean square), and "
                "by %.2g at most.",
                len(self.names),
                share,
                self._most,
            )

    def _rounded(self, name: str, rows: Array) -> Array:
        with np.errstate(over="ignore"):
            half = rows.astype(np.float16)
        if not np.isfinite(half).all():
            raise ExportError(
                f"the table {name!r} has the number {np.abs(rows).max():g}, beyond float16's largest, 65504; export it "
                "with dtype='float32'."
            )
        moved = np.abs(half.astype(np.float32) - rows)
        self._squares += float(np.square(rows, dtype=np.float64).sum())
        self._moved += float(np.square(moved, dtype=np.float64).sum())
        self._most = max(self._most, float(moved.max(initial=0.0)))
        return half


@contextlib.contextmanager
def rounded_lookups() -> Iterator[None]:
    """Until the block ends, round the rows that tables and embeddings look up to float16."""

    def rounded(module: nn.Module, given: object, rows: Any) -> Any:
        return rows.to(torch.float16).to(rows.dtype) if isinstance(module, Table | nn.Embedding) else None

    handle = register_module_forward_hook(rounded)
    try:
        yield
    finally:
        handle.remove()


def log_quality(exact: Mapping[str, float], rounded: Mapping[str, float]) -> None:
    """Log what an evaluation gives with float32 and with float16."""
    changes = [
        f"{name} = {value:.6g} ({rounded[name] - value:+.2g})" for name, value in exact.items() if name != "global_step"
    ]
    logger.info("With tables in float32, and the change by float16: %s.", ", ".join(changes))
