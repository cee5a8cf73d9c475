"""Checks of a caller's inputs, and conversion of the inputs to the arrays that onnxruntime takes.

`as_tensor` converts a batch of equally shaped rows, `as_lists` rows of different lengths, `read_rows` rows of CSV, and
`read_examples` serialized tf.Examples. What depends on the type of an input is in `dtypes`.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from torch_estimator.errors import InvalidValueError
from torch_estimator.export.dtypes import (
    BY_COLUMN,
    DTYPES,
    Array,
    DType,
    Integers,
    is_missing,
    not_a_batch,
)
from torch_estimator.export.instances import bare_value
from torch_estimator.export.signatures import CsvFormat, ExampleFormat, Signature, TensorInfo, feature_of
from torch_estimator.tfrecord.features import FixedLenFeature, FixedLenSequenceFeature, ServedFeature
from torch_estimator.tfrecord.parser import Examples


def as_tensor(name: str, value: Any, info: TensorInfo) -> Array:
    """Convert a batch of one input, a list or an array, to an array; missing values get the input's default.

    Every way to call an export comes here for null and NaN; `as_lists` does the same for rows of different lengths.
    """
    try:
        array = _shaped(name, info.type.check(name, value), info)
    except InvalidValueError:
        if info.missing is None or isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
            raise
        rows = [_with_default(bare_value(row, info.shape), info.missing) for row in _as_python(value, info)]
        array = _shaped(name, info.type.check(name, rows), info)
    return _without_nan(array, info.default)


def _as_python(value: Any, info: TensorInfo) -> Any:
    """Return a batch as Python values."""
    if isinstance(value, list | tuple):
        return value
    array = np.asarray(value)
    if array.dtype.kind == "f" and isinstance(info.type, Integers) and has_nan(array):
        # pandas and Arrow make floats of integers of which some are missing.
        numbers = [int(one) if one.is_integer() else one for one in array.ravel().tolist()]
        return np.array(numbers, dtype=object).reshape(array.shape).tolist()
    return array.tolist()


def _with_default(value: Any, default: Any) -> Any:
    """Return a row, or a part of one, with the same part of the default for each missing value."""
    if is_missing(value):
        return default
    if isinstance(value, list | tuple) and isinstance(default, list) and len(value) == len(default):
        return [_with_default(*pair) for pair in zip(value, default, strict=True)]
    return value


def _without_nan(array: Array, default: Any) -> Array:
    """Return an array with the defaults of a row in place of NaN; None leaves it as it is."""
    if default is None or array.dtype.kind != "f" or not has_nan(array):
        return array
    return np.where(np.isnan(array), np.resize(np.array(default, dtype=array.dtype), array.shape[1:]), array)


def has_nan(array: Array) -> bool:
    """Return whether an array of floats has a NaN, in a third of the time that `np.isnan` takes for a few rows."""
    # The sum of squares is NaN if a number is, and else at most infinite.
    return math.isnan(np.vdot(array, array))


def _padding_of(dtype: DType, step_size: int | None) -> Any:
    """Return the value that stands for a missing value in a list of values, or of steps of a sequence."""
    # A step may be zero, so that only NaN can say that it is missing.
    return np.nan if step_size and dtype.name == "DT_FLOAT" else dtype.padding


def filled(info: TensorInfo, rows: int) -> Array:
    """Return a batch of `rows` rows for an omitted input. Every row is the input's default."""
    if info.holds_lists:
        given = info.default if isinstance(info.default, list) else [info.default]
        row = given or [_padding_of(info.type, info.step_size)] * (info.step_size or 1)
        return np.array([row] * rows, dtype=info.type.numpy)
    return np.resize(np.array(info.default, dtype=info.type.numpy), (rows, *info.shape[1:]))


@dataclasses.dataclass(frozen=True, slots=True)
class ListFeed:
    """Rows of different lengths as one padded array, ``[rows, n, ...]``, where n is the longest length, at least 1.

    `lengths` has the length of each row, int64 ``[rows]``; the padding counts if the caller passed a padded array.
    """

    tensor: Array
    lengths: npt.NDArray[np.int64]


