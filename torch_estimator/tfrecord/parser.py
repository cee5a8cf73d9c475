"""Many serialized tf.Examples parsed at once into arrays, with the problem of each row that cannot be used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torch_estimator.tfrecord.engine import BYTES, FLOATS, INTEGERS, Index, engine
from torch_estimator.tfrecord.features import (
    Feature,
    FeatureList,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
)

Array = np.ndarray[Any, Any]

_KINDS = {"float32": FLOATS, "int64": INTEGERS, "string": BYTES, "bytes": BYTES}
_MISSING = "the feature is missing and has no default"
_MISSING_LIST = "the feature is missing"
_CURES = {
    _MISSING: "give its FixedLenFeature a default_value, or read a VarLenFeature",
    _MISSING_LIST: "give its FixedLenSequenceFeature allow_missing=True",
}
_KIND_NAMES = {FLOATS: "float32", INTEGERS: "int64", BYTES: "string"}


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a row cannot be used.

    Attributes:
        row: Number of the row.
        column: The column, or None if the whole tf.Example is damaged.
        text: The reason, in words that fit after a colon.
        cure: How to change the schema, in words that fit after the reason, or ''.
    """

    row: int
    column: str | None
    text: str
    cure: str = ""


class Examples:
    """Serialized tf.Examples or SequenceExamples in which the values of some features have been found.

    Args:
        features: The features and feature lists to read, by column.
        data: bytes that hold the tf.Examples.
        starts: Where each tf.Example begins in `data`, int64 ``[rows]``.
        lengths: Their lengths, int64 ``[rows]``.
    """

    def __init__(
        self, features: Mapping[str, Feature | FeatureList], data: bytes, starts: Array, lengths: Array
    ) -> None:
        lists = {name: feature for name, feature in features.items() if isinstance(feature, FeatureList)}
        self._features = {name: one for name, one in features.items() if not isinstance(one, FeatureList)}
        self._data = data
        self._places = _places(self._features)
        self._index = engine().index(data, starts, lengths, _names(self._places))
        self._lists: dict[str, _List] = {}
        if lists:
            places = _places({name: one.feature for name, one in lists.items()})
            index = engine().index(data, starts, lengths, _names(places), lists=True)
            self._index = self._index._replace(damaged=self._index.damaged | index.damaged)
            for name, one in lists.items():
                found = [array[places[feature_keys(name, one.feature)[-1]]] for array in index[:4]]
                self._lists[name] = _List(one, found, data)

    @classmethod
    def _of_steps(cls, feature: Feature, data: bytes, index: Index) -> Examples:
        """Return the steps of a feature list as rows with one feature, the column ''."""
        steps = cls.__new__(cls)
        steps._features, steps._data, steps._index = {"": feature}, data, index
        steps._places, steps._lists = {"": 0}, {}
        return steps

    def __len__(self) -> int:
        return len(self._index.damaged)

    def wrong(self) -> Array:
        """Return whether each row cannot be used, bool ``[rows]``."""
        wrong = self._index.damaged.copy()
        for name, feature in self._features.items():
            for mask in self._wrong_by_reason(name, feature).values():
                wrong |= mask
        for one in self._lists.values():
            wrong |= one.missing | one.per_row(one.steps.wrong())
        return wrong

    def problem(self, row: int) -> Problem:
        """Return why a row cannot be used."""
        if self._index.damaged[row]:
            return Problem(row, None, "the record is not a tf.Example")
        for name, feature in self._features.items():
            for reason, mask in self._wrong_by_reason(name, feature).items():
                if mask[row]:
                    text = self._in_words(reason, name, feature, row)
                    return Problem(row, name, text, _CURES.get(text, ""))
        for name, one in self._lists.items():
            if one.missing[row]:
                return Problem(row, name, _MISSING_LIST, _CURES[_MISSING_LIST])
            begin = int(one.counts[:row].sum())
            for step in np.flatnonzero(one.steps.wrong()[begin : begin + int(one.counts[row])]).tolist():
                found = one.steps.problem(begin + step)
                text = "it has no values; VarLenFeature reads any number" if found.text == _MISSING else found.text
                return Problem(row, name, f"step {step}: {text}")
        raise AssertionError(f"row {row} can be used")

    def drop(self, rows: Array) -> None:
        """Leave out some rows.

        Args:
            rows: Whether to leave out each row, bool ``[rows]``.
        """
        kept = ~rows
        position, size, counts, kind, damaged = self._index
        self._index = Index(position[:, kept], size[:, kept], counts[:, kept], kind[:, kept], damaged[kept])
        for one in self._lists.values():
            one.drop(rows)

    def steps(self, column: str) -> tuple[Array, Examples]:
        """Return the number of steps of a feature list in each row, and all steps as rows with the one column ''."""
        one = self._lists[column]
        return one.counts, one.steps

    def counts(self, column: str) -> Array:
        """Return the number of values in each row, int64 ``[rows]``; 0 where the feature is missing."""
        return np.asarray(self._index.counts[self._place(column)])

    def is_missing(self, column: str) -> Array:
        """Return whether each row lacks the feature, bool ``[rows]``."""
        return np.asarray(self._index.kind[self._place(column)] == 0)

    def numbers(self, column: str) -> Array:
        """Return the numbers of all rows, one after the other.

        Those of a `FixedLenFeature` are ``[rows, *shape]``, and those of a `FixedLenSequenceFeature`
        ``[steps, *shape]``.
        """
        feature = self._features[column]
        if isinstance(feature, SparseFeature):
            return self._dense(feature)
        values = self._values(self._place(column), feature.dtype)
        if isinstance(feature, FixedLenSequenceFeature):
            return values.reshape(-1, *feature.shape)
        if not isinstance(feature, FixedLenFeature):
            return values
        missing = self.is_missing(column)
        shape = (len(self), *feature.shape)
        if not missing.any():
            return values.reshape(shape)
        filled = np.empty((len(self), feature.size), values.dtype)
        filled[~missing] = values.reshape(-1, feature.size)
        filled[missing] = feature.default_value
        return filled.reshape(shape)

    def texts(self, column: str) -> tuple[Array, Array]:
        """Return the bytes of all values that are there, uint8, and where each value begins, int64 ``[values + 1]``."""
        place = self._place(column)
        index = self._index
        return engine().texts(self._data, index.position[place], index.size[place], index.counts[place])

    def _place(self, column: str) -> int:
        feature = self._features[column]
        return self._places[feature_keys(column, feature)[-1]]

    def _values(self, place: int, dtype: str) -> Array:
        index = self._index
        decode = engine().floats if dtype == "float32" else engine().integers
        return decode(self._data, index.position[place], index.size[place], index.counts[place])

    def _dense(self, feature: SparseFeature) -> Array:
        indices = self._values(self._places[feature.index_key], "int64")
        values = self._values(self._places[feature.value_key], feature.dtype)
        dense = np.zeros((len(self), feature.size), values.dtype)
        dense[np.repeat(np.arange(len(self)), self._index.counts[self._places[feature.index_key]]), indices] = values
        return dense

    def _wrong_by_reason(self, name: str, feature: Feature) -> dict[str, Array]:
        index, place = self._index, self._place(name)
        kind, count = index.kind[place], index.counts[place]
        wrong = {"kind": (kind != _KINDS[feature.dtype]) & (kind != 0)}
        if isinstance(feature, FixedLenFeature):
            wrong["count"] = (count != feature.size) & (kind != 0)
            if feature.default_value is None:
                wrong["missing"] = kind == 0
        if isinstance(feature, FixedLenSequenceFeature):
            wrong["count"] = count % feature.size != 0
            if not feature.allow_missing:
                wrong["missing"] = kind == 0
        if isinstance(feature, SparseFeature):
            at = self._places[feature.index_key]
            wrong["index kind"] = (index.kind[at] != INTEGERS) & (index.kind[at] != 0)
            wrong["index count"] = index.counts[at] != count
            if not wrong["index kind"].any() and not index.damaged.any():
                indices = self._values(at, "int64")
                outside = (indices < 0) | (indices >= feature.size)
                rows = np.repeat(np.arange(len(self)), index.counts[at])
                wrong["index"] = np.bincount(rows[outside], minlength=len(self)) > 0
        return wrong

    def _in_words(self, reason: str, name: str, feature: Feature, row: int) -> str:
        place = self._place(name)
        count = self._index.counts[place, row]
        if reason == "missing":
            return _MISSING_LIST if isinstance(feature, FixedLenSequenceFeature) else _MISSING
        if reason == "kind":
            found = _KIND_NAMES[int(self._index.kind[place, row])]
            return f"the values are {found}, but the schema reads {feature.dtype}"
        if reason == "count" and isinstance(feature, FixedLenSequenceFeature):
            return f"there are {count} values, which are no steps of {feature.size}"
        if reason == "count":
            assert isinstance(feature, FixedLenFeature)
            return f"there are {count} values, but the schema reads {feature.size}; VarLenFeature reads any number"
        assert isinstance(feature, SparseFeature)
        if reason == "index kind":
            return f"the indices in {feature.index_key!r} are not int64"
        if reason == "index count":
            indices = self._index.counts[self._places[feature.index_key], row]
            return f"there are {count} values, but {indices} indices in {feature.index_key!r}"
        return f"an index in {feature.index_key!r} is not from 0 to {feature.size - 1}"


