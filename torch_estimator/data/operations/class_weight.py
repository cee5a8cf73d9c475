"""Class weights: a column of example weights by label."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from torch_estimator.data.chunk import Chunk
from torch_estimator.data.columns import Array, Column, from_objects, is_strings, to_numpy
from torch_estimator.data.lists import is_lists
from torch_estimator.data.stream import ChunkMapStream, Stream
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError, RowError


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassWeight:
    """Operation that adds a column with the weight of each row's label, or multiplies an existing column by it.

    Labels without an entry have the weight 1.
    """

    weights: Mapping[Any, float] = field(hash=False)
    column: str

    def __post_init__(self) -> None:
        if not isinstance(self.weights, Mapping):
            raise InvalidTypeError(f"class_weight takes a dict label -> weight, but got {self.weights!r}.")
        if not isinstance(self.column, str):
            raise InvalidTypeError(f"weight_column must be the name of a column, but got {self.column!r}.")
        for label, weight in self.weights.items():
            if isinstance(weight, bool) or not isinstance(weight, numbers.Real):
                raise InvalidTypeError(f"the weight of label {label!r} must be a number, but got {weight!r}.")
            if not (math.isfinite(weight) and weight >= 0):
                raise InvalidValueError(
                    f"the weight of label {label!r} must be finite and not negative, but got {weight}."
                )

    def apply(self, chunk: Chunk) -> Chunk:
        """Return the chunk with a column of weights (float32 ``[rows]``) in its features."""
        if chunk.labels is None or isinstance(chunk.labels, dict | tuple):
            found = "none" if chunk.labels is None else f"a {type(chunk.labels).__name__} of them"
            raise DataError(f"{chunk.locate(0)}: class_weight needs one column of labels, but there is {found}.")
        if not isinstance(chunk.features, dict):
            raise DataError(
                f"{chunk.locate(0)}: class_weight adds the column {self.column!r}, but the features have no names; "
                "give a dict."
            )
        try:
            weights = self._label_weights(chunk.labels)
        except RowError as error:
            raise chunk.error(error) from error
        if self.column in chunk.features:
            weights = weights * self._existing_weights(chunk)
        return chunk.with_columns({**chunk.features, self.column: weights}, chunk.labels)

    def stream(self, upstream: Stream) -> Stream:
        """Return a stream of the chunks of `upstream` with the column of weights added."""
        return ChunkMapStream(self.apply, upstream)

    def check_head(self, head: Any) -> None:
        """Check that a head knows the classes and reads the column."""
        if self.column not in head.weight_columns.values() and not getattr(head, "wants_features", False):
            reads = " and ".join(map(repr, head.weight_columns.values())) or "no column"
            raise InvalidValueError(
                f"class_weight makes the column {self.column!r}, but the model reads its weights from {reads}; give it "
                f"weight_column={self.column!r}."
            )
        classes: list[str] = getattr(head, "class_names", None) or []
        for label in self.weights if classes else ():
            name = label if isinstance(label, str) else f"{label:g}" if label != int(label) else str(int(label))
            if name not in classes:
                raise InvalidValueError(
                    f"class_weight has a weight for {label!r}, which is none of the model's classes: "
                    f"{', '.join(classes[:20])}{', …' if len(classes) > 20 else ''}."
                )

    def signature(self) -> str:
        """Return an empty string, since a saved position stays valid if the weights change."""
        return ""

    def _label_weights(self, labels: Column) -> Array:
        if isinstance(labels, np.ndarray) and is_strings(labels):
            labels = from_objects(labels, convert=True)
        if is_lists(labels) or (isinstance(labels, np.ndarray) and labels.size != len(labels)):
            raise RowError("class_weight needs one label per row", row=0)
        if isinstance(labels, np.ndarray):
            distinct, indices = np.unique(labels.reshape(-1), return_inverse=True)
            values = distinct.tolist()
        else:
            encoded = labels if isinstance(labels, pa.DictionaryArray) else labels.dictionary_encode()
            values, indices = encoded.dictionary.to_pylist(), to_numpy(encoded.indices)
        self._check_kind(values)
        lookup = np.array([self.weights.get(value, 1.0) for value in values], dtype=np.float32)
        return np.asarray(lookup[indices.reshape(-1)])

    def _check_kind(self, labels: list[Any]) -> None:
        """Check that labels and keys of `weights` are all strings or all not. Otherwise no weight would be used."""
        if labels and self.weights and all(isinstance(one, str) for one in self.weights) != isinstance(labels[0], str):
            raise RowError(
                f"class_weight has weights for {', '.join(map(repr, self.weights))}, but labels like {labels[0]!r}; "
                "give the keys the labels' type",
                row=0,
            )

    def _existing_weights(self, chunk: Chunk) -> Array:
        column = to_numpy(chunk.features[self.column])
        if column.dtype.kind not in "biuf" or column.size != len(column):
            raise DataError(
                f"{chunk.locate(0)}: column {self.column!r} must hold one weight per row to be multiplied with class "
                f"weights, but holds {column.dtype} of shape {list(column.shape)}."
            )
        return column.reshape(-1).astype(np.float32)
