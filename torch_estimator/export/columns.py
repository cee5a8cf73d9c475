"""Feature columns in the graph: raw columns to the ids and numbers that `FeatureTransform` gives."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_estimator.errors import ExportError
from torch_estimator.export.graph import FLOAT, INT64, GraphBuilder
from torch_estimator.export.hash_chains import (
    Chain,
    ComputedSlot,
    HashChains,
    HashedKey,
    ListLeaf,
    RawTensor,
    Value,
    concat,
    select,
)
from torch_estimator.export.torch_callable import Inlined, inline
from torch_estimator.feature_column.bucketized import BucketizedColumn
from torch_estimator.feature_column.crossed import CrossedColumn
from torch_estimator.feature_column.hash_bucket import HashedCategoricalColumn
from torch_estimator.feature_column.identity import IdentityCategoricalColumn
from torch_estimator.feature_column.layouts import (
    DNN_INDICATOR_IDS,
    DNN_NUMERIC,
    LINEAR_IDS,
    LINEAR_NUMERIC,
    Bag,
    PlacedIds,
    PlacedNumbers,
)
from torch_estimator.feature_column.numeric import NumericColumn
from torch_estimator.feature_column.vocabulary_list import VocabularyListCategoricalColumn
from torch_estimator.feature_column.weighted import WeightedCategoricalColumn

if TYPE_CHECKING:
    from torch_estimator.feature_column.categorical import CategoricalColumn
    from torch_estimator.feature_column.transform import FeatureTransform

_UNKNOWN = -2


def lower_features(
    graph: GraphBuilder, transform: FeatureTransform, raw: Mapping[str, RawTensor]
) -> dict[str, Inlined]:
    """Emits what `transform` computes; returns each of its outputs by key.

    Args:
        graph: Where the nodes go.
        transform: The host half of the model.
        raw: Raw columns by key.
    """
    numbers, ids = _wanted(transform)
    features = Features(graph, raw, transform.seen_strings())
    categorical = [
        *(placed.column for group, _ in ids.values() for placed in group),
        *(bag.column for bag in transform.bags),
    ]
    features.normalize(
        itertools.chain(
            (placed.column for group in numbers.values() for placed in group),
            (number for column in categorical for number in _numeric(column)),
        )
    )
    matrix = _IdMatrix(features, [placed.column for group, _ in ids.values() for placed in group])
    outputs = {}
    for key, group in numbers.items():
        tensor = concat(graph, [features.number(placed.column) for placed in group])
        outputs[key] = Inlined(tensor=tensor, row_shape=(group[-1].stop,), dtype="float32")
    for key, (placed_ids, padding) in ids.items():
        tensor = matrix.place(placed_ids, padding)
        outputs[key] = Inlined(tensor=tensor, row_shape=(placed_ids[-1].stop,), dtype="int64")
    for bag in transform.bags:
        outputs.update(lower_bag(bag, features))
    return outputs


def _wanted(
    transform: FeatureTransform,
) -> tuple[dict[str, Sequence[PlacedNumbers]], dict[str, tuple[Sequence[PlacedIds], int]]]:
    """Per output its numeric columns, or its categorical columns and the id of a missing value."""
    numbers: dict[str, Sequence[PlacedNumbers]] = {}
    ids: dict[str, tuple[Sequence[PlacedIds], int]] = {}
    if transform.linear is not None:
        numbers[LINEAR_NUMERIC] = transform.linear.numeric
        ids[LINEAR_IDS] = (transform.linear.categorical, transform.linear.rows)
    if transform.dnn is not None:
        numbers[DNN_NUMERIC] = transform.dnn.numeric
        ids[DNN_INDICATOR_IDS] = (transform.dnn.indicators, transform.dnn.indicator_width)
        for table in transform.dnn.tables:
            ids[table.feature] = (table.placed, table.rows)
    return (
        {key: group for key, group in numbers.items() if group},
        {key: group for key, group in ids.items() if group[0]},
    )


class Features:
    """Raw columns, and numbers after their normalizers."""

    def __init__(
        self, graph: GraphBuilder, raw: Mapping[str, RawTensor], seen_strings: Mapping[str, Sequence[str]]
    ) -> None:
        self.graph = graph
        self.raw = raw
        self.chains = HashChains(graph, raw, seen_strings)
        self._normalized: dict[NumericColumn, str] = {}

    def normalize(self, columns: Iterable[NumericColumn]) -> None:
        """Inlines every normalizer, all in one export of torch, which takes most of a second each time."""
        normalized = [c for c in dict.fromkeys(columns) if c.normalizer_fn is not None]
        if not normalized:
            return
        names = ", ".join(column.name for column in normalized)

        def call(*tensors: Any) -> tuple[Any, ...]:
            return tuple(
                column.normalizer_fn(tensor.reshape(-1, *column.shape)).reshape(-1, column.width)  # type: ignore[misc]
                for column, tensor in zip(normalized, tensors, strict=True)
            )

        inputs = [
            Inlined(tensor=self._plain(column), row_shape=(column.width,), dtype="float32") for column in normalized
        ]
        outputs = inline(self.graph, call, inputs, what=f"the normalizer_fn of {names}")
        self._normalized = dict(zip(normalized, outputs, strict=True))

    def number(self, column: NumericColumn) -> str:
        """The numbers of a column, float32 ``[N, width]``."""
        return self._normalized.get(column) or self._plain(column)

    def _plain(self, column: NumericColumn) -> str:
        raw = self.raw[column.key]
        return raw.tensor if raw.dtype == "float32" else self.graph.op("Cast", raw.tensor, to=FLOAT)


class _IdMatrix:
    """The ids of all categorical columns side by side, int64 ``[N, slots of all]``, -1 without an id."""

    def __init__(self, features: Features, columns: Iterable[Any]) -> None:
        self._graph = features.graph
        self._slots: dict[Any, list[int]] = {}
        computed: list[str] = []
        chains: list[Chain] = []
        hashed: dict[Any, range] = {}
        self._width = 0
        for column in dict.fromkeys(columns):
            lowered = lower_ids(column, features)
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
        pieces = computed + ([features.chains.lower(chains)] if chains else [])
        self._tensor = concat(self._graph, pieces) if pieces else ""

    def place(self, placed: Sequence[PlacedIds], padding: int) -> str:
        """The rows of one table that the columns address, int64 ``[N, slots]``."""
        graph = self._graph
        columns = [slot for item in placed for slot in self._slots[item.column]]
        offsets = [item.offset for item in placed for _ in range(item.column.slots)]
        ids = select(graph, self._tensor, columns, self._width)
        missing = graph.op("Less", ids, graph.constant(0, np.int64))
        moved = graph.op("Add", ids, graph.constant([offsets], np.int64)) if any(offsets) else ids
        return graph.op("Where", missing, graph.constant(padding, np.int64), moved)


@singledispatch
def lower_ids(column: Any, features: Features) -> str | list[Chain]:
    """The ids of a categorical column: a tensor int64 ``[N, slots]``, or the hash chains that make it.

    That of a column of one raw column works on values one by one, so that with lists it is ``[N, n]``.
    """
    raise ExportError(f"a column of the kind {type(column).__name__} cannot be exported.")


@lower_ids.register
def _(column: BucketizedColumn, features: Features) -> str:
    graph = features.graph
    numbers = features.number(column.source_column)
    boundaries = graph.constant(column.boundaries, np.float32)
    if column.slots > 1:
        numbers = graph.op("Unsqueeze", numbers, graph.constant([-1], np.int64))
    # Counting the boundaries above a number, rather than those below it, puts NaN into the last bucket.
    above = graph.op("Cast", graph.op("Less", numbers, boundaries), to=INT64)
    axis = graph.constant([-1], np.int64)
    count = graph.op("ReduceSum", above, axis, keepdims=int(column.slots == 1))
    ranges = len(column.boundaries) + 1
    last = [slot * ranges + ranges - 1 for slot in range(column.slots)]
    return graph.op("Sub", graph.constant([last], np.int64), count)


@lower_ids.register
def _(column: VocabularyListCategoricalColumn, features: Features) -> str:
    graph, raw = features.graph, features.raw[column.key]
    ids: dict[Any, int] = {value: index for index, value in enumerate(column.vocabulary_list)}
    ids["" if raw.dtype == "string" else -1] = -1
    kind = "keys_strings" if raw.dtype == "string" else "keys_int64s"
    keys = {kind: list(ids)}
    default = _UNKNOWN if column.num_oov_buckets else column.default_value
    found = graph.op(
        "LabelEncoder",
        raw.tensor,
        domain="ai.onnx.ml",
        values_int64s=list(ids.values()),
        default_int64=default,
        **keys,
    )
    if not column.num_oov_buckets:
        return found
    chain = Chain(
        start=None,
        values=(HashedKey(key=column.key, function=column.hash_function),),
        buckets=column.num_oov_buckets,
        missing=(),
    )
    size = graph.constant(len(column.vocabulary_list), np.int64)
    bucket = graph.op("Add", features.chains.lower([chain]), size)
    unknown = graph.op("Equal", found, graph.constant(_UNKNOWN, np.int64))
    return graph.op("Where", unknown, bucket, found)


@lower_ids.register
def _(column: IdentityCategoricalColumn, features: Features) -> str:
    graph, given = features.graph, features.raw[column.key].tensor
    below = graph.op("Less", given, graph.constant(0, np.int64))
    above = graph.op("GreaterOrEqual", given, graph.constant(column.num_buckets, np.int64))
    other = graph.constant(-1 if column.default_value is None else column.default_value, np.int64)
    ids = graph.op("Where", graph.op("Or", below, above), other, given)
    if column.default_value is None:
        return ids
    missing = graph.op("Equal", given, graph.constant(-1, np.int64))
    return graph.op("Where", missing, graph.constant(-1, np.int64), ids)


@lower_ids.register
def _(column: HashedCategoricalColumn, features: Features) -> list[Chain]:
    value = HashedKey(key=column.key, function=column.hash_function)
    return [Chain(start=None, values=(value,), buckets=column.hash_bucket_size, missing=(column.key,))]


@lower_ids.register
def _(column: CrossedColumn, features: Features) -> list[Chain]:
    choices: list[list[Value]] = []
    missing: list[str] = []
    for leaf in column.leaves:
        if isinstance(leaf, str):
            choices.append([HashedKey(key=leaf, function=column.hash_function)])
            continue
        tensor = lower_ids(leaf, features)
        assert isinstance(tensor, str)
        choices.append([ComputedSlot(tensor=tensor, slot=slot) for slot in range(leaf.slots)])
        if isinstance(leaf, IdentityCategoricalColumn | VocabularyListCategoricalColumn):
            missing.append(leaf.key)
    return [
        Chain(start=column.start, values=values, buckets=column.hash_bucket_size, missing=tuple(dict.fromkeys(missing)))
        for values in itertools.product(*choices)
    ]


def lower_bag(bag: Bag, features: Features) -> dict[str, Inlined]:
    """The ids of a column with lists or weights, and the weights, both ``[N, n]``."""
    graph = features.graph
    ids = _list_ids(bag.column, features)
    missing = graph.op("Less", ids, graph.constant(0, np.int64))
    moved = graph.op("Add", ids, graph.constant(bag.offset, np.int64)) if bag.offset else ids
    placed = graph.op("Where", missing, graph.constant(bag.padding, np.int64), moved)
    shape = (-1,) if bag.column.multivalent else (bag.column.slots,)
    outputs = {bag.feature: Inlined(tensor=placed, row_shape=shape, dtype="int64")}
    if bag.weights is not None:
        assert isinstance(bag.column, WeightedCategoricalColumn)
        raw = features.raw[bag.column.weight_feature_key]
        given = raw.tensor if raw.dtype == "float32" else graph.op("Cast", raw.tensor, to=FLOAT)
        nothing = graph.op("Or", missing, graph.op("IsNaN", given))
        weights = graph.op("Where", nothing, graph.constant(0, np.float32), given)
        outputs[bag.weights] = Inlined(tensor=weights, row_shape=shape, dtype="float32")
    return outputs


def _list_ids(column: CategoricalColumn, features: Features) -> str:
    """The ids of any categorical column, int64 ``[N, n]``, -1 where there is none."""
    if isinstance(column, WeightedCategoricalColumn):
        return _list_ids(column.categorical_column, features)
    if isinstance(column, CrossedColumn) and column.multivalent:
        return features.chains.lower_products(column.start, _leaves(column, features), column.hash_bucket_size)
    lowered = lower_ids(column, features)
    return lowered if isinstance(lowered, str) else features.chains.lower(lowered)


def _leaves(column: CrossedColumn, features: Features) -> list[ListLeaf]:
    leaves: list[ListLeaf] = []
    for leaf in column.leaves:
        if isinstance(leaf, str):
            value = HashedKey(key=leaf, function=column.hash_function)
            leaves.append(ListLeaf(value=value, missing=leaf if leaf in column.lists else None))
        else:
            has_missing = isinstance(leaf, IdentityCategoricalColumn | VocabularyListCategoricalColumn)
            leaves.append(
                ListLeaf(value=_list_ids(leaf, features), missing=leaf.key if has_missing else None)  # type: ignore[union-attr]
            )
    return leaves


def _numeric(column: Any) -> list[NumericColumn]:
    if isinstance(column, WeightedCategoricalColumn):
        return _numeric(column.categorical_column)
    if isinstance(column, BucketizedColumn):
        return [column.source_column]
    if isinstance(column, CrossedColumn):
        return [leaf.source_column for leaf in column.leaves if isinstance(leaf, BucketizedColumn)]
    return []
