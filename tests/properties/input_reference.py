"""The definition of a network's input, in plain numpy: columns side by side, in bytewise order of their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.properties.reference import Row, Weighted, ids_of, numbers_of
from torch_estimator import feature_column as fc

Vector = npt.NDArray[np.float64]


def input_of(columns: Iterable[Any], row: Row, variables: Mapping[str, Vector]) -> Vector:
    """Return the input layer's output for a row; `variables` are the embeddings' weights by column or collection."""
    ordered = sorted(columns, key=lambda column: str(column.name).encode())
    return np.concatenate([_part(column, row, variables) for column in ordered])


def _part(column: Any, row: Row, variables: Mapping[str, Vector]) -> Vector:
    if isinstance(column, fc.NumericColumn):
        return np.array(numbers_of(column, row))
    if isinstance(column, fc.BucketizedColumn):
        return _counts(ids_of(column, row), column.num_buckets)
    ids = ids_of(column.categorical_column, row)
    if isinstance(column, fc.IndicatorColumn):
        return _counts(ids, column.categorical_column.num_buckets)
    return _combined(ids, variables[column.variable], column)


def _counts(ids: list[Weighted], size: int) -> Vector:
    counts = np.zeros(size)
    for one, weight in ids:
        counts[one] += weight
    return counts


def _combined(ids: list[Weighted], vectors: Vector, column: Any) -> Vector:
    used = [(one, weight) for one, weight in ids if column.combiner == "sum" or weight > 0]
    total = np.zeros(column.dimension)
    for one, weight in used:
        total += weight * _clipped(vectors[one], column.max_norm)
    if not used or column.combiner == "sum":
        return total
    weights = np.array([weight for _, weight in used])
    return total / (weights.sum() if column.combiner == "mean" else np.sqrt(np.square(weights).sum()))


def _clipped(vector: Vector, max_norm: float | None) -> Vector:
    norm = np.linalg.norm(vector)
    return vector if max_norm is None or norm <= max_norm else vector * (max_norm / norm)
