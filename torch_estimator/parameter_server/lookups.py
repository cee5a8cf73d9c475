"""Which rows of tables a batch needs, known before its forward pass."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_estimator.train.batches import Batches, TensorBatch, batch_size
from torch_estimator.train.observation import Observer
from torch_estimator.train.row_update import Gathered
from torch_estimator.train.step import TrainStep

logger = logging.getLogger("torch_estimator")


class Lookups:
    """Tells the ids of a batch.

    Feature columns make ids in the input, so that those of a table are features as they stand; where a forward pass
    makes ids itself, an additional one, of which nothing remains, shows them.

    Args:
        step: Whose tables they are.
    """

    def __init__(self, step: TrainStep) -> None:
        self._step = step
        self._observer = Observer(step.module)
        self._keys: list[list[str]] | None = None
        self._shows = False
        self._whole: TensorBatch | None = None
        self._ids: list[list[np.ndarray]] = []

    def ids(self, batches: Batches, number: int) -> list[np.ndarray]:
        """By table the ids that one of these batches mentions, int64 ``[mentions]``, in the order of
        `TrainStep.differentiate`.
        """
        if not self._step.tables:
            return []
        if self._keys is None and not self._shows:
            self._keys = self._found_keys(batches.batch(number))
            self._shows = self._keys is None
            if self._shows:
                logger.info(
                    "The model makes ids of table rows in its forward pass, so that each step takes a second one to "
                    "know which rows it needs."
                )
        if self._keys is None:
            return [
                _joined([ids.numpy().reshape(-1) for _, ids in shown]) for shown in self._shown(batches.batch(number))
            ]
        if self._whole is not batches.whole:
            self._whole = batches.whole
            rows = batch_size(batches.whole.features) // batches.of
            self._ids = [
                [batches.whole.features[key].reshape(batches.of, rows, -1).flatten(1).numpy() for key in keys]
                for keys in self._keys
            ]
        place = batches.start + number
        return [mine[0][place] if len(mine) == 1 else _joined([one[place] for one in mine]) for mine in self._ids]

    def distrust(self) -> None:
        """After a step that mentioned other ids: from now on they are shown."""
        self._keys, self._shows = None, True

    def _found_keys(self, batch: TensorBatch) -> list[list[str]] | None:
        features = batch.features
        if not isinstance(features, Mapping):
            return None
        places = {_place(value): key for key, value in features.items() if isinstance(value, Tensor)}
        keys = [[places.get(place) for place, _ in shown] for shown in self._shown(batch)]
        if any(key is None for mine in keys for key in mine):
            return None
        return [[key for key in mine if key is not None] for mine in keys]

    def _shown(self, batch: TensorBatch) -> list[list[tuple[Any, Tensor]]]:
        gathered: Gathered = []

        def look() -> Tensor:
            with self._step.recording(gathered):
                return self._step.loss(batch.features, batch.labels, batch.weights)

        with torch.no_grad():
            self._observer.observe(look)
        return [
            [(_place(ids), ids.clone()) for table, ids, _ in gathered if table is update.table]
            for update in self._step.tables
        ]


def _place(tensor: Tensor) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride()


def _joined(ids: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(ids or [np.empty(0, np.int64)])


class Mentions:
    """Picks each row of a table once.

    Args:
        rows: Of the table; the id ``rows`` is that of a missing value, and left out.
    """

    def __init__(self, rows: int) -> None:
        self._rows = rows
        # Which mention of a row has been written last; entries of other batches are never read.
        self._last = np.empty(rows + 1, np.int64)
        self._order = np.arange(0)

    def __call__(self, ids: np.ndarray) -> Mentioned:
        """What ids mention."""
        order = self._order[: len(ids)] if len(ids) <= len(self._order) else self._longer_order(len(ids))
        self._last[ids] = order
        is_last = self._last.take(ids) == order
        is_last &= ids != self._rows
        at = is_last.nonzero()[0]
        return Mentioned(ids, ids.take(at).astype(np.int64, copy=False), at, self._rows)

    def _longer_order(self, length: int) -> np.ndarray:
        self._order = np.arange(length)
        return self._order


@dataclass(frozen=True, slots=True)
class Mentioned:
    """What a batch mentions of a table.

    Attributes:
        ids: Of all mentions.
        rows: Mentioned, int64, each once.
        at: Where each of them is mentioned.
        padding: The id of a missing value.
    """

    ids: np.ndarray
    rows: np.ndarray
    at: np.ndarray
    padding: int

    def is_of(self, ids: np.ndarray) -> bool:
        """Whether these are the same mentions, with nothing behind them but padding."""
        count = len(self.ids)
        return np.array_equal(self.ids, ids[:count]) and bool((ids[count:] == self.padding).all())

    def is_among(self, other: Mentioned) -> bool:
        """Whether the other one has all of these rows."""
        return self is other or bool(np.isin(self.rows, other.rows).all())