def as_lists(name: str, value: Any, info: TensorInfo) -> ListFeed:
    """Convert lists of different lengths, one per row, to one padded array.

    `value` may also be an array ``[rows, n, ...]``. A bare value counts as a list of one, and None as the default, or
    else as an empty list. Raise an InvalidValueError if a value has another type or shape, if lists are nested, or if a
    list is empty that the model takes unpadded.
    """
    if isinstance(value, np.ndarray) and value.ndim == len(info.shape) and value.shape[1]:
        flat = as_tensor(name, value.reshape(-1, *value.shape[2:]), _flat_info(info))
        return ListFeed(flat.reshape(value.shape), np.full(len(value), value.shape[1], np.int64))
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise InvalidValueError(f"Input {name} is the single value {value!r}; give a list of lists, one per row.")
    rows = [_list(info.default if row is None else row) for row in value]
    if info.holds_lists and any(isinstance(item, (list, tuple, np.ndarray)) for row in rows for item in row):
        raise InvalidValueError(f"Input {name} takes a list of values per row, but has lists of lists.")
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    if info.exact_lengths and not lengths.all():
        raise InvalidValueError(f"Input {name} has the empty list in row {lengths.argmin()} (from 0); give a value.")
    padding = _padding_of(info.type, info.step_size)
    items = [item for row in rows for item in row]
    if not info.exact_lengths:
        # A NaN among floats stays: it is a weight or a step that the graph knows as missing.
        is_float = info.type.numpy.kind == "f"
        items = [padding if item is None or (not is_float and is_missing(item)) else item for item in items]
    longest = lengths.max(initial=info.step_size or 1)
    tensor = np.full((len(rows), longest, *info.shape[2:]), padding, dtype=info.type.numpy)
    if items:
        tensor[np.arange(tensor.shape[1]) < lengths[:, None]] = as_tensor(name, items, _flat_info(info))
    return ListFeed(tensor, lengths)


def matched(feeds: Mapping[str, ListFeed], infos: Mapping[str, TensorInfo]) -> dict[str, Array]:
    """Return the padded arrays by input, after a check that lists that belong together are equally long.

    These are lists of weights and of the values that `TensorInfo.lengths_of` names, and the sequences of a row. Raise
    an InvalidValueError for the first row in which they are not.
    """
    sequences = {name: feed.lengths for name, feed in feeds.items() if infos[name].step_size}
    for name, lengths in sequences.items():
        first, counts = next(iter(sequences.items()))
        _check_steps(name, lengths, infos[name].step_size or 1, first, counts, infos[first].step_size or 1)
    for name, feed in feeds.items():
        other = infos[name].lengths_of
        if other is None or other not in feeds or len(feeds[other].lengths) != len(feed.lengths):
            continue
        wrong = np.flatnonzero(feed.lengths != feeds[other].lengths)
        if len(wrong):
            row = int(wrong[0])
            where = f" in row {row} (from 0)" if len(feed.lengths) > 1 else ""
            raise InvalidValueError(
                f"Input {name} has {feed.lengths[row]} values{where}, but {other}, whose weights they are, has "
                f"{feeds[other].lengths[row]}."
            )
    return {name: feed.tensor for name, feed in feeds.items()}


def _check_steps(
    name: str, lengths: npt.NDArray[np.int64], size: int, other: str, counts: npt.NDArray[np.int64], other_size: int
) -> None:
    """Raise InvalidValueError unless the lists of an input have whole steps, as many as those of another input."""
    wrong = np.flatnonzero(lengths % size)
    if len(wrong):
        raise InvalidValueError(
            f"Input {name} has {lengths[wrong[0]]} values in row {wrong[0]} (from 0), but takes {size} for each step."
        )
    if len(counts) == len(lengths) and len(wrong := np.flatnonzero(lengths * other_size != counts * size)):
        row = wrong[0]
        raise InvalidValueError(
            f"Input {name} has a sequence of {lengths[row] // size} in row {row} (from 0), but {other} has one of "
            f"{counts[row] // other_size}; the sequences of a row must have one length."
        )


class RowsError(InvalidValueError):
    """Error about a batch, with the message `of_row` for a batch of one row, which the caller names."""

    def __init__(self, message: str, *, of_row: str) -> None:
        super().__init__(message)
        self.of_row = of_row


class WrongRowError(RowsError):
    """Error about the row `row` of a batch, counted from 0."""

    def __init__(self, message: str, *, of_row: str, row: int) -> None:
        super().__init__(message, of_row=of_row)
        self.row = row


class NotANumberError(WrongRowError):
    """Error for text in which the graph found no number, in the row `row`, from 0, of a batch of `rows`.

    `problem` says which inputs have it and what is wrong with them, without the end of the sentence. `values` is what
    they have in the row, as text, or empty if that is unknown.
    """

    def __init__(self, problem: str, values: Sequence[str], *, row: int, rows: int) -> None:
        end = f": {', '.join(values)}." if values else "."
        where = f" in row {row} (from 0)" if rows > 1 else ""
        super().__init__(f"{problem}{where}{end}", of_row=f"{problem}{end}", row=row)


def problem_of_row(error: InvalidValueError) -> str:
    """Return the message of an error about a batch of one row, without the number of the row."""
    return error.of_row if isinstance(error, RowsError) else str(error)


