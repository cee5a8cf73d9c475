"""pandas frames as columns; nothing here imports pandas."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from torch_estimator.data.checks import repeated
from torch_estimator.data.columns import Column, as_column, from_objects
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError, RowError


def is_frame(value: object) -> bool:
    """Whether a value is a pandas DataFrame."""
    return _is_pandas(value, "DataFrame")


def is_series(value: object) -> bool:
    """Whether a value is a pandas Series."""
    return _is_pandas(value, "Series")


def frame_columns(frame: Any) -> dict[str, Column]:
    """Returns the columns of a DataFrame; its index is dropped.

    Raises:
        InvalidTypeError: ``frame`` is no DataFrame.
        InvalidValueError: Two columns have the same name.
        DataError: A value of a column of nullable floats is missing.
    """
    if not is_frame(frame):
        raise InvalidTypeError(f"from_pandas takes a pandas.DataFrame, but got {type(frame).__name__}.")
    names = [str(name) for name in frame.columns]
    twice = repeated(names)
    if twice:
        raise InvalidValueError(f"the frame has several columns called {twice[0]!r}; rename them.")
    return {name: series_column(frame.iloc[:, place], name) for place, name in enumerate(names)}


def series_column(series: Any, name: str) -> Column:
    """Returns a Series as a column: missing strings are empty, NaNs stay, missing integers stay missing.

    Raises:
        DataError: A value of nullable floats is missing, or strings and numbers are mixed.
    """
    try:
        if series.dtype.kind in "biuf" and type(series.dtype).__module__.startswith("numpy"):
            return as_column(series.to_numpy(), name)
        if series.dtype.kind == "O":
            column = from_objects(series.to_numpy(object), name, incomplete=True)
            if isinstance(column, pa.Array):
                return column
        return as_column(pa.array(series, from_pandas=True), name, incomplete=True)
    except RowError as error:
        raise DataError(f"row {error.row} (from 0): column {name!r}: {error.problem}.") from error
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        raise DataError(f"column {name!r} of the frame cannot be used: {str(error).splitlines()[0]}.") from error


def _is_pandas(value: object, name: str) -> bool:
    return any(kind.__name__ == name and kind.__module__.partition(".")[0] == "pandas" for kind in type(value).__mro__)
