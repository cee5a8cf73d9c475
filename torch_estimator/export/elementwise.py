"""Conversion of simple torch functions to ONNX nodes without torch's exporter, whose import alone takes a second.

Most normalizers, such as ``torch.log1p`` or ``lambda age: (age - 40) / 10``, compute each number from one number, by a
few torch functions and constants. `Elementwise` calls such a function, records the torch functions that it calls, and
maps each to the ONNX operators that torch's exporter chooses for it. The exported numbers are therefore the same with
and without torch's exporter.

A function that calls anything else is left to torch's exporter (`torch_estimator.export.torch_callable.inline`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from torch_estimator.export.graph import FLOAT, GraphBuilder

# Numbers for which a function and its recording must agree. They lie on both sides of likely thresholds.
_PROBES = (0.0, 1.0, -1.0, 0.5, -0.25, 2.0, -3.0, 7.3, 17.0, 40.0, 65.5, -100.0, 999.0, 1e-6, 5e4, -1e6, 1e9, 1e30)
_PROBED_ROWS = 47
_RECORDED_ROWS = 3


@dataclass(frozen=True, slots=True, eq=False)
class _Node:
    """An ONNX node that is not in the graph yet.

    `kind` is the operator; empty for the input of the function. None among `inputs` is an optional input that is left
    out.
    """

    kind: str
    inputs: tuple[_Operand, ...] = ()
    attributes: Mapping[str, Any] | None = None


_Operand: TypeAlias = "_Node | float | torch.Tensor | None"
_Rule: TypeAlias = Callable[..., _Node]


class _NotElementwiseError(Exception):
    """The function does something that this module has no rule for."""


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A simple torch function, in the form of ONNX nodes that can be added to a graph.

    >>> from torch_estimator.export.signatures import TensorInfo
    >>> graph = GraphBuilder()
    >>> x = graph.input("x", TensorInfo(dtype="DT_FLOAT", shape=(-1, 1), tensor="x"))
    >>> Elementwise.of(torch.log1p, (1,)).lower(graph, x)
    'log'
    >>> Elementwise.of(lambda x: x.cumsum(1), (3,)) is None
    True
    """

    _input: _Node
    _output: _Node

    @classmethod
    def of(cls, function: Callable[..., Any], row_shape: Sequence[int]) -> Elementwise | None:
        """Convert a function from a float32 tensor to one of the same shape; return None if it is not simple.

        `row_shape` is the shape of the argument without its first dimension, the batch.
        """
        if isinstance(function, nn.Module):
            # Torch's exporter puts a module into evaluation mode.
            return None
        recording = _Recording()
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                recording.record(function, torch.ones(_RECORDED_ROWS, *row_shape))
                recording.check(function, _probes(row_shape))
        except Exception:
            # Leave errors of the function itself to torch's exporter, too, which explains them to the user.
            return None
        return cls(recording.input, recording.output)

    def lower(self, graph: GraphBuilder, tensor: str) -> str:
        """Add the nodes that apply the function to a tensor of a graph; return the name of the result."""
        return _add(graph, self._output, {self._input: tensor})


