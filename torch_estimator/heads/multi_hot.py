"""Conversion of raw labels to multi-hot labels, for examples that have several classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torch_estimator.data.lists import is_list_type
from torch_estimator.errors import InvalidTypeError, InvalidValueError, RowError
from torch_estimator.heads.labels import (
    Array,
    Labels,
    as_numbers,
    as_strings,
    check_one_column,
    choices,
    look_up_strings,
    vocabulary_ids,
)


def multi_hot(labels: Labels, *, n_classes: int, vocabulary: Sequence[str] | None) -> Array:
    """Convert labels to multi-hot labels: 1 for each class that a row has, else 0.

    Labels may have several forms. The type and the width of the labels decide the form, never their values:

    * Strings, if there is a vocabulary: lists of strings, or an array [N, any width] or [N] padded with ``''``.
    * Numbers from 0 to 1, one per class: an array [N, n_classes], or lists of `n_classes` floats or booleans.
    * Class ids: lists of integers, or an integer array [N] or [N, another width] padded with -1.

    Lists are Arrow lists, or an object array of lists.

    Args:
        labels: The labels in one of these forms.
        n_classes: Number of classes.
        vocabulary: Strings of the classes, in the order of their ids; None if labels are numbers.

    Returns:
        Multi-hot labels [N, n_classes]: uint8 with 0 and 1, or float32 if labels are floats.

    >>> multi_hot(np.array([[0, 2], [1, -1]]), n_classes=3, vocabulary=None).tolist()
    [[1, 0, 1], [0, 1, 0]]
    """
    check_one_column(labels)
    lists = _lists(labels)
    if lists is not None:
        return _of_lists(lists, n_classes, vocabulary)
    column = labels if isinstance(labels, pa.Array) else np.asarray(labels)
    shape = (len(column),) if isinstance(column, pa.Array) else column.shape
    if len(shape) not in (1, 2):
        raise _wrong_shape(list(shape), n_classes)
    if not shape[0]:
        return np.zeros((0, n_classes), dtype=np.uint8)
    width = shape[1] if len(shape) == 2 else 1
    flat = column if isinstance(column, pa.Array) else column.reshape(-1)
    rows = np.repeat(np.arange(shape[0]), width)
    if vocabulary is not None:
        return _of_strings(look_up_strings(flat), rows, shape[0], vocabulary)
    values = as_numbers(flat, hint=_hint(n_classes))
    if len(shape) == 2 and width == n_classes:
        return _in_range(values.reshape(shape))
    if width > 1 and values.dtype.kind not in "iu":
        raise _wrong_shape(list(shape), n_classes)
    return _of_ids(values, rows, shape[0], n_classes)


def _lists(labels: Labels) -> pa.Array | None:
    """Return labels as an Arrow array of lists, or None if they are not lists."""
    if isinstance(labels, pa.Array):
        return labels if is_list_type(labels.type) else None
    if not isinstance(labels, np.ndarray) or labels.dtype != object or labels.ndim != 1:
        return None
    if not any(isinstance(value, list | tuple | np.ndarray) for value in labels):
        return None
    try:
        lists = pa.array(labels, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        problem = str(error).splitlines()[0].rstrip(".")
        raise InvalidTypeError(f"labels must be lists of class ids or of strings, but {problem}.") from None
    return lists if is_list_type(lists.type) else None


def _of_lists(lists: pa.Array, n_classes: int, vocabulary: Sequence[str] | None) -> Array:
    """Return multi-hot labels for lists of strings, of one number per class, or of class ids."""
    if lists.null_count:
        row = int(np.flatnonzero(lists.is_null().to_numpy(zero_copy_only=False))[0])
        raise RowError("the label is missing; give an empty list where no class applies", row=row)
    values = lists.flatten()
    lengths = np.asarray(pc.list_value_length(lists))
    rows = np.repeat(np.arange(len(lists)), lengths)
    if len(values) == 0 or pa.types.is_null(values.type):
        return np.zeros((len(lists), n_classes), dtype=np.uint8)
    if vocabulary is not None:
        return _of_strings(look_up_strings(values), rows, len(lists), vocabulary)
    if as_strings(values) is not None:
        first = next(value for value in values.to_pylist() if value is not None)
        raise InvalidTypeError(f"labels are lists of strings (the first is {first!r}); give {_hint(n_classes)}.")
    dense = pa.types.is_floating(values.type) or pa.types.is_boolean(values.type)
    if pa.types.is_fixed_size_list(lists.type) and lists.type.list_size == n_classes:
        dense = True
    if dense and (wrong := np.flatnonzero(lengths != n_classes)).size:
        raise RowError(
            f"the list has {lengths[wrong[0]]} values, but multi-hot labels have one for each of the {n_classes} "
            "classes; class ids must be integers",
            row=int(wrong[0]),
        )
    if values.null_count and not dense:
        values = values.fill_null(-1)
    numbers = as_numbers(values, hint=None)
    return _in_range(numbers.reshape(-1, n_classes)) if dense else _of_ids(numbers, rows, len(lists), n_classes)


def _of_strings(strings: pa.Array, rows: Array, count: int, vocabulary: Sequence[str]) -> Array:
    """Return multi-hot labels for the strings of all rows. `rows` has the row of each string.

    `count` is the number of rows. Empty and missing strings are padding.
    """
    ids = vocabulary_ids(strings, vocabulary)
    empty = _is_empty(strings)
    unknown = np.flatnonzero((ids < 0) & ~empty)
    if unknown.size:
        place = int(unknown[0])
        raise RowError(
            f"unknown label {strings[place].as_py()!r}; expected {choices(vocabulary)}", row=int(rows[place])
        )
    hot = np.zeros((count, len(vocabulary)), dtype=np.uint8)
    hot[rows[~empty], ids[~empty]] = 1
    return hot


def _is_empty(strings: pa.Array) -> Array:
    """Return whether each string is empty or missing, bool [N]."""
    encoded = strings if isinstance(strings, pa.DictionaryArray) else strings.dictionary_encode()
    lookup = np.array([*(not value for value in encoded.dictionary.to_pylist()), True])
    empty: Array = lookup[np.asarray(encoded.indices.fill_null(-1))]
    return empty


def _of_ids(values: Array, rows: Array, count: int, n_classes: int) -> Array:
    """Return multi-hot labels for the class ids of all rows. `rows` has the row of each id."""
    good = (values >= -1) & (values < n_classes) & (values == np.floor(values))
    if not good.all():
        place = int(np.flatnonzero(~good)[0])
        raise RowError(
            f"label {_shown(values[place])} is out of range; expected class ids from 0 to {n_classes - 1}, or -1 for "
            "none",
            row=int(rows[place]),
        )
    ids = values.astype(np.int64)
    given = ids >= 0
    rows, ids = rows[given], ids[given]
    hot = np.zeros((count, n_classes), dtype=np.uint8)
    hot[rows, ids] = 1
    if np.count_nonzero(hot) < len(ids):
        _check_not_multi_hot(rows, ids, hot)
    return hot


def _check_not_multi_hot(rows: Array, ids: Array, hot: Array) -> None:
    """Raise RowError if class ids look like multi-hot labels: a row repeats an id, and its ids are only 0 and 1."""
    count, n_classes = hot.shape
    repeats = np.bincount(rows, minlength=count) > hot.sum(1, dtype=np.int64)
    repeats[rows[ids > 1]] = False
    if repeats.any():
        row = int(np.flatnonzero(repeats)[0])
        raise RowError(
            f"the class ids {ids[rows == row][:10].tolist()} repeat 0 or 1, as multi-hot labels would, which must be "
            f"an array of shape [N, {n_classes}], or lists of {n_classes} floats or booleans",
            row=row,
        )


def _in_range(values: Array) -> Array:
    """Return multi-hot labels [N, n_classes] as float32 or uint8; raise RowError for a value outside 0 to 1."""
    # Both comparisons are False for NaN, so NaN is rejected.
    good = (values >= 0) & (values <= 1)
    if not good.all():
        row, place = (int(i) for i in np.argwhere(~good)[0])
        raise RowError(
            f"label {_shown(values[row, place])} is out of range; labels of shape [N, {values.shape[1]}] are multi-hot "
            "and hold 0 and 1; class ids need an array of another width, or lists",
            row=row,
        )
    return values.astype(np.float32 if values.dtype.kind == "f" else np.uint8, copy=False)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, np.floating) else str(value)


def _hint(n_classes: int) -> str:
    return f"label_vocabulary with the {n_classes} classes, in the order of their ids"


def _wrong_shape(shape: list[int], n_classes: int) -> InvalidValueError:
    return InvalidValueError(
        f"labels must be multi-hot of shape [N, {n_classes}], or class ids as lists or as integers padded with -1, but "
        f"got shape {shape}."
    )
