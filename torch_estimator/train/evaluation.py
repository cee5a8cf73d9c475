"""One evaluation: metrics over an input, from a checkpoint."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import torch

from torch_estimator.compile.observation import observed
from torch_estimator.data.dataset import Dataset
from torch_estimator.hooks.hook import Hook, RunContext
from torch_estimator.hooks.schedule import HookSchedule
from torch_estimator.mode_keys import ModeKeys
from torch_estimator.summary.event_writer import EventWriter, EventWriters
from torch_estimator.train.batch_fusion import BatchesTogether
from torch_estimator.train.batch_note import noting_batch
from torch_estimator.train.batches import batch_size
from torch_estimator.train.model import Model
from torch_estimator.train.progress import ProgressBar
from torch_estimator.train.scores import Scores
from torch_estimator.train.threads import sized_threads

if TYPE_CHECKING:
    from torch_estimator.distributed.group import Group

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
    model: Model,
    dataset: Dataset,
    *,
    global_step: int,
    steps: int | None,
    hooks: Sequence[Hook],
    model_dir: str | None = None,
    eval_dir: str | None = None,
    devices: Sequence[str] = (),
    group: Group | None = None,
) -> EvaluationResult:
    """Evaluates batch by batch.

    Args:
        model: Built for evaluation, its weights in place.
        dataset: What to evaluate on.
        global_step: Step of the weights; part of the result.
        steps: Batches to evaluate, or None for all.
        hooks: Told like in training; ``context.global_step`` stays the weights' step.
        model_dir: The job's directory, for the hooks.
        eval_dir: Where hooks write summaries.
        devices: Of replicas that share the evaluation, as torch calls them; only several CPUs can.
        group: The processes that share it, or None. Hooks are told by the chief only.

    Returns:
        The metrics, ``loss`` (the mean of the batches' losses, each counting the same) and ``global_step``.
    """
    scores = Scores(model)
    steps = None if steps is None else int(steps)
    logger.info("Starting evaluation at %s", time.strftime("%Y-%m-%dT%H:%M:%S"))
    started = time.monotonic()
    all_hooks = (*model.spec.evaluation_hooks, *hooks) if group is None or group.rank == 0 else ()
    with EventWriters() as writers:
        context = RunContext(
            global_step=global_step,
            module=model.module,
            mode=ModeKeys.EVAL,
            model_dir=model_dir,
            output_dir=eval_dir,
            writers=writers,
        )
        for hook in all_hooks:
            hook.begin(context)
        schedule = HookSchedule(all_hooks)
        if group is not None:
            from torch_estimator.distributed.shared_evaluation.rounds import evaluate_in_group

            evaluate_in_group(model, dataset, scores, steps, context, schedule, group)
        elif _is_shared(model, devices):
            from torch_estimator.distributed.shared_evaluation.pipes import evaluate_on_replicas

            evaluate_on_replicas(model, dataset, scores, steps, context, schedule, devices)
        else:
            _evaluate_batches(model, dataset, scores, steps, context, schedule)
        for hook in all_hooks:
            hook.end(context)
    results, batches = scores.compute(), scores.batches
    if group is not None:
        from torch_estimator.distributed.shared_evaluation.rounds import told_by_chief

        results, batches = told_by_chief(group, [results, batches])
    logger.info("Finished evaluation of %d batches in %.2f s", batches, time.monotonic() - started)
    if batches == 0:
        logger.warning("The evaluation input is empty: all metrics are 0.")
    results["global_step"] = global_step
    return EvaluationResult(sorted(results.items()), batches=batches)


def _is_shared(model: Model, devices: Sequence[str]) -> bool:
    if len(devices) > 1 and model.device.type != "cpu":
        # They would have to be forked from a process that has used CUDA.
        logger.warning("eval_distribute: evaluating on %s alone, with the same results.", model.device)
        return False
    return len(devices) > 1


def _evaluate_batches(
    model: Model, dataset: Dataset, scores: Scores, steps: int | None, context: RunContext, schedule: HookSchedule
) -> None:
    """Adds up the scores batch by batch, or by many batches where that is the same."""
    with (
        closing(model.batches(dataset)) as batches,
        torch.inference_mode(),
        ProgressBar("Evaluating", total=steps) as bar,
    ):
        together = BatchesTogether(batches, model, schedule)
        while (steps is None or scores.batches < steps) and not context.stop_requested:
            before = scores.batches
            tensors, count = together.next(before + 1, None if steps is None else steps - before)
            if tensors is None:
                break
            due = schedule.due_at(before + 1) if count == 1 else []
            for hook in due:
                hook.before_step(context)
            with sized_threads(model.module, batch_size(tensors.features), beside_input=not dataset.runs_user_code):
                with noting_batch(model.module, tensors.features, tensors.labels), observed(context):
                    outputs = model.module(tensors.features)
                    context.loss_tensor = scores.add_losses(outputs, tensors, count)
                scores.add(outputs, tensors, count)
            for hook in due:
                hook.after_step(context)
            if due:
                together.hooks_were_told()
            context.observe = False
            _show_progress(bar, range(before + 1, scores.batches + 1), steps)


def write_evaluation(eval_dir: str, results: EvaluationResult, checkpoint_path: str) -> None:
    """Writes the metrics and the checkpoint's path as summaries, and logs them."""
    global_step = int(results["global_step"])
    with EventWriter(eval_dir) as events:
        # First, so that who finds metrics can tell of which checkpoint they are, whenever this process is killed.
        logger.info("Saving 'checkpoint_path' summary for global step %d: %s", global_step, checkpoint_path)
        events.text("checkpoint_path", checkpoint_path, global_step)
        write_results(events, results)


def write_results(events: EventWriter, results: EvaluationResult) -> None:
    """Writes the metrics as summaries, and logs them.

    The zeros of an evaluation of nothing are not written: whoever reads the curve would take them for the best.
    """
    global_step = int(results["global_step"])
    logger.info(
        "Saving dict for global step %d: %s",
        global_step,
        ", ".join(f"{key} = {_formatted(value)}" for key, value in results.items()),
    )
    if results.batches:
        events.scalars({key: value for key, value in results.items() if key != "global_step"}, global_step)


def _show_progress(bar: ProgressBar, done: range, steps: int | None) -> None:
    if bar.visible:
        bar.move_to(done[-1])
    elif steps is not None:
        every = max(1, steps // _PROGRESS_LINES)
        for taken in done:
            if taken % every == 0:
                logger.info("Evaluation [%d/%d]", taken, steps)


def _formatted(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"
