"""What the classifying heads share: the names of classes, in arguments and in predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_estimator.errors import InvalidTypeError, InvalidValueError


def check_n_classes(n_classes: int, *, more_than: int) -> int:
    """Returns a number of classes as an int.

    Raises:
        InvalidTypeError: It is not an integer.
        InvalidValueError: It is too small.
    """
    if isinstance(n_classes, bool) or not isinstance(n_classes, (int, np.integer)):
        raise InvalidTypeError(f"n_classes must be an integer greater than {more_than}, but got {n_classes!r}.")
    if n_classes <= more_than:
        advice = "; BinaryClassHead is the one for 2 classes" if n_classes == 2 else ""
        raise InvalidValueError(f"n_classes must be > {more_than}, but got {n_classes}{advice}.")
    return int(n_classes)


def check_vocabulary(vocabulary: Sequence[str] | None, n_classes: int) -> tuple[str, ...] | None:
    """Returns `vocabulary` as a tuple.

    Raises:
        InvalidTypeError: It is not a list or tuple of strings.
        InvalidValueError: It does not have `n_classes` distinct strings.
    """
    if vocabulary is None:
        return None
    if not isinstance(vocabulary, (list, tuple)):
        raise InvalidTypeError(f"label_vocabulary should be a list or a tuple, but got {vocabulary!r}.")
    for label in vocabulary:
        if not isinstance(label, str):
            raise InvalidTypeError(f"label_vocabulary must hold strings, but it has {label!r}.")
    if len(vocabulary) != n_classes:
        raise InvalidValueError(
            f"label_vocabulary must have one string for each of the {n_classes} classes, but it has "
            f"{len(vocabulary)}: {list(vocabulary)}."
        )
    if len(set(vocabulary)) != n_classes:
        raise InvalidValueError(f"label_vocabulary must not repeat a label, but got {list(vocabulary)}.")
    return tuple(vocabulary)


def class_names(vocabulary: Sequence[str] | None, n_classes: int) -> list[str]:
    """Returns the names of the classes: the vocabulary, or the ids in decimal."""
    return list(vocabulary) if vocabulary is not None else [str(i) for i in range(n_classes)]


def class_predictions(logits: Tensor) -> dict[str, Tensor]:
    """Returns ``probabilities`` [N, n], ``class_ids`` int64 [N, 1] and ``all_class_ids`` int32 [N, n]."""
    ids = torch.arange(logits.shape[-1], dtype=torch.int32, device=logits.device)
    return {
        "probabilities": torch.softmax(logits, -1),
        "class_ids": logits.argmax(-1, keepdim=True),
        "all_class_ids": ids.repeat(logits.shape[0], 1),
    }


def add_class_names(
    predictions: dict[str, np.ndarray[Any, Any]], names: Sequence[str], keys: Sequence[str]
) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the predictions in the order of `keys`, with ``classes`` and ``all_classes``, arrays of str."""
    table = np.array(names, dtype=object)
    named = {
        f"{what}es": table[predictions[f"{what}_ids"]]
        for what in ("class", "all_class")
        if f"{what}_ids" in predictions
    }
    everything = {**predictions, **named}
    return {key: everything[key] for key in keys if key in everything}
