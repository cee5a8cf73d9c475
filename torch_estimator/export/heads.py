"""Predictions in the graph: logits to everything a head reports, names of classes included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np
import torch

from torch_estimator.errors import ExportError
from torch_estimator.export.graph import INT64, GraphBuilder
from torch_estimator.export.signatures import PREDICT, Signature, TensorInfo
from torch_estimator.export.torch_callable import Inlined, inline
from torch_estimator.heads import BinaryClassHead, MultiClassHead, MultiHead, MultiLabelHead, RegressionHead
from torch_estimator.heads.multi_head import exported_key

METHODS = "tensorflow/serving/"

_LINKS = ((torch.exp, "Exp"), (torch.sigmoid, "Sigmoid"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A tensor ``[N, *row_shape]`` of the graph."""

    tensor: str
    dtype: str
    row_shape: tuple[int, ...]

    def info(self, tensor: str) -> TensorInfo:
        """How a signature describes it under the graph output `tensor`."""
        return TensorInfo(dtype=self.dtype, shape=(-1, *self.row_shape), tensor=tensor)


@singledispatch
def lower_predictions(head: Any, graph: GraphBuilder, logits: Prediction) -> dict[str, Prediction]:
    """Emits the predictions of a head; returns them by key, in the head's order.

    Heads without a lowering of their own go through torch's exporter, by their `predictions`.
    """
    example = torch.zeros(2, *logits.row_shape)
    with torch.no_grad():
        found: dict[str, torch.Tensor] = head.predictions(example)
    keys = list(found)
    inputs = [Inlined(tensor=logits.tensor, row_shape=logits.row_shape, dtype="float32")]
    tensors = inline(
        graph,
        lambda tensor: tuple(head.predictions(tensor)[key] for key in keys),
        inputs,
        what=f"the predictions of {type(head).__name__}",
    )
    return {
        key: Prediction(
            tensor=tensor,
            dtype=dtype_name(found[key].dtype, key),
            row_shape=tuple(found[key].shape[1:]),
        )
        for key, tensor in zip(keys, tensors, strict=True)
    }


@lower_predictions.register
def _(head: BinaryClassHead, graph: GraphBuilder, logits: Prediction) -> dict[str, Prediction]:
    logistic = graph.op("Sigmoid", logits.tensor)
    negative = graph.op("Sigmoid", graph.op("Neg", logits.tensor))
    # Not(<=) rather than >: NaN counts as the second class, as in torch's argmax.
    positive = graph.op("Not", graph.op("LessOrEqual", logits.tensor, graph.constant(0, np.float32)))
    return {
        "logits": logits,
        "logistic": Prediction(tensor=logistic, dtype="DT_FLOAT", row_shape=(1,)),
        **_classes(
            graph,
            probabilities=graph.op("Concat", negative, logistic, axis=1),
            class_ids=graph.op("Cast", positive, to=INT64),
            names=head.class_names,
        ),
    }


@lower_predictions.register
def _(head: MultiClassHead, graph: GraphBuilder, logits: Prediction) -> dict[str, Prediction]:
    return {
        "logits": logits,
        **_classes(
            graph,
            probabilities=graph.op("Softmax", logits.tensor, axis=-1),
            class_ids=graph.op("ArgMax", logits.tensor, axis=1, keepdims=1),
            names=head.class_names,
        ),
    }


@lower_predictions.register
def _(head: RegressionHead, graph: GraphBuilder, logits: Prediction) -> dict[str, Prediction]:
    if head.inverse_link_fn is None:
        return {"predictions": logits}
    known = next((kind for function, kind in _LINKS if function is head.inverse_link_fn), None)
    if known is not None:
        tensor = graph.op(known, logits.tensor)
    else:
        inputs = [Inlined(tensor=logits.tensor, row_shape=logits.row_shape, dtype="float32")]
        (tensor,) = inline(graph, head.inverse_link_fn, inputs, what="inverse_link_fn")
    predictions = Prediction(tensor=tensor, dtype="DT_FLOAT", row_shape=logits.row_shape)
    return {"predictions": predictions, "logits": logits}


