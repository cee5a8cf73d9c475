"""Conversion of raw labels to the class ids or numbers that losses take, for one chunk of rows at a time.

Raw labels are NumPy or Arrow arrays of numbers, booleans or strings. `RowError` names the first row that is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torch_estimator.data import arrow
from torch_estimator.data.lists import as_matrix, is_list_type
from torch_estimator.errors import InvalidTypeError, InvalidValueError, RowError
from torch_estimator.floating import as_float32

Array: TypeAlias = np.ndarray[Any, Any]
Labels: TypeAlias = "Array | pa.Array"

_MOST_LABELS_NAMED = 10
_MIXED = "labels are neither all numbers nor all strings (in UTF-8); make them one of the two."


def class_ids(labels: Labels, *, n_classes: int, vocabulary: Sequence[str] | None) -> Array:
    """Convert raw labels to class ids, one for each row.

    Args:
        labels: [N] or [N, 1]: strings if there is a vocabulary, otherwise integers from 0 to ``n_classes - 1``, which
            may also be booleans or floats without a fraction.
        n_classes: Number of classes.
        vocabulary: Strings of the classes, in the order of their ids; None if labels are ids.

    Returns:
        The ids of the classes, int64 [N, 1].

    >>> class_ids(np.array(["fox", "cat"]), n_classes=2, vocabulary=["cat", "fox"]).tolist()
    [[1], [0]]
    """
    column = _column(labels, dimension=1)
    if vocabulary is not None:
        return _look_up(column, vocabulary).reshape(-1, 1)
    values = as_numbers(column, hint=f"label_vocabulary with the {n_classes} classes, in the order of their ids")
    inside = (values >= 0) & (values <= n_classes - 1) & (values == np.floor(values))
    _check_rows(inside, values, f"is out of range; expected an integer from 0 to {n_classes - 1}")
    return values.astype(np.int64, copy=False).reshape(-1, 1)


def binary_labels(labels: Labels, *, vocabulary: Sequence[str] | None) -> Array:
    """Convert raw labels of two classes to numbers from 0 to 1, one for each row.

    Args:
        labels: [N] or [N, 1]: strings if there is a vocabulary, otherwise numbers from 0 to 1 or booleans.
        vocabulary: Strings of class 0 and class 1; None if labels are numbers.

    Returns:
        The labels, float32 [N, 1].
    """
    column = _column(labels, dimension=1)
    if vocabulary is not None:
        values: Array = _look_up(column, vocabulary)
    else:
        values = as_numbers(column, hint="label_vocabulary with the 2 classes, the negative one first")
        _check_rows((values >= 0) & (values <= 1), values, "is out of range; expected 0 or 1")
    return values.astype(np.float32, copy=False).reshape(-1, 1)


def numeric_labels(labels: Labels, *, dimension: int) -> Array:
    """Convert raw labels, numbers or booleans [N, dimension], to the targets of a regression, float32 [N, dimension].

    Labels may also be [N] if `dimension` is 1.
    """
    column = _column(labels, dimension=dimension)
    values = as_numbers(column, hint=None).reshape(-1, dimension)
    finite = np.isfinite(values)
    if not finite.all():
        row, place = (int(i) for i in np.argwhere(~finite)[0])
        raise RowError(f"label {values[row, place]:g} is not a finite number", row=row)
    return as_float32(values, "label")


def check_range(values: Array, *, least: float, most: float | None = None) -> Array:
    """Return the targets [N, D] unchanged; raise RowError if one is less than `least` or greater than `most`."""
    bad = values < least
    if most is not None:
        bad |= values > most
    if bad.any():
        row, place = (int(i) for i in np.argwhere(bad)[0])
        expected = f"a number from {least:g} to {most:g}" if most is not None else "a number that is not negative"
        raise RowError(f"label {values[row, place]:g} is out of range; expected {expected}", row=row)
    return values


def _column(labels: Labels, dimension: int) -> Array | pa.Array:
    """Return labels as [N] if `dimension` is 1, else as [N, dimension]; raise InvalidValueError for other shapes."""
    check_one_column(labels)
    if isinstance(labels, pa.Array):
        if is_list_type(labels.type):
            labels = as_matrix(labels, None)
        elif dimension == 1:
            return labels
        else:
            raise _wrong_shape([len(labels)], dimension)
    values = np.asarray(labels)
    if values.ndim == 2 and values.shape[1] == dimension:
        return values[:, 0] if dimension == 1 else values
    if values.ndim == 1 and dimension == 1:
        return values
    raise _wrong_shape(list(values.shape), dimension)


def check_one_column(labels: Any) -> None:
    """Raise InvalidTypeError if labels are a dict or tuple of columns instead of one column."""
    if isinstance(labels, Mapping):
        raise InvalidTypeError(
            f"labels are a dict with {', '.join(map(str, labels))}, but the model's head takes one column of labels; "
            "give that one, or use a MultiHead."
        )
    if isinstance(labels, tuple):
        raise InvalidTypeError(f"labels are a tuple of {len(labels)} columns, but the model's head takes one column.")


def _wrong_shape(shape: list[int], dimension: int) -> InvalidValueError:
    expected = "[N] or [N, 1]" if dimension == 1 else f"[N, {dimension}]"
    return InvalidValueError(f"labels must have shape {expected}, but got {shape}.")


def _look_up(column: Array | pa.Array, vocabulary: Sequence[str]) -> Array:
    """Return the index of each label in the vocabulary, int64 [N]; raise RowError for an unknown label."""
    strings = look_up_strings(column)
    ids = vocabulary_ids(strings, vocabulary)
    unknown = np.flatnonzero(ids < 0)
    if unknown.size:
        row = int(unknown[0])
        raise RowError(f"unknown label {strings[row].as_py()!r}; expected {choices(vocabulary)}", row=row)
    return ids


def look_up_strings(column: Array | pa.Array) -> pa.Array:
    """Return labels as an Arrow array of strings, for a head with a vocabulary; raise if they are not strings."""
    strings = as_strings(column)
    if strings is None:
        raise InvalidTypeError(
            f"labels are {kind_of(column)}, but the head has a label_vocabulary, which takes strings; "
            "leave label_vocabulary out, or read the labels as strings."
        )
    return strings


def vocabulary_ids(strings: pa.Array, vocabulary: Sequence[str]) -> Array:
    """Return the index of each string in the vocabulary, int64 [N]; -1 for null and for unknown strings."""
    encoded = strings if isinstance(strings, pa.DictionaryArray) else strings.dictionary_encode()
    id_of = {string: i for i, string in enumerate(vocabulary)}
    # Append -1 for nulls: a null has the index -1, which selects the last entry.
    distinct = [id_of.get(string, -1) for string in encoded.dictionary.to_pylist()]
    lookup = np.array([*distinct, -1], dtype=np.int64)
    indices = pc.fill_null(encoded.indices, -1) if encoded.null_count else encoded.indices
    ids: Array = lookup[arrow.to_numpy(indices)]
    return ids


def choices(vocabulary: Sequence[str]) -> str:
    """Return the first ten labels of a vocabulary as text for an error message."""
    named = ", ".join(repr(label) for label in vocabulary[:_MOST_LABELS_NAMED])
    more = len(vocabulary) - _MOST_LABELS_NAMED
    return f"one of {named}" + (f" or {more} more" if more > 0 else "")


def as_numbers(column: Array | pa.Array, hint: str | None) -> Array:
    """Return labels [N] as an array of numbers, with NaN for missing labels; raise if they are not numbers.

    `hint` is advice in the error about labels that are strings; None for a regression.
    """
    strings = as_strings(column)
    if strings is not None:
        # An empty chunk may have any type, so accept it.
        if len(strings) == 0:
            return np.zeros(0, dtype=np.int64)
        if strings.null_count:
            raise RowError("the label is missing", row=int(np.flatnonzero(strings.is_null())[0]))
        advice = f"give {hint}" if hint else "a regression needs numbers"
        raise InvalidTypeError(f"labels are strings (the first is {strings[0].as_py()!r}); {advice}.")
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    values: Array = arrow.to_numpy(column) if isinstance(column, pa.Array) else column
    if values.dtype == object:
        try:
            values = values.astype(np.float64)
        except (TypeError, ValueError):
            raise InvalidTypeError(_MIXED) from None
    if values.dtype.kind == "b":
        return values.astype(np.int64)
    if values.dtype.kind not in "iuf":
        raise InvalidTypeError(f"labels must be numbers or strings, but they are {values.dtype}.")
    return values


def as_strings(column: Array | pa.Array) -> pa.Array | None:
    """Return labels as an Arrow array of strings, possibly dictionary-encoded; None if labels are not strings."""
    if isinstance(column, pa.Array):
        values = column.type.value_type if isinstance(column, pa.DictionaryArray) else column.type
        is_string = pa.types.is_string(values) or pa.types.is_large_string(values)
        return column if is_string else None
    if column.dtype.kind in "US":
        return pa.array(column).cast(pa.string())
    if column.dtype.kind != "O" or column.ndim != 1:
        return None
    try:
        inferred = pa.array(column, from_pandas=True)
        holds_text = pa.types.is_string(inferred.type) or pa.types.is_binary(inferred.type)
        return inferred.cast(pa.string()) if holds_text or pa.types.is_null(inferred.type) else None
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        raise InvalidTypeError(_MIXED) from None


def kind_of(column: Array | pa.Array) -> str:
    """Return the name of the data type of labels, for an error message."""
    return str(column.type if isinstance(column, pa.Array) else column.dtype)


def _check_rows(good: Array, values: Array, problem: str) -> None:
    """Raise RowError for the first row whose entry in `good` (bool [N]) is False.

    `problem` is the end of the message, after ``label <value>``; NaN is always reported as "not a number".
    """
    if good.all():
        return
    row = int(np.flatnonzero(~good)[0])
    value = values[row]
    shown = "nan" if value != value else f"{value:g}" if values.dtype.kind == "f" else str(value)
    raise RowError(f"label {shown} {'is not a number' if shown == 'nan' else problem}", row=row)
