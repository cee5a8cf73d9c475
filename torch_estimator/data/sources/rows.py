"""Rows of a Python generator, put together to batches that `IterableSource` reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from torch_estimator.data.chunk import as_pair, copied
from torch_estimator.errors import DataError, InvalidTypeError

_ROWS = 128
"""Rows of a batch: enough to make Arrow and numpy cheap for a row, and few enough not to wait long for the first."""


def batches_of_rows(
    generator: Callable[..., Iterable[Any]] | Iterable[Any], args: tuple[Any, ...]
) -> Callable[[], Iterable[Any]]:
    """Return a function that returns, for a new pass, batches of the rows of a generator.

    The generator is an iterable of rows, or a function that returns one for `args`; anything else is an
    InvalidTypeError.
    """
    if not callable(generator) and not hasattr(generator, "__iter__"):
        raise InvalidTypeError(f"from_generator takes a function that yields rows, but got {generator!r}.")
    if isinstance(generator, Iterator):
        raise InvalidTypeError(
            "from_generator takes the function that yields rows, not the generator that it returned, which cannot be "
            "gone through a second time; leave out the call."
        )

    def batches() -> Iterator[Any]:
        rows = iter(generator(*args) if callable(generator) else generator)
        first = 0
        while batch := [copied(tuple(row) if isinstance(row, list) else row) for row in islice(rows, _ROWS)]:
            yield _together(batch, first)
            first += len(batch)

    return batches


def _together(rows: list[Any], first: int) -> Any:
    """Return rows as one batch: a pair (features, labels), with None for no labels.

    `first` is the number of the first row, for messages.
    """
    if not isinstance(rows[0], tuple | list):
        return _column(rows, first, None), None
    pairs = [as_pair(row) for row in rows]
    return tuple(_column([pair[part] for pair in pairs], first, None) for part in range(2))


def _column(values: list[Any], first: int, name: str | None) -> Any:
    if isinstance(values[0], Mapping):
        names = list(values[0])
        for place, row in enumerate(values):
            if not isinstance(row, Mapping) or set(row) != set(names):
                found = ", ".join(map(str, row)) if isinstance(row, Mapping) else type(row).__name__
                raise DataError(
                    f"row {first + place} of the generator has {found}, but the rows before it have the columns "
                    f"{', '.join(map(str, names))}; yield the same columns in each."
                )
        return {key: _column([row[key] for row in values], first, str(key)) for key in names}
    lists = [value for value in values if value is not None]
    if all(isinstance(value, list | tuple) for value in lists) and not any(
        isinstance(one, list | tuple) for value in lists for one in value
    ):
        # Lists are a column of lists even where those of these rows have one length, since those of others may not.
        return pa.array(values)
    arrays = [_array(value) for value in values]
    shapes = {np.shape(array) for array in arrays}
    if shapes == {()}:
        # An array of objects keeps numbers and strings apart, so that a mixture of them is found.
        column = np.empty(len(arrays), object)
        column[:] = [value.item() if isinstance(value, np.ndarray | np.generic) else value for value in arrays]
        return column
    if len(shapes) == 1:
        return np.stack([np.asarray(array) for array in arrays])
    what = "a column" if name is None else f"column {name!r}"
    raise DataError(
        f"rows {first} to {first + len(values) - 1} of the generator: {what} "
        f"has values of the shapes {' and '.join(str(list(shape)) for shape in sorted(shapes, key=str)[:3])}; yield "
        "arrays of one shape, or Python lists of numbers or strings."
    )


def _array(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    return np.asarray(value) if isinstance(value, list | tuple) else value
