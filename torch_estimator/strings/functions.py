"""The functions of `te.strings`, of arrays and of expressions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from torch_estimator import number_text
from torch_estimator.data import arrow
from torch_estimator.data.columns import as_column, to_numpy
from torch_estimator.data.lists import is_lists, list_lengths
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.strings.expression import (
    NUMBERS,
    VALUES,
    Expression,
    as_constants,
    dtype_of,
    expression_of,
    is_constant,
    matched,
)
from torch_estimator.strings.operations import (
    ONNX_TYPES,
    Case,
    Dtype,
    Join,
    Lookup,
    Node,
    RegexFullMatch,
    Split,
    ToNumber,
    Where,
    flat_values,
    sizes_of,
)

_MISSING: Mapping[Dtype, Any] = {"string": "", "int64": -1, "float32": float("nan")}
_SPACES = r"[ \t\n\v\f\r]+"


def lower(strings: Any) -> Any:
    """Return strings in lower case. As in TensorFlow's default, only the letters A to Z are changed.

    Args:
        strings: Array or lists of strings, or an `Expression`.

    Raises:
        InvalidTypeError: The values are not strings.

    >>> te.strings.lower(np.array(["Red", "ÉTÉ"], object)).tolist()
    ['red', 'ÉtÉ']
    """
    return _apply("lower", Case("LOWER"), [strings], takes="string", gives="string")


def upper(strings: Any) -> Any:
    """Return strings in upper case. As in TensorFlow's default, only the letters a to z are changed.

    Args:
        strings: Array or lists of strings, or an `Expression`.

    Raises:
        InvalidTypeError: The values are not strings.

    >>> te.strings.upper(np.array(["Red"], object)).tolist()
    ['RED']
    """
    return _apply("upper", Case("UPPER"), [strings], takes="string", gives="string")


def split(strings: Any, sep: str | Sequence[str] | None = None, n: int | None = None) -> Any:
    """Split strings into lists of parts, or into `n` parts.

    A list has no empty parts, as with ``tf.string_split`` and its default ``skip_empty=True``, since an empty string is
    a missing value. With `n` and one separator, empty parts are kept: ``"a,,b"`` has three.

    Args:
        strings: One string per row: an array ``[N]``, or an `Expression`.
        sep: A separator, or several, each of which separates. None separates at spaces, tabs and ends of lines.
        n: Number of parts: of more the first are kept, and missing ones are ``''``. None returns lists.

    Returns:
        Strings ``[N, n]`` or, without `n`, lists (an Arrow array). For an `Expression`, an `Expression`.

    Raises:
        InvalidTypeError: The values are not strings, or a separator is not a string.
        InvalidValueError: A separator is empty, `n` is not positive, or a row has several strings.

    >>> te.strings.split(["a||b", "|"], "|").to_pylist()
    [['a', 'b'], []]
    >>> te.strings.split(["a||b", "c"], "|", 3).tolist()
    [['a', '', 'b'], ['c', '', '']]
    >>> te.strings.split(["Oh, well."], [" ", ",", "."]).to_pylist()
    [['Oh', 'well']]
    """
    separators = [sep] if isinstance(sep, str) else sep
    if separators is not None and not all(isinstance(one, str) for one in separators):
        raise InvalidTypeError(f"sep must be a string, a list of strings or None, but got {sep!r}.")
    if separators is not None and (not separators or "" in separators):
        raise InvalidValueError(f"sep must not be empty, but got {sep!r}.")
    if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1):
        raise InvalidValueError(f"n must be a positive integer, but got {n!r}.")
    # The longest of several separators that begin at one place counts, in Python as in onnxruntime.
    pattern = "|".join(map(re.escape, sorted(separators or (), key=len, reverse=True)))
    operation = Split(pattern or _SPACES, sep if isinstance(sep, str) and n is not None else None, n)
    if not isinstance(strings, Expression):
        return operation.compute(strings)
    if strings.shape != (1,):
        raise InvalidValueError(f"te.strings.split takes one string per row, but {strings!r} has {strings.shape}.")
    return Expression("split", "string", (n or -1,), operation, matched("split", [strings], "string"))


def join(parts: Sequence[Any], separator: str = "") -> Any:
    """Return the strings of several columns joined, row by row.

    Args:
        parts: Arrays, lists or expressions of strings, and strings that are the same for every row.
        separator: String between two parts.

    Raises:
        InvalidTypeError: A part does not hold strings.
        InvalidValueError: The parts do not have the same shape.

    >>> te.strings.join([["a", "b"], ["c", "d"]], "_").tolist()
    ['a_c', 'b_d']
    """
    operands = [one for part in parts for one in (separator, part)][1:]
    return _apply("join", Join(), operands, takes="string", gives="string")


def regex_full_match(strings: Any, pattern: str) -> Any:
    """Return whether a regular expression matches the whole of each string.

    Args:
        strings: Array or lists of strings, or an `Expression`.
        pattern: Regular expression of `RE2 <https://github.com/google/re2/wiki/Syntax>`_, as in TensorFlow.

    Returns:
        Booleans, for `where`.

    Raises:
        InvalidTypeError: The values are not strings.
        InvalidValueError: RE2 does not take the pattern.

    >>> te.strings.regex_full_match(np.array(["1234", "12a4"], object), "[0-9]+").tolist()
    [True, False]
    """
    operation = RegexFullMatch(pattern)
    try:
        operation.compute(pa.array([""]))
    except (pa.ArrowException, TypeError) as error:
        raise InvalidValueError(
            f"pattern must be a regular expression of RE2, but got {pattern!r}: {error}."
        ) from error
    return _apply("regex_full_match", operation, [strings], takes="string", gives="bool")


def lookup(keys: Any, table: Mapping[Any, Any] | Sequence[Any], default: str | float | None = None) -> Any:
    """Return the value that a table has for each key: ids for strings, strings for ids, or other values.

    Args:
        keys: Array, lists or an `Expression` of strings or integers.
        table: Dict from strings or integers to strings, integers or floats; or a list of keys, whose values are their
            positions.
        default: Value of other keys; None for ``''``, -1 or NaN, which count as missing.

    Returns:
        Strings, int64 or float32, in the shape of the keys.

    Raises:
        InvalidTypeError: The keys, the values or `default` are of other types, or of several types.
        InvalidValueError: The table is empty, or a list has a key twice.

    >>> te.strings.lookup(["red", "blue", "pink"], ["red", "green", "blue"]).tolist()
    [0, 2, -1]
    >>> te.strings.lookup([0, 2], {0: "red", 1: "green"}, "other").tolist()
    ['red', 'other']
    """
    if isinstance(table, str) or not isinstance(table, Mapping | Sequence):
        raise InvalidTypeError(f"table must be a dict or a list, but got {table!r}.")
    pairs = table if isinstance(table, Mapping) else {value: place for place, value in enumerate(table)}
    if not pairs:
        raise InvalidValueError("table must not be empty.")
    if len(pairs) != len(table):
        repeated = next(value for place, value in enumerate(table) if pairs[value] != place)
        raise InvalidValueError(f"table has {repeated!r} more than once.")
    takes = dtype_of("keys of table", [*pairs], ("string", "int64"))
    gives = dtype_of("values of table", [*pairs.values()], VALUES)
    (other,) = as_constants("default", [_MISSING[gives] if default is None else default], gives)
    values = as_constants("values of table", [*pairs.values()], gives)
    operation = Lookup(as_constants("keys of table", [*pairs], takes), values, other, takes, gives)
    return _apply("lookup", operation, [keys], takes=takes, gives=gives)


def to_number(strings: Any, dtype: Literal["float32", "int64"] = "float32", default: float | None = None) -> Any:
    """Return strings, or numbers of another type, as numbers.

    Args:
        strings: Array, lists or an `Expression`.
        dtype: ``"float32"`` or ``"int64"``.
        default: Number in place of text that is not a number. Without it such a text is an error, in a request to an
            export as well.

    Raises:
        InvalidTypeError: `default` is not a number of this type.
        InvalidValueError: A text is not a number, or `dtype` is another one.

    >>> te.strings.to_number(["1.5", " 2 ", "many"], default=0).tolist()
    [1.5, 2.0, 0.0]
    """
    if dtype not in NUMBERS:
        raise InvalidValueError(f'dtype must be "float32" or "int64", but got {dtype!r}.')
    if default is not None:
        (default,) = as_constants("default", [default], dtype)
    operation: Any = ToNumber(dtype, default)
    if isinstance(strings, Expression) and strings.dtype == "string":
        names = " or ".join(one.name for one in strings.inputs)
        operation = ToNumber(dtype, default, f"Input {names} {number_text.NOT_A_NUMBER}")
    elif isinstance(strings, Expression):
        operation = Node("Cast", {"to": ONNX_TYPES[dtype]})
    return _apply("to_number", operation, [strings], takes=None, gives=dtype)


def where(condition: Any, x: Any, y: Any) -> Any:
    """Return the values of `x` in rows where a condition holds, and those of `y` elsewhere.

    Args:
        condition: Booleans: an array, lists or an `Expression`.
        x: Values of the same shape, or one value for all rows.
        y: The same, of the type of `x`.

    Raises:
        InvalidTypeError: The condition is not boolean, or the values are of different types.
        InvalidValueError: The arguments do not have the same shape.

    >>> names = np.array(["ann", ""], object)
    >>> te.strings.where(names == "", "nobody", names).tolist()
    ['ann', 'nobody']
    """
    values = [x, y]
    dtype = next((one.dtype for one in values if isinstance(one, Expression)), None)
    if dtype is None and all(map(is_constant, values)):
        dtype = dtype_of("x and y of te.strings.where", values, VALUES)
    if dtype is not None:
        values = matched("where", values, dtype)
    if isinstance(condition, Expression):
        matched("where", [condition], "bool")
    return _apply("where", Where(), [condition, *values], takes=None, gives=dtype or "bool")


def _apply(name: str, operation: Any, operands: Sequence[Any], *, takes: Dtype | None, gives: Dtype) -> Any:
    """Return the result of an operation that works on each value by itself, on columns of one shape, and constants.

    `takes` is None if the operation takes operands of several types.
    """
    if any(isinstance(one, Expression) for one in operands):
        return expression_of(name, operation, operands if takes is None else matched(name, operands, takes), gives)
    columns = [one if is_constant(one) else as_column(one, lists=True) for one in operands]
    shaped = [one for one in columns if not is_constant(one)]
    if not shaped:
        raise InvalidTypeError(f"te.strings.{name} takes a column, but got {operands[0]!r}.")
    first = shaped[0]
    if any(sizes_of(one) != sizes_of(first) for one in shaped):
        raise InvalidValueError(f"te.strings.{name} takes columns of one shape, but they differ in it.")
    if len(columns) == 1 and isinstance(first, pa.DictionaryArray):
        # Compute once for each distinct string.
        result = operation.compute(flat_values(name, first.dictionary, takes)).take(first.indices)
    else:
        result = operation.compute(*(one if is_constant(one) else flat_values(name, one, takes) for one in columns))
    if is_lists(first):
        offsets = np.append(0, np.cumsum(list_lengths(first))).astype(np.int32)
        return pa.ListArray.from_arrays(arrow.from_numpy(offsets), result)
    return to_numpy(result).reshape(sizes_of(first))
