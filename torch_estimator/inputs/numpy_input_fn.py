"""`numpy_input_fn`: an input function that reads arrays in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch_estimator import tree
from torch_estimator.data.arguments import check_count
from torch_estimator.data.dataset import Dataset
from torch_estimator.data.sources.memory import is_frame, memory_source
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
    """Return an ``input_fn`` that reads arrays in memory, and shuffles, repeats and batches their rows.

    A batch may hold rows of two epochs, so only the very last batch may be smaller. The order of shuffled rows depends
    on ``RunConfig.random_seed``, or else on torch's global generator. It is part of the saved position.

    The returned function checks `x` and `y` when it is called. It raises InvalidTypeError if `x` is neither a dict nor
    an array, and InvalidValueError if they are empty, differ in length, or have a key in common.

    Args:
        x: Features: an array, or a dict of arrays, rows first.
        y: Labels: an array, or a dict of arrays; None if there are none, as in prediction.
        batch_size: Rows in a batch.
        num_epochs: Number of passes through the rows; None repeats without end.
        shuffle: Whether to shuffle, in another order every epoch. Must be given; usually True for training only.
        queue_capacity: Minimum number of rows to shuffle at once. Numbers below about 65,536 are raised to it.
        num_threads: Has no effect: there is always one thread, and the order never depends on it.

    Returns:
        A function without arguments that returns a `Dataset`.

    Raises:
        InvalidValueError: `shuffle` is not given, or a number is not positive.

    >>> x, y = {"age": np.array([31, 52, 24])}, np.array([0, 1, 0])
    >>> input_fn = te.inputs.numpy_input_fn(x, y, batch_size=2, shuffle=False)
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
    """Check the arguments of `numpy_input_fn`. Return a function that shuffles, repeats and batches a Dataset.

    `what` is the name of the input function, for messages.
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
        # A buffer of one row would not shuffle, so use at least two rows.
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
    rows = tree.map(_rows, {"x": x, "y": y}, is_leaf=lambda value: isinstance(value, list))
    if len(set(tree.leaves(rows))) > 1:
        found = rows if y is not None else rows["x"]
        raise InvalidValueError(f"numpy_input_fn's x and y must have the same number of rows, but have {found}.")


def _rows(array: Any) -> int | None:
    # A scalar has no rows to count. Return None, and let `memory_source` raise an error about the scalar later.
    return len(array) if getattr(array, "shape", None) != () and hasattr(array, "__len__") else None