class _Recording(TorchFunctionMode):
    """The torch functions that a function calls, in their order, and the ONNX nodes for them."""

    output: _Node

    def __init__(self) -> None:
        super().__init__()
        self.input = _Node("")
        self._argument: torch.Tensor
        self._result: torch.Tensor
        # Nodes by the ids of the results. The results are kept, because Python reuses the ids of deleted objects.
        self._known: dict[int, tuple[torch.Tensor, _Node]] = {}
        self._calls: list[tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any], torch.Tensor]] = []

    def record(self, function: Callable[..., Any], argument: torch.Tensor) -> None:
        """Call a function and record what it does; raise if it calls a torch function without a rule.

        Raise, too, if it returns something else than numbers of the argument's shape.
        """
        self._argument = argument
        self._known = {id(argument): (argument, self.input)}
        with self:
            self._result = function(argument)
        if id(self._result) not in self._known or self._result.shape != argument.shape:
            raise _NotElementwiseError
        if self._result.dtype != torch.float32:
            raise _NotElementwiseError
        self.output = self._known[id(self._result)][1]

    def check(self, function: Callable[..., Any], argument: torch.Tensor) -> None:
        """Check that the recorded calls compute for other numbers, and for another batch size, what the function does.

        They do not if the function draws random numbers, or looks at its argument in a way that torch does not report.
        """
        values = {id(self._argument): argument}
        for call, args, kwargs, result in self._calls:
            values[id(result)] = call(
                *(values.get(id(value), value) for value in args),
                **{name: values.get(id(value), value) for name, value in kwargs.items()},
            )
        replayed, expected = values[id(self._result)], function(argument)
        if not torch.allclose(replayed, expected, rtol=0, atol=0, equal_nan=True):
            raise _NotElementwiseError

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        rule = _RULES.get(func)
        if rule is None and func not in _CONSTANTS:
            raise _NotElementwiseError
        result = func(*args, **kwargs)
        if rule is None or not any(id(value) in self._known for value in (*args, *kwargs.values())):
            return result
        if id(result) not in self._known:
            node = rule(*map(self._operand, args), **{name: self._operand(value) for name, value in kwargs.items()})
            if result.dtype != (torch.bool if node.kind in _TESTS else torch.float32):
                raise _NotElementwiseError
            self._known[id(result)] = (result, node)
            self._calls.append((func, args, kwargs, result))
        return result

    def _operand(self, value: Any) -> _Operand:
        if id(value) in self._known:
            return self._known[id(value)][1]
        if isinstance(value, torch.Tensor):
            if value.dtype != torch.float32:
                raise _NotElementwiseError
            return value.detach().cpu().clone()
        if value is None or isinstance(value, float | int):
            return value
        if isinstance(value, np.floating | np.integer):
            return value.item()
        raise _NotElementwiseError


def _probes(row_shape: Sequence[int]) -> torch.Tensor:
    numbers = np.resize(np.asarray(_PROBES, np.float32), (_PROBED_ROWS, *row_shape))
    return torch.from_numpy(numbers)


def _add(graph: GraphBuilder, operand: _Operand, names: dict[_Node, str]) -> str:
    """Add an operand and what it is computed from to the graph; return its name.

    `names` holds the names of the tensors that the graph has already. New ones are added.
    """
    if operand is None:
        return ""
    if not isinstance(operand, _Node):
        return graph.constant(operand, np.float32)
    if operand not in names:
        inputs = [_add(graph, value, names) for value in operand.inputs]
        names[operand] = graph.op(operand.kind, *inputs, **operand.attributes or {})
    return names[operand]


# Operators whose results are truth values. Only `where` and `float` take these.
_TESTS = {"Equal", "Not", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "IsNaN"}


def _op(kind: str, *inputs: _Operand, **attributes: Any) -> _Node:
    if any(isinstance(value, _Node) and value.kind in _TESTS for value in inputs) and kind not in ("Not", "Cast"):
        raise _NotElementwiseError
    return _Node(kind, inputs, attributes)


def _unary(kind: str) -> _Rule:
    def rule(value: _Operand) -> _Node:
        return _op(kind, value)

    return rule


def _binary(kind: str) -> _Rule:
    def rule(left: _Operand, right: _Operand) -> _Node:
        if left is None or right is None:
            raise _NotElementwiseError
        return _op(kind, left, right)

    return rule


def _relu(value: _Operand, inplace: bool = False) -> _Node:
    if inplace:
        raise _NotElementwiseError
    return _op("Relu", value)


def _clamp(value: _Operand, min: _Operand = None, max: _Operand = None) -> _Node:  # torch's names
    if isinstance(min, _Node | torch.Tensor) or isinstance(max, _Node | torch.Tensor):
        raise _NotElementwiseError
    return _op("Min", value, max) if min is None else _op("Clip", value, min, *([] if max is None else [max]))


