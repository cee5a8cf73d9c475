"""Expressions: columns of the requests to an export, and what operations make of such columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.lowering import Graph
from torch_estimator.strings.operations import (
    Dtype,
    Extreme,
    FloorDivide,
    Node,
    Operation,
    Remainder,
    Split,
)

NUMBERS: tuple[Dtype, ...] = ("float32", "int64")
VALUES: tuple[Dtype, ...] = ("string", *NUMBERS)

_OPERATORS: Mapping[str, tuple[str, tuple[Dtype, ...]]] = {
    "+": ("Add", NUMBERS),
    "-": ("Sub", NUMBERS),
    "*": ("Mul", NUMBERS),
    "/": ("Div", ("float32",)),
    "//": ("Div", NUMBERS),
    "%": ("Mod", NUMBERS),
    "**": ("Pow", NUMBERS),
    "maximum": ("Max", NUMBERS),
    "minimum": ("Min", NUMBERS),
    "<": ("Less", NUMBERS),
    "<=": ("LessOrEqual", NUMBERS),
    ">": ("Greater", NUMBERS),
    ">=": ("GreaterOrEqual", NUMBERS),
    "==": ("Equal", VALUES),
    "&": ("And", ("bool",)),
    "|": ("Or", ("bool",)),
}
"""ONNX operator of each operator of Python, and the types that it takes."""

_CONDITIONS = ("<", "<=", ">", ">=", "==", "&", "|")

_BINARY_OF_NUMPY = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "floor_divide": "//",
    "remainder": "%",
    "power": "**",
    "maximum": "maximum",
    "minimum": "minimum",
    "less": "<",
    "less_equal": "<=",
    "equal": "==",
    "greater": ">",
    "greater_equal": ">=",
    "bitwise_and": "&",
    "logical_and": "&",
    "bitwise_or": "|",
    "logical_or": "|",
}
_UNARY_OF_NUMPY: Mapping[str, tuple[Operation, tuple[Dtype, ...]]] = {
    "negative": (Node("Neg"), NUMBERS),
    "absolute": (Node("Abs"), NUMBERS),
    "rint": (Node("Round"), ("float32",)),
    **{name: (Node(name.capitalize()), ("float32",)) for name in ("sqrt", "log", "exp", "floor", "ceil")},
}


_Method = Callable[[Any, Any], "Expression"]


def _both(symbol: str) -> tuple[_Method, _Method]:
    """Return the methods of an operator of Python: of its left and of its right operand."""
    return (lambda self, other: _binary(symbol, self, other)), (lambda self, other: _binary(symbol, other, self))


class Expression:
    """Column of the requests to an export, or what operations make of such columns.

    Beside the functions of `te.strings`, there are the operators ``+ - * / // % **`` of numbers, ``+`` of strings,
    comparisons, and ``& | ~`` of conditions. Numbers have numpy's `abs`, `sqrt`, `log`, `exp`, `floor`, `ceil`,
    `round`, `clip`, `maximum` and `minimum`. ``x[:, 1]`` and ``x[:, 1:3]`` are some of several values per row.

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
        operation: Operation | None = None,
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

    __add__, __radd__ = _both("+")
    __sub__, __rsub__ = _both("-")
    __mul__, __rmul__ = _both("*")
    __truediv__, __rtruediv__ = _both("/")
    __floordiv__, __rfloordiv__ = _both("//")
    __mod__, __rmod__ = _both("%")
    __pow__, __rpow__ = _both("**")
    __lt__, __gt__ = _both("<")[0], _both(">")[0]
    __le__, __ge__ = _both("<=")[0], _both(">=")[0]
    __and__, __or__ = _both("&")[0], _both("|")[0]

    def __eq__(self, other: Any) -> Expression:  # type: ignore[override]
        return _binary("==", self, other)

    def __ne__(self, other: Any) -> Expression:  # type: ignore[override]
        return ~_binary("==", self, other)

    def __neg__(self) -> Expression:
        return _unary("negative", self)

    def __pos__(self) -> Expression:
        return self

    def __abs__(self) -> Expression:
        return _unary("absolute", self)

    def __round__(self, decimals: int | None = None) -> Expression:
        return self.round(decimals or 0)

    def round(self, decimals: int = 0) -> Expression:
        """Return the values rounded, as ``numpy.round`` does.

        Args:
            decimals: Number of decimals.

        Raises:
            InvalidTypeError: The values are not numbers, or are integers to be rounded to tens.

        >>> te.serving_input.receiver({"x": "float32"}, lambda inputs: {"y": inputs["x"].round()}).features
        {'y': rint(x)}
        """
        if self.dtype == "int64" and decimals >= 0:
            return self
        scale = 10.0 ** abs(decimals)
        if decimals < 0:
            return _unary("rint", self / scale) * scale
        return _unary("rint", self * scale) / scale if decimals else _unary("rint", self)

    def clip(self, min: Any = None, max: Any = None) -> Expression:
        """Return the values within two limits, as ``numpy.clip`` does.

        Args:
            min: The lower limit, of the type of the values; None for none.
            max: The upper limit.

        Raises:
            InvalidTypeError: The values are not numbers, or a limit has another type.

        >>> te.serving_input.receiver({"x": "float32"}, lambda inputs: {"y": inputs["x"].clip(0, 1)}).features
        {'y': minimum(x)}
        """
        at_least = self if min is None else _binary("maximum", self, min)
        return at_least if max is None else _binary("minimum", at_least, max)

    def __invert__(self) -> Expression:
        return expression_of("~", Node("Not"), matched("~", [self], "bool"), "bool")

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
        return Expression("part", self.dtype, (len(places),), Node("Gather", {"axis": 1}, tuple(places)), [self])

    # An expression is itself as a key of a dict.
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise _unsupported(name)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise _unsupported("numpy.asarray")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **settings: Any) -> Expression:
        name = ufunc.__name__
        if method == "__call__" and not settings:
            if name in _BINARY_OF_NUMPY:
                return _binary(_BINARY_OF_NUMPY[name], *inputs)
            if name in _UNARY_OF_NUMPY:
                return _unary(name, *inputs)
        raise _unsupported(f"numpy.{name}")

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Expression:
        if function in (np.clip, np.round, np.around) and args and isinstance(args[0], Expression):
            method: Callable[..., Expression] = args[0].clip if function is np.clip else args[0].round
            return method(*args[1:], **{key.removeprefix("a_"): value for key, value in kwargs.items()})
        raise _unsupported(f"numpy.{function.__name__}")

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any, **__: Any) -> NoReturn:
        raise _unsupported(f"torch.{function.__name__}")

    def _value(self, *_: Any) -> NoReturn:
        raise InvalidTypeError(
            f"{self!r} has no value before a request comes; write te.strings.where(condition, x, y) in place of if, "
            "x + y in place of f-strings, and no loops."
        )

    def _operator(self, *_: Any) -> NoReturn:
        raise _unsupported("@, ^, <<, >> or divmod")

    __matmul__ = __rmatmul__ = __xor__ = __rxor__ = __lshift__ = __rshift__ = __divmod__ = __rdivmod__ = _operator

    __bool__ = __len__ = __iter__ = __int__ = __float__ = __format__ = _value


