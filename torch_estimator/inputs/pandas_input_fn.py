"""`pandas_input_fn`: an input function that reads a pandas DataFrame. This module does not import pandas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch_estimator.data.dataset import Dataset
from torch_estimator.data.sources.memory import (
    check_same_index,
    frame_columns,
    is_frame,
    is_series,
    memory_source,
    series_column,
)
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.inputs.numpy_input_fn import batching


def pandas_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
    target_column: str = "target",
) -> Callable[[], Dataset]:
    """Return an ``input_fn`` that reads a copy of a DataFrame. The index of the DataFrame is not a feature.

    Args:
        x: The features, a DataFrame.
        y: The labels: a Series, or a DataFrame for a dict of labels by column; None if there are none.
        batch_size: As in `numpy_input_fn`, like the arguments that follow.
        num_epochs: Number of passes through the rows; None repeats without end.
        shuffle: Whether to shuffle. Must be given.
        queue_capacity: Minimum number of rows to shuffle at once.
        num_threads: Has no effect.
        target_column: Name of the labels in tf.estimator. If `y` is given, `x` must not have a column of this name.

    Raises:
        InvalidValueError: `shuffle` is not given, a number is not positive, `x` has a column `target_column`, or the
            indices of `x` and `y` differ.
        InvalidTypeError: `x` or `y` is not from pandas, or `target_column` is not a string.
        DataError: A value cannot be used.

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"age": [31, 52, 24], "old": [0, 1, 0]})
    >>> input_fn = te.inputs.pandas_input_fn(frame[["age"]], frame["old"], batch_size=2, shuffle=False)
    >>> [labels.tolist() for features, labels in input_fn()]
    [[0, 1], [0]]
    """
    batches = batching("pandas_input_fn", batch_size, num_epochs, shuffle, queue_capacity, num_threads)
    if not isinstance(target_column, str):
        raise InvalidTypeError(f"pandas_input_fn's target_column must be a string, but got {target_column!r}.")
    if not is_frame(x):
        raise InvalidTypeError(f"pandas_input_fn's x must be a pandas.DataFrame, but got {type(x).__name__}.")
    if y is not None:
        _check_labels(x, y, target_column)
    # Copy the frames now, because the caller may change them before the input is read.
    x, y = x.copy(), None if y is None else y.copy()

    def input_fn() -> Dataset:
        labels = None if y is None else frame_columns(y) if is_frame(y) else series_column(y, target_column)
        return batches(Dataset(memory_source(frame_columns(x), labels)))

    return input_fn


def _check_labels(x: Any, y: Any, target_column: str) -> None:
    if not is_frame(y) and not is_series(y):
        raise InvalidTypeError(f"pandas_input_fn's y must be a pandas Series or DataFrame, but got {type(y).__name__}.")
    if target_column in x:
        raise InvalidValueError(
            f"pandas_input_fn's x has a column called {target_column!r} already, the name of the labels; give another "
            "target_column."
        )
    check_same_index(x, y, "pandas_input_fn's x and y")
