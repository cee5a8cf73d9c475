"""What an export of a head offers, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

SERVING_DEFAULT = "serving_default"

Method = Literal["classify", "regress", "predict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One way to call an exported model.

    Attributes:
        method: What TensorFlow Serving calls it: ``tensorflow/serving/<method>``.
        outputs: For every output's name, the prediction it is.
    """

    method: Method
    outputs: Mapping[str, str]


def classification(classes: str = "all_classes") -> Signature:
    """Scores and names of all classes of every example; `classes` is the prediction that holds the names."""
    return Signature(method="classify", outputs={"scores": "probabilities", "classes": classes})


def regression(value: str) -> Signature:
    """The prediction called `value`."""
    return Signature(method="regress", outputs={"outputs": value})


def prediction(keys: tuple[str, ...]) -> Signature:
    """All predictions under their own names."""
    return Signature(method="predict", outputs={key: key for key in keys})
