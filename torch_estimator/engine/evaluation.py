"""One evaluation: metrics over an input, from a checkpoint."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing

import torch

from torch_estimator.data.dataset import Dataset
from torch_estimator.engine.batch_note import noting_batch
from torch_estimator.engine.batches import batch_size, beside_labels
from torch_estimator.engine.extra_metrics import ExtraMetrics
from torch_estimator.engine.model import Model
from torch_estimator.engine.progress import ProgressBar
from torch_estimator.engine.summaries import EventWriter
from torch_estimator.engine.threads import sized_threads
from torch_estimator.errors import InvalidValueError
from torch_estimator.heads.metrics.functions import RESERVED
from torch_estimator.hooks.hook import Hook, RunContext
from torch_estimator.hooks.schedule import HookSchedule

logger = logging.getLogger("torch_estimator")

_PROGRESS_LINES = 10


class EvaluationResult(dict[str, float]):
    """Metrics by name.

    Attributes:
        batches: How many they were computed from; of none they are zeros, which say nothing.
    """

    def __init__(self, metrics: Iterable[tuple[str, float]], *, batches: int) -> None:
        super().__init__(metrics)
        self.batches = batches


def run_evaluation(
    model: Model, dataset: Dataset, *, global_step: int, steps: int | None, hooks: Sequence[Hook]
) -> EvaluationResult:
    """Evaluates batch by batch.

    Args:
        model: Built for evaluation, its weights in place.
        dataset: What to evaluate on.
        global_step: Step of the weights; part of the result.
        steps: Batches to evaluate, or None for all.
        hooks: Told like in training; ``context.global_step`` stays the weights' step.

    Returns:
        The metrics, ``loss`` (the mean of the batches' losses, each counting the same) and ``global_step``.
    """
    metrics = model.head.metrics()
    _check_names(metrics.compute())
    extra = ExtraMetrics(model)
    total_loss, taken = 0.0, 0
    context = RunContext(global_step=global_step, module=model.module)
    logger.info("Starting evaluation at %s", time.strftime("%Y-%m-%dT%H:%M:%S"))
    started = time.monotonic()
    all_hooks = (*model.spec.evaluation_hooks, *hooks)
    schedule = HookSchedule(all_hooks)
    for hook in all_hooks:
        hook.begin(context)
    with (
        closing(model.batches(dataset)) as batches,
        torch.inference_mode(),
        ProgressBar("Evaluating", total=steps) as bar,
    ):
        while (steps is None or taken < steps) and not context.stop_requested:
            batch = next(batches, None)
            if batch is None:
                break
            due = schedule.due_at(taken + 1)
            for hook in due:
                hook.before_step(context)
            tensors = model.to_tensors(batch)
            beside = beside_labels(tensors.weights)
            with (
                sized_threads(model.module, batch_size(batch.features)),
                noting_batch(model.module, tensors.features, tensors.labels),
            ):
                outputs = model.module(tensors.features)
                context.loss_tensor = model.head.loss(outputs, tensors.labels, *beside)
            total_loss += float(context.loss_tensor)
            metrics.update(outputs, tensors.labels, *beside)
            extra.update(outputs, tensors)
            taken += 1
            for hook in due:
                hook.after_step(context)
            _show_progress(bar, taken, steps)
    for hook in all_hooks:
        hook.end(context)
    logger.info("Finished evaluation of %d batches in %.2f s", taken, time.monotonic() - started)
    if taken == 0:
        logger.warning("The evaluation input is empty: all metrics are 0.")
    results = {**metrics.compute(), **extra.compute()}
    results["loss"] = total_loss / taken if taken else 0.0
    results["global_step"] = global_step
    return EvaluationResult(sorted(results.items()), batches=taken)


def _check_names(results: Mapping[str, float]) -> None:
    for reserved in RESERVED:
        if reserved in results:
            raise InvalidValueError(f"A metric must not be called {reserved!r}, which the evaluation adds itself.")


def write_evaluation(eval_dir: str, results: EvaluationResult, checkpoint_path: str) -> None:
    """Writes the metrics and the checkpoint's path as summaries, and logs them.

    The zeros of an evaluation of nothing are not written: whoever reads the curve would take them for the best.
    """
    global_step = int(results["global_step"])
    logger.info(
        "Saving dict for global step %d: %s",
        global_step,
        ", ".join(f"{key} = {_formatted(value)}" for key, value in results.items()),
    )
    with EventWriter(eval_dir) as events:
        if results.batches:
            events.scalars({key: value for key, value in results.items() if key != "global_step"}, global_step)
        logger.info("Saving 'checkpoint_path' summary for global step %d: %s", global_step, checkpoint_path)
        events.text("checkpoint_path", checkpoint_path, global_step)


def _show_progress(bar: ProgressBar, taken: int, steps: int | None) -> None:
    if bar.visible:
        bar.move_to(taken)
    elif steps is not None and taken % max(1, steps // _PROGRESS_LINES) == 0:
        logger.info("Evaluation [%d/%d]", taken, steps)


def _formatted(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"
