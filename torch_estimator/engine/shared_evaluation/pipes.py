"""An evaluation that several processes of one machine share; only one of them adds up scores."""

from __future__ import annotations

import multiprocessing
import pickle
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from itertools import count, islice
from multiprocessing.connection import Connection
from typing import Any

import torch

from torch_estimator.data.dataset import Dataset
from torch_estimator.distribute.replicas import Replicas
from torch_estimator.engine.batch_note import noting_batch
from torch_estimator.engine.batches import TensorBatch, batch_size
from torch_estimator.engine.model import Model
from torch_estimator.engine.observation import observed
from torch_estimator.engine.scores import Scores
from torch_estimator.engine.threads import sized_threads
from torch_estimator.errors import ClusterError, InvalidTypeError
from torch_estimator.hooks.run_context import RunContext
from torch_estimator.hooks.schedule import HookSchedule

_LOOK_EVERY_SECS = 0.5
_BATCH_SECS = 7200.0

Evaluated = tuple[Any, TensorBatch]
"""What the module made of a batch, and the batch without its features."""


def evaluate_on_replicas(
    model: Model,
    dataset: Dataset,
    scores: Scores,
    steps: int | None,
    context: RunContext,
    schedule: HookSchedule,
    devices: Sequence[str],
) -> None:
    """Has every replica run its batches, and takes them in here in their order: any metric is that of one process.

    Of n replicas the i-th takes every n-th batch from the i-th on. Hooks are told of those of the first.

    Args:
        model: Its weights in place.
        dataset: Of all batches.
        scores: Takes them in.
        steps: Batches to evaluate, or None for all.
        context: Of the evaluation.
        schedule: Of its hooks.
        devices: One for each replica.

    Raises:
        UserError: A replica has failed.
    """
    size = len(devices)
    pipes = [multiprocessing.Pipe(duplex=False) for _ in devices[1:]]
    with Replicas(devices, "Evaluating") as replicas, torch.inference_mode():
        rank = replicas.task.rank
        with closing(model.batches(dataset.divided(size, rank))) as own:
            if rank:
                most = None if steps is None else len(range(rank, steps, size))
                _send_all((_run(model, tensors, context) for tensors in islice(own, most)), pipes, rank)
                return
            for _, sender in pipes:
                sender.close()
            for number in count() if steps is None else range(steps):
                turn, whose = divmod(number, size)
                if context.stop_requested:
                    break
                if whose:
                    batch, due = _received(pipes[whose - 1][0], replicas), []
                else:
                    tensors = next(own, None)
                    due = schedule.due_at(turn + 1) if tensors is not None else []
                    for hook in due:
                        hook.before_step(context)
                    batch = None if tensors is None else _run(model, tensors, context)
                if batch is None:
                    break
                context.loss_tensor = scores.add_losses(*batch, 1)
                scores.add(*batch, 1)
                for hook in due:
                    hook.after_step(context)
                context.observe = False
            # Who still wants to send something is not listened to any more.
            for receiver, _ in pipes:
                receiver.close()


def _run(model: Model, tensors: TensorBatch, context: RunContext) -> Evaluated:
    with (
        sized_threads(model.module, batch_size(tensors.features)),
        noting_batch(model.module, tensors.features, tensors.labels),
        observed(context),
    ):
        return model.module(tensors.features), tensors._replace(features=None)


def _send_all(batches: Iterator[Evaluated], pipes: Sequence[tuple[Connection, Connection]], rank: int) -> None:
    for place, (receiver, sender) in enumerate(pipes, start=1):
        receiver.close()
        if place != rank:
            sender.close()
    sender = pipes[rank - 1][1]
    with suppress(BrokenPipeError):
        for batch in batches:
            sender.send_bytes(_packed(batch))
        sender.send_bytes(_packed(None))


def _packed(batch: Evaluated | None) -> bytes:
    try:
        return pickle.dumps(batch)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InvalidTypeError(
            f"eval_distribute needs a module whose outputs another process can be sent ({error}); return tensors, or "
            "leave eval_distribute out."
        ) from error


def _received(receiver: Connection, replicas: Replicas) -> Evaluated | None:
    """The next batch of another replica; None at the end of its input."""
    deadline = time.monotonic() + _BATCH_SECS
    while time.monotonic() < deadline:
        # Between a replica's last word and its end there is an end of the pipe, which can be read, too.
        with suppress(EOFError):
            if receiver.poll(_LOOK_EVERY_SECS):
                batch: Evaluated | None = pickle.loads(receiver.recv_bytes())
                return batch
        replicas.watch()
    raise ClusterError(f"A replica that evaluates has not finished a batch within {_BATCH_SECS:.0f} s; see its log.")