def add_to_graph(expression: Expression, graph: Graph, tensors: dict[Expression, str]) -> str:
    """Add the nodes that compute an expression to a graph; return the resulting tensor, ``[N, n]``.

    `tensors` holds the tensors of the inputs; those of the computed expressions are added.
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
    while expression.operation is not None and not isinstance(expression.operation, Split):
        expression = next(one for one in expression.operands if isinstance(one, Expression))
    return expression


def _binary(symbol: str, x: Any, y: Any) -> Expression:
    kind, allowed = _OPERATORS[symbol]
    dtype = next(one.dtype for one in (x, y) if isinstance(one, Expression))
    if symbol == "+" and dtype == "string":
        kind, allowed = "StringConcat", ("string",)
    if dtype not in allowed:
        raise InvalidTypeError(f"{symbol} takes {' or '.join(allowed)}, but {x!r} {symbol} {y!r} has {dtype}.")
    gives = "bool" if symbol in _CONDITIONS else dtype
    operands = matched(symbol, [x, y], dtype)
    operation: Operation = Node(kind)
    if dtype == "int64" and kind in ("Max", "Min"):
        operation = Extreme("Greater" if kind == "Max" else "Less")
    elif symbol in ("//", "%"):
        operation = FloorDivide(dtype) if symbol == "//" else Remainder(dtype)
    elif symbol == "**" and is_constant(y) and (y >= 0 if dtype == "int64" else y in (0.5, 2)):
        return _power(x, y)
    elif symbol == "**" and dtype == "int64":
        raise InvalidValueError(f"the exponent of integers must be a constant of at least 0, but got {x!r} ** {y!r}.")
    return expression_of(symbol, operation, operands, gives)


def _power(x: Expression, exponent: Any) -> Expression:
    """Return a power as numpy computes it. Pow of ONNX computes integers in float64, and another root of -inf."""
    if exponent == 0.5:
        return _unary("sqrt", x)
    result = x if exponent else x * 0 + 1
    for digit in f"{int(exponent):b}"[1:]:
        result = result * result * (x if digit == "1" else 1)
    return result


def _unary(name: str, x: Expression) -> Expression:
    operation, allowed = _UNARY_OF_NUMPY[name]
    if x.dtype not in allowed:
        cure = "; convert it with te.strings.to_number" if x.dtype in VALUES else ""
        raise InvalidTypeError(f"{name} takes {' or '.join(allowed)}, but {x!r} is {x.dtype}{cure}.")
    return expression_of(name, operation, [x], x.dtype)


def expression_of(name: str, operation: Operation, operands: Sequence[Any], gives: Dtype) -> Expression:
    """Return the result of an operation that works on each value by itself, for expressions and constants."""
    expressions = [one for one in operands if isinstance(one, Expression)]
    for one in operands:
        if not isinstance(one, Expression) and not is_constant(one):
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


def matched(name: str, operands: Sequence[Any], dtype: Dtype) -> list[Any]:
    """Check that all operands have a type; return them, with constants in this type. Arrays are left unchanged."""
    for one in operands:
        if isinstance(one, Expression) and one.dtype != dtype:
            raise InvalidTypeError(f"{name} takes {dtype} here, but {one!r} is {one.dtype}; te.strings has to_number.")
    convert = {"float32": np.float32, "int64": np.int64}.get(dtype, str)
    return [convert(*as_constants(name, [one], dtype)) if is_constant(one) else one for one in operands]


def is_constant(value: Any) -> bool:
    """Return whether a value is a string or a number, which stands for all rows."""
    return isinstance(value, str | int | float | np.generic)


def dtype_of(what: str, values: Sequence[Any], allowed: Sequence[Dtype]) -> Dtype:
    """Return the type of constants: integers among floats are floats."""
    kinds: set[Dtype] = {
        "string" if isinstance(one, str) else "int64" if isinstance(one, int | np.integer) else "float32"
        for one in values
    }
    dtype: Dtype = "float32" if kinds == {"int64", "float32"} else min(kinds)
    if dtype not in allowed:
        raise InvalidTypeError(f"{what} must be {' or '.join(allowed)}, but got {values[0]!r}.")
    as_constants(what, values, dtype)
    return dtype


def as_constants(what: str, values: Sequence[Any], dtype: Dtype) -> list[Any]:
    """Return constants as Python values."""
    kinds = {"string": str, "int64": int | np.integer, "float32": int | float | np.integer | np.floating}
    for one in values:
        if not isinstance(one, kinds.get(dtype, ())) or isinstance(one, bool):
            cure = "; convert the integers with te.strings.to_number" if isinstance(one, float) else ""
            raise InvalidTypeError(f"{what} must be {dtype}, but got {one!r}{cure}.")
    convert = {"float32": float, "int64": int}.get(dtype, str)
    return [convert(one) for one in values]


def _unsupported(name: str) -> InvalidTypeError:
    # Import here, because the package imports this module.
    from torch_estimator.strings import __all__ as public_names

    functions = ", ".join(f"te.strings.{one}" for one in public_names if one != "Expression")
    return InvalidTypeError(
        f"an export cannot compute {name} of a request's columns; there are {functions}, + - * / // % **, comparisons, "
        f"and numpy's {', '.join((*_UNARY_OF_NUMPY, 'round', 'clip', 'maximum', 'minimum'))}. The argument transform= "
        "of te.serving_input.json and raw_features takes a torch module, which can compute more of numbers."
    )
