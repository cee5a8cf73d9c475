"""Predictions of an input, computed as they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import torch

from torch_estimator.data.dataset import Dataset
from torch_estimator.engine.batches import batch_size
from torch_estimator.engine.model import Model
from torch_estimator.engine.threads import sized_threads
from torch_estimator.errors import InvalidValueError
from torch_estimator.hooks.hook import Hook, RunContext


def run_prediction(
    model: Model,
    dataset: Dataset,
    *,
    global_step: int,
    keys: Sequence[str] | None,
    hooks: Sequence[Hook],
    single_examples: bool,
) -> Iterator[dict[str, Any]]:
    """Yields predictions batch by batch, or example by example.

    Args:
        model: Built for prediction, its weights in place.
        dataset: What to predict.
        global_step: Step of the weights, for the hooks.
        keys: Predictions to yield; None for all.
        hooks: Told before and after every batch.
        single_examples: Whether to take batches apart.

    Raises:
        InvalidValueError: None of ``keys`` is among the predictions, or predictions are not of one length.
    """
    context = RunContext(global_step=global_step, module=model.module)
    for hook in hooks:
        hook.begin(context)
    with closing(model.batches(dataset)) as batches:
        for batch in batches:
            for hook in hooks:
                hook.before_step(context)
            with torch.inference_mode(), sized_threads(model.module, batch_size(batch.features)):
                outputs = model.module(model.to_tensors(batch).features)
                tensors = model.head.predictions(outputs)
            arrays = model.head.decode({key: tensor.cpu().numpy() for key, tensor in tensors.items()})
            arrays = _selected(arrays, keys)
            for hook in hooks:
                hook.after_step(context)
            yield from _examples(arrays) if single_examples else (arrays,)
    for hook in hooks:
        hook.end(context)


def _examples(arrays: Mapping[str, np.ndarray]) -> Iterator[dict[str, Any]]:
    lengths = {key: len(array) for key, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidValueError(
            f"Predictions must have one row per example, but have {lengths}; use yield_single_examples=False."
        )
    for row in range(next(iter(lengths.values()), 0)):
        yield {key: array[row] for key, array in arrays.items()}


def _selected(arrays: dict[Any, np.ndarray], keys: Sequence[Any] | None) -> dict[Any, np.ndarray]:
    if keys is None:
        return arrays
    if isinstance(keys, tuple) and keys in arrays:
        # One key of a MultiHead: (head, key).
        keys = [keys]
    selected = {key: array for key, array in arrays.items() if key in keys}
    if not selected:
        raise InvalidValueError(f"None of predict_keys {list(keys)} is among the predictions {list(arrays)}.")
    return selected
