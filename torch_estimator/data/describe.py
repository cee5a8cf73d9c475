"""Statistics of the columns of a Dataset, made in one pass over its batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from torch_estimator import tree
from torch_estimator.data.columns import Array, to_numpy
from torch_estimator.data.lists import is_lists, list_lengths
from torch_estimator.data.sources.base import Required

_MOST_VALUES = 10_000
_SHOWN = 3


class ListLengths:
    """Transform that replaces lists by their lengths."""

    required: Required = None

    def __call__(self, features: Any, labels: Any) -> tuple[Any, Any]:
        """Return the columns as numpy arrays, and those of lists as ``<name> (length)``."""
        return _without_lists(features), _without_lists(labels)


def describe(batches: Iterable[Any]) -> Any:
    """Return a pandas DataFrame with one row for each column of the features and labels of all batches."""
    import pandas as pd

    columns: dict[str, _Statistics] = {}
    for batch in batches:
        for name, values in (*_named(batch.features, "features"), *_named(batch.labels, "labels")):
            columns.setdefault(name, _Statistics()).add(values)
    rows = {name: statistics.row() for name, statistics in columns.items()}
    table = pd.DataFrame.from_dict(rows, orient="index", columns=list(_Statistics().row()))
    return table.astype({"count": "int64", "missing": "int64", "unique": "Int64"})


class _Statistics:
    """Statistics of one column."""

    def __init__(self) -> None:
        self._type = ""
        self._count = self._missing = 0
        self._least, self._most, self._sum = np.inf, -np.inf, 0.0
        self._values: Counter[Any] | None = Counter()

    def add(self, values: Array) -> None:
        is_number = values.dtype.kind in "biuf"
        shape = f" {list(values.shape[1:])}" if values.ndim > 1 else ""
        self._type = f"{values.dtype.name if is_number else 'string'}{shape}"
        flat = values.reshape(-1)
        missing = np.isnan(flat) if values.dtype.kind == "f" else np.zeros(len(flat), bool) if is_number else flat == ""
        kept = flat[~missing]
        self._count += len(kept)
        self._missing += int(missing.sum())
        if is_number and len(kept):
            self._least, self._most = min(self._least, float(kept.min())), max(self._most, float(kept.max()))
            self._sum += float(kept.sum(dtype=np.float64))
        if self._values is not None:
            self._values.update(kept.tolist())
            if len(self._values) > _MOST_VALUES:
                self._values = None

    def row(self) -> dict[str, Any]:
        has_numbers = self._least <= self._most
        top = self._values.most_common(_SHOWN) if self._values and not has_numbers else []
        return {
            "type": self._type,
            "count": self._count,
            "missing": self._missing,
            "unique": None if self._values is None else len(self._values),
            "min": self._least if has_numbers else np.nan,
            "max": self._most if has_numbers else np.nan,
            "mean": self._sum / self._count if has_numbers else np.nan,
            "top": ", ".join(f"{value} ({count})" for value, count in top),
        }


def _named(structure: Any, name: str) -> Iterator[tuple[str, Array]]:
    """Yield the columns of features or labels with their names; those in a tuple are numbered."""
    if isinstance(structure, dict):
        for key, value in structure.items():
            yield from _named(value, str(key))
    elif isinstance(structure, tuple):
        for place, value in enumerate(structure):
            yield from _named(value, f"{name} {place}")
    elif structure is not None:
        yield name, to_numpy(structure)


def _without_lists(structure: Any) -> Any:
    if isinstance(structure, dict):
        return {
            f"{name} (length)" if is_lists(value) else name: _without_lists(value) for name, value in structure.items()
        }
    return tree.map(lambda column: list_lengths(column) if is_lists(column) else to_numpy(column), structure)
