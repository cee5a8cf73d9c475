"""Find the rows of embedding tables that a batch needs, so that a worker can pull them before the forward pass."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from torch_estimator.errors import InvalidValueError
from torch_estimator.train.batches import Batches, TensorBatch, batch_size
from torch_estimator.train.observation import Observer
from torch_estimator.train.sparse_update import Gathered
from torch_estimator.train.step import TrainStep

logger = logging.getLogger("torch_estimator")


class Lookups:
    """Finds the ids that a batch looks up in each embedding table.

    Feature columns compute ids in the input pipeline, so usually some of the features hold exactly the ids of a table.
    An additional forward pass of the first batch shows which: the tables record the tensors of ids that they receive,
    and a feature that has the same memory as such a tensor holds these ids. If a model computes ids in its forward pass
    instead, every batch takes such an additional pass. Everything that these passes change is undone.
    """

    def __init__(self, step: TrainStep) -> None:
        self._step = step
        self._observer = Observer(step.module)
        # For each table, the names of the features that hold its ids. None before the first batch, and if the model
        # computes ids in its forward pass.
        self._keys: list[list[str]] | None = None
        self._observes_each_batch = False
        self._whole: TensorBatch | None = None
        self._ids: list[list[np.ndarray]] = []

    def ids(self, batches: Batches, number: int) -> list[np.ndarray]:
        """Return for each table the ids that a batch looks up, int64 ``[lookups]``, repetitions included.

        The order is that in which `TrainStep.differentiate` returns the gradients of these lookups.
        """
        if not self._step.tables:
            return []
        if self._keys is None and not self._observes_each_batch:
            self._keys = self._find_keys(batches.batch(number))
            self._observes_each_batch = self._keys is None
            if self._observes_each_batch:
                logger.info(
                    "The model computes ids of table rows in its forward pass; each step runs an additional forward "
                    "pass to find out which rows it needs."
                )
        if self._keys is None:
            observed = self._observe(batches.batch(number))
            return [_concatenate([ids.numpy().reshape(-1) for _, ids in lookups]) for lookups in observed]
        if self._whole is not batches.whole:
            # The batches share memory. Read the ids of all of them at once, as arrays ``[batches, lookups]``.
            self._whole = batches.whole
            rows = batch_size(batches.whole.features) // batches.of
            self._ids = [
                [batches.whole.features[key].reshape(batches.of, rows, -1).flatten(1).numpy() for key in keys]
                for keys in self._keys
            ]
        place = batches.start + number
        return [one[0][place] if len(one) == 1 else _concatenate([ids[place] for ids in one]) for one in self._ids]

    def observe_each_batch(self) -> None:
        """From now on, run an extra forward pass per batch. Called when a batch looked up ids that no feature holds."""
        self._keys, self._observes_each_batch = None, True

    def _find_keys(self, batch: TensorBatch) -> list[list[str]] | None:
        features = batch.features
        if not isinstance(features, Mapping):
            return None
        names = {_memory(value): key for key, value in features.items() if isinstance(value, Tensor)}
        keys = [[names.get(memory) for memory, _ in lookups] for lookups in self._observe(batch)]
        if any(key is None for of_table in keys for key in of_table):
            return None
        return [[key for key in of_table if key is not None] for of_table in keys]

    def _observe(self, batch: TensorBatch) -> list[list[tuple[Any, Tensor]]]:
        """Run a forward pass; return for each table the ids of each lookup, and the memory that held them."""
        gathered: Gathered = []

        def forward() -> Tensor:
            with self._step.recording(gathered):
                return self._step.loss(batch.features, batch.labels, batch.weights)

        blocks = [update.table.block for update in self._step.tables]
        for update in self._step.tables:
            update.table.block = None
        try:
            with torch.no_grad():
                self._observer.observe(forward)
        finally:
            for update, block in zip(self._step.tables, blocks, strict=True):
                update.table.block = block
        return [
            [(_memory(ids), ids.clone()) for table, ids, _ in gathered if table is update.table]
            for update in self._step.tables
        ]


def _memory(tensor: Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()


def _concatenate(ids: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(ids or [np.empty(0, np.int64)])


class RowDeduplicator:
    """Reduces the ids that batches look up in a table to unique rows.

    The id ``rows``, the number of rows of the table, stands for a missing value, and is left out.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        # For each row, the index of its last lookup in the current batch. Entries of earlier batches are stale, but
        # `unique` reads only entries that it has just written. `np.unique`, which sorts, would take four times as long.
        self._last = np.empty(rows + 1, np.int64)
        self._order = np.arange(0)

    def unique(self, ids: np.ndarray) -> UniqueRows:
        """Return the unique rows among these ids."""
        if len(ids) > len(self._order):
            self._order = np.arange(len(ids))
        order = self._order[: len(ids)]
        self._last[ids] = order
        is_last = self._last.take(ids) == order
        is_last &= ids != self._rows
        at = is_last.nonzero()[0]
        return UniqueRows(ids, ids.take(at).astype(np.int64, copy=False), at, self._rows)


class RowHashing:
    """Reduces ids to unique rows, as `RowDeduplicator` does, in memory that does not depend on the size of the table.

    It takes about three times as long. `name` is for messages.
    """

    def __init__(self, rows: int, name: str) -> None:
        self._rows, self._name = rows, name

    def unique(self, ids: np.ndarray) -> UniqueRows:
        """Return the unique rows among these ids, with the place of each lookup's row."""
        encoded = pa.array(ids).dictionary_encode()
        rows = encoded.dictionary.to_numpy()
        if len(rows) and not 0 <= (least := rows.min()) <= (most := rows.max()) <= self._rows:
            raise InvalidValueError(
                f"A batch looks up the id {least if least < 0 else most} in the table of {self._name!r}, which has "
                f"{self._rows} rows; ids are at least 0, and less than that."
            )
        places = encoded.indices.to_numpy().astype(np.int64)
        at = np.empty(len(rows), np.int64)
        at[places[::-1]] = np.arange(len(places))[::-1]
        missing = np.flatnonzero(rows == self._rows)
        if len(missing):
            # Leave out the id of missing values, and move the rows behind it.
            where = places == missing[0]
            places -= places > missing[0]
            places[where] = -1
            rows, at = np.delete(rows, missing), np.delete(at, missing)
        return UniqueRows(ids, rows.astype(np.int64, copy=False), at, self._rows, places)


@dataclass(frozen=True, slots=True)
class UniqueRows:
    """The rows of a table that a batch looks up, each once.

    Attributes:
        ids: Ids of all lookups.
        rows: The same ids, int64, each once, without the id of missing values.
        at: For each row, the index in `ids` of one of its lookups.
        missing: The id of missing values.
        places: For each lookup the index in `rows` of its row, int64, -1 for a missing value; None if nobody needs it.
    """

    ids: np.ndarray
    rows: np.ndarray
    at: np.ndarray
    missing: int
    places: np.ndarray | None = None

    def are_of(self, ids: np.ndarray) -> bool:
        """Return whether `ids` equals `self.ids`, apart from missing values at the end."""
        count = len(self.ids)
        return np.array_equal(self.ids, ids[:count]) and bool((ids[count:] == self.missing).all())

    def are_among(self, other: UniqueRows) -> bool:
        """Return whether `other` contains all rows of this object."""
        return self is other or bool(np.isin(self.rows, other.rows).all())
