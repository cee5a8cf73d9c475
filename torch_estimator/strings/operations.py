"""Operations on strings, numbers and conditions: computed of arrays, and lowered to ONNX nodes.

An operation works on flat Arrow arrays, which `flat_values` makes of columns, and on tensors ``[N, n]`` of a graph.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torch_estimator import number_text
from torch_estimator.data import arrow
from torch_estimator.data.columns import Column, as_column
from torch_estimator.data.lists import is_lists, list_lengths
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.lowering import Graph

Dtype = Literal["string", "float32", "int64", "bool"]
ONNX_TYPES = {"float32": 1, "int64": 7}  # onnx.TensorProto.FLOAT and INT64, without the import of onnx.
ARROW_TYPES = {"string": pa.string(), "float32": pa.float32(), "int64": pa.int64(), "bool": pa.bool_()}


class Operation(Protocol):
    """Operation that an export can compute. What numpy has not also has a method `compute`, for flat Arrow arrays."""

    def lower(self, graph: Graph, *tensors: str) -> str:
        """Add the nodes of the operation on tensors ``[N, n]`` to an ONNX graph; return the resulting tensor."""
        ...


@dataclass(frozen=True, slots=True)
class Case:
    """Change of the letters A to Z, or a to z."""

    action: Literal["LOWER", "UPPER"]

    def compute(self, strings: pa.Array) -> pa.Array:
        return pc.ascii_lower(strings) if self.action == "LOWER" else pc.ascii_upper(strings)

    def lower(self, graph: Graph, *tensors: str) -> str:
        flat = graph.op("Reshape", *tensors, graph.constant([-1], np.int64))
        # Name the locale C: others are not installed everywhere, and TensorFlow changes no further letters either.
        changed = graph.op("StringNormalizer", flat, case_change_action=self.action, is_case_sensitive=1, locale="C")
        return graph.op("Reshape", changed, graph.op("Shape", *tensors))


@dataclass(frozen=True, slots=True)
class Split:
    """Split of one string per row, at a regular expression of separators.

    `separator` is that of parts that may be empty; None leaves empty parts out. `n` is the number of parts; None for
    lists.
    """

    pattern: str
    separator: str | None
    n: int | None

    def compute(self, strings: Any) -> Any:
        column = as_column(strings)
        texts = flat_values("split", column, "string").to_pylist()
        if sizes_of(column) != (len(texts),):
            raise InvalidValueError(f"te.strings.split takes one string per row, but got {sizes_of(column)}.")
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


class Join:
    """Join of several strings, row by row."""

    def compute(self, *parts: Any) -> pa.Array:
        return pc.binary_join_element_wise(*parts, "")

    def lower(self, graph: Graph, *tensors: str) -> str:
        return functools.reduce(lambda joined, part: graph.op("StringConcat", joined, part), tensors)


@dataclass(frozen=True, slots=True)
class RegexFullMatch:
    """Test whether an expression of RE2 matches whole strings."""

    pattern: str

    def compute(self, strings: pa.Array) -> pa.Array:
        return pc.match_substring_regex(strings, rf"\A(?:{self.pattern})\z")

    def lower(self, graph: Graph, *tensors: str) -> str:
        return graph.op("RegexFullMatch", *tensors, pattern=self.pattern)


@dataclass(frozen=True, slots=True)
class Lookup:
    """Lookup of keys in a table."""

    keys: list[Any]
    values: list[Any]
    default: Any
    takes: Dtype
    gives: Dtype

    def compute(self, keys: pa.Array) -> pa.Array:
        kind = ARROW_TYPES[self.gives]
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

    `default` replaces text that is not a number; None makes onnxruntime fail on it, at the node `name`.
    """

    dtype: Literal["float32", "int64"]
    default: float | None = None
    name: str | None = None

    def compute(self, values: pa.Array) -> pa.Array:
        """Return the numbers of an Arrow array of strings or numbers."""
        if not pa.types.is_string(values.type):
            return values.cast(ARROW_TYPES[self.dtype], safe=False)
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
        return graph.op("Cast", checked, to=ONNX_TYPES[self.dtype], **named)

    @property
    def _pattern(self) -> str:
        return number_text.FLOAT if self.dtype == "float32" else number_text.INTEGER


class Where:
    """Choice between two values by a condition."""

    def compute(self, condition: pa.Array, *values: Any) -> pa.Array:
        kind = next((one.type for one in values if isinstance(one, pa.Array)), None)
        return pc.if_else(condition, *(one if isinstance(one, pa.Array) else pa.scalar(one, kind) for one in values))

    def lower(self, graph: Graph, *tensors: str) -> str:
        return graph.op("Where", *tensors)


