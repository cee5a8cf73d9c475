"""Builder of an ONNX graph. Equal nodes are added only once."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from torch_estimator.errors import ExportError
from torch_estimator.export.signatures import DATA_FILE, TensorInfo
from torch_estimator.train.mapped_tables import StoredTable

OPSETS = {"": 21, "ai.onnx.ml": 4, "com.microsoft": 1}
IR_VERSION = 10

_SCOPES = "pkg.torch.onnx.name_scopes"

Array = npt.NDArray[Any]
Shape = Sequence[int | str]

APART_BYTES = 1024
"""Initializers of this size are not copied into protocol buffers before `GraphBuilder.model` does."""

_BLOCK_BYTES = 2**24
_ALIGNMENT = 2**16  # Windows maps files from multiples of this number on, other systems from multiples of 4,096.

FLOAT = onnx.TensorProto.FLOAT
DOUBLE = onnx.TensorProto.DOUBLE
INT64 = onnx.TensorProto.INT64
INT32 = onnx.TensorProto.INT32
UINT64 = onnx.TensorProto.UINT64
UINT32 = onnx.TensorProto.UINT32
STRING = onnx.TensorProto.STRING
BOOL = onnx.TensorProto.BOOL


@dataclass(frozen=True, slots=True)
class _Apart:
    """Values of a large initializer, rows first, of which only one block at a time is copied.

    `change` takes a block of rows and returns the rows to store; None stores the values as they are. `dtype` is that of
    what is stored, None for the array's.
    """

    array: Array | StoredTable
    change: Callable[[Array], Array] | None = None
    dtype: np.dtype[Any] | None = None

    @property
    def nbytes(self) -> int:
        """Number of bytes that are stored."""
        return self.array.size * (self.dtype or self.array.dtype).itemsize

    def blocks(self) -> Iterator[memoryview]:
        rows = max(1, _BLOCK_BYTES * len(self.array) // self.array.nbytes)
        for start in range(0, len(self.array), rows):
            block = self.array[start : start + rows]
            stored = block if self.change is None else self.change(block)
            # Not memoryview(stored), which does not take bfloat16.
            yield np.ascontiguousarray(stored).reshape(-1).view(np.uint8).data


class GraphBuilder:
    """ONNX graph under construction: nodes, constants, inputs and outputs. A tensor is represented by its name.

    If the graph has a node of the same operator, inputs and attributes already, `op` returns its output. Two
    columns that hash the same key thus share the hash.

    >>> graph = GraphBuilder()
    >>> x = graph.input("x", TensorInfo(dtype="DT_FLOAT", shape=(-1, 1), tensor="x"))
    >>> graph.op("Relu", x), graph.op("Relu", x)
    ('relu', 'relu')
    """

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._apart: dict[str, _Apart] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._known: dict[Any, tuple[str, ...]] = {}
        self._names: set[str] = set()
        self._renamed: dict[str, str] = {}

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node with one output, unless an equal node exists; return the output's name."""
        return self.multi(kind, inputs, outputs=1, domain=domain, **attributes)[0]

    def multi(
        self, kind: str, inputs: Sequence[str], *, outputs: int, domain: str = "", **attributes: Any
    ) -> tuple[str, ...]:
        """Add a node with several outputs, unless an equal node exists; return the names of the outputs."""
        identity = (kind, domain, tuple(inputs), outputs, repr(sorted(attributes.items())))
        if identity not in self._known:
            names = tuple(self.name(kind.lower()) for _ in range(outputs))
            if "name" in attributes:
                # The name of a node is part of onnxruntime's messages. It must be unique, too.
                attributes["name"] = self.name(attributes["name"])
            self._nodes.append(helper.make_node(kind, list(inputs), list(names), domain=domain, **attributes))
            self._known[identity] = names
        return self._known[identity]

    def constant(
        self,
        value: Any,
        dtype: npt.DTypeLike | None = None,
        *,
        hint: str = "constant",
        change: Callable[[Array], Array] | None = None,
    ) -> str:
        """Add a constant of numbers or strings; return its name. Equal small constants are stored only once.

        A large array must not change before `model` and `data` have read it. `hint` becomes the name, if it is free.
        `change` is applied to blocks of rows when the constant is stored.
        """
        if isinstance(value, StoredTable):
            if value.nbytes >= APART_BYTES:
                return self._set_apart(self.name(hint), _Apart(value, change))
            value = value[:]
        array = np.asarray(value, dtype=dtype)
        if change is not None and array.nbytes < APART_BYTES:
            array, change = change(array), None
        identity: Any = (str(array.dtype), array.shape, array.tobytes()) if array.size <= 64 else None
        if array.dtype.kind in "OU":
            identity = ("string", array.shape, tuple(array.ravel().tolist()))
        if identity is None or identity not in self._known:
            name = self.name(hint)
            if array.nbytes < APART_BYTES or not array.ndim or array.dtype.kind in "OU":
                self._initializers.append(_tensor(array, name))
            else:
                self._set_apart(name, _Apart(array, change))
            if identity is None:
                return name
            self._known[identity] = (name,)
        return self._known[identity][0]

    def _set_apart(self, name: str, apart: _Apart) -> str:
        kind = helper.np_dtype_to_tensor_dtype(apart.array.dtype)
        self._initializers.append(onnx.TensorProto(name=name, data_type=kind, dims=apart.array.shape))
        self._apart[name] = apart
        return name

    def input(self, name: str, info: TensorInfo) -> str:
        """Declare an input of the graph; return its name."""
        self._claim(name)
        self._inputs.append(_value_info(name, info))
        return name

    def optional_input(self, name: str, default: Array) -> str:
        """Declare an input that callers may omit; it is then `default`. The size of its first dimension may vary."""
        self._claim(name)
        tensor = _tensor(default, name)
        shape = [f"{name}_rows", *default.shape[1:]]
        self._inputs.append(helper.make_tensor_value_info(name, tensor.data_type, shape))
        self._initializers.append(tensor)
        return name

    def output(self, name: str, tensor: str, info: TensorInfo) -> None:
        """Declare a tensor as an output of the graph, under a name that was reserved by the method `name`."""
        made_here = any(tensor in node.output for node in self._nodes)
        if made_here and tensor not in self._renamed:
            self._renamed[tensor] = name
        else:
            self._nodes.append(helper.make_node("Identity", [tensor], [name]))
        self._outputs.append(_value_info(name, info))

    def branch(self, condition: str, then: onnx.GraphProto, otherwise: onnx.GraphProto) -> str:
        """Add an ``If`` node whose branches have one output each; return the name of the node's output."""
        name = self.name("if")
        self._nodes.append(helper.make_node("If", [condition], [name], then_branch=then, else_branch=otherwise))
        return name

    def inline(
        self, graph: onnx.GraphProto, inputs: Sequence[str], apart: Mapping[str, Array] | None = None
    ) -> tuple[str, ...]:
        """Copy the nodes of another graph into this graph, under new names; return the names of the copied outputs.

        `inputs` are tensors of this graph in place of the other's inputs. `apart` holds values of initializers that the
        other graph only describes, by name.
        """
        prefix = self.name("inlined") + "/"
        outer = dict(zip((value.name for value in graph.input), inputs, strict=True))
        for initializer in graph.initializer:
            copy = onnx.TensorProto()
            copy.CopyFrom(initializer)
            copy.name = outer[initializer.name] = prefix + initializer.name
            if apart and initializer.name in apart:
                copy.ClearField("data_location")
                del copy.external_data[:]
                self._apart[copy.name] = _Apart(apart[initializer.name])
            self._initializers.append(copy)
        self._nodes.extend(_renamed(node, outer, prefix) for node in graph.node)
        return tuple(outer[value.name] for value in graph.output)

    def name(self, hint: str) -> str:
        """Return a name that this graph does not use yet, and reserve it."""
        name, number = hint, 0
        while name in self._names:
            number += 1
            name = f"{hint}_{number}"
        self._names.add(name)
        return name

    def model(self, *, producer: str, version: str, data_from: int | None = None) -> onnx.ModelProto:
        """Return the finished graph as an ONNX model.

        Initializers of `data_from` bytes or more are in the file `DATA_FILE`; for None, there is no such file.
        """
        nodes = [self._with_output_names(node) for node in self._nodes]
        graph = helper.make_graph(nodes, "estimator", self._inputs, self._outputs, self._initializers)
        opsets = [helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
        model = helper.make_model(
            graph,
            opset_imports=opsets,
            ir_version=IR_VERSION,
            producer_name=producer,
            producer_version=version,
        )
        offset = 0
        for tensor in model.graph.initializer:
            apart = self._apart.get(tensor.name)
            if apart is None:
                continue
            size = apart.nbytes
            if data_from is None or size < data_from:
                tensor.raw_data = b"".join(apart.blocks())
                continue
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", DATA_FILE), ("offset", offset), ("length", size)):
                tensor.external_data.add(key=key, value=str(value))
            offset += size + -size % _ALIGNMENT
        return model

    def data(self, data_from: int) -> Iterator[memoryview | bytes]:
        """Yield the content of the file `DATA_FILE` in blocks; `data_from` is as for `model`."""
        for apart in self._apart.values():
            if apart.nbytes >= data_from:
                yield from apart.blocks()
                yield bytes(-apart.nbytes % _ALIGNMENT)

    def store_lookups_as(self, dtype: np.dtype[Any], rounded: Callable[[str, Array], Array]) -> list[str]:
        """Store large float32 initializers of which nodes only look up rows in another dtype; return their names.

        `rounded` takes the name of an initializer and a block of its rows, and returns these as `dtype`. What is looked
        up is cast to float32.
        """
        readers: dict[str, list[tuple[onnx.NodeProto, bool]]] = {}
        for node in self._nodes:
            looks_up = node.op_type == "Gather" and not any(one.name == "axis" and one.i for one in node.attribute)
            for place, name in enumerate(_inputs(node)):
                readers.setdefault(name, []).append((node, looks_up and not place))
        names = [
            name
            for name, apart in self._apart.items()
            if apart.array.dtype == np.float32 and all(looks_up for _, looks_up in readers.get(name, [(None, False)]))
        ]
        casts = {id(node) for name in names for node, _ in readers[name]}
        nodes, self._nodes = self._nodes, []
        for node in nodes:
            self._nodes.append(node)
            if id(node) in casts:
                (found,) = node.output
                node.output[0] = self.name(f"{found}_stored")
                self._nodes.append(helper.make_node("Cast", [node.output[0]], [found], to=FLOAT))
        for name in names:
            apart = self._apart[name]
            change = functools.partial(_changed, before=apart.change, then=functools.partial(rounded, name))
            self._apart[name] = _Apart(apart.array, change, dtype)
        for tensor in self._initializers:
            if tensor.name in names:
                tensor.data_type = helper.np_dtype_to_tensor_dtype(dtype)
        return names

    def scopes(self, node: str) -> list[str]:
        """Return the paths of the nested torch modules that produced a node, the outermost first; empty if unknown."""
        for one in self._nodes:
            if one.name == node:
                recorded = {prop.key: prop.value for prop in one.metadata_props}
                # Leave out the last entry, which is the name of the operator itself.
                return list(ast.literal_eval(recorded.get(_SCOPES, "[]")))[:-1]
        return []

    def needed(self) -> set[str]:
        """Return the names of all tensors that the outputs of the graph depend on."""
        found = {*self._renamed, *(value.name for value in self._outputs)}
        for node in reversed(self._nodes):
            if not found.isdisjoint(node.output):
                found.update(_inputs(node))
        return found

    @property
    def size(self) -> int:
        """Size of all numeric constants of the graph in bytes."""
        inside = sum(len(tensor.raw_data) for tensor in self._initializers)
        return inside + sum(apart.nbytes for apart in self._apart.values())

    def _with_output_names(self, node: onnx.NodeProto) -> onnx.NodeProto:
        """Return a copy of a node in which the outputs of the graph have their final names."""
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for names in (copy.input, copy.output):
            for position, tensor in enumerate(names):
                names[position] = self._renamed.get(tensor, tensor)
        return copy

    def _claim(self, name: str) -> None:
        """Reserve the name of an input. Raise if it is taken, since callers need the input under exactly this name."""
        if name in self._names:
            raise ExportError(f"the name {name!r} is used twice among the inputs and outputs of the export.")
        self._names.add(name)


def _tensor(array: Array, name: str) -> onnx.TensorProto:
    if array.dtype.kind in "OU":
        values = [text.encode() for text in array.ravel().tolist()]
        return helper.make_tensor(name, STRING, array.shape, values)
    # Pass raw bytes. Otherwise make_tensor would build a list of Python numbers: gigabytes for a large table.
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor(name, kind, array.shape, np.ascontiguousarray(array).tobytes(), raw=True)


def _value_info(name: str, info: TensorInfo) -> onnx.ValueInfoProto:
    shape = [size if size != -1 else f"{name}_length" if place else "batch" for place, size in enumerate(info.shape)]
    return helper.make_tensor_value_info(name, element_type(info), shape)


def element_type(info: TensorInfo) -> int:
    """Return ONNX's number of a tensor's type, which has TensorFlow's name without ``DT_``."""
    return int(onnx.TensorProto.DataType.Value(info.dtype.removeprefix("DT_")))


def _changed(rows: Array, before: Callable[[Array], Array] | None, then: Callable[[Array], Array]) -> Array:
    return then(rows if before is None else before(rows))


def _inputs(node: onnx.NodeProto) -> list[str]:
    """Return the inputs of a node, and then those of the nodes in its branches."""
    inner = (one for attribute in node.attribute for graph in (attribute.g, *attribute.graphs) for one in graph.node)
    return [*node.input, *(name for one in inner for name in _inputs(one))]


def _renamed(node: onnx.NodeProto, outer: dict[str, str], prefix: str) -> onnx.NodeProto:
    """Return a copy of a node with prefixed names. `outer` maps old to new names, and gets the names of the outputs."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.name = prefix + node.name
    for position, tensor in enumerate(node.input):
        copy.input[position] = outer.get(tensor, tensor and prefix + tensor)
    for position, tensor in enumerate(node.output):
        if tensor:
            copy.output[position] = outer[tensor] = prefix + tensor
    for attribute in copy.attribute:
        for graph in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
            _rename_subgraph(graph, outer, prefix)
    return copy


def _rename_subgraph(graph: onnx.GraphProto, outer: dict[str, str], prefix: str) -> None:
    """Prefix the names in a branch or loop body. `outer` maps old to new names of the enclosing graph's tensors."""
    names = dict(outer)
    for value in (*graph.input, *graph.initializer):
        names[value.name] = prefix + value.name
        value.name = names[value.name]
    nodes = [_renamed(node, names, prefix) for node in graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    for value in graph.output:
        value.name = names[value.name]
