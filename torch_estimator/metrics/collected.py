"""Batches kept in host memory, so that a metric function can be evaluated once over all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_estimator.errors import InvalidValueError

WHOLE = ""
"""Key that stands for a whole argument, if the argument is not a mapping."""


class ReadRecorder(Mapping[Any, Any]):
    """Mapping that records in `read`, in order, which of its keys are read; reading `unrecorded` is not recorded.

    `values` may hold only some of the values; then `keys` are those that iteration gives. `what` names the mapping in
    the error about a key without a value.

    >>> predictions = ReadRecorder({"logits": 1, "classes": 2})
    >>> predictions["classes"]
    2
    >>> list(predictions.read)
    ['classes']
    """

    def __init__(self, values: Mapping[Any, Any], keys: Sequence[Any] | None = None, what: str = "") -> None:
        self._values = self.unrecorded = values
        self._keys = tuple(values if keys is None else keys)
        self._what = what
        self.read: dict[Any, None] = {}

    def __getitem__(self, key: Any) -> Any:
        if key not in self._values and key in self._keys:
            raise InvalidValueError(
                f"A metric function reads {self._what}[{key!r}], but did not on the first batch, which decides what is "
                "kept; let it read the same in every call."
            )
        value = self._values[key]
        self.read[key] = None
        return value

    def __iter__(self) -> Iterator[Any]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


class CollectedBatches:
    """Copies of the values that metric functions need, from every batch of an evaluation.

    `wanted` maps the name of each argument to its keys to keep, or `WHOLE`.
    """

    def __init__(self, wanted: Mapping[str, Sequence[Any]]) -> None:
        self._wanted = wanted
        self._keys: dict[str, Sequence[Any]] = {}
        self._batches: list[dict[tuple[str, Any], Any]] = []

    def add(self, arguments: Mapping[str, Any]) -> None:
        """Copy the wanted values of a batch and keep the copies."""
        batch = {}
        for name, keys in self._wanted.items():
            value = arguments[name]
            if isinstance(value, Mapping):
                self._keys[name] = tuple(value)
            for key in keys:
                batch[name, key] = _copied(value if key == WHOLE and not isinstance(value, Mapping) else value[key])
        self._batches.append(batch)

    def concatenated(self) -> dict[str, Any]:
        """Return the kept values of all batches, concatenated, by argument. Reading another key raises an error."""
        arguments: dict[str, Any] = {}
        for name, keys in self._wanted.items():
            values = {key: self._joined(name, key) for key in keys}
            is_mapping = name in self._keys
            arguments[name] = ReadRecorder(values, self._keys[name], name) if is_mapping else values.get(WHOLE)
        return arguments

    def _joined(self, name: str, key: Any) -> Any:
        what = name if name not in self._keys else f"{name}[{key!r}]"
        return _concatenated([batch[name, key] for batch in self._batches], what)


def on_host(value: Any) -> Any:
    """Return a nested structure with its tensors detached and moved to the CPU."""
    if isinstance(value, Mapping):
        return {key: on_host(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return tuple(on_host(item) for item in value)
    return value.detach().cpu() if isinstance(value, Tensor) else value


def _copied(value: Any) -> Any:
    """Copy the tensors and arrays of a nested structure, since the caller may reuse their memory for the next batch."""
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return tuple(_copied(item) for item in value)
    if isinstance(value, Tensor):
        return value.detach().clone()
    return value.copy() if isinstance(value, np.ndarray) else value


def _concatenated(parts: Sequence[Any], what: str) -> Any:
    first = parts[0]
    if isinstance(first, Mapping):
        return {key: _concatenated([part[key] for part in parts], what) for key in first}
    if isinstance(first, tuple):
        return tuple(_concatenated(items, what) for items in zip(*parts, strict=True))
    if not isinstance(first, Tensor | np.ndarray):
        return first
    if first.ndim == 0:
        return torch.stack(list(parts)) if isinstance(first, Tensor) else np.stack(parts)
    if len({tuple(part.shape[1:]) for part in parts}) > 1:
        shapes = sorted({str(list(part.shape)) for part in parts})
        raise InvalidValueError(
            f"A metric function reads {what}, whose batches have the shapes {' and '.join(shapes)} and cannot be put "
            "together; return torchmetrics objects, which are updated batch by batch."
        )
    return torch.cat(list(parts)) if isinstance(first, Tensor) else np.concatenate(parts)
