"""Prediction: run a model on the batches of an input, one after the other, as the caller reads the results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from typing import Any

import numpy as np
import torch

from torch_estimator import tree
from torch_estimator.data.columns import to_numpy
from torch_estimator.data.dataset import Dataset
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.hooks.hook import Hook, RunContext
from torch_estimator.hooks.schedule import HookSchedule
from torch_estimator.inner_layers import LayerOutputs, all_layers, check_new_keys
from torch_estimator.mode_keys import ModeKeys
from torch_estimator.summary.event_writer import EventWriters
from torch_estimator.train.batch_fusion import BatchFusion
from torch_estimator.train.batches import TensorBatch, batch_size, noting_batch
from torch_estimator.train.model import Model
from torch_estimator.train.observation import observed
from torch_estimator.train.random_state import noticing_draws
from torch_estimator.train.threads import sized_threads


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
    """Yield predictions of a model, which was built for prediction and has its weights, by batch or by example."""
    all_hooks = (*model.spec.prediction_hooks, *hooks)
    with ExitStack() as stack:
        writers = stack.enter_context(EventWriters())
        context = RunContext(
            global_step=global_step, module=model.module, mode=ModeKeys.PREDICT, model_dir=model_dir, writers=writers
        )
        for hook in all_hooks:
            hook.begin(context)
        schedule = HookSchedule(all_hooks)
        batches = stack.enter_context(closing(model.batches(dataset)))
        layers = stack.enter_context(LayerOutputs(model.module, all_layers(model.spec.forward_layers)))
        fusion = BatchFusion(batches, model, schedule, own_hooks=layers.hooks)
        most = None if getattr(model.head, "rows_are_independent", False) else 1
        taken, stopped = 0, False
        while not stopped:
            tensors, count = fusion.next(taken + 1, most)
            if tensors is None:
                break
            due = schedule.due_at(taken + 1) if count == 1 else []
            for hook in due:
                hook.before_step(context)
            rows = batch_size(tensors.features)
            noticing = nullcontext() if taken else noticing_draws("prediction")
            with sized_threads(model.module, rows, with_input_thread=not dataset.runs_user_code), noticing:
                arrays = _selected(_predictions(model, layers, tensors, context), keys)
            for hook in due:
                hook.after_step(context)
            if due:
                fusion.hooks_were_called()
            context.observe = False
            taken += count
            for part in [arrays] if count == 1 else tree.split_rows(arrays, count):
                yield from _examples(part) if single_examples else (part,)
                stopped = context.stop_requested
                if stopped:
                    break
        for hook in all_hooks:
            hook.end(context)


def _predictions(
    model: Model, layers: LayerOutputs, tensors: TensorBatch, context: RunContext
) -> dict[str, np.ndarray]:
    with (
        torch.inference_mode(),
        noting_batch(model.module, tensors.features),
        observed(context),
    ):
        outputs = model.module(tensors.features)
        predictions = model.head.predictions(outputs)
    arrays: dict[str, np.ndarray] = model.head.decode(
        {key: _array(_tensor(key, value)) for key, value in predictions.items()}
    )
    taken = {key: _array(value) for key, value in layers.take().items()}
    for more, what in ((taken, "layer"), (_forwarded(tensors.raw, model.spec.forward_features), "feature")):
        check_new_keys(what, more, arrays)
        arrays = {**arrays, **more}
    return arrays


def _forwarded(raw: Any, keys: Sequence[str] | None) -> dict[str, np.ndarray]:
    """Return copies of the raw columns (all for None) that `forward_features` adds to the predictions."""
    if keys is not None and not keys:
        return {}
    if not isinstance(raw, Mapping):
        raise InvalidValueError("Features can be forwarded by name only, but the input's have none; give a dict.")
    for key in raw if keys is None else keys:
        if key not in raw:
            raise InvalidValueError(
                f"The feature {key!r} is to be forwarded, but the input has only {', '.join(map(str, raw))}."
            )
    # Copy the columns, because the caller may change predictions in place, and the input must not change with them.
    return {key: to_numpy(raw[key]).copy() for key in (raw if keys is None else keys)}


def _tensor(key: object, value: object) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise InvalidTypeError(
            f"The prediction {key!r} must be a tensor, but is {type(value).__name__}; give predictions=, a function "
            "that makes a dict of tensors of the module's outputs."
        )
    return value


def _array(tensor: torch.Tensor) -> np.ndarray:
    # Convert bfloat16 to float32, because numpy has no bfloat16.
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()


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
        # A single key of a MultiHead is a tuple (head, key), not a sequence of keys.
        keys = [keys]
    selected = {key: array for key, array in arrays.items() if key in keys}
    if not selected:
        raise InvalidValueError(f"None of predict_keys {list(keys)} is among the predictions {list(arrays)}.")
    return selected
