"""Export of heads: the graph to which a head adds its predictions, and the signatures of the exported model.

Each head adds its predictions itself, in `torch_estimator.heads.Head.lower`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from torch_estimator import heads
from torch_estimator.errors import ExportError
from torch_estimator.export.dtypes import BY_COLUMN
from torch_estimator.export.graph import GraphBuilder
from torch_estimator.export.signatures import PREDICT, Signature, TensorInfo
from torch_estimator.export.torch_callable import Inlined, inline
from torch_estimator.heads import serving
from torch_estimator.heads.multi_head import exported_key
from torch_estimator.heads.serving import Prediction

METHODS = "tensorflow/serving/"


class HeadGraph:
    """Graph builder that is passed to a head. It implements the protocol `torch_estimator.heads.serving.Graph`."""

    def __init__(self, graph: GraphBuilder) -> None:
        self._graph = graph
        self.op = graph.op
        self.constant = graph.constant

    def trace(
        self, function: Callable[[Tensor], Mapping[str, Tensor]], logits: Prediction, *, what: str
    ) -> dict[str, Prediction]:
        """Convert a torch function of the logits to ONNX nodes of the graph; return the function's results by key."""
        # Run the function on two rows, to learn the keys, dtypes and shapes of its results before the conversion.
        with torch.no_grad():
            example = function(torch.zeros(2, *logits.row_shape))
        inputs = [Inlined(tensor=logits.tensor, row_shape=logits.row_shape, dtype="float32")]
        keys = list(example)
        tensors = inline(self._graph, lambda values: tuple(function(values)[key] for key in keys), inputs, what=what)
        return {
            key: Prediction(
                tensor=tensor, dtype=dtype_name(example[key].dtype, key), row_shape=tuple(example[key].shape[1:])
            )
            for key, tensor in zip(keys, tensors, strict=True)
        }


def lower_predictions(head: Any, graph: GraphBuilder, logits: Prediction) -> dict[str, Prediction]:
    """Add the predictions of a head to the graph, and return them by key."""
    lowered: dict[str, Prediction] = head.lower(HeadGraph(graph), logits)
    for key in map(exported_key, getattr(head, "prediction_keys", ())):
        if key not in lowered:
            raise ExportError(
                f"{type(head).__name__}.lower does not give the prediction {key!r}, which is in its prediction_keys."
            )
    return lowered


def is_premade(head: Any) -> bool:
    """Return whether a head, and each that it is made of, is a class of `torch_estimator.heads` itself."""
    parts = [*getattr(head, "heads", ()), *filter(None, [getattr(head, "static_head", None)])]
    return type(head) is getattr(heads, type(head).__name__, None) and all(map(is_premade, parts))


def signatures(
    head: Any,
    predictions: dict[str, TensorInfo],
    inputs: dict[str, TensorInfo],
    export_outputs: Mapping[str, serving.Signature] | None = None,
) -> dict[str, Signature]:
    """Return the signatures of an exported model by name.

    The methods classify and regress take each example as one string. If the inputs are anything else, the only
    signature is ``predict``, which is then ``serving_default`` as well. Predictions that the head did not make are
    outputs of every signature of the method predict. `export_outputs`, the signatures of the `EstimatorSpec`, are added
    to those of the head, or replace them.
    """
    examples = next(iter(inputs.values())) if len(inputs) == 1 else None
    if examples is not None and examples.dtype != "DT_STRING":
        examples = None
    made = _of_head(head, predictions, inputs, examples)
    chosen = dict(export_outputs or {})
    if len(chosen) == 1 and not head.signatures():
        chosen.setdefault(serving.SERVING_DEFAULT, *chosen.values())
    return {**made, **{name: _chosen(name, one, predictions, inputs, examples) for name, one in chosen.items()}}


def _chosen(
    name: str,
    signature: serving.Signature,
    predictions: Mapping[str, TensorInfo],
    inputs: dict[str, TensorInfo],
    examples: TensorInfo | None,
) -> Signature:
    """Return a signature of `EstimatorSpec.export_outputs` with the tensors of the graph."""
    for key in signature.outputs.values():
        if key not in predictions:
            raise ExportError(
                f"the signature {name!r} of export_outputs has the prediction {key!r}, which the model does not make; "
                f"it makes {', '.join(predictions)}."
            )
    outputs = {output: predictions[key] for output, key in signature.outputs.items()}
    if signature.method == "predict" or examples is None:
        return Signature(method_name=PREDICT, inputs=inputs, outputs=outputs)
    return Signature(method_name=METHODS + signature.method, inputs={"inputs": examples}, outputs=outputs)


def _of_head(
    head: Any, predictions: dict[str, TensorInfo], inputs: dict[str, TensorInfo], examples: TensorInfo | None
) -> dict[str, Signature]:
    """Return the signatures of a head. `examples` is the only input if that is a string, and otherwise None."""
    described = head.signatures()
    if not described:
        predict = Signature(method_name=PREDICT, inputs=inputs, outputs=predictions)
        return {serving.SERVING_DEFAULT: predict, "predict": predict}
    if examples is None:
        described = head.raw_signatures()
    own = set(described["predict"].outputs.values())
    others = {key: info for key, info in predictions.items() if key not in own}
    made = {}
    for name, one in described.items():
        outputs = {output: predictions[key] for output, key in one.outputs.items()}
        if one.method == "predict":
            made[name] = Signature(method_name=PREDICT, inputs=inputs, outputs={**outputs, **others})
        else:
            assert examples is not None
            made[name] = Signature(method_name=METHODS + one.method, inputs={"inputs": examples}, outputs=outputs)
    return made


def tensor_info(prediction: Prediction, tensor: str) -> TensorInfo:
    """Describe a prediction for a signature. `tensor` is the name of the graph's output."""
    return TensorInfo(dtype=prediction.dtype, shape=(-1, *prediction.row_shape), tensor=tensor)


def dtype_name(dtype: torch.dtype, key: str) -> str:
    """Return TensorFlow's name of a torch dtype, such as ``DT_FLOAT``; an error names the prediction `key`."""
    known = BY_COLUMN.get(str(dtype).removeprefix("torch."))
    if known is None:
        raise ExportError(f"the prediction {key!r} has the type {dtype}, which an export cannot give.")
    return known.name