@dataclass(frozen=True, slots=True)
class Node:
    """Operation that is one ONNX node, and that numpy has for arrays."""

    kind: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    indices: tuple[int, ...] | None = None

    def lower(self, graph: Graph, *tensors: str) -> str:
        last = [] if self.indices is None else [graph.constant(self.indices, np.int64)]
        return graph.op(self.kind, *tensors, *last, **self.attributes)


@dataclass(frozen=True, slots=True)
class Remainder:
    """The operator ``%`` as numpy has it: the result has the sign of the divisor, and integers modulo 0 are 0."""

    dtype: Dtype

    def lower(self, graph: Graph, *tensors: str) -> str:
        x, y = tensors
        if self.dtype == "int64":
            return graph.op("Mod", x, _divisor(graph, y))
        rest = graph.op("Mod", x, y, fmod=1)
        return graph.op("Where", _truncated_up(graph, rest, y, self.dtype), graph.op("Add", rest, y), rest)


@dataclass(frozen=True, slots=True)
class FloorDivide:
    """The operator ``//`` as numpy has it: rounded down, and integers divided by 0 are 0."""

    dtype: Dtype

    def lower(self, graph: Graph, *tensors: str) -> str:
        x, y = tensors
        zero = graph.constant(0, self.dtype)
        if self.dtype == "int64":
            divisor = _divisor(graph, y)
            quotient = graph.op("Div", x, divisor)
            rest = graph.op("Sub", x, graph.op("Mul", quotient, divisor))
            down = graph.op("Cast", _truncated_up(graph, rest, divisor, self.dtype), to=ONNX_TYPES[self.dtype])
            quotient = graph.op("Where", graph.op("Equal", y, zero), zero, graph.op("Sub", quotient, down))
            minus_one = graph.op("Equal", y, graph.constant(-1, self.dtype))
            return graph.op("Where", minus_one, graph.op("Neg", x), quotient)
        rest = graph.op("Mod", x, y, fmod=1)
        down = graph.op("Cast", _truncated_up(graph, rest, y, self.dtype), to=ONNX_TYPES[self.dtype])
        quotient = graph.op("Sub", graph.op("Div", graph.op("Sub", x, rest), y), down)
        # The quotient is a whole number but for its rounding, and numpy rounds halves down.
        whole = graph.op("Floor", quotient)
        up = graph.op("Greater", graph.op("Sub", quotient, whole), graph.constant(0.5, np.float32))
        whole = graph.op("Add", whole, graph.op("Cast", up, to=ONNX_TYPES[self.dtype]))
        return graph.op("Where", graph.op("Equal", y, zero), graph.op("Div", x, y), whole)


@dataclass(frozen=True, slots=True)
class Extreme:
    """The larger or smaller of two integers, chosen by a comparison with the other one.

    onnxruntime 1.31 gives wrong ones for Max and Min above 2**31.
    """

    kind: Literal["Greater", "Less"]

    def lower(self, graph: Graph, *tensors: str) -> str:
        return graph.op("Where", graph.op(self.kind, *tensors), *tensors)


def _divisor(graph: Graph, y: str) -> str:
    """Return integer divisors with 1 in place of 0 and -1, with which the division of a processor can fail."""
    one = graph.constant(1, np.int64)
    fails = [graph.op("Equal", y, graph.constant(number, np.int64)) for number in (0, -1)]
    return graph.op("Where", graph.op("Or", *fails), one, y)


def _truncated_up(graph: Graph, rest: str, y: str, dtype: Dtype) -> str:
    """Return where truncation rounded a quotient up: the remainder and the divisor differ in their signs."""
    zero = graph.constant(0, dtype)
    signs = graph.op("Xor", graph.op("Less", rest, zero), graph.op("Less", y, zero))
    return graph.op("And", graph.op("Not", graph.op("Equal", rest, zero)), signs)


def flat_values(name: str, column: Column, takes: Dtype | None) -> pa.Array:
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
        values = values.cast(ARROW_TYPES[takes or "string"])
    if takes is not None and values.type != ARROW_TYPES[takes]:
        raise InvalidTypeError(f"te.strings.{name} takes {takes}, but got {values.type}.")
    return values


def sizes_of(column: Column) -> Any:
    """Return the shape of a column, or the lengths of its lists."""
    if isinstance(column, np.ndarray):
        return column.shape
    return list_lengths(column).tolist() if is_lists(column) else (len(column),)
