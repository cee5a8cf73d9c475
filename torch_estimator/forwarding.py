"""What is given beside a model's predictions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch_estimator.errors import InvalidValueError


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedLayers:
    """Inner layers whose outputs are given.

    Attributes:
        layers: Key of the output -> what `find_layer` knows.
        signature: Signature of an export that gives them and no predictions; None for the one of the predictions.
    """

    layers: Mapping[str, str]
    signature: str | None = None


def all_layers(forwarded: Iterable[ForwardedLayers]) -> dict[str, str]:
    """Every output's key and layer.

    Raises:
        InvalidValueError: Two outputs have one key.
    """
    layers: dict[str, str] = {}
    for group in forwarded:
        for key, name in group.layers.items():
            if key in layers:
                raise InvalidValueError(
                    f"Two layers, {layers[key]!r} and {name!r}, are to be given as {key!r}; give one another key."
                )
            layers[key] = name
    return layers


def check_new_keys(what: str, more: Iterable[str], predictions: Mapping[Any, Any]) -> None:
    """Raises InvalidValueError where what is forwarded has the key of a prediction; `what` says what it is."""
    for key in more:
        if key in predictions:
            raise InvalidValueError(
                f"The {what} {key!r} cannot be forwarded, because a prediction is called that; the predictions are "
                f"{', '.join(map(str, predictions))}."
            )