@lower_predictions.register
def _(head: MultiLabelHead, graph: GraphBuilder, logits: Prediction) -> dict[str, Prediction]:
    probabilities = graph.op("Sigmoid", logits.tensor)
    every = (head.n_classes,)
    return {
        "logits": logits,
        "probabilities": Prediction(tensor=probabilities, dtype="DT_FLOAT", row_shape=every),
        "classes": _all_classes(graph, rows_of=probabilities, names=head.class_names)[1],
    }


@lower_predictions.register
def _(head: MultiHead, graph: GraphBuilder, logits: Prediction) -> dict[str, Prediction]:
    predictions: dict[str, Prediction] = {}
    start = 0
    for name, one in head.by_name.items():
        stop = start + one.logits_dimension
        bounds = [graph.constant([place], np.int64) for place in (start, stop, 1)]
        own = Prediction(
            tensor=graph.op("Slice", logits.tensor, *bounds),
            dtype=logits.dtype,
            row_shape=(one.logits_dimension,),
        )
        lowered = lower_predictions(one, graph, own)
        predictions |= {exported_key((name, key)): prediction for key, prediction in lowered.items()}
        start = stop
    return predictions


def signatures(head: Any, predictions: dict[str, TensorInfo], inputs: dict[str, TensorInfo]) -> dict[str, Signature]:
    """The ways to call an export.

    Classification and regression take examples as one string; where the inputs are something else only
    ``predict`` remains, which then is ``serving_default``, too. Predictions that are not the head's own are given by
    every signature that predicts.
    """
    if not head.signatures():
        predict = Signature(method_name=PREDICT, inputs=inputs, outputs=predictions)
        return {"serving_default": predict, "predict": predict}
    examples = next(iter(inputs.values())) if len(inputs) == 1 else None
    described = head.raw_signatures() if examples is None or examples.dtype != "DT_STRING" else head.signatures()
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


def _classes(graph: GraphBuilder, *, probabilities: str, class_ids: str, names: Sequence[str]) -> dict[str, Prediction]:
    table = graph.constant(np.array(names, dtype=object), hint="class_names")
    all_ids, all_classes = _all_classes(graph, rows_of=class_ids, names=names)
    return {
        "probabilities": Prediction(tensor=probabilities, dtype="DT_FLOAT", row_shape=(len(names),)),
        "class_ids": Prediction(tensor=class_ids, dtype="DT_INT64", row_shape=(1,)),
        "classes": Prediction(tensor=graph.op("Gather", table, class_ids, axis=0), dtype="DT_STRING", row_shape=(1,)),
        "all_class_ids": all_ids,
        "all_classes": all_classes,
    }


def _all_classes(graph: GraphBuilder, *, rows_of: str, names: Sequence[str]) -> tuple[Prediction, Prediction]:
    """Ids and names of all classes, once for each row of a tensor."""
    batch = graph.op("Shape", rows_of, start=0, end=1)
    shape = graph.op("Concat", batch, graph.constant([len(names)], np.int64), axis=0)
    ids = graph.op("Expand", graph.constant([list(range(len(names)))], np.int32), shape)
    table = graph.constant(np.array(names, dtype=object), hint="class_names")
    every = (len(names),)
    return (
        Prediction(tensor=ids, dtype="DT_INT32", row_shape=every),
        Prediction(tensor=graph.op("Gather", table, ids, axis=0), dtype="DT_STRING", row_shape=every),
    )


def dtype_name(dtype: torch.dtype, key: str) -> str:
    """What signatures call a dtype of torch; `key` names what has it."""
    names = {
        torch.float32: "DT_FLOAT",
        torch.float64: "DT_DOUBLE",
        torch.int64: "DT_INT64",
        torch.int32: "DT_INT32",
        torch.bool: "DT_BOOL",
    }
    if dtype not in names:
        raise ExportError(f"the prediction {key!r} has the type {dtype}, which an export cannot give.")
    return names[dtype]
