"""Conversion of raw columns to the inputs of a model. It runs on the CPU, in the input pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.chunk import Chunk
from torch_estimator.feature_column.column import Column, Encoders, IdEncoder
from torch_estimator.feature_column.hashing import HashFunction, StringHasher
from torch_estimator.feature_column.ids import padded_lists
from torch_estimator.feature_column.layout_builder import input_layout, linear_layout, sequence_layout
from torch_estimator.feature_column.layouts import (
    Bag,
    InputLayout,
    LinearLayout,
    PlacedIds,
    PlacedNumbers,
)
from torch_estimator.feature_column.raw_feature import ARROW_TYPES, RawFeature, merge_raw_features
from torch_estimator.feature_column.raw_values import RawColumn
from torch_estimator.feature_column.sequence_features import SequenceEncoder

Features: TypeAlias = dict[str, Any]  # The values are numpy arrays, or Arrow lists if rows have any number of ids.


class FeatureTransform:
    """Callable that converts raw columns to ids and numbers. The result of a row depends on that row only.

    The result of a call has these entries, as far as the columns need them:

    - ``"linear/ids"`` int64 ``[N, slots]``: rows of the linear model's one weight table;
    - ``"dnn/numeric"`` float32 ``[N, D]``;
    - ``"dnn/indicator_ids"`` int64 ``[N, slots]``: positions among all indicators;
    - ``"dnn/embedding_ids_<dimension>"`` int64 ``[N, slots]``: rows of that dimension's table;
    - ``"linear/ids/<column>"``, ``"dnn/indicator_ids/<column>"`` and ``"dnn/embedding_ids/<column>"``, Arrow lists of
      int64, for columns whose rows have any number of ids, or ids with weights. The weights are Arrow lists of float32
      under the same key with ``"/weights"`` appended. `padded` makes arrays ``[N, L]`` of the lists;
    - ``"sequence/indicator_ids/<column>"`` and ``"sequence/embedding_ids/<column>"``, Arrow lists of int64, and
      ``"sequence/numeric"``, Arrow lists of float32, for sequence columns. `padded` makes arrays ``[N, L]`` and ``[N,
      L, D]`` of them;
    - ``"sequence/lengths"`` int64 ``[N]``: number of steps of each sequence.
    - the entries of the linear model's numeric, indicator and embedding columns: ``"linear"`` in place of ``"dnn"``.

    The id of a missing value is the number of rows of the table (or of indicators). `linear`, `dnn` and `sequence`
    describe the place of each column.

    Args:
        linear_columns: Columns of any kind.
        dnn_columns: Numeric, bucketized, indicator and embedding columns.
        sequence_columns: Sequence columns: numeric ones, and indicator and embedding columns of categorical ones.

    Attributes:
        bags: The columns with lists or weights of the linear and the network half.
        columns: The columns by what messages call them, such as "linear column".
        linear: Layout of the linear half, or None without linear columns.
        dnn: Layout of the network half, or None without network columns.
        sequence: Layout of the sequence columns, or None without them.
        raw_features: The raw columns that are read, by key: the parsing schema, and the inputs of a served model.
        required: The Arrow type of each raw column that is read.

    Raises:
        InvalidTypeError: An item is not a feature column.
        InvalidValueError: A column is of the wrong kind, two columns have one name, or two read a key as different
            types.

    >>> gender = fc.categorical_column_with_vocabulary_list("gender", ["Female", "Male"])
    >>> transform = fc.FeatureTransform([gender], dnn_columns=[fc.indicator_column(gender), fc.numeric_column("age")])
    >>> features = transform({"gender": np.array(["Male", "Female", ""]), "age": np.array([31, 52, 24])})
    >>> features["linear/ids"].ravel()
    array([1, 0, 2])
    >>> sorted(features)
    ['dnn/indicator_ids', 'dnn/numeric', 'linear/ids']
    """

    def __init__(
        self,
        linear_columns: Iterable[Any] = (),
        dnn_columns: Iterable[Any] = (),
        sequence_columns: Iterable[Any] = (),
    ) -> None:
        wide = _columns(linear_columns, "linear_columns")
        deep = _columns(dnn_columns, "dnn_columns")
        steps = _columns(sequence_columns, "sequence_columns")
        self.linear: LinearLayout | None = linear_layout(wide) if wide else None
        self.dnn: InputLayout | None = input_layout(deep) if deep else None
        self.sequence: InputLayout | None = sequence_layout(steps) if steps else None
        by_kind = {"linear column": wide, "network column": deep, "sequence column": steps}
        self._plan(by_kind, [one for one in (self.linear, self.dnn) if one is not None])

    def _plan(self, by_kind: Mapping[str, Sequence[Column]], layouts: Sequence[LinearLayout | InputLayout]) -> None:
        self.columns = by_kind
        columns = [column for some in by_kind.values() for column in some]
        self._linear_layouts = [one for one in layouts if isinstance(one, LinearLayout)]
        self._input_layouts = [one.dense if isinstance(one, LinearLayout) else one for one in layouts]
        self.raw_features: dict[str, RawFeature] = merge_raw_features(
            feature for column in columns for feature in column.raw_features
        )
        self.required: dict[str, pa.DataType] = {
            key: pa.list_(ARROW_TYPES[feature.dtype]) if feature.multivalent else ARROW_TYPES[feature.dtype]
            for key, feature in self.raw_features.items()
        }
        self._encoders = Encoders()
        self._ids = [
            (feature, padding, slots, [(one, self._encoders.ids(one.column)) for one in placed])
            for feature, placed, slots, padding in self.tensors_of_ids()
        ]
        self.bags: tuple[Bag, ...] = tuple(self._all_bags())
        self._bags = [(bag, self._encoders.lists(bag.column)) for bag in self.bags]
        self._numbers = self.tensors_of_numbers()
        self._sequences = None if self.sequence is None else SequenceEncoder(self.sequence, self._encoders)

    def __call__(self, columns: Mapping[str, RawColumn]) -> Features:
        """Return the ids and numbers that a model takes for some rows of raw columns.

        Args:
            columns: Raw columns by name, rows first: numpy arrays, Arrow arrays of strings, and Arrow arrays of
                lists.

        Raises:
            InvalidTypeError: A raw column is not an array.
            InvalidValueError: A raw column is missing, has another number of rows than the others, or another type or
                shape than the feature columns need.
            RowError: One value is of another type.

        >>> fc.FeatureTransform([fc.numeric_column("x")])({"x": np.array([1.0, 2.0])})
        {'linear/numeric': array([[1.],
               [2.]], dtype=float32)}
        """
        chunk = Chunk(columns, self._rows(columns), self.raw_features)
        features: Features = {}
        for feature, padding, slots, ids in self._ids:
            features[feature] = _all_ids(chunk, padding, slots, ids)
        for feature, placed in self._numbers:
            features[feature] = np.concatenate([one.column.numbers(chunk) for one in placed], axis=1)
        for bag, encoder in self._bags:
            features[bag.feature], weights = chunk.encoded(encoder).to_arrow(bag.offset)
            if bag.weights is not None:
                features[bag.weights] = weights
        if self._sequences is not None:
            features |= self._sequences(chunk)
        return features

    def padded(self, features: Features) -> Features:
        """Return the features with arrays ``[N, L]`` in place of Arrow lists.

        L is the length of the longest row, rounded up to a power of two, but that of the longest sequence as it is.
        Missing ids are as in `__call__`, missing weights are 0.

        Args:
            features: What calling the transform returned.

        >>> import pyarrow as pa
        >>> tags = fc.categorical_column_with_vocabulary_list("tags", ["new", "hot"], multivalent=True)
        >>> transform = fc.FeatureTransform([tags])
        >>> transform.padded(transform({"tags": pa.array([["hot", "new"], ["new"]])}))["linear/ids/tags"]
        array([[1, 0],
               [0, 2]])
        """
        if not self.bags and self._sequences is None:
            return features
        arrays = dict(features)
        if self._sequences is not None:
            arrays |= self._sequences.padded(features)
        for bag in self.bags:
            arrays[bag.feature] = padded_lists(features[bag.feature], np.int64(bag.padding))
            if bag.weights is not None:
                arrays[bag.weights] = padded_lists(features[bag.weights], np.float32(0))
        return arrays

    @property
    def recording(self) -> bool:
        """Whether strings that are hashed with farmhash are kept for `seen_strings`. Training sets it to True."""
        return any(hasher.recording for hasher in self._farmhashers())

    @recording.setter
    def recording(self, value: bool) -> None:
        for hasher in self._farmhashers():
            hasher.recording = value

    def seen_strings(self) -> dict[str, list[str]]:
        """Return the recorded strings, sorted, for each raw column that is hashed with farmhash."""
        return {hasher.key: sorted(hasher.seen) for hasher in self._farmhashers()}

    def restore_seen_strings(self, seen: Mapping[str, Iterable[str]]) -> None:
        """Add strings that an earlier run recorded. Ignore raw columns no longer hashed with farmhash."""
        for hasher in self._farmhashers():
            hasher.record(seen.get(hasher.key, ()))

    def hashed_with(self, function: HashFunction) -> list[str]:
        """Return the names of the raw columns whose strings are hashed with a hash function, sorted."""
        return sorted(key for key, one in self._encoders.hashers if one == function)

    def _farmhashers(self) -> list[StringHasher]:
        return [hasher for (_, function), hasher in self._encoders.hashers.items() if function == "farmhash"]

    def _rows(self, columns: Mapping[str, RawColumn]) -> int:
        """Check the raw columns and return their number of rows."""
        rows: dict[str, int] = {}
        for key in self.raw_features:
            if key not in columns:
                raise InvalidValueError(
                    f"raw column {key!r} is needed by the feature columns, but the data has only {sorted(columns)}."
                )
            column = columns[key]
            if not isinstance(column, pa.Array) and (not isinstance(column, np.ndarray) or not column.ndim):
                raise InvalidTypeError(
                    f"raw column {key!r} must be a numpy or Arrow array with one row per example, but got {column!r}."
                )
            rows[key] = len(column)
        if len(set(rows.values())) > 1:
            raise InvalidValueError(f"raw columns must have the same number of rows, but have {rows}.")
        return next(iter(rows.values()), 0)

    def tensors_of_ids(self) -> list[tuple[str, Sequence[PlacedIds], int, int]]:
        """Return, for each tensor of ids, its key, its columns, the ids per row, and the id of a missing value."""
        tensors: list[tuple[str, Sequence[PlacedIds], int, int]] = []
        for linear in self._linear_layouts:
            tensors.append((linear.feature, linear.categorical, linear.slots, linear.rows))
        for one in self._input_layouts:
            tensors.append((one.indicator_feature, one.indicators, one.indicator_slots, one.indicator_width))
            tensors += [(table.feature, table.placed, table.slots, table.rows) for table in one.tables]
        return [tensor for tensor in tensors if tensor[1]]

    def tensors_of_numbers(self) -> list[tuple[str, Sequence[PlacedNumbers]]]:
        """Return, for each tensor of numbers, its key and its columns."""
        return [(one.numeric_feature, one.numeric) for one in self._input_layouts if one.numeric]

    def _all_bags(self) -> Iterator[Bag]:
        for linear in self._linear_layouts:
            yield from linear.bags
        for layout in self._input_layouts:
            yield from layout.indicator_bags
            for table in layout.tables:
                yield from table.bags


def _columns(columns: Iterable[Any], where: str) -> tuple[Column, ...]:
    """Return feature columns as a tuple; raise an error for other items. `where` names the argument in the error."""
    if isinstance(columns, (str, Mapping)) or not isinstance(columns, Iterable):
        raise InvalidTypeError(f"{where} must be a list of feature columns, but got {columns!r}.")
    given = tuple(columns)
    for column in given:
        if not isinstance(column, Column):
            raise InvalidTypeError(
                f"{where} must hold feature columns, but holds {column!r} ({type(column).__name__})."
            )
    return given


def _all_ids(
    chunk: Chunk, padding: int, slots: int, ids: Sequence[tuple[PlacedIds, IdEncoder]]
) -> npt.NDArray[np.int64]:
    """Return one tensor with the ids of several columns, int64 ``[rows, slots]``; `padding` for missing values."""
    # Write one position of all rows at a time, into consecutive memory, and transpose the result at the end.
    # Writing directly into a column of the result would take twice as long, because it misses the CPU caches.
    by_slot = np.empty((slots, chunk.rows), dtype=np.int64)
    for placed, encoder in ids:
        chunk.encoded(encoder).place(by_slot[placed.start : placed.stop], placed.offset, padding)
    return np.ascontiguousarray(by_slot.T)
