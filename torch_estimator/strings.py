"""Operations on strings that an export can compute, as in `tf.strings`.

The functions of this module take arrays and return arrays, so that a function made of them can be given to
`Dataset.map`. The same function can be given to `te.serving_input.receiver`, which calls it with an `Expression` in
place of each array: the operations then become ONNX nodes of the export. Both ways give the same values.

>>> te.strings.split(["red green", "blue"]).to_pylist()
[['red', 'green'], ['blue']]
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torch_estimator import number_text
from torch_estimator.data import arrow
from torch_estimator.data.columns import Column, as_column, to_numpy
from torch_estimator.data.lists import is_lists, list_lengths
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.lowering import Graph

__all__ = ["Expression", "join", "lookup", "lower", "regex_full_match", "split", "to_number", "upper", "where"]

Dtype = Literal["string", "float32", "int64", "bool"]

_NUMBERS: tuple[Dtype, ...] = ("float32", "int64")
_VALUES: tuple[Dtype, ...] = ("string", *_NUMBERS)
_ONNX_TYPES = {"float32": 1, "int64": 7}  # onnx.TensorProto.FLOAT and INT64, without the import of onnx.
_ARROW_TYPES = {"string": pa.string(), "float32": pa.float32(), "int64": pa.int64(), "bool": pa.bool_()}
_MISSING: Mapping[Dtype, Any] = {"string": "", "int64": -1, "float32": float("nan")}
_SPACES = r"[ \t\n\v\f\r]+"

_OPERATORS: Mapping[str, tuple[str, tuple[Dtype, ...]]] = {
    "+": ("Add", _NUMBERS),
    "-": ("Sub", _NUMBERS),
    "*": ("Mul", _NUMBERS),
    "/": ("Div", ("float32",)),
    "<": ("Less", _NUMBERS),
    "<=": ("LessOrEqual", _NUMBERS),
    ">": ("Greater", _NUMBERS),
    ">=": ("GreaterOrEqual", _NUMBERS),
    "==": ("Equal", _VALUES),
    "&": ("And", ("bool",)),
    "|": ("Or", ("bool",)),
}
"""ONNX operator of each operator of Python, and the types that it takes."""


class Expression:
    """Column of the requests to an export, or what operations make of such columns.

    Beside the functions of `te.strings`, there are the operators ``+ - * /`` of numbers, ``+`` of strings, comparisons,
    and ``& | ~`` of conditions. ``x[:, 1]`` and ``x[:, 1:3]`` are some of several values per row.

    Attributes:
        name: Name of the input or of the operation.
        dtype: ``"string"``, ``"float32"``, ``"int64"`` or ``"bool"``.
        shape: Shape of one row's value: ``(1,)`` for one value, ``(-1,)`` for a list of any length.
        operation: The operation, with a method that adds it to an ONNX graph; None for an input.
        operands: What the operation is applied to: expressions and constants.
        inputs: The inputs that the expression is computed from.

    >>> def shout(inputs):
    ...     text = inputs["text"]
    ...     print(text, text.dtype, text.shape)
    ...     return {"words": te.strings.split(te.strings.upper(text) + "!")}
    >>> te.serving_input.receiver({"text": "string"}, shout).features
    text string (1,)
    {'words': split(text)}
    """

    __slots__ = ("dtype", "inputs", "name", "operands", "operation", "shape")

    def __init__(
        self,
        name: str,
        dtype: Dtype,
        shape: tuple[int, ...],
        operation: _Operation | None = None,
        operands: Sequence[Any] = (),
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.operation = operation
        self.operands = tuple(operands)
        known = (one for operand in operands if isinstance(operand, Expression) for one in operand.inputs)
        self.inputs: tuple[Expression, ...] = (self,) if operation is None else tuple(dict.fromkeys(known))

    def __repr__(self) -> str:
        names = ", ".join(one.name for one in self.inputs)
        return self.name if self.operation is None else f"{self.name}({names})"

    def __add__(self, other: Any) -> Expression:
        return _binary("+", self, other)

    def __radd__(self, other: Any) -> Expression:
        return _binary("+", other, self)

    def __sub__(self, other: Any) -> Expression:
        return _binary("-", self, other)

    def __rsub__(self, other: Any) -> Expression:
        return _binary("-", other, self)

    def __mul__(self, other: Any) -> Expression:
        return _binary("*", self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Expression:
        return _binary("/", self, other)

    def __rtruediv__(self, other: Any) -> Expression:
        return _binary("/", other, self)

    def __lt__(self, other: Any) -> Expression:
        return _binary("<", self, other)

    def __le__(self, other: Any) -> Expression:
        return _binary("<=", self, other)

    def __gt__(self, other: Any) -> Expression:
        return _binary(">", self, other)

    def __ge__(self, other: Any) -> Expression:
        return _binary(">=", self, other)

    def __eq__(self, other: Any) -> Expression:  # type: ignore[override]
        return _binary("==", self, other)

    def __ne__(self, other: Any) -> Expression:  # type: ignore[override]
        return ~_binary("==", self, other)

    def __and__(self, other: Any) -> Expression:
        return _binary("&", self, other)

    def __or__(self, other: Any) -> Expression:
        return _binary("|", self, other)

    def __invert__(self) -> Expression:
        return _expression("~", _Node("Not"), _matched("~", [self], "bool"), "bool")

    def __getitem__(self, key: Any) -> Expression:
        try:
            rows, columns = key
            if rows != slice(None) or len(self.shape) != 1 or self.shape == (-1,):
                raise TypeError
            places = np.arange(*self.shape)[columns].reshape(-1).tolist()
        except (TypeError, ValueError, IndexError) as error:
            raise InvalidValueError(
                f"{self!r} has the shape {self.shape} per row and got the index {key!r}, but an export can only "
                "compute x[:, 1] and x[:, 1:3] of a fixed number of values."
            ) from error
        return Expression("part", self.dtype, (len(places),), _Node("Gather", {"axis": 1}, tuple(places)), [self])

    # An expression is itself as a key of a dict.
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise _unsupported(name)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise _unsupported("numpy.asarray")

    def __array_ufunc__(self, ufunc: Any, *_: Any, **__: Any) -> NoReturn:
        raise _unsupported(f"numpy.{ufunc.__name__}")

    def __array_function__(self, function: Any, *_: Any, **__: Any) -> NoReturn:
        raise _unsupported(f"numpy.{function.__name__}")

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any, **__: Any) -> NoReturn:
        raise _unsupported(f"torch.{function.__name__}")

    def _value(self, *_: Any) -> NoReturn:
        raise InvalidTypeError(
            f"{self!r} has no value before a request comes; write te.strings.where(condition, x, y) in place of if, "
            "x + y in place of f-strings, and no loops."
        )

    __bool__ = __len__ = __iter__ = __int__ = __float__ = __format__ = _value


def lower(strings: Any) -> Any:
    """Return strings in lower case. As in TensorFlow's default, only the letters A to Z are changed.

    Args:
        strings: Array or lists of strings, or an `Expression`.

    Raises:
        InvalidTypeError: The values are not strings.

    >>> te.strings.lower(np.array(["Red", "ÉTÉ"], object)).tolist()
    ['red', 'ÉtÉ']
    """
    return _apply("lower", _Case("LOWER"), [strings], takes="string", gives="string")


def upper(strings: Any) -> Any:
    """Return strings in upper case. As in TensorFlow's default, only the letters a to z are changed.

    Args:
        strings: Array or lists of strings, or an `Expression`.

    Raises:
        InvalidTypeError: The values are not strings.

    >>> te.strings.upper(np.array(["Red"], object)).tolist()
    ['RED']
    """
    return _apply("upper", _Case("UPPER"), [strings], takes="string", gives="string")


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
    operation = _Split(pattern or _SPACES, sep if isinstance(sep, str) and n is not None else None, n)
    if not isinstance(strings, Expression):
        return operation.compute(strings)
    if strings.shape != (1,):
        raise InvalidValueError(f"te.strings.split takes one string per row, but {strings!r} has {strings.shape}.")
    return Expression("split", "string", (n or -1,), operation, _matched("split", [strings], "string"))


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
    return _apply("join", _Join(), operands, takes="string", gives="string")


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
    operation = _RegexFullMatch(pattern)
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
    takes = _dtype_of("keys of table", [*pairs], ("string", "int64"))
    gives = _dtype_of("values of table", [*pairs.values()], _VALUES)
    (other,) = _constants("default", [_MISSING[gives] if default is None else default], gives)
    values = _constants("values of table", [*pairs.values()], gives)
    operation = _Lookup(_constants("keys of table", [*pairs], takes), values, other, takes, gives)
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
    if dtype not in _NUMBERS:
        raise InvalidValueError(f'dtype must be "float32" or "int64", but got {dtype!r}.')
    if default is not None:
        (default,) = _constants("default", [default], dtype)
    operation: Any = ToNumber(dtype, default)
    if isinstance(strings, Expression) and strings.dtype == "string":
        names = " or ".join(one.name for one in strings.inputs)
        operation = ToNumber(dtype, default, f"Input {names} {number_text.NOT_A_NUMBER}")
    elif isinstance(strings, Expression):
        operation = _Node("Cast", {"to": _ONNX_TYPES[dtype]})
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
    if dtype is None and all(map(_is_constant, values)):
        dtype = _dtype_of("x and y of te.strings.where", values, _VALUES)
    if dtype is not None:
        values = _matched("where", values, dtype)
    if isinstance(condition, Expression):
        _matched("where", [condition], "bool")
    return _apply("where", _Where(), [condition, *values], takes=None, gives=dtype or "bool")


def add_to_graph(expression: Expression, graph: Graph, tensors: dict[Expression, str]) -> str:
    """Add the nodes that compute an expression to a graph; return the resulting tensor, ``[N, n]``.

    Args:
        expression: The expression.
        graph: The graph.
        tensors: The tensors of the inputs; those of the computed expressions are added.
    """
    if expression not in tensors:
        assert expression.operation is not None
        operands = [
            add_to_graph(one, graph, tensors) if isinstance(one, Expression) else graph.constant(one)
            for one in expression.operands
        ]
        tensors[expression] = expression.operation.lower(graph, *operands)
    return tensors[expression]


def origin_of_lists(expression: Expression) -> Expression:
    """Return the input or the result of `split` from which the lists of an expression have their lengths."""
    while expression.operation is not None and not isinstance(expression.operation, _Split):
        expression = next(one for one in expression.operands if isinstance(one, Expression))
    return expression


class _Operation(Protocol):
    """Operation that an export can compute. What numpy has not also has a method `compute`, for flat Arrow arrays."""

    def lower(self, graph: Graph, *tensors: str) -> str:
        """Add the nodes of the operation on tensors ``[N, n]`` to an ONNX graph; return the resulting tensor."""
        ...


@dataclass(frozen=True, slots=True)
class _Case:
    action: Literal["LOWER", "UPPER"]

    def compute(self, strings: pa.Array) -> pa.Array:
        return pc.ascii_lower(strings) if self.action == "LOWER" else pc.ascii_upper(strings)

    def lower(self, graph: Graph, *tensors: str) -> str:
        flat = graph.op("Reshape", *tensors, graph.constant([-1], np.int64))
        # Name the locale C: others are not installed everywhere, and TensorFlow changes no further letters either.
        changed = graph.op("StringNormalizer", flat, case_change_action=self.action, is_case_sensitive=1, locale="C")
        return graph.op("Reshape", changed, graph.op("Shape", *tensors))


@dataclass(frozen=True, slots=True)
class _Split:
    """Split of one string per row.

    Attributes:
        pattern: Regular expression of the separators.
        separator: The separator of parts that may be empty; None leaves empty parts out.
        n: Number of parts; None for lists.
    """

    pattern: str
    separator: str | None
    n: int | None

    def compute(self, strings: Any) -> Any:
        column = as_column(strings)
        texts = _flat("split", column, "string").to_pylist()
        if _sizes(column) != (len(texts),):
            raise InvalidValueError(f"te.strings.split takes one string per row, but got {_sizes(column)}.")
        if self.separator is not None:
            rows = [text.split(self.separator) for text in texts]
        else:
            rows = [[part for part in re.split(self.pattern, text) if part] for text in texts]
        if self.n is None:
            return pa.array(rows, pa.list_(pa.string()))
        parts = np.full((len(rows), self.n), "", object)
        for row, given in zip(parts, rows, strict=True):
            row[: len(given)] = given[: self.n]
        return parts

    def lower(self, graph: Graph, *tensors: str) -> str:
        flat = graph.op("Reshape", *tensors, graph.constant([-1], np.int64))
        if self.separator is not None:
            parts = graph.multi("StringSplit", [flat], outputs=2, delimiter=self.separator)[0]
        else:
            settings = {"mark": 0, "mincharnum": 1, "pad_value": "", "separators": [self.pattern]}
            parts = graph.op("Tokenizer", flat, domain="com.microsoft", **settings)
        # Both pad with '' to the longest row. Append columns of '', and cut, for `n` parts or at least one.
        width = graph.constant([self.n or 1], np.int64)
        shape = graph.op("Concat", graph.op("Shape", flat), width, axis=0)
        padded = graph.op("Concat", parts, graph.op("Expand", graph.constant(""), shape), axis=1)
        stop = width if self.n else graph.op("Max", graph.op("Shape", parts, start=1), width)
        return graph.op("Slice", padded, graph.constant([0], np.int64), stop, graph.constant([1], np.int64))


class _Join:
    def compute(self, *parts: Any) -> pa.Array:
        return pc.binary_join_element_wise(*parts, "")

    def lower(self, graph: Graph, *tensors: str) -> str:
        return functools.reduce(lambda joined, part: graph.op("StringConcat", joined, part), tensors)


@dataclass(frozen=True, slots=True)
class _RegexFullMatch:
    pattern: str

    def compute(self, strings: pa.Array) -> pa.Array:
        return pc.match_substring_regex(strings, rf"\A(?:{self.pattern})\z")

    def lower(self, graph: Graph, *tensors: str) -> str:
        return graph.op("RegexFullMatch", *tensors, pattern=self.pattern)


@dataclass(frozen=True, slots=True)
class _Lookup:
    keys: list[Any]
    values: list[Any]
    default: Any
    takes: Dtype
    gives: Dtype

    def compute(self, keys: pa.Array) -> pa.Array:
        kind = _ARROW_TYPES[self.gives]
        places = pc.index_in(keys, pa.array(self.keys, keys.type))
        return pc.fill_null(pa.array(self.values, kind).take(places), pa.scalar(self.default, kind))

    def lower(self, graph: Graph, *tensors: str) -> str:
        kinds = {"string": "string", "int64": "int64", "float32": "float"}
        takes, gives = kinds[self.takes], kinds[self.gives]
        attributes = {f"keys_{takes}s": self.keys, f"values_{gives}s": self.values, f"default_{gives}": self.default}
        return graph.op("LabelEncoder", *tensors, domain="ai.onnx.ml", **attributes)


@dataclass(frozen=True, slots=True)
class ToNumber:
    """Conversion of text to numbers.

    Attributes:
        dtype: ``"float32"`` or ``"int64"``.
        default: Number in place of text that is not a number; None makes onnxruntime fail on it.
        name: Name of the node that then fails.
    """

    dtype: Literal["float32", "int64"]
    default: float | None = None
    name: str | None = None

    def compute(self, values: pa.Array) -> pa.Array:
        """Return the numbers of an Arrow array of strings or numbers."""
        if not pa.types.is_string(values.type):
            return values.cast(_ARROW_TYPES[self.dtype], safe=False)
        is_number = re.compile(self._pattern).fullmatch
        numbers: list[Any] = []
        for text in values.to_pylist():
            if not is_number(text) and self.default is None:
                raise InvalidValueError(f"te.strings.to_number got {text!r}, which is no number, and has no default.")
            numbers.append((float if self.dtype == "float32" else int)(text) if is_number(text) else self.default)
        try:
            return arrow.from_numpy(np.array(numbers, self.dtype))
        except OverflowError as error:
            raise InvalidValueError("te.strings.to_number got a number that int64 does not hold.") from error

    def lower(self, graph: Graph, *tensors: str) -> str:
        """Add nodes that convert a tensor of strings."""
        good = graph.op("RegexFullMatch", *tensors, pattern=self._pattern)
        # On an empty string Cast fails. It would read other text in part, such as "12abc".
        other = graph.constant("" if self.default is None else str(self.default))
        checked = graph.op("Where", good, *tensors, other)
        named = {} if self.name is None else {"name": self.name}
        return graph.op("Cast", checked, to=_ONNX_TYPES[self.dtype], **named)

    @property
    def _pattern(self) -> str:
        return number_text.FLOAT if self.dtype == "float32" else number_text.INTEGER


class _Where:
    def compute(self, condition: pa.Array, *values: Any) -> pa.Array:
        kind = next((one.type for one in values if isinstance(one, pa.Array)), None)
        return pc.if_else(condition, *(one if isinstance(one, pa.Array) else pa.scalar(one, kind) for one in values))

    def lower(self, graph: Graph, *tensors: str) -> str:
        return graph.op("Where", *tensors)


@dataclass(frozen=True, slots=True)
class _Node:
    """Operation that is one ONNX node, and that numpy has for arrays."""

    kind: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    indices: tuple[int, ...] | None = None

    def lower(self, graph: Graph, *tensors: str) -> str:
        last = [] if self.indices is None else [graph.constant(self.indices, np.int64)]
        return graph.op(self.kind, *tensors, *last, **self.attributes)


def _binary(symbol: str, x: Any, y: Any) -> Expression:
    kind, allowed = _OPERATORS[symbol]
    dtype = next(one.dtype for one in (x, y) if isinstance(one, Expression))
    if symbol == "+" and dtype == "string":
        kind, allowed = "StringConcat", ("string",)
    if dtype not in allowed:
        raise InvalidTypeError(f"{symbol} takes {' or '.join(allowed)}, but {x!r} {symbol} {y!r} has {dtype}.")
    gives = dtype if symbol in "+-*/" else "bool"
    return _expression(symbol, _Node(kind), _matched(symbol, [x, y], dtype), gives)


def _apply(name: str, operation: Any, operands: Sequence[Any], *, takes: Dtype | None, gives: Dtype) -> Any:
    """Return the result of an operation that works on each value by itself.

    Args:
        name: Name of the operation.
        operation: The operation.
        operands: Columns of one shape, and constants.
        takes: Type of the operands; None if the operation takes several.
        gives: Type of the result.
    """
    if any(isinstance(one, Expression) for one in operands):
        return _expression(name, operation, operands if takes is None else _matched(name, operands, takes), gives)
    columns = [one if _is_constant(one) else as_column(one, lists=True) for one in operands]
    shaped = [one for one in columns if not _is_constant(one)]
    if not shaped:
        raise InvalidTypeError(f"te.strings.{name} takes a column, but got {operands[0]!r}.")
    first = shaped[0]
    if any(_sizes(one) != _sizes(first) for one in shaped):
        raise InvalidValueError(f"te.strings.{name} takes columns of one shape, but they differ in it.")
    if len(columns) == 1 and isinstance(first, pa.DictionaryArray):
        # Compute once for each distinct string.
        result = operation.compute(_flat(name, first.dictionary, takes)).take(first.indices)
    else:
        result = operation.compute(*(one if _is_constant(one) else _flat(name, one, takes) for one in columns))
    if is_lists(first):
        offsets = np.append(0, np.cumsum(list_lengths(first))).astype(np.int32)
        return pa.ListArray.from_arrays(arrow.from_numpy(offsets), result)
    return to_numpy(result).reshape(_sizes(first))


def _flat(name: str, column: Column, takes: Dtype | None) -> pa.Array:
    """Return all values of a column as one Arrow array."""
    values = column.flatten() if is_lists(column) else column
    if isinstance(values, pa.DictionaryArray):
        values = values.dictionary_decode()
    elif isinstance(values, np.ndarray):
        flat = values.reshape(-1)
        try:
            values = pa.array(flat, from_pandas=True) if flat.dtype == object else arrow.from_numpy(flat)
        except (pa.ArrowException, TypeError) as error:
            raise InvalidTypeError(f"te.strings.{name} cannot take {flat[0]!r} ({error}).") from error
    if pa.types.is_string(values.type):
        values = values.fill_null("")
    if pa.types.is_null(values.type) or (takes == "int64" and pa.types.is_integer(values.type)):
        values = values.cast(_ARROW_TYPES[takes or "string"])
    if takes is not None and values.type != _ARROW_TYPES[takes]:
        raise InvalidTypeError(f"te.strings.{name} takes {takes}, but got {values.type}.")
    return values


def _sizes(column: Column) -> Any:
    """Return the shape of a column, or the lengths of its lists."""
    if isinstance(column, np.ndarray):
        return column.shape
    return list_lengths(column).tolist() if is_lists(column) else (len(column),)


def _expression(name: str, operation: _Operation, operands: Sequence[Any], gives: Dtype) -> Expression:
    """Return the result of an operation that works on each value by itself, for expressions and constants."""
    expressions = [one for one in operands if isinstance(one, Expression)]
    for one in operands:
        if not isinstance(one, Expression) and not _is_constant(one):
            raise InvalidTypeError(f"{name} of {expressions[0]!r} takes expressions and constants, but got {one!r}.")
    first = expressions[0]
    for one in expressions:
        if len(one.shape) > 1:
            raise InvalidValueError(f"{name} takes one value or a list per row, but {one!r} has the shape {one.shape}.")
        if one.shape != first.shape or (one.shape == (-1,) and origin_of_lists(one) is not origin_of_lists(first)):
            raise InvalidValueError(
                f"{name} takes columns of one shape, but {first!r} has {first.shape} per row and {one!r} {one.shape}."
            )
    return Expression(name, gives, first.shape, operation, operands)


def _matched(name: str, operands: Sequence[Any], dtype: Dtype) -> list[Any]:
    """Check that all operands have a type; return them, with constants in this type. Arrays are left unchanged."""
    for one in operands:
        if isinstance(one, Expression) and one.dtype != dtype:
            raise InvalidTypeError(f"{name} takes {dtype} here, but {one!r} is {one.dtype}; te.strings has to_number.")
    convert = {"float32": np.float32, "int64": np.int64}.get(dtype, str)
    return [convert(*_constants(name, [one], dtype)) if _is_constant(one) else one for one in operands]


def _is_constant(value: Any) -> bool:
    return isinstance(value, str | int | float | np.generic)


def _dtype_of(what: str, values: Sequence[Any], allowed: Sequence[Dtype]) -> Dtype:
    """Return the type of constants: integers among floats are floats."""
    kinds: set[Dtype] = {
        "string" if isinstance(one, str) else "int64" if isinstance(one, int | np.integer) else "float32"
        for one in values
    }
    dtype: Dtype = "float32" if kinds == {"int64", "float32"} else min(kinds)
    if dtype not in allowed:
        raise InvalidTypeError(f"{what} must be {' or '.join(allowed)}, but got {values[0]!r}.")
    _constants(what, values, dtype)
    return dtype


def _constants(what: str, values: Sequence[Any], dtype: Dtype) -> list[Any]:
    """Return constants as Python values.

    Raises:
        InvalidTypeError: A value is of another type.
    """
    kinds = {"string": str, "int64": int | np.integer, "float32": int | float | np.integer | np.floating}
    for one in values:
        if not isinstance(one, kinds.get(dtype, ())) or isinstance(one, bool):
            raise InvalidTypeError(f"{what} must be {dtype}, but got {one!r}.")
    convert = {"float32": float, "int64": int}.get(dtype, str)
    return [convert(one) for one in values]


def _unsupported(name: str) -> InvalidTypeError:
    functions = ", ".join(f"te.strings.{one}" for one in __all__ if one != "Expression")
    return InvalidTypeError(
        f"an export cannot compute {name} of a request's columns; there are {functions}, + - * / and comparisons."
    )