class _List:
    """Steps of a feature list in all rows."""

    def __init__(self, feature: FeatureList, found: Sequence[Array], data: bytes) -> None:
        position, size, self.counts, kind = found
        self.steps = Examples._of_steps(feature.step, data, engine().steps(data, position, size, self.counts))
        one = feature.feature
        may_miss = not isinstance(one, FixedLenSequenceFeature) or one.allow_missing
        self.missing = np.zeros(len(kind), bool) if may_miss else kind == 0

    def per_row(self, steps: Array) -> Array:
        """Return whether each row has any of the marked steps."""
        return np.bincount(np.repeat(np.arange(len(self.counts)), self.counts)[steps], minlength=len(self.counts)) > 0

    def drop(self, rows: Array) -> None:
        self.steps.drop(np.repeat(rows, self.counts))
        self.counts, self.missing = self.counts[~rows], self.missing[~rows]


def _places(features: Mapping[str, Feature]) -> dict[str, int]:
    keys = dict.fromkeys(key for name, feature in features.items() for key in feature_keys(name, feature))
    return {key: place for place, key in enumerate(keys)}


def _names(places: Mapping[str, int]) -> tuple[bytes, ...]:
    return tuple(key.encode() for key in places)


def feature_keys(column: str, feature: Feature) -> tuple[str, ...]:
    """Return the names that a column's feature has in a tf.Example; the last one is that of its values."""
    if isinstance(feature, SparseFeature):
        return feature.index_key, feature.value_key
    if isinstance(feature, RaggedFeature):
        return (feature.value_key or column,)
    return (column,)