def _where(condition: _Operand, then: _Operand, otherwise: _Operand) -> _Node:
    if not isinstance(condition, _Node) or condition.kind not in _TESTS:
        raise _NotElementwiseError
    for value in (then, otherwise):
        if value is None or (isinstance(value, _Node) and value.kind in _TESTS):
            raise _NotElementwiseError
    return _Node("Where", (condition, then, otherwise))


# The ONNX operators of torch functions: those that torch's exporter chooses. A test compares the two.
_BY_NAME: dict[str, _Rule] = {
    **{name: _unary("Abs") for name in ("abs", "absolute", "__abs__")},
    **{name: _unary("Neg") for name in ("neg", "negative", "__neg__")},
    "exp": _unary("Exp"),
    "log": _unary("Log"),
    "sqrt": _unary("Sqrt"),
    "reciprocal": _unary("Reciprocal"),
    "sigmoid": _unary("Sigmoid"),
    "tanh": _unary("Tanh"),
    "relu": _relu,
    "sign": _unary("Sign"),
    "floor": _unary("Floor"),
    "ceil": _unary("Ceil"),
    "round": _unary("Round"),
    "sin": _unary("Sin"),
    "cos": _unary("Cos"),
    "atan": _unary("Atan"),
    "asinh": _unary("Asinh"),
    "erf": _unary("Erf"),
    "isnan": _unary("IsNaN"),
    "log1p": lambda value: _op("Log", _op("Add", value, 1.0)),
    "expm1": lambda value: _op("Sub", _op("Exp", value), 1.0),
    "rsqrt": lambda value: _op("Reciprocal", _op("Sqrt", value)),
    "square": lambda value: _op("Pow", value, 2.0),
    "exp2": lambda value: _op("Pow", 2.0, value),
    "log2": lambda value: _op("Div", _op("Log", value), math.log(2)),
    "log10": lambda value: _op("Div", _op("Log", value), math.log(10)),
    **{name: _binary("Add") for name in ("add", "__add__", "__radd__")},
    **{name: _binary("Sub") for name in ("sub", "subtract", "__sub__")},
    **{name: _binary("Mul") for name in ("mul", "multiply", "__mul__", "__rmul__")},
    **{name: _binary("Div") for name in ("div", "divide", "true_divide", "__truediv__")},
    **{name: _binary("Pow") for name in ("pow", "__pow__")},
    **{name: _binary("Min") for name in ("minimum", "min")},
    **{name: _binary("Max") for name in ("maximum", "max")},
    "rsub": lambda value, other: _op("Sub", other, value),
    "__rsub__": lambda value, other: _op("Sub", other, value),
    "__rdiv__": lambda value, other: _op("Mul", _op("Reciprocal", value), other),
    "__rpow__": lambda value, other: _op("Pow", other, value),
    **dict.fromkeys(("clamp", "clip"), _clamp),
    "clamp_min": lambda value, min: _clamp(value, min),
    "clamp_max": lambda value, max: _op("Clip", value, None, max),
    **{name: _binary("Greater") for name in ("gt", "greater", "__gt__")},
    **{name: _binary("GreaterOrEqual") for name in ("ge", "greater_equal", "__ge__")},
    **{name: _binary("Less") for name in ("lt", "less", "__lt__")},
    **{name: _binary("LessOrEqual") for name in ("le", "less_equal", "__le__")},
    **{name: _binary("Equal") for name in ("eq", "__eq__")},
    **{name: (lambda left, right: _op("Not", _op("Equal", left, right))) for name in ("ne", "not_equal", "__ne__")},
    "where": _where,
    "float": lambda value: _op("Cast", value, to=FLOAT),
}


def _rules() -> dict[Any, _Rule]:
    """Return the rules by torch function. One name may be that of several: a function, and a tensor's method."""
    owners = (torch, torch.Tensor, torch.special, torch.nn.functional)
    named = ((getattr(owner, name, None), rule) for name, rule in _BY_NAME.items() for owner in owners)
    return {function: rule for function, rule in named if callable(function)}


_RULES = _rules()

# Functions that make constants.
_CONSTANTS = (torch.tensor, torch.as_tensor)