@dataclasses.dataclass(frozen=True, slots=True)
class EqualRows:
    """Numbers of the rows of a batch whose sequences are equally long, so that they can be run without padding.

    `lengths` has the length of each sequence, by tensor.
    """

    rows: npt.NDArray[np.int64]
    lengths: Mapping[str, int]

    def of(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return these rows of a batch, without padding."""
        return {
            tensor: array[self.rows][:, : self.lengths[tensor]] if tensor in self.lengths else array[self.rows]
            for tensor, array in feeds.items()
        }


def equal_rows(lengths: Mapping[str, npt.NDArray[np.int64]], signature: Signature) -> list[EqualRows]:
    """Group rows by sequence length; return [] if one run can take all rows.

    `lengths` has the length of each row, by input, or feature of tf.Examples, that must not be padded. Raise an
    InvalidValueError if the rows differ in length, and so would the rows of an output.
    """
    if all((one == one[:1]).all() for one in lengths.values()):
        return []
    for output, info in signature.outputs.items():
        if -1 in info.shape[1:]:
            name, wrong = next((name, one) for name, one in lengths.items() if (one != one[:1]).any())
            row = int(np.flatnonzero(wrong != wrong[0])[0])
            raise InvalidValueError(
                f"Input {name} has {wrong[0]} values in row 0 and {wrong[row]} in row {row}, but the output {output} "
                "is as long as its row; give rows of one length at a time."
            )
    distinct, group_of = np.unique(np.stack(list(lengths.values()), 1), axis=0, return_inverse=True)
    tensors = [signature.inputs[name].tensor if name in signature.inputs else name for name in lengths]
    return [
        EqualRows(np.flatnonzero(group_of.ravel() == group), dict(zip(tensors, one.tolist(), strict=True)))
        for group, one in enumerate(distinct)
    ]


class CsvRowError(RowsError):
    """Error for the row `row`, from 1, of a CSV input that cannot be read.

    `problem` is the message after the row: ``has 2 fields where …``.
    """

    def __init__(self, problem: str, *, row: int) -> None:
        super().__init__(f"row {row} of the CSV input {problem}", of_row=f"the CSV row {problem}")
        self.row = row


def read_rows(rows: Sequence[str], csv_format: CsvFormat) -> npt.NDArray[Any] | None:
    """Check rows of CSV. Return their fields, ``[rows, fields]``, if any row has quotes, else None.

    Without quotes, the graph can split the rows itself: it splits at commas and does not handle quotes. Raise a
    CsvRowError if a row has a wrong number of fields, a broken quote, or text in place of a number.
    """
    names = csv_format.column_names
    fields = [fields_of(row, names, number) for number, row in enumerate(rows, 1)]
    for name, field in csv_format.fields.items():
        dtype = DTYPES[field.dtype]
        pattern = dtype.pattern
        if pattern is None:
            continue
        place = names.index(name)
        for number, row in enumerate(fields, 1):
            text = row[place]
            if pattern.fullmatch(text) or (not text and field.default is not None):
                continue
            raise CsvRowError(_not_a_number(text, name, dtype), row=number)
    if not any('"' in row for row in rows):
        return None
    return np.array(fields, dtype=object).reshape(len(rows), len(names))


def read_examples(
    name: str, value: Any, example_format: ExampleFormat
) -> tuple[dict[str, Array], int, dict[str, npt.NDArray[np.int64]]]:
    """Parse serialized tf.Examples, given as a list or array of bytes.

    Return an array for each feature, with defaults for missing values; the number of rows; and the lengths of lists
    that must not be padded. Raise an InvalidValueError if a value is not a tf.Example or lacks a feature that has no
    default, or if a list is empty that the model takes unpadded.
    """
    if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
        raise not_a_batch(name, value)
    serialized = [_serialized(name, item) for item in np.asarray(value, dtype=object).reshape(-1)]
    lengths = np.array([len(one) for one in serialized], np.int64)
    starts = np.cumsum(lengths) - lengths
    features = {column: feature_of(field) for column, field in example_format.fields.items()}
    examples = Examples(features, b"".join(serialized), starts, lengths)
    for row in np.flatnonzero(examples.wrong())[:1].tolist():
        problem = examples.problem(row)
        column = "" if problem.column is None else f"{problem.column!r}: "
        raise _wrong_example(name, row, len(examples), f"{column}{problem.text}")
    steps = {column: field.step_size for column, field in example_format.fields.items()}
    arrays = {column: _of_examples(column, feature, examples, steps[column]) for column, feature in features.items()}
    exact: dict[str, npt.NDArray[np.int64]] = {}
    for column, field in example_format.fields.items():
        if field.exact_lengths:
            exact[column] = examples.counts(column) // getattr(features[column], "size", 1)
            for row in np.flatnonzero(exact[column] == 0)[:1].tolist():
                raise _wrong_example(name, row, len(examples), f"{column!r}: the list is empty; give a value")
    return arrays, len(serialized), exact


def _wrong_example(name: str, row: int, rows: int, problem: str) -> InvalidValueError:
    where = f", row {row} (from 0)" if rows > 1 else ""
    return InvalidValueError(f"Input {name}{where}: {problem}.")


def _serialized(name: str, item: Any) -> bytes:
    if not isinstance(item, str | bytes):
        raise InvalidValueError(
            f'Input {name} takes serialized tf.Examples, in JSON as {{"b64": "..."}}, but has {item!r:.100}.'
        )
    return item.encode() if isinstance(item, str) else item


def _of_examples(column: str, feature: ServedFeature, examples: Examples, step_size: int | None) -> Array:
    """Return the values of one feature, ``[rows, *shape]``, or lists that are padded to the longest one."""
    rows = len(examples)
    is_text = feature.dtype == "string"
    values = _texts_of(column, examples) if is_text else examples.numbers(column)
    if isinstance(feature, FixedLenFeature):
        if is_text:
            texts = np.empty((rows, feature.size), dtype=object)
            missing = examples.is_missing(column)
            texts[~missing] = values.reshape(-1, feature.size)
            texts[missing] = feature.default_value
            values = texts
        return _without_nan(values.reshape(rows, *(feature.shape or (1,))), feature.default_value)
    sizes = feature.shape if isinstance(feature, FixedLenSequenceFeature) else ()
    lengths = examples.counts(column) // math.prod(sizes)
    dtype = BY_COLUMN[feature.dtype]
    padding = _padding_of(dtype, step_size)
    longest = max(int(lengths.max(initial=0)), step_size or 1)
    tensor = np.full((rows, longest, *sizes), padding, dtype=dtype.numpy)
    tensor[np.arange(longest) < lengths[:, None]] = values.reshape(-1, *sizes)
    return tensor


def _texts_of(column: str, examples: Examples) -> Array:
    data, offsets = examples.texts(column)
    content = data.tobytes()
    texts = np.empty(len(offsets) - 1, dtype=object)
    try:
        texts[:] = [content[begin:end].decode() for begin, end in pairwise(offsets.tolist())]
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"{column!r} of a tf.Example is not UTF-8 text.") from error
    return texts


def _shaped(name: str, array: Array, info: TensorInfo) -> Array:
    """Return a batch in the shape of its input. ``[batch]`` and ``[batch, 1]`` are converted to each other."""
    if array.ndim == 0:
        raise not_a_batch(name, array.item())
    sizes = info.shape[1:]
    if info.is_single and array.shape[1:] in ((), (1,)):
        return array.reshape(len(array), *sizes)
    if array.shape[1:] != sizes:
        expected, given = ", ".join(["rows", *map(str, sizes)]), list(array.shape[1:])
        wanted = "be a single value" if info.is_single else f"have the shape {list(sizes)}"
        raise RowsError(
            f"Input {name} must have the shape [{expected}], but has {list(array.shape)}.",
            of_row=f"Input {name} must {wanted}, but {f'has the shape {given}' if given else 'is a single value'}.",
        )
    return array


def _list(row: Any) -> list[Any]:
    if row is None:
        return []
    return list(row) if isinstance(row, (list, tuple, np.ndarray)) else [row]


def _flat_info(info: TensorInfo) -> TensorInfo:
    """Return the description of a list input's values after all lists have been joined into one."""
    return dataclasses.replace(info, shape=(-1, *info.shape[2:]), default=None)


def fields_of(row: str, names: Sequence[str], number: int = 1) -> list[str]:
    """Return the fields of a row of CSV, or raise a CsvRowError that names the row by its number."""
    fields = row.split(",") if '"' not in row else _unquoted(row, number)
    if len(fields) != len(names):
        raise CsvRowError(
            f"has {len(fields)} fields where {len(names)} are expected ({', '.join(names)}): {_shortened(row)}.",
            row=number,
        )
    return fields


def _unquoted(row: str, number: int) -> list[str]:
    try:
        return next(csv.reader([row], strict=True))
    except (csv.Error, StopIteration) as error:
        raise CsvRowError(f"is not quoted properly ({error}): {_shortened(row)}.", row=number) from error


def _not_a_number(text: str, name: str, dtype: DType) -> str:
    wanted = "an integer" if isinstance(dtype, Integers) else "a number"
    if not text:
        return f"has nothing in the column {name!r}, which takes {wanted} and has no default."
    return f"has {_shortened(text)} in the column {name!r}, which takes {wanted}."


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
