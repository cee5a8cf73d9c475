"""The first rows of the input that an Estimator read last; its exports record them as warm-up instances."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from torch_estimator.data.columns import Column
from torch_estimator.data.feature_structure import WHOLE

MOST_ROWS = 8
# Rows with more than this in one column, such as images or whole documents, are not kept.
_MOST_BYTES = 2**16


class SeenRows:
    """Rows of raw features, as they come from the input and before any preprocessing by a model.

    An Estimator shares one object with the Estimators that are derived from it. Keeping the rows of the census model
    takes 0.2 ms, once for each training or evaluation. `rows` holds one dict per row: a value by the name that the
    feature has in an export; it is empty until something was read.
    """

    def __init__(self) -> None:
        self.rows: tuple[dict[str, Any], ...] = ()

    def note(self, features: Any) -> None:
        """Keep copies of the first rows of some features: a column, or a dict or tuple of columns."""
        columns = {name: _values(column) for name, column in _named(features)}
        count = min(map(len, columns.values()), default=0)
        rows = ({name: values[row] for name, values in columns.items()} for row in range(count))
        self.rows = tuple(row for row in rows if not any(value is _TOO_LARGE for value in row.values()))


_TOO_LARGE = object()


def _named(features: Any, name: str = "") -> Iterator[tuple[str, Column]]:
    """Yield every column with its name; see `torch_estimator.data.feature_structure.leaves`."""
    if isinstance(features, Mapping):
        for key, value in features.items():
            yield from _named(value, f"{name}/{key}" if name else str(key))
    elif isinstance(features, tuple):
        for place, value in enumerate(features):
            yield from _named(value, f"{name or WHOLE}_{place}")
    else:
        yield name or WHOLE, features


def _values(column: Column) -> list[Any]:
    """Return the values of the first rows; an array per row if a row has several numbers."""
    first = column[:MOST_ROWS]
    if not isinstance(first, np.ndarray):
        return [_TOO_LARGE if _is_large(value) else value for value in first.to_pylist()]
    if first.ndim == 1:
        return [_TOO_LARGE if _is_large(value) else value for value in first]
    # Copy the rows, because a view would keep the whole chunk in memory.
    return [row.copy() if row.nbytes <= _MOST_BYTES else _TOO_LARGE for row in first]


def _is_large(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) > _MOST_BYTES or any(map(_is_large, value))
    return isinstance(value, str) and len(value) > _MOST_BYTES
