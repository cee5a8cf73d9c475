"""Signatures that a model gives its exports: `PredictOutput`, `ClassificationOutput` and `RegressionOutput`.

tf.estimator's classes of these names hold tensors. These hold the keys of predictions, which exports have as outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.heads.serving import Method, Signature


class PredictOutput(Signature):
    """Signature that returns some of the predictions.

    Args:
        outputs: Name of each output -> key of the prediction that it returns; or a list of keys, which are then the
            names; or one key, whose output is called ``output``.

    Raises:
        InvalidTypeError: A name or a key is not a string.
        InvalidValueError: There is no output.

    >>> te.export.PredictOutput({"score": "probabilities"}).outputs
    {'score': 'probabilities'}
    """

    __slots__ = ()

    def __init__(self, outputs: Mapping[str, str] | Iterable[str] | str) -> None:
        if isinstance(outputs, str):
            outputs = {"output": outputs}
        elif not isinstance(outputs, Mapping) and isinstance(outputs, Iterable):
            outputs = {key: key for key in outputs}
        _fill(self, "predict", outputs)


class ClassificationOutput(Signature):
    """Signature of TensorFlow Serving's method classify, with the outputs ``scores`` and ``classes``.

    Args:
        scores: Key of the prediction that has a score for each class, or None.
        classes: Key of the prediction that has the names of the classes, or None.

    Raises:
        InvalidTypeError: A key is not a string.
        InvalidValueError: Both are None.

    >>> te.export.ClassificationOutput(scores="probabilities", classes="all_classes").outputs
    {'scores': 'probabilities', 'classes': 'all_classes'}
    """

    __slots__ = ()

    def __init__(self, scores: str | None = None, classes: str | None = None) -> None:
        outputs = {"scores": scores, "classes": classes}
        _fill(self, "classify", {name: key for name, key in outputs.items() if key is not None})


class RegressionOutput(Signature):
    """Signature of TensorFlow Serving's method regress, whose only output is ``outputs``.

    Args:
        value: Key of the prediction that has one number per row.

    Raises:
        InvalidTypeError: The key is not a string.

    >>> te.export.RegressionOutput("price").outputs
    {'outputs': 'price'}
    """

    __slots__ = ()

    def __init__(self, value: str) -> None:
        _fill(self, "regress", {"outputs": value})


def _fill(signature: Signature, method: Method, outputs: object) -> None:
    kind = type(signature).__name__
    if not isinstance(outputs, Mapping):
        raise InvalidTypeError(f"{kind} takes keys of predictions, such as {{'score': 'scores'}}, but got {outputs!r}.")
    for name in (*outputs, *outputs.values()):
        if not isinstance(name, str):
            raise InvalidTypeError(
                f"{kind} takes names and keys of predictions, which are strings, but got {type(name).__name__}; "
                "give the key under which predictions has the tensor."
            )
    if not outputs:
        raise InvalidValueError(f"{kind} has no output; give at least one key of a prediction.")
    Signature.__init__(signature, method=method, outputs=dict(outputs))
