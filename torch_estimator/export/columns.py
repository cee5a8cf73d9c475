"""Export of feature columns: ONNX nodes that compute the same ids and numbers as `FeatureTransform`.

Each column adds its own nodes (see `feature_column.column`). This module does the work that all columns of a model
share: it converts their normalizers, computes the ids of all columns as one wide tensor, and arranges ids and numbers
in the tensors that the model takes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from torch_estimator.export.elementwise import Elementwise
from torch_estimator.export.graph import BOOL, FLOAT, INT64, GraphBuilder
from torch_estimator.export.hash_chains import HashChains, concat, select
from torch_estimator.export.torch_callable import Inlined, inline
from torch_estimator.feature_column.column import CategoricalColumn, NumberColumn
from torch_estimator.feature_column.layouts import (
    SEQUENCE_LENGTHS,
    SEQUENCE_NUMERIC,
    Bag,
    InputLayout,
    PlacedIds,
)
from torch_estimator.feature_column.lowering import HashChain, ListLeaf, RawTensor
from torch_estimator.feature_column.sequence import SequenceNumericColumn
from torch_estimator.feature_column.sequence_features import bags_of

if TYPE_CHECKING:
    from torch_estimator.feature_column.transform import FeatureTransform


def lower_features(
    graph: GraphBuilder, transform: FeatureTransform, raw: Mapping[str, RawTensor]
) -> dict[str, Inlined]:
    """Add the nodes of a `FeatureTransform` to the graph; return the tensors that it computes, by key."""
    numbers, ids = transform.tensors_of_numbers(), transform.tensors_of_ids()
    lowering = ColumnLowering(graph, raw, transform)
    fixed = [placed.column for _, group, _, _ in ids for placed in group]
    lowering.inline_normalizers(
        itertools.chain(
            (placed.column for _, group in numbers for placed in group),
            (number for column in fixed for number in column.number_columns),
            (number for bag in transform.bags for number in bag.column.number_columns),
            (placed.column for placed in (transform.sequence.numeric if transform.sequence is not None else ())),
        )
    )
    matrix = _IdMatrix(lowering, fixed)
    outputs = {}
    for key, group in numbers:
        tensor = concat(graph, [lowering.numbers(placed.column) for placed in group])
        outputs[key] = Inlined(tensor=tensor, row_shape=(group[-1].stop,), dtype="float32")
    for key, placed_ids, slots, padding in ids:
        tensor = matrix.table_rows(placed_ids, padding)
        outputs[key] = Inlined(tensor=tensor, row_shape=(slots,), dtype="int64")
    for bag in transform.bags:
        outputs.update(_lower_bag(bag, lowering))
    if transform.sequence is not None:
        outputs.update(_lower_sequences(transform.sequence, lowering))
    return outputs


class ColumnLowering:
    """Graph builder that is passed to feature columns. It implements the protocol `feature_column.lowering.Lowering`.

    Of `transform` it takes the defaults of the raw columns, and the strings whose hashes the graph will contain, for
    keys hashed with farmhash.
    """

    def __init__(self, graph: GraphBuilder, raw: Mapping[str, RawTensor], transform: FeatureTransform) -> None:
        self.graph = graph
        self.raw = raw
        self._features = transform.raw_features
        self._chains = HashChains(graph, raw, transform.seen_strings())
        self._normalized: dict[NumberColumn, str] = {}

    def inline_normalizers(self, columns: Iterable[NumberColumn]) -> None:
        """Add the nodes of all normalizers to the graph.

        Those that are not `Elementwise` are converted in one torch trace, since each trace takes most of a second.
        """
        normalized = []
        for column in dict.fromkeys(columns):
            if column.normalizer_fn is None:
                continue
            simple = Elementwise.of(column.normalizer_fn, column.shape)
            if simple is None:
                normalized.append(column)
            else:
                self._normalized[column] = self._apply(simple, column)
        if not normalized:
            return
        names = ", ".join(column.name for column in normalized)

        def call(*tensors: Any) -> tuple[Any, ...]:
            return tuple(
                column.normalizer_fn(tensor.reshape(-1, *column.shape)).reshape(-1, column.width)  # type: ignore[misc]
                for column, tensor in zip(normalized, tensors, strict=True)
            )

        inputs = [
            Inlined(tensor=column.lower(self), row_shape=(column.width,), dtype="float32") for column in normalized
        ]
        outputs = inline(self.graph, call, inputs, what=f"the normalizer_fn of {names}")
        self._normalized.update(zip(normalized, outputs, strict=True))

    def _apply(self, normalizer: Elementwise, column: NumberColumn) -> str:
        """Return the numbers of a column after its `normalizer_fn`, float32 ``[N, width]``."""
        tensor, graph = column.lower(self), self.graph
        if column.shape == (column.width,):
            return normalizer.lower(graph, tensor)
        shaped = normalizer.lower(graph, graph.op("Reshape", tensor, graph.constant([-1, *column.shape], np.int64)))
        return graph.op("Reshape", shaped, graph.constant([-1, column.width], np.int64))

    def cast(self, tensor: str, dtype: Literal["float32", "int64"]) -> str:
        """Return a tensor converted to float32 or int64."""
        return self.graph.op("Cast", tensor, to=FLOAT if dtype == "float32" else INT64)

    def floats(self, key: str) -> str:
        """Return a raw column of numbers as float32 ``[N, width]``, with its default for NaN, as in `Chunk.numbers`."""
        raw, default = self.raw[key], self._features[key].default
        if raw.dtype != "float32":
            return self.cast(raw.tensor, "float32")
        if default is None or np.isnan(default).all():
            return raw.tensor
        filling = self.graph.constant([default], np.float32)
        return self.graph.op("Where", self.graph.op("IsNaN", raw.tensor), filling, raw.tensor)

    def numbers(self, column: NumberColumn) -> str:
        """Return the numbers of a column after its `normalizer_fn`, float32 ``[N, width]``."""
        return self._normalized.get(column) or column.lower(self)

    def ids(self, column: CategoricalColumn) -> str:
        """Return the ids of a column as a tensor, int64 ``[N, ids per row]``. A missing id is -1."""
        lowered = column.lower(self)
        return lowered if isinstance(lowered, str) else self.hashed(lowered)

    def hashed(self, chains: Sequence[HashChain]) -> str:
        """Return the ids that hash chains describe (see `HashChain`), int64 ``[N, chains]``. A missing id is -1."""
        return self._chains.lower(chains)

    def hashed_products(self, start: int, leaves: Sequence[ListLeaf], buckets: int) -> str:
        """Return the ids of a cross of lists, one id for each combination of values from the crossed columns (leaves).

        The ids are int64 ``[N, n]``. The last leaf varies fastest.
        """
        return self._chains.lower_products(start, leaves, buckets)


class _IdMatrix:
    """One int64 tensor with the ids of all columns that have a fixed number of ids (slots) per row. A missing id is -1.

    Each output is one Gather from this tensor, and all hashes of the model are computed together.
    """

    def __init__(self, lowering: ColumnLowering, columns: Iterable[CategoricalColumn]) -> None:
        self._graph = lowering.graph
        self._slots: dict[CategoricalColumn, list[int]] = {}
        computed: list[str] = []
        chains: list[HashChain] = []
        hashed: dict[CategoricalColumn, range] = {}
        self._width = 0
        for column in dict.fromkeys(columns):
            lowered = column.lower(lowering)
            if isinstance(lowered, str):
                computed.append(lowered)
                self._slots[column] = list(range(self._width, self._width + column.slots))
                self._width += column.slots
            else:
                hashed[column] = range(len(chains), len(chains) + len(lowered))
                chains += lowered
        for column, places in hashed.items():
            self._slots[column] = [self._width + place for place in places]
        self._width += len(chains)
        pieces = computed + ([lowering.hashed(chains)] if chains else [])
        self._tensor = concat(self._graph, pieces) if pieces else ""

    def table_rows(self, placed: Sequence[PlacedIds], padding: int) -> str:
        """Return the ids of some columns as row indices into one table, int64 ``[N, ids per row]``.

        A row index is the id plus the offset of its column in the table, or `padding` if the id is missing.
        """
        graph = self._graph
        columns = [slot for item in placed for slot in self._slots[item.column]]
        offsets = [item.offset for item in placed for _ in range(item.column.slots)]
        ids = select(graph, self._tensor, columns, self._width)
        missing = graph.op("Less", ids, graph.constant(0, np.int64))
        moved = graph.op("Add", ids, graph.constant([offsets], np.int64)) if any(offsets) else ids
        return graph.op("Where", missing, graph.constant(padding, np.int64), moved)


def _lower_sequences(layout: InputLayout, lowering: ColumnLowering) -> dict[str, Inlined]:
    """Return the ids ``[N, n]``, the numbers ``[N, n, width]`` and the lengths ``[N]`` of sequence columns.

    Callers pad lists with missing values: ``''``, -1 or NaN.
    """
    graph, lengths, numbers = lowering.graph, [], []
    outputs: dict[str, Inlined] = {}
    for bag in bags_of(layout):
        placed, missing = _table_rows(bag, lowering)
        outputs[bag.feature] = Inlined(tensor=placed, row_shape=(-1,), dtype="int64")
        raw = lowering.raw[bag.column.raw_features[0].key]
        nothing = graph.constant(np.array("", object) if raw.dtype == "string" else np.array(-1, np.int64))
        lengths.append(_length(graph, graph.op("Equal", raw.tensor, nothing)))
    for one in layout.numeric:
        column, width = one.column, one.column.width
        assert isinstance(column, SequenceNumericColumn)
        given = column.lower(lowering)
        missing = graph.op("IsNaN", given)
        default = graph.constant(column.default_value, np.float32)
        filled = graph.op("Where", missing, default, lowering.numbers(column))
        rows = graph.op("Shape", lowering.floats(column.key), start=0, end=1)
        shape = graph.op("Concat", rows, graph.constant([-1, width], np.int64), axis=0)
        numbers.append(graph.op("Reshape", filled, shape))
        # A step is missing if all its numbers are.
        as_numbers = graph.op("Reshape", graph.op("Cast", missing, to=INT64), shape)
        all_missing = graph.op("ReduceMin", as_numbers, graph.constant([2], np.int64), keepdims=0)
        lengths.append(_length(graph, graph.op("Cast", all_missing, to=BOOL)))
    if numbers:
        tensor = graph.op("Concat", *numbers, axis=2) if len(numbers) > 1 else numbers[0]
        outputs[SEQUENCE_NUMERIC] = Inlined(tensor=tensor, row_shape=(-1, layout.numeric_width), dtype="float32")
    longest = graph.op("Max", *lengths) if len(lengths) > 1 else lengths[0]
    outputs[SEQUENCE_LENGTHS] = Inlined(tensor=longest, row_shape=(), dtype="int64")
    return outputs


def _length(graph: GraphBuilder, missing: str) -> str:
    """Return the place of the last step that is not missing, counted from 1, int64 ``[N]``; 0 without any."""
    count = graph.op("Squeeze", graph.op("Shape", missing, start=1, end=2), graph.constant([0], np.int64))
    one = graph.constant(1, np.int64)
    places = graph.op("Range", one, graph.op("Add", count, one), one)
    present = graph.op("Where", missing, graph.constant(0, np.int64), places)
    return graph.op("ReduceMax", present, graph.constant([1], np.int64), keepdims=0)


def _table_rows(bag: Bag, lowering: ColumnLowering) -> tuple[str, str]:
    """Return the ids of a column of lists as row indices into its table, and whether each is missing, ``[N, n]``."""
    graph = lowering.graph
    ids = bag.column.lower_lists(lowering)
    missing = graph.op("Less", ids, graph.constant(0, np.int64))
    moved = graph.op("Add", ids, graph.constant(bag.offset, np.int64)) if bag.offset else ids
    return graph.op("Where", missing, graph.constant(bag.padding, np.int64), moved), missing


def _lower_bag(bag: Bag, lowering: ColumnLowering) -> dict[str, Inlined]:
    """Return the ids of one column with lists or weights, and its weights if it has any, both ``[N, n]``."""
    graph, column = lowering.graph, bag.column
    placed, missing = _table_rows(bag, lowering)
    shape = (-1,) if column.multivalent else (column.slots,)
    outputs = {bag.feature: Inlined(tensor=placed, row_shape=shape, dtype="int64")}
    if bag.weights is not None and column.weight_feature is not None:
        given = lowering.floats(column.weight_feature.key)
        nothing = graph.op("Or", missing, graph.op("IsNaN", given))
        weights = graph.op("Where", nothing, graph.constant(0, np.float32), given)
        outputs[bag.weights] = Inlined(tensor=weights, row_shape=shape, dtype="float32")
    return outputs
