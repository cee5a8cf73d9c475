"""Arrays in memory as an input function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch_estimator.data.checks import check_count
from torch_estimator.data.dataset import Dataset
from torch_estimator.data.frames import is_frame
from torch_estimator.data.memory import memory_source
from torch_estimator.data.structure import columns_of, map_columns
from torch_estimator.errors import InvalidTypeError, InvalidValueError


def numpy_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
) -> Callable[[], Dataset]:
    """Returns an ``input_fn`` of arrays in memory.

    Batches straddle epochs, so that only the very last one may be smaller. The order of shuffled rows follows from
    ``RunConfig.random_seed``, or else from torch's global generator; it is part of the saved position.

    Args:
        x: Features: an array, or a dict of arrays, rows first.
        y: Labels: an array, or a dict of arrays; None for none, as when predicting.
        batch_size: Rows in a batch.
        num_epochs: How often to go through the rows; None goes on for ever.
        shuffle: Whether to shuffle, anew in every epoch: must be given. Usually True for training only.
        queue_capacity: Rows that are mixed, at least; never fewer than about 65,536.
        num_threads: Without effect, for there is one thread that works ahead; 1 in tf.estimator for a fixed order.

    Returns:
        A function without arguments that returns a `Dataset`. What is wrong with ``x`` or ``y`` is said when it is
        called: InvalidTypeError where ``x`` is neither a dict nor an array, InvalidValueError where they are empty,
        differ in length, or both have a key.

    Raises:
        InvalidValueError: ``shuffle`` is not given, or a number is not positive.

    >>> import numpy as np
    >>> input_fn = numpy_input_fn({"age": np.array([31, 52, 24])}, np.array([0, 1, 0]), batch_size=2, shuffle=False)
    >>> for features, labels in input_fn():
    ...     print(features["age"], labels)
    [31 52] [0 1]
    [24] [0]
    """
    batches = batching("numpy_input_fn", batch_size, num_epochs, shuffle, queue_capacity, num_threads)

    def input_fn() -> Dataset:
        _check_arrays(x, y)
        return batches(Dataset(memory_source(x, y)))

    return input_fn


def batching(
    what: str, batch_size: int, num_epochs: int | None, shuffle: bool | None, queue_capacity: int, num_threads: int
) -> Callable[[Dataset], Dataset]:
    """Returns what makes batches of rows, its arguments checked; ``what`` is the function that they were given to.

    Raises:
        InvalidValueError: ``shuffle`` is not a boolean, or a number is not positive.
        InvalidTypeError: A number is none.
    """
    if not isinstance(shuffle, bool):
        raise InvalidValueError(
            f"{what} needs shuffle=True or shuffle=False, but got {shuffle!r}; True is recommended for training."
        )
    check_count("batch_size", batch_size, at_least=1)
    check_count("queue_capacity", queue_capacity, at_least=1)
    check_count("num_threads", num_threads, at_least=1)
    if num_epochs is not None:
        check_count("num_epochs", num_epochs, at_least=1)

    def apply(rows: Dataset) -> Dataset:
        # A buffer of one row would not shuffle.
        shuffled = rows.shuffle(max(queue_capacity, 2)) if shuffle else rows
        return shuffled.repeat(num_epochs).batch(batch_size)

    return apply


def _check_arrays(x: Any, y: Any) -> None:
    if is_frame(x) or not (isinstance(x, Mapping) or hasattr(x, "shape")):
        raise InvalidTypeError(f"numpy_input_fn's x must be an array or a dict of arrays, but got {type(x).__name__}.")
    for name, value, instead in (("x", x, "give a column"), ("y", y, "give None for no labels")):
        if isinstance(value, Mapping) and not value:
            raise InvalidValueError(f"numpy_input_fn's {name} must not be an empty dict; {instead}.")
    if isinstance(x, Mapping) and isinstance(y, Mapping) and (both := sorted(set(x) & set(y), key=str)):
        raise InvalidValueError(f"numpy_input_fn's x and y must not both have {both}; rename them in one of the two.")
    rows = {name: map_columns(_rows, dict(v) if isinstance(v, Mapping) else v) for name, v in (("x", x), ("y", y))}
    if len({*columns_of(rows)}) > 1:
        found = rows if y is not None else rows["x"]
        raise InvalidValueError(f"numpy_input_fn's x and y must have the same number of rows, but have {found}.")


def _rows(array: Any) -> int | None:
    # A scalar array is said to be one where columns are made.
    return len(array) if getattr(array, "shape", None) != () and hasattr(array, "__len__") else None
