"""The host halves of the categorical columns whose rows have any number of ids, or ids with weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from torch_estimator.errors import RowError
from torch_estimator.feature_column.categorical import CategoricalColumn
from torch_estimator.feature_column.chunk import Chunk
from torch_estimator.feature_column.cross_lists import CrossLists
from torch_estimator.feature_column.crossed import CrossedColumn
from torch_estimator.feature_column.id_encoders import HasherOf, IdsOfValues, KeyColumn, ids_of_values, value_dtype
from torch_estimator.feature_column.ids import IdEncoder, IdLists, ListEncoder
from torch_estimator.feature_column.raw_lists import Lists
from torch_estimator.feature_column.weighted import WeightedCategoricalColumn


class KeyLists:
    """Ids of a column that reads one raw column of lists."""

    def __init__(self, column: KeyColumn, ids_of: IdsOfValues) -> None:
        self._key = column.key
        self._dtype = value_dtype(column)
        self._ids_of = ids_of

    def __call__(self, chunk: Chunk) -> IdLists:
        """The chunk's ids."""
        lists = chunk.list_values(self._key, self._dtype)
        return IdLists(self._ids_of(lists.values.values).take(lists.values.codes), lists.offsets)


class FixedLists:
    """Ids of a column with a fixed number of them, as lists."""

    def __init__(self, encoder: IdEncoder) -> None:
        self._encoder = encoder

    def __call__(self, chunk: Chunk) -> IdLists:
        """The chunk's ids."""
        ids = chunk.once(self._encoder, lambda: self._encoder(chunk))
        rows = ids.table if ids.codes is None else ids.table.take(ids.codes)
        return IdLists(rows.reshape(-1), np.arange(len(rows) + 1, dtype=np.int64) * rows.shape[1])


class WeightedLists:
    """Ids of a column, with weights."""

    def __init__(self, column: WeightedCategoricalColumn, encoder: ListEncoder) -> None:
        self._column = column
        self._encoder = encoder

    def __call__(self, chunk: Chunk) -> IdLists:
        """The chunk's ids; a missing weight is 0.

        Raises:
            RowError: A row has another number of weights than of values.
        """
        ids = chunk.once(self._encoder, lambda: self._encoder(chunk))
        weights = self._weights(chunk)
        wrong = np.flatnonzero(np.diff(ids.offsets) != np.diff(weights.offsets))
        if len(wrong):
            row = int(wrong[0])
            values, given = (int(np.diff(offsets)[row]) for offsets in (ids.offsets, weights.offsets))
            raise RowError(
                f"{given} weights for the {values} values of {self._column.categorical_column.name!r}; "
                "every value needs one weight",
                row=row,
                column=self._column.weight_feature_key,
            )
        return IdLists(ids.ids, ids.offsets, np.where(np.isnan(weights.values), np.float32(0), weights.values))

    def _weights(self, chunk: Chunk) -> Lists[npt.NDArray[np.float32]]:
        key = self._column.weight_feature_key
        if self._column.multivalent:
            return chunk.list_numbers(key)
        slots = self._column.slots
        numbers = chunk.plain_numbers(key, slots)
        return Lists(numbers.reshape(-1), np.arange(len(numbers) + 1, dtype=np.int64) * slots)


def make_list_encoder(
    column: CategoricalColumn,
    encoder_of: Callable[[CategoricalColumn], IdEncoder],
    list_encoder_of: Callable[[CategoricalColumn], ListEncoder],
    hasher_of: HasherOf,
) -> ListEncoder:
    """The host half of any categorical column, giving lists.

    Args:
        column: The column.
        encoder_of: Gives the plain encoder of a column with a fixed number of ids.
        list_encoder_of: Gives the list encoder of another column: what is weighted, or the leaves of a cross.
        hasher_of: Gives the hasher of a raw column and hash function.
    """
    if isinstance(column, WeightedCategoricalColumn):
        return WeightedLists(column, list_encoder_of(column.categorical_column))
    if not column.multivalent:
        return FixedLists(encoder_of(column))
    if isinstance(column, CrossedColumn):
        return CrossLists(column, list_encoder_of, hasher_of)
    assert isinstance(column, KeyColumn)
    return KeyLists(column, ids_of_values(column, hasher_of))
