"""Interface between heads and exports: signatures, and the ONNX graph to which a head adds its predictions.

Nothing here needs onnx: `torch_estimator.export` implements the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy.typing as npt
from torch import Tensor

SERVING_DEFAULT = "serving_default"

Method = Literal["classify", "regress", "predict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One way to call an exported model: the predictions that it returns, and the names of the outputs.

    Attributes:
        method: Last part of TensorFlow Serving's method name ``tensorflow/serving/<method>``.
        outputs: Name of each output -> key of the prediction that it returns.

    >>> te.RegressionHead().signatures()["regression"]
    Signature(method='regress', outputs={'outputs': 'predictions'})
    """

    method: Method
    outputs: Mapping[str, str]


def classification(classes: str = "all_classes") -> Signature:
    """Return a signature with the scores and the names of all classes of every example.

    `classes` is the key of the prediction that holds the names.
    """
    return Signature(method="classify", outputs={"scores": "probabilities", "classes": classes})


def regression(value: str) -> Signature:
    """Return a regression signature, whose only output is the prediction with the key `value`."""
    return Signature(method="regress", outputs={"outputs": value})


def prediction(keys: tuple[str, ...]) -> Signature:
    """Return a signature whose outputs are the predictions `keys`, under the same names."""
    return Signature(method="predict", outputs={key: key for key in keys})


def signatures_of(keys: tuple[str, ...], **signatures: Signature) -> dict[str, Signature]:
    """Return the signatures of a head by name, including ``predict``, which returns `keys`, and the default.

    The first of the further signatures becomes the default; without any it is ``predict``.

    >>> list(signatures_of(("predictions",), regression=regression("predictions")))
    ['serving_default', 'regression', 'predict']
    """
    predict = prediction(keys)
    return {SERVING_DEFAULT: next(iter(signatures.values()), predict), **signatures, "predict": predict}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Tensor of an ONNX graph that holds a prediction or the logits, of shape ``[N, *row_shape]``.

    Attributes:
        tensor: Name of the tensor in the graph.
        dtype: TensorFlow's name of its type: ``"DT_FLOAT"``, ``"DT_INT64"``, ``"DT_STRING"`` and so on.
        row_shape: Shape of one row.
        mask: Name of a tensor, bool ``[N, T]``, that says which steps of sequences exist; None for other logits.

    >>> te.heads.Prediction(tensor="probabilities", dtype="DT_FLOAT", row_shape=(3,)).row_shape
    (3,)
    """

    tensor: str
    dtype: str
    row_shape: tuple[int, ...]
    mask: str | None = None


class Graph(Protocol):
    """ONNX graph under construction, to which `Head.lower` adds the predictions. Tensors are identified by name.

    >>> class DoublingHead(te.RegressionHead):
    ...     def predictions(self, logits):
    ...         return {"predictions": 2 * logits}
    ...
    ...     def lower(self, graph, logits):
    ...         doubled = graph.op("Mul", logits.tensor, graph.constant(2.0, np.float32))
    ...         return {"predictions": te.heads.Prediction(tensor=doubled, dtype="DT_FLOAT", row_shape=(1,))}
    """

    def op(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node with one output to the graph.

        Args:
            kind: ONNX operator, for instance ``"Sigmoid"``.
            inputs: Names of the input tensors.
            domain: Domain of the operator; the empty string for ONNX's own operators.
            attributes: Attributes of the operator.

        Returns:
            The name of the output.
        """

    def constant(self, value: Any, dtype: npt.DTypeLike | None = None, *, hint: str = "constant") -> str:
        """Add a constant to the graph and return its name.

        Args:
            value: Number, string, or array of these.
            dtype: Type of the constant; None takes that of `value`.
            hint: Beginning of the name.
        """

    def trace(
        self, function: Callable[[Tensor], Mapping[str, Tensor]], logits: Prediction, *, what: str
    ) -> dict[str, Prediction]:
        """Add a torch function to the graph through torch's ONNX exporter. This takes about a second.

        Args:
            function: Takes logits, float32 [N, D], and returns tensors [N, ...] by key.
            logits: Logits in the graph.
            what: Name of the function in errors.

        Returns:
            The results of the function, by key.

        Raises:
            ExportError: torch cannot express the function in ONNX.
        """
