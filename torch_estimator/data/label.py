"""Labels: which columns hold labels, and the mapping from their values to numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from torch_estimator.data.chunk import Chunk, LabelColumn
from torch_estimator.data.columns import Column, from_objects, is_strings, to_numpy
from torch_estimator.data.lists import is_lists
from torch_estimator.data.stream import ChunkMapStream, Stream
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError, RowError

LabelColumns = str | Sequence[str] | Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """Operation that moves columns from the features to the labels, and can map their values to numbers.

    Several columns (a list of names, or a dict from names of labels to columns) make a dict of labels. `mapping` maps
    raw values to numbers, or is a dict of such mappings by label; None leaves the values as they are.
    """

    column: LabelColumns
    mapping: Mapping[Any, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        names = self.column
        if isinstance(names, list | tuple):
            if len(set(map(str, names))) < len(names):
                raise InvalidValueError(f"label names a column twice: {list(names)}.")
            names = {name: name for name in names}
            object.__setattr__(self, "column", names)
        if not isinstance(names, str) and not isinstance(names, Mapping):
            raise InvalidTypeError(f"label must be the name of a column, or several in a list, but got {names!r}.")
        if not names:
            raise InvalidValueError(f"label must name a column, but got {names!r}.")
        for name in self.columns:
            if not isinstance(name, str):
                raise InvalidTypeError(f"label must be the name of a column, but got {name!r}.")
        self._check_mapping()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that hold labels, without duplicates."""
        if isinstance(self.column, Mapping):
            return tuple(dict.fromkeys(self.column.values()))
        return (str(self.column),)

    @property
    def label_column(self) -> LabelColumn:
        """Name of the label column, or a dict from label to column, as `Chunk.label_column` expects."""
        return self.column if isinstance(self.column, str) else dict(self._by_label())

    def __str__(self) -> str:
        names = ", ".join(repr(name) for name in self.columns)
        return f"column {names}" if len(self.columns) == 1 else f"columns {names}"

    def select(self, columns: Mapping[str, Column]) -> Any:
        """Return the labels: a column of mapped values, or a dict of such columns if there are several labels."""
        if isinstance(self.column, str):
            return _mapped(columns[self.column], self.mapping, self.column)
        mappings = self.mapping or {}
        return {name: _mapped(columns[column], mappings.get(name), column) for name, column in self._by_label().items()}

    def without(self, columns: Mapping[str, Column]) -> dict[str, Column]:
        """Return a copy of `columns` without the label columns."""
        return {name: column for name, column in columns.items() if name not in self.columns}

    def extract(self, chunk: Chunk) -> Chunk:
        """Return the chunk with its label columns moved to the labels."""
        if not isinstance(chunk.features, dict):
            raise self._missing(chunk, self.columns[0], "the features have no names")
        for name in self.columns:
            if name not in chunk.features:
                raise self._missing(chunk, name, f"the columns there are {', '.join(chunk.features)}")
        labelled = Chunk(self.without(chunk.features), None, chunk.rows, chunk.locate, self.label_column)
        try:
            labelled.labels = self.select({name: _as_label(chunk.features[name], name) for name in self.columns})
        except RowError as error:
            raise labelled.error(error) from error
        return labelled

    def stream(self, upstream: Stream) -> Stream:
        """Return a stream of the chunks of `upstream` with the label columns moved to the labels."""
        return ChunkMapStream(self.extract, upstream)

    def signature(self) -> str:
        """Return an empty string, since a saved position stays valid if the labels change."""
        return ""

    def _by_label(self) -> Mapping[str, str]:
        return self.column if isinstance(self.column, Mapping) else {str(self.column): str(self.column)}

    def _missing(self, chunk: Chunk, name: str, found: str) -> DataError:
        return DataError(f"{chunk.locate(0)}: label column {name!r} is not there; {found}.")

    def _check_mapping(self) -> None:
        if self.mapping is None:
            return
        if not isinstance(self.mapping, Mapping):
            raise InvalidTypeError(
                f"the mapping of the label, {self}, must be a dict from values to numbers, such as "
                f"{{'no': 0, 'yes': 1}}, but got {self.mapping!r}."
            )
        if not self.mapping:
            raise InvalidValueError(f"the mapping of the label, {self}, must not be empty.")
        if isinstance(self.column, str):
            return
        for name, mapping in self.mapping.items():
            if name not in self._by_label() or not isinstance(mapping, Mapping):
                raise InvalidValueError(
                    f"the mapping of several labels must be a dict of dicts by label ({', '.join(self._by_label())}), "
                    f"but has {name!r}: {mapping!r}."
                )


def label_columns(label: LabelColumns | None) -> tuple[str, ...]:
    """Return the column names in the argument `label` of a `Dataset` method; an empty tuple for None."""
    return () if label is None else Label(column=label).columns


def _as_label(column: Column, name: str) -> Column:
    if isinstance(column, np.ndarray) and is_strings(column):
        return from_objects(column, name, convert=True)
    return column


def _mapped(column: Column, mapping: Mapping[Any, float] | None, name: str) -> Column:
    """Map the values of a label column to numbers. Without a mapping, return the column unchanged."""
    if mapping is None:
        return column
    # Each look-up in the mapping runs in Python, so look up only the distinct values.
    if isinstance(column, np.ndarray):
        distinct, indices = np.unique(column, return_inverse=True)
        values = distinct.tolist()
        indices = indices.reshape(-1)
    elif is_lists(column):
        raise InvalidValueError(
            f"the label column {name!r} holds lists, to which a mapping cannot be applied; give the head a "
            "label_vocabulary instead."
        )
    else:
        encoded = column if isinstance(column, pa.DictionaryArray) else column.dictionary_encode()
        values, indices = encoded.dictionary.to_pylist(), to_numpy(encoded.indices)
    known = np.array([value in mapping for value in values], dtype=bool)
    if not known[indices].all():
        row = int(np.flatnonzero(~known[indices])[0])
        problem = f"unknown label {values[indices[row]]!r}; expected {_choices(mapping)}"
        raise RowError(problem, row=row, column=name)
    lookup = np.array([mapping.get(value, 0) for value in values])
    return np.asarray(lookup[indices])


def _choices(mapping: Mapping[Any, float]) -> str:
    shown = [repr(value) for value in list(mapping)[:10]]
    more = len(mapping) - len(shown)
    return f"one of {', '.join(shown)}" + (f" or {more} more" if more else "")
