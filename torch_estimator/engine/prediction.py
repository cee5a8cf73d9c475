"""Predictions of an input, computed as they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import torch

from torch_estimator.data.dataset import Dataset
from torch_estimator.engine.batch_note import noting_batch
from torch_estimator.engine.batches import batch_size
from torch_estimator.engine.event_writers import EventWriters
from torch_estimator.engine.model import Model
from torch_estimator.engine.observation import observed
from torch_estimator.engine.threads import sized_threads
from torch_estimator.errors import InvalidValueError
from torch_estimator.hooks.hook import Hook, RunContext
from torch_estimator.hooks.schedule import HookSchedule
from torch_estimator.mode_keys import ModeKeys


def run_prediction(
    model: Model,
    dataset: Dataset,
    *,
    global_step: int,
    keys: Sequence[str] | None,
    hooks: Sequence[Hook],
    single_examples: bool,
    model_dir: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Yields predictions batch by batch, or example by example.

    Args:
        model: Built for prediction, its weights in place.
        dataset: What to predict.
        global_step: Step of the weights, for the hooks.
        keys: Predictions to yield; None for all.
        hooks: Told like in training.
        single_examples: Whether to take batches apart.
        model_dir: The job's directory, for the hooks.

    Raises:
        InvalidValueError: None of ``keys`` is among the predictions, or predictions are not of one length.
    """
    writers = EventWriters()
    context = RunContext(
        global_step=global_step, module=model.module, mode=ModeKeys.PREDICT, model_dir=model_dir, writers=writers
    )
    all_hooks = (*model.spec.prediction_hooks, *hooks)
    with writers:
        for hook in all_hooks:
            hook.begin(context)
        schedule = HookSchedule(all_hooks)
        with closing(model.batches(dataset)) as batches:
            for taken, batch in enumerate(batches):
                due = schedule.due_at(taken + 1)
                for hook in due:
                    hook.before_step(context)
                arrays = _selected(_predict(model, batch, context), keys)
                for hook in due:
                    hook.after_step(context)
                context.observe = False
                yield from _examples(arrays) if single_examples else (arrays,)
                if context.stop_requested:
                    break
        for hook in all_hooks:
            hook.end(context)


def _predict(model: Model, batch: Any, context: RunContext) -> dict[str, np.ndarray]:
    features = model.to_tensors(batch).features
    with (
        torch.inference_mode(),
        sized_threads(model.module, batch_size(batch.features)),
        noting_batch(model.module, features),
        observed(context),
    ):
        outputs = model.module(features)
        tensors = model.head.predictions(outputs)
    return model.head.decode({key: tensor.cpu().numpy() for key, tensor in tensors.items()})  # type: ignore[no-any-return]


def _examples(arrays: Mapping[str, np.ndarray]) -> Iterator[dict[str, Any]]:
    lengths = {key: len(array) for key, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidValueError(
            f"Predictions must have one row per example, but have {lengths}; use yield_single_examples=False."
        )
    for row in range(next(iter(lengths.values()), 0)):
        yield {key: array[row] for key, array in arrays.items()}


def _selected(arrays: dict[str, np.ndarray], keys: Sequence[str] | None) -> dict[str, np.ndarray]:
    if keys is None:
        return arrays
    selected = {key: array for key, array in arrays.items() if key in keys}
    if not selected:
        raise InvalidValueError(f"None of predict_keys {list(keys)} is among the predictions {list(arrays)}.")
    return selected
