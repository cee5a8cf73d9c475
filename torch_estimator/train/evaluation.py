"""Evaluation of a model: compute its metrics on the batches of an input."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import closing, nullcontext

import torch

from torch_estimator import activity
from torch_estimator.data.dataset import Dataset
from torch_estimator.hooks.hook import Hook, RunContext
from torch_estimator.hooks.schedule import HookSchedule
from torch_estimator.mode_keys import ModeKeys
from torch_estimator.stop_signals import is_stop_asked
from torch_estimator.strategy import EvaluationShare
from torch_estimator.summary.event_writer import EventWriter, EventWriters
from torch_estimator.train.batch_fusion import BatchFusion
from torch_estimator.train.batches import batch_size, noting_batch
from torch_estimator.train.model import Model
from torch_estimator.train.observation import observed
from torch_estimator.train.preemption import Preempted
from torch_estimator.train.progress import ProgressBar
from torch_estimator.train.random_state import noticing_draws
from torch_estimator.train.scores import Scores
from torch_estimator.train.threads import sized_threads

logger = logging.getLogger("torch_estimator")

_PROGRESS_LINES = 10


class EvaluationResult(dict[str, float]):
    """Results of one evaluation: a dict from the name of a metric to its value.

    `batches` counts the batches that the metrics were computed from; if there were none, all metrics are 0.
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
    share: EvaluationShare | None = None,
) -> EvaluationResult:
    """Evaluate a model, which was built for evaluation and has its weights, batch by batch; return its metrics.

    They include ``loss``, the mean of the batches' losses with equal weights, and ``global_step``. Hooks are called as
    in training, except that ``context.global_step`` does not change; with a `share`, they run in the first process
    only. Raise `Preempted` if a signal has ended the evaluation of an input without end.
    """
    scores = Scores(model)
    steps = None if steps is None else int(steps)
    logger.info("Starting evaluation at %s", time.strftime("%Y-%m-%dT%H:%M:%S"))
    if steps is None and dataset.is_endless:
        logger.warning(
            "The evaluation input does not end, since it is repeated, and steps=None sets no limit: leave out "
            "repeat(), or give steps. The evaluation goes on until Ctrl-C or SIGTERM."
        )
    started = time.monotonic()
    all_hooks = (*model.spec.evaluation_hooks, *hooks) if share is None or share.is_first else ()
    with (
        activity.doing("evaluating", lambda: scores.batches, step=lambda: global_step),
        EventWriters() as writers,
    ):
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
        if share is None:
            _evaluate_batches(model, dataset, scores, steps, context, schedule)
        else:
            share.evaluate(model, dataset, scores, steps, context, schedule)
        for hook in all_hooks:
            hook.end(context)
    results, batches = scores.compute(global_step), scores.batches
    if share is not None:
        results, batches = share.results(results, batches)
    if steps is None and dataset.is_endless and not context.stop_requested:
        logger.warning("A signal has ended the evaluation after %d batches; its metrics are not kept.", batches)
        raise Preempted
    logger.info("Finished evaluation of %d batches in %.2f s", batches, time.monotonic() - started)
    if batches == 0:
        logger.warning("The evaluation input is empty: all metrics are 0.")
    results["global_step"] = global_step
    return EvaluationResult(sorted(results.items()), batches=batches)


def _evaluate_batches(
    model: Model, dataset: Dataset, scores: Scores, steps: int | None, context: RunContext, schedule: HookSchedule
) -> None:
    """Run the model on the batches of an input, and add their losses and metrics to ``scores``."""
    with (
        closing(model.batches(dataset)) as batches,
        torch.inference_mode(),
        ProgressBar("Evaluating", total=steps) as bar,
    ):
        fusion = BatchFusion(batches, model, schedule)
        while (steps is None or scores.batches < steps) and not context.stop_requested:
            if steps is None and is_stop_asked() and dataset.is_endless:
                break
            before = scores.batches
            tensors, count = fusion.next(before + 1, None if steps is None else steps - before)
            if tensors is None:
                break
            due = schedule.due_at(before + 1) if count == 1 else []
            for hook in due:
                hook.before_step(context)
            with sized_threads(
                model.module, batch_size(tensors.features), with_input_thread=not dataset.runs_user_code
            ):
                noticing = nullcontext() if before else noticing_draws("evaluation")
                with noting_batch(model.module, tensors.features, tensors.labels), observed(context), noticing:
                    outputs = model.module(tensors.features)
                    context.loss_tensor = scores.add_losses(outputs, tensors, count)
                scores.add(outputs, tensors, count)
            for hook in due:
                hook.after_step(context)
            if due:
                fusion.hooks_were_called()
            context.observe = False
            _show_progress(bar, range(before + 1, scores.batches + 1), steps)
        if steps is not None and scores.batches >= steps and not dataset.is_endless and next(batches, None) is not None:
            logger.info("Evaluated the first %d batches of the input, which has more; steps=None takes all.", steps)


def write_evaluation(eval_dir: str, results: EvaluationResult, checkpoint_path: str) -> None:
    """Write the metrics of an evaluation and the path of its checkpoint as summaries, and log them."""
    global_step = int(results["global_step"])
    with EventWriter(eval_dir) as events:
        # Write the path first. If this process is killed before the metrics, no metrics are without a checkpoint path.
        logger.info("Saving 'checkpoint_path' summary for global step %d: %s", global_step, checkpoint_path)
        events.text("checkpoint_path", checkpoint_path, global_step)
        write_results(events, results)


def write_results(events: EventWriter, results: EvaluationResult) -> None:
    """Write the metrics of an evaluation as summaries, and log them.

    An empty evaluation is not written: its loss of 0 would look like the best one in TensorBoard.
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
