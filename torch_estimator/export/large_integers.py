"""ONNX nodes that give the right large integers where onnxruntime's own operators do not.

Where onnxruntime 1.31 compares int64 numbers several at a time, it takes 0 for larger than 2**31. `replace` exchanges
such operators, in a graph of torch's exporter, for others that compare single numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch_estimator.export.graph import INT64


def replace(model: Any) -> None:
    """Replace those operators of an `onnx_ir` model that compute wrong int64 numbers."""
    from onnxscript import ir

    for scope in (model.graph, *model.functions.values()):
        for node in list(scope.all_nodes()):
            result = node.outputs[0]
            if node.domain or node.op_type not in _REPLACEMENTS or result.dtype != INT64:
                continue
            tape = ir.tape.Tape()
            value = tape.op("Identity", [_REPLACEMENTS[node.op_type](tape, node)])
            ir.convenience.replace_nodes_and_values(node.graph, node, [node], tape.nodes, [result], [value])


def _chosen(tape: Any, comparison: str, value: Any, other: Any) -> Any:
    return tape.op("Where", [tape.op(comparison, [value, other]), value, other])


def _extreme(tape: Any, node: Any) -> Any:
    comparison = "Greater" if node.op_type == "Max" else "Less"
    return functools.reduce(functools.partial(_chosen, tape, comparison), node.inputs)


def _clip(tape: Any, node: Any) -> Any:
    value, *limits = node.inputs
    for limit, comparison in zip(limits, ("Greater", "Less"), strict=False):
        value = value if limit is None else _chosen(tape, comparison, value, limit)
    return value


def _relu(tape: Any, node: Any) -> Any:
    return _chosen(tape, "Greater", node.inputs[0], tape.op("Sub", [node.inputs[0]] * 2))


def _sign(tape: Any, node: Any) -> Any:
    zero = tape.op("Sub", [node.inputs[0]] * 2)
    signs = [tape.op("Cast", [tape.op(kind, [node.inputs[0], zero])], {"to": INT64}) for kind in ("Greater", "Less")]
    return tape.op("Sub", signs)


def _reduce(tape: Any, node: Any) -> Any:
    """Return the largest or smallest numbers along some dimensions, from TopK, which compares single numbers."""
    from onnxscript import ir

    value = node.inputs[0]
    given = ir.convenience.get_const_tensor(node.inputs[1]) if len(node.inputs) > 1 else None
    axes = list(range(len(value.shape))) if given is None else given.numpy().tolist()
    one = tape.op("Constant", [], {"value": ir.tensor([1])})
    for axis in axes:
        largest = int(node.op_type == "ReduceMax")
        value, _ = tape.op_multi_out("TopK", [value, one], {"axis": axis, "largest": largest}, num_outputs=2)
    kept = node.attributes.get("keepdims")
    if axes and kept is not None and not kept.as_int():
        value = tape.op("Squeeze", [value, tape.op("Constant", [], {"value": ir.tensor(axes)})])
    return value


_REPLACEMENTS: dict[str, Callable[[Any, Any], Any]] = {
    "Max": _extreme,
    "Min": _extreme,
    "Clip": _clip,
    "Relu": _relu,
    "Sign": _sign,
    "ReduceMax": _reduce,
    "ReduceMin": _reduce,
}
