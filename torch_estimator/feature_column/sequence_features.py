"""Sequence columns as input of a recurrent network: encoding on the host, and the module on the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor, nn
from torch.nn import functional

from torch_estimator.data import arrow
from torch_estimator.errors import InvalidTypeError, RowError
from torch_estimator.feature_column.chunk import Chunk
from torch_estimator.feature_column.column import Encoders
from torch_estimator.feature_column.dense_features import make_table
from torch_estimator.feature_column.ids import MISSING, Int64Array
from torch_estimator.feature_column.layouts import SEQUENCE_LENGTHS, SEQUENCE_NUMERIC, Bag, InputLayout
from torch_estimator.feature_column.sequence import SequenceNumericColumn
from torch_estimator.feature_column.table import clip_norms

VARIABLE_SCOPE = "sequence_features"


def bags_of(layout: InputLayout) -> Iterator[Bag]:
    """Yield the tensors of ids in a layout of sequence columns."""
    yield from layout.indicator_bags
    for table in layout.tables:
        yield from table.bags


class SequenceEncoder:
    """Encoder of a model's sequence columns: ids and numbers of all steps, and the length of each sequence."""

    def __init__(self, layout: InputLayout, encoders: Encoders) -> None:
        self._ids = [(bag, encoders.lists(bag.column)) for bag in bags_of(layout)]
        self._numbers = [one.column for one in layout.numeric if isinstance(one.column, SequenceNumericColumn)]
        defaults = [np.full(column.width, column.default_value, np.float32) for column in self._numbers]
        self._defaults = np.concatenate(defaults) if defaults else np.empty(0, np.float32)

    def __call__(self, chunk: Chunk) -> dict[str, Any]:
        """Return the ids and numbers of a chunk as Arrow lists, and the lengths, int64 ``[rows]``.

        The length of a sequence is the number of steps up to the last one that is not missing in every column.
        """
        ids = [(bag, chunk.encoded(encoder)) for bag, encoder in self._ids]
        numbers = [(column, column.steps(chunk)) for column in self._numbers]
        present = {bag.column.name: (one.ids != MISSING, one.offsets) for bag, one in ids}
        present |= {column.name: (~np.isnan(steps.values).all(axis=1), steps.offsets) for column, steps in numbers}
        lengths = _common_lengths(present)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        features: dict[str, Any] = {SEQUENCE_LENGTHS: lengths}
        for bag, one in ids:
            kept = one.ids[_within(one.offsets, lengths)]
            features[bag.feature] = _lists(np.where(kept < 0, bag.padding, kept + bag.offset), offsets)
        if numbers:
            columns = [
                column.normalized_steps(steps.values[_within(steps.offsets, lengths)]) for column, steps in numbers
            ]
            values = np.concatenate(columns, axis=1)
            features[SEQUENCE_NUMERIC] = _lists(values.reshape(-1), offsets * values.shape[1])
        return features

    def padded(self, features: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
        """Return the ids of a batch as int64 ``[N, L]`` and the numbers as float32 ``[N, L, width]``.

        L is the length of the longest sequence, at least 1.
        """
        lengths = features[SEQUENCE_LENGTHS]
        mask = np.arange(max(int(lengths.max(initial=1)), 1)) < lengths[:, None]
        arrays = {SEQUENCE_LENGTHS: lengths}
        for bag, _ in self._ids:
            arrays[bag.feature] = np.full(mask.shape, bag.padding, np.int64)
            arrays[bag.feature][mask] = arrow.to_numpy(features[bag.feature].flatten())
        if self._numbers:
            arrays[SEQUENCE_NUMERIC] = np.tile(self._defaults, (*mask.shape, 1))
            numbers = arrow.to_numpy(features[SEQUENCE_NUMERIC].flatten())
            arrays[SEQUENCE_NUMERIC][mask] = numbers.reshape(-1, len(self._defaults))
        return arrays


class SequenceFeatures(nn.Module):
    """Module that turns sequence columns into the input of a recurrent network, as in tf.keras.experimental.

    The columns of a step are concatenated in bytewise order of names. The vectors of an embedding are the variable
    ``sequence_features/<column>/embedding_weights``.

    Args:
        layout: The layout of the sequence columns, `FeatureTransform.sequence`.

    Attributes:
        width: Numbers in each step of the output.

    >>> words = fc.sequence_categorical_column_with_vocabulary_list("words", ["to", "be"])
    >>> transform = fc.FeatureTransform(sequence_columns=[fc.indicator_column(words)])
    >>> features = transform.padded(transform({"words": np.array([["to", "be"], ["be", ""]])}))
    >>> layer = fc.SequenceFeatures(transform.sequence)
    >>> inputs, lengths = layer({key: torch.from_numpy(value) for key, value in features.items()})
    >>> inputs.tolist(), lengths.tolist()
    ([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [0.0, 0.0]]], [2, 1])
    """

    def __init__(self, layout: InputLayout) -> None:
        super().__init__()
        if not isinstance(layout, InputLayout):
            raise InvalidTypeError(
                "SequenceFeatures takes the layout FeatureTransform(sequence_columns=columns).sequence, but got "
                f"{layout!r}; te.experimental.RNNEstimator takes the columns themselves."
            )
        self.layout = layout
        self.width = layout.width
        self.tables = nn.ModuleList(make_table(table, VARIABLE_SCOPE) for table in layout.tables)

    def forward(self, features: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the inputs of all steps, float32 ``[N, L, width]``, and the lengths of the sequences, int64 ``[N]``.

        Args:
            features: Ids, numbers and lengths that `FeatureTransform.padded` returns, as tensors.
        """
        made: dict[str, Tensor] = {}
        for bag in self.layout.indicator_bags:
            made[bag.name] = functional.one_hot(features[bag.feature], bag.padding + 1)[..., :-1].float()
        for table, layout in zip(self.tables, self.layout.tables, strict=True):
            for bag in layout.bags:
                rows = table(features[bag.feature])
                made[bag.name] = rows if layout.max_norm is None else clip_norms(rows, layout.max_norm)
        for placed in self.layout.numeric:
            made[placed.name] = features[SEQUENCE_NUMERIC][..., placed.start : placed.stop]
        inputs = torch.cat([made[part.name] for part in self.layout.parts], -1)
        return inputs, features[SEQUENCE_LENGTHS]


def _common_lengths(present: Mapping[str, tuple[npt.NDArray[np.bool_], Int64Array]]) -> Int64Array:
    """Return the length of each row's sequence, int64 ``[rows]``, which must be the same in all columns.

    `present` gives for each column whether each step is not missing, and the offsets of the rows.
    """
    by_column = {}
    for name, (is_present, offsets) in present.items():
        ends = np.maximum.accumulate(np.concatenate([[0], np.where(is_present, np.arange(1, len(is_present) + 1), 0)]))
        by_column[name] = np.maximum(ends[offsets[1:]] - offsets[:-1], 0)
    lengths: Int64Array = np.maximum.reduce(list(by_column.values()))
    for name, (_, offsets) in present.items():
        if len(short := np.flatnonzero(np.diff(offsets) < lengths)):
            row = int(short[0])
            longest = max(by_column, key=lambda other: by_column[other][row])
            raise RowError(
                f"the sequence has {offsets[row + 1] - offsets[row]} steps, but that of {longest!r} has "
                f"{lengths[row]}; the sequences of a row must have one length",
                row=row,
                column=name,
            )
    return lengths


def _within(offsets: Int64Array, lengths: Int64Array) -> npt.NDArray[np.bool_]:
    """Return for each step of lists at `offsets` whether it is among the first `lengths` of its row."""
    counts = np.diff(offsets)
    position = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
    within: npt.NDArray[np.bool_] = position < np.repeat(lengths, counts)
    return within


def _lists(values: npt.NDArray[Any], offsets: Int64Array) -> pa.LargeListArray:
    return pa.LargeListArray.from_arrays(arrow.from_numpy(offsets), arrow.from_numpy(values))
