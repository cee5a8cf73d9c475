"""The batches of an evaluation, each run by the process whose turn it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import count, islice
from typing import Protocol

import torch

from torch_estimator.data.dataset import Dataset
from torch_estimator.distributed.shared_evaluation.packing import Evaluated
from torch_estimator.hooks.hook import RunContext
from torch_estimator.hooks.schedule import HookSchedule
from torch_estimator.train.batches import TensorBatch, batch_size, noting_batch
from torch_estimator.train.model import Model
from torch_estimator.train.observation import observed
from torch_estimator.train.scores import Scores
from torch_estimator.train.threads import sized_threads


class Others(Protocol):
    """The other processes, as seen by the first one, which adds up; and by each of the others, which send."""

    def begin_round(self, own: Evaluated) -> None:
        """For the first: it has its batch of this round, and wants those of the others."""

    def received(self, place: int) -> Evaluated | None:
        """For the first: the batch of another one in this round; None where the input has ended there."""

    def end(self) -> None:
        """For the first: it wants no more."""

    def send(self, batches: Iterator[Evaluated]) -> None:
        """For the others: all batches, as long as they are wanted."""


def evaluate_in_turns(
    model: Model,
    dataset: Dataset,
    scores: Scores,
    steps: int | None,
    context: RunContext,
    schedule: HookSchedule,
    others: Others,
    *,
    place: int,
    size: int,
) -> None:
    """Runs the batches of this process; the first takes in those of all, in their order: metrics are those of one.

    Of n processes the i-th takes every n-th batch from the i-th on. Hooks are told of those of the first.

    Args:
        model: Its weights in place.
        dataset: Of all batches; every process gives the same.
        scores: Of the first, takes them in.
        steps: Batches to evaluate, or None for all.
        context: Of the evaluation.
        schedule: Of its hooks.
        others: The other processes.
        place: Of this process among them, from 0, which is the first.
        size: How many they are.
    """
    with closing(model.batches(dataset.divided(size, place))) as own, torch.inference_mode():
        if place:
            most = None if steps is None else len(range(place, steps, size))
            others.send(_run(model, tensors, context, scores) for tensors in islice(own, most))
            return
        for number in count() if steps is None else range(steps):
            turn, whose = divmod(number, size)
            due = []
            if context.stop_requested:
                break
            if whose:
                batch = others.received(whose)
            else:
                tensors = next(own, None)
                if tensors is None:
                    break
                due = schedule.due_at(turn + 1)
                for hook in due:
                    hook.before_step(context)
                batch = _run(model, tensors, context, scores)
                others.begin_round(batch)
            if batch is None:
                break
            context.loss_tensor = scores.add_losses(*batch, 1)
            scores.add(*batch, 1)
            for hook in due:
                hook.after_step(context)
            context.observe = False
        others.end()


def _run(model: Model, tensors: TensorBatch, context: RunContext, scores: Scores) -> Evaluated:
    with (
        sized_threads(model.module, batch_size(tensors.features)),
        noting_batch(model.module, tensors.features, tensors.labels),
        observed(context),
    ):
        raw = tensors.raw if scores.wants_raw else None
        return model.module(tensors.features), tensors._replace(features=None, raw=raw)
