"""An export changed to take and give columns of strings as codes, which makes predicting many rows much faster.

onnxruntime copies every string of a batch from Python, and the graph hashes each of them or looks it up. But a column
has few distinct strings. So the graph is changed to take the distinct strings and the code of each row. What it does
with single strings is done with the distinct ones, and the results are gathered by the codes. In the same way, strings
that the graph takes from a constant, such as names of classes, come as codes. The predictions are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from torch_estimator import files
from torch_estimator.batch_prediction.rows import Column, Texts
from torch_estimator.data.columns import Array
from torch_estimator.errors import ExportError, InvalidValueError
from torch_estimator.export.exported_model import ExportedModel, check_rows, open_session
from torch_estimator.export.feeds import as_tensor, filled
from torch_estimator.export.nan_predictions import check_predictions
from torch_estimator.export.signatures import MODEL_FILE

if TYPE_CHECKING:
    from onnx import NodeProto

# Operators whose result for a value depends on this value alone, so that they can run before the gathering.
_ELEMENTWISE = frozenset(
    [("ai.onnx.ml", "LabelEncoder"), ("com.microsoft", "MurmurHash3")]
    + [("", name) for name in ("BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "Cast", "Where")]
    + [("", name) for name in ("Add", "Sub", "Mul", "Mod", "Equal", "Less", "Greater", "And", "Or", "Not")]
)

_SIZES = ((-1,), (-1, 1))


class EncodedModel:
    """One signature of an export, taking and giving columns of strings as codes.

    Raise an ExportError if the graph cannot be changed so: it has inputs other than single values per row, large
    weights in files of their own, or subgraphs.
    """

    def __init__(self, model: ExportedModel, signature: str) -> None:
        self._signature, self._manifest = model.signature(signature), model.manifest
        texts = [info for info in self._signature.inputs.values() if info.dtype == "DT_STRING"]
        if not texts or any(info.varies for info in self._signature.inputs.values()):
            raise ExportError("the signature has no strings, or has lists.")
        if model.manifest.csv is not None or any(info.shape not in _SIZES for info in texts):
            raise ExportError("the signature has other strings than one per row.")
        # onnxruntime and protobuf raise many kinds of errors. The caller uses the unchanged export then.
        try:
            data, self._coded = _encoded(
                files.read_bytes(files.join(model.directory, MODEL_FILE)), [one.tensor for one in texts]
            )
            self._session = open_session(data)
        except Exception as error:
            raise ExportError(f"the graph cannot be changed: {files.reason(error)}.") from error
        tensors = [info.tensor for info in self._signature.outputs.values()]
        self._tensors = list(dict.fromkeys(self._coded[one][0] if one in self._coded else one for one in tensors))

    def predict(self, columns: Mapping[str, Column], rows: int) -> dict[str, Array | Texts]:
        """Return the outputs for a batch of at least one row; `columns` has strings as `Texts`.

        Inputs with a default may be left out. Raise an InvalidValueError if a column cannot be used, and an ExportError
        if onnxruntime fails or an output has another number of rows.
        """
        feeds: dict[str, Array] = {}
        for name, info in self._signature.inputs.items():
            column = columns.get(name)
            if column is None and info.default is None:
                raise InvalidValueError(f"Input {name} was missing.")
            if info.dtype == "DT_STRING":
                texts = column if isinstance(column, Texts) else _as_texts(name, column, info, rows)
                if len(texts.distinct) > rows:
                    # The strings of this batch are fewer than those of the whole chunk.
                    texts = Texts(texts.values(), np.arange(rows))
                feeds[_distinct(info.tensor)] = texts.distinct
                feeds[_codes(info.tensor)] = texts.codes.astype(np.int32, copy=False)
            else:
                feeds[info.tensor] = filled(info, rows) if column is None else as_tensor(name, column, info)
        try:
            results = dict(zip(self._tensors, self._session.run(self._tensors, feeds), strict=True))
        except Exception as error:
            raise ExportError(f"the model could not be run: {files.reason(error)}.") from error
        check_predictions(results, feeds, self._signature, self._manifest)
        outputs: dict[str, Array | Texts] = {}
        for name, info in self._signature.outputs.items():
            codes, distinct = self._coded.get(info.tensor, (info.tensor, None))
            check_rows({name: results[codes]}, rows, "the model")
            outputs[name] = results[codes] if distinct is None else Texts(distinct, results[codes] % len(distinct))
        return outputs


def _as_texts(name: str, column: Any, info: Any, rows: int) -> Texts:
    values = filled(info, rows) if column is None else as_tensor(name, column, info)
    return Texts(values.ravel(), np.arange(rows))


def _distinct(tensor: str) -> str:
    return f"{tensor}/distinct"


def _codes(tensor: str) -> str:
    return f"{tensor}/codes"


def _encoded(data: bytes, tensors: Sequence[str]) -> tuple[bytes, dict[str, tuple[str, Array]]]:
    """Return a graph whose inputs `tensors` take distinct strings and codes, and its outputs that became codes.

    These are given as name -> (tensor of the codes, distinct strings). Raise a ValueError if the graph has parts that
    this function does not know.
    """
    import onnx

    model = onnx.load_from_string(data)
    graph = model.graph
    if any(one.data_location == onnx.TensorProto.EXTERNAL for one in graph.initializer):
        raise ValueError("its weights are in files of their own")
    if any(attribute.type == onnx.AttributeProto.GRAPH for node in graph.node for attribute in node.attribute):
        raise ValueError("it has subgraphs")
    change = _Change({one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer})
    inputs = {one.name: one for one in graph.input}
    for tensor in tensors:
        rank = len(inputs[tensor].type.tensor_type.shape.dim)
        graph.input.remove(inputs[tensor])
        graph.input.append(
            onnx.helper.make_tensor_value_info(_distinct(tensor), onnx.TensorProto.STRING, [_distinct(tensor)])
        )
        graph.input.append(onnx.helper.make_tensor_value_info(_codes(tensor), onnx.TensorProto.INT32, ["rows"]))
        change.add_input(tensor, rank)
    for node in graph.node:
        change.add(node)
    for output in graph.output:
        change.gather(output.name)
    coded = change.coded_outputs([output.name for output in graph.output])
    for name, (codes, _) in coded.items():
        output = next(one for one in graph.output if one.name == name)
        graph.output.remove(output)
        if codes not in [one.name for one in graph.output]:
            graph.output.append(onnx.ValueInfoProto(name=codes))
    del graph.node[:], graph.value_info[:]
    graph.node.extend(change.nodes)
    graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in change.constants.items())
    return bytes(model.SerializeToString()), coded


class _Change:
    """The `nodes` of the changed graph so far, in order, and its new `constants`."""

    def __init__(self, initializers: Mapping[str, Array]) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, Array] = {}
        self._initializers = initializers
        # Tensors ``[rows]`` that are not computed: name -> (values of the distinct strings ``[distinct]``, codes).
        self._vectors: dict[str, tuple[str, str]] = {}
        # Tensors ``[rows, n]`` that are not computed: name -> for each column the values ``[distinct, 1]``, and codes.
        self._columns: dict[str, list[tuple[str, str]]] = {}
        self._gathered: set[str] = set()

    def add_input(self, tensor: str, rank: int) -> None:
        """Add an input of strings with one string per row."""
        vector = _distinct(tensor), _codes(tensor)
        if rank == 1:
            self._vectors[tensor] = vector
        else:
            self._columns[tensor] = [(self._unsqueezed(vector[0], f"{tensor}/column"), vector[1])]

    def add(self, node: NodeProto) -> None:
        """Add a node: for distinct strings if it can, else behind the gathering of its inputs."""
        inputs = list(node.input)
        name = node.output[0] if len(node.output) == 1 else ""
        columns = [one for one in inputs if one in self._columns]
        if (
            name
            and (node.domain, node.op_type) == ("", "Unsqueeze")
            and inputs[0] in self._vectors
            and self._axis(node) in (1, -1)
        ):
            values, codes = self._vectors[inputs[0]]
            self._columns[name] = [(self._unsqueezed(values, f"{name}/0"), codes)]
        elif (
            name
            and (node.domain, node.op_type) == ("", "Concat")
            and len(columns) == len(inputs)
            and self._axis(node) in (1, -1)
        ):
            self._columns[name] = [part for one in inputs for part in self._columns[one]]
        elif name and (node.domain, node.op_type) in _ELEMENTWISE and columns and self._fits(inputs, columns[0]):
            codes_of_parts = [codes for _, codes in self._columns[columns[0]]]
            parts = []
            for place, codes in enumerate(codes_of_parts):
                copy = type(node)()
                copy.CopyFrom(node)
                copy.name = ""
                copy.input[:] = [self._part(one, place, len(codes_of_parts)) for one in inputs]
                copy.output[:] = [f"{name}/{place}"]
                self.nodes.append(copy)
                parts.append((copy.output[0], codes))
            self._columns[name] = parts
        else:
            for one in inputs:
                self.gather(one)
            self.nodes.append(node)

    def coded_outputs(self, names: Sequence[str]) -> dict[str, tuple[str, Array]]:
        """Return the outputs that are strings gathered from a constant: name -> (codes, strings)."""
        coded = {}
        for node in self.nodes:
            strings = self._initializers.get(node.input[0]) if node.op_type == "Gather" else None
            if node.output[0] in names and strings is not None and strings.dtype == object and strings.ndim == 1:
                texts = [one.decode() if isinstance(one, bytes) else str(one) for one in strings]
                coded[node.output[0]] = node.input[1], np.array(texts, object)
        return coded

    def gather(self, name: str) -> None:
        """Compute a tensor by gathering, unless it is computed already."""
        from onnx import helper

        if name in self._gathered:
            return
        self._gathered.add(name)
        if name in self._vectors:
            values, codes = self._vectors[name]
            self.nodes.append(helper.make_node("Gather", [values, codes], [name], axis=0))
        elif name in self._columns:
            parts = self._columns[name]
            gathered = [name] if len(parts) == 1 else [f"{name}/gathered/{place}" for place in range(len(parts))]
            for (values, codes), output in zip(parts, gathered, strict=True):
                self.nodes.append(helper.make_node("Gather", [values, codes], [output], axis=0))
            if len(parts) > 1:
                self.nodes.append(helper.make_node("Concat", gathered, [name], axis=1))

    def _axis(self, node: NodeProto) -> int | None:
        """Return the axis of a Concat or of an Unsqueeze with one axis."""
        if node.op_type == "Concat":
            return int(next(one.i for one in node.attribute if one.name == "axis"))
        axes = self._initializers.get(node.input[1])
        return int(axes.item()) if axes is not None and axes.size == 1 else None

    def _fits(self, inputs: Sequence[str], like: str) -> bool:
        """Return whether every input has the codes of the tensor `like`, or is a constant for all rows."""
        codes = [code for _, code in self._columns[like]]
        for one in inputs:
            if one in self._columns:
                if [code for _, code in self._columns[one]] != codes:
                    return False
            elif one not in self._initializers or self._initializers[one].shape not in (
                (),
                (1,),
                (1, 1),
                (len(codes),),
                (1, len(codes)),
            ):
                return False
        return True

    def _part(self, name: str, place: int, count: int) -> str:
        """Return the tensor of one column of an input."""
        if name in self._columns:
            return self._columns[name][place][0]
        constant = self._initializers[name]
        if constant.size == 1:
            return name
        part = f"{name}/{place}"
        self.constants[part] = constant.reshape(1, count)[:, place : place + 1]
        return part

    def _unsqueezed(self, values: str, name: str) -> str:
        from onnx import helper

        self.constants["distinct/axis"] = np.array([1], np.int64)
        self.nodes.append(helper.make_node("Unsqueeze", [values, "distinct/axis"], [name]))
        return name
