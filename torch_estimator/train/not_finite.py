"""Search for NaN and infinite numbers in the batch whose loss is not finite."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from torch_estimator.feature_column.transform import FeatureTransform
from torch_estimator.train.batches import TensorBatch


def not_finite_in(batch: TensorBatch, transform: FeatureTransform | None) -> str:
    """Return which numbers of a batch are NaN or infinite, such as "the feature 'x' is NaN in 1 of 8 rows (row 2)".

    Return an empty text if all are finite. `transform` made the features of the batch from feature columns; None if it
    holds the features of the input.
    """
    named = dict(_named(batch.features, ""))
    columns = {} if transform is None else dict(transform.tensors_of_numbers())
    parts: dict[str, Tensor] = {}
    for key, tensor in named.items():
        placed = columns.get(key)
        if placed is None:
            parts[f"the feature {key!r}" if key else "the features"] = tensor
            continue
        for one in placed:
            after = "" if one.column.normalizer_fn is None else " after its normalizer_fn"
            parts[f"the feature {one.name!r}{after}"] = tensor[:, one.start : one.stop]
    for what, value in (("the label", batch.labels), ("the weight", batch.weights)):
        parts |= {f"{what} {key!r}" if key else f"{what}s": tensor for key, tensor in _named(value, "")}
    found = (_described(name, tensor) for name, tensor in parts.items())
    return "; ".join(filter(None, found))


def _named(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of floats in nested dicts and tuples, with their keys joined by slashes."""
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.dim():
            yield name, value
        return
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, tuple | list) else ()
    for key, one in items:
        yield from _named(one, f"{name}/{key}" if name else str(key))


def _described(name: str, tensor: Tensor) -> str:
    bad = tensor.isfinite().logical_not().reshape(len(tensor), -1).any(1)
    if not bad.any():
        return ""
    first = int(bad.nonzero()[0])
    word = "NaN" if tensor[first].isnan().any() else "infinite"
    verb = "are" if name.endswith("s") else "is"
    return f"{name} {verb} {word} in {int(bad.sum())} of {len(tensor)} rows (first in row {first + 1})"
