"""Evaluation by several processes: each runs some of the batches, and the first process computes the metrics of all.

Every process reads the same dataset. Of n processes, process i runs the batches i, i + n, i + 2n, … It sends the
module's outputs and the labels to the first process, which adds all batches to the metrics in their order. So the
results equal those of one process, even if a metric depends on the order of batches or needs all of them, as medians
and users' own functions do. (Sending the state of each metric instead would take fewer bytes, but users' functions have
no state that could be added up.) Hooks run in the first process, for its own batches.

A *round* consists of one batch of each process. The first process runs its own batch of the round, then receives those
of the others. The evaluation ends in the round in which the input ends, ``steps`` is reached, or a hook requests a
stop.

The processes are either those of a cluster, which are in a `Group` (`GroupShare`), or forked for one evaluation on one
machine; then they send through pipes (`ForkedShare`).
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from itertools import count, islice
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Protocol

import torch

from torch_estimator.data.dataset import Dataset
from torch_estimator.distributed.consistency import check_same, describe_training
from torch_estimator.distributed.evaluated_batch import EvaluatedBatch, pack_batch, unpack_batch
from torch_estimator.distributed.forked_replicas import ForkedReplicas
from torch_estimator.errors import ClusterError
from torch_estimator.hooks.hook import RunContext
from torch_estimator.hooks.schedule import HookSchedule
from torch_estimator.stop_signals import is_stop_asked
from torch_estimator.strategy import EvaluationShare
from torch_estimator.train.batches import TensorBatch, batch_size, noting_batch
from torch_estimator.train.model import Model
from torch_estimator.train.observation import observed
from torch_estimator.train.scores import Scores
from torch_estimator.train.threads import sized_threads

if TYPE_CHECKING:
    from torch_estimator.distributed.group import Group

_POLL_SECS = 0.5
_BATCH_SECS = 7200.0

# The chief keeps its own batch and sends these bytes instead, since no bytes would mean that its input has ended.
_CHIEF_HAS_BATCH = b"a batch"


class Peers(Protocol):
    """The other processes of an evaluation: the first process receives from them, all others send to the first."""

    def begin_round(self, own: EvaluatedBatch) -> None:
        """In the first process: begin to receive the batches of a round. `own` is the first process's batch."""

    def receive(self, index: int) -> EvaluatedBatch | None:
        """In the first process: return the batch of process `index` in this round; None if that input has ended."""

    def end(self) -> None:
        """In the first process: stop receiving, so that `send` returns in the other processes."""

    def send(self, batches: Iterator[EvaluatedBatch]) -> None:
        """In all other processes: send the batches, until they end or the first process stops receiving."""


def evaluate_in_rounds(
    model: Model,
    dataset: Dataset,
    scores: Scores,
    steps: int | None,
    context: RunContext,
    schedule: HookSchedule,
    peers: Peers,
    *,
    index: int,
    size: int,
) -> None:
    """Run the batches of this process; in the first process, also add the batches of all processes to the scores.

    `dataset` holds all batches, the same in every process. Only the scores of the process with `index` 0 are used.
    """
    with closing(model.batches(dataset.divided(size, index))) as own, torch.inference_mode():
        if index:
            most = None if steps is None else len(range(index, steps, size))
            peers.send(_run_batch(model, tensors, context, scores) for tensors in islice(own, most))
            return
        for number in count() if steps is None else range(steps):
            round_number, sender = divmod(number, size)
            due = []
            if context.stop_requested or (steps is None and is_stop_asked() and dataset.is_endless):
                break
            if sender:
                batch = peers.receive(sender)
            else:
                tensors = next(own, None)
                if tensors is None:
                    break
                due = schedule.due_at(round_number + 1)
                for hook in due:
                    hook.before_step(context)
                batch = _run_batch(model, tensors, context, scores)
                peers.begin_round(batch)
            if batch is None:
                break
            context.loss_tensor = scores.add_losses(*batch, 1)
            scores.add(*batch, 1)
            for hook in due:
                hook.after_step(context)
            context.observe = False
        peers.end()


def _run_batch(model: Model, tensors: TensorBatch, context: RunContext, scores: Scores) -> EvaluatedBatch:
    with (
        sized_threads(model.module, batch_size(tensors.features)),
        noting_batch(model.module, tensors.features, tensors.labels),
        observed(context),
    ):
        raw = tensors.raw if scores.wants_raw else None
        return model.module(tensors.features), tensors._replace(features=None, raw=raw)


# The following classes evaluate with the processes of a cluster.


class GroupShare(EvaluationShare):
    """Processes of a cluster that share an evaluation; the first one is the chief."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.is_first = group.rank == 0

    def working(self) -> AbstractContextManager[None]:
        return self._group.reporting_failure()

    def agree_on_source(self, path: str | None, seed: int) -> tuple[str | None, int]:
        path, seed = self._from_chief([path, seed])
        return path, seed

    def check_model(self, model: Model, settings: Mapping[str, Any], *, broadcast: bool) -> None:
        check_same(self._group, {**settings, **describe_training(model, None)})
        if broadcast:
            self._group.broadcast(model.variables().values())

    def evaluate(
        self,
        model: Model,
        dataset: Dataset,
        scores: Scores,
        steps: int | None,
        context: RunContext,
        schedule: HookSchedule,
    ) -> None:
        """Run this process's share of the batches; the chief computes the metrics of all batches."""
        index, size = self._group.present.index(self._group.rank), len(self._group.present)
        peers = _GroupPeers(self._group)
        evaluate_in_rounds(model, dataset, scores, steps, context, schedule, peers, index=index, size=size)

    def results(self, results: dict[str, float], batches: int) -> tuple[dict[str, float], int]:
        results, batches = self._from_chief([results, batches])
        return results, batches

    def _from_chief(self, value: Any) -> Any:
        """Send the chief's value to all processes, encoded as JSON; return the value in each process."""
        return json.loads(self._group.all_gather_texts("" if self._group.rank else json.dumps(value, default=float))[0])


class _GroupPeers:
    """Members of a group. In each round every member sends a batch in one collective, or no bytes if it has none.

    All members learn how many bytes each one sends. A round in which a member sends no bytes is the last one for all.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._own: EvaluatedBatch | None = None
        self._received: list[bytes] = []
        self._is_over = False

    def begin_round(self, own: EvaluatedBatch) -> None:
        self._own = own
        self._exchange(_CHIEF_HAS_BATCH)

    def receive(self, index: int) -> EvaluatedBatch | None:
        assert self._own is not None
        data = self._received[self._group.present[index]]
        return unpack_batch(data, self._own) if data else None

    def end(self) -> None:
        if not self._is_over:
            self._exchange(b"")

    def send(self, batches: Iterator[EvaluatedBatch]) -> None:
        for batch in batches:
            self._exchange(pack_batch(batch))
            if self._is_over:
                return
        self._exchange(b"")

    def _exchange(self, data: bytes) -> None:
        lengths, self._received = self._group.gather_to_chief(data)
        self._is_over = not all(lengths[rank] for rank in self._group.present)


# The following classes evaluate with processes that are forked for one evaluation.

Pipe = tuple[Connection, Connection]


class ForkedShare(EvaluationShare):
    """Processes that are forked for one evaluation on one machine, each with one of the devices."""

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = devices

    def evaluate(
        self,
        model: Model,
        dataset: Dataset,
        scores: Scores,
        steps: int | None,
        context: RunContext,
        schedule: HookSchedule,
    ) -> None:
        """Fork the processes and run the batches of each; the first process computes the metrics of all batches."""
        pipes = [multiprocessing.Pipe(duplex=False) for _ in self._devices[1:]]
        with ForkedReplicas(self._devices, "Evaluating") as replicas:
            index, size = replicas.task.rank, len(self._devices)
            peers = _PipePeers(pipes, index, replicas)
            evaluate_in_rounds(model, dataset, scores, steps, context, schedule, peers, index=index, size=size)


class _PipePeers:
    """Forked processes, each of which sends its batches to the first process through a pipe.

    `pipes` holds both ends of the pipe of each process but the first; this one closes the ends that it does not use.
    """

    def __init__(self, pipes: Sequence[Pipe], index: int, replicas: ForkedReplicas) -> None:
        self._pipes = pipes
        self._replicas = replicas
        self._own: EvaluatedBatch | None = None
        for sender_index, (receiver, sender) in enumerate(pipes, start=1):
            if index:
                receiver.close()
            if sender_index != index:
                sender.close()
        self._sender = pipes[index - 1][1]

    def begin_round(self, own: EvaluatedBatch) -> None:
        self._own = own

    def receive(self, index: int) -> EvaluatedBatch | None:
        assert self._own is not None
        receiver = self._pipes[index - 1][0]
        deadline = time.monotonic() + _BATCH_SECS
        while time.monotonic() < deadline:
            # If a process has died, reading its pipe raises EOFError at once, perhaps before its exit status is
            # available. Ignore the EOFError: `check` raises an error as soon as the exit status is available.
            with suppress(EOFError):
                if receiver.poll(_POLL_SECS):
                    data = receiver.recv_bytes()
                    return unpack_batch(data, self._own) if data else None
            self._replicas.check()
        raise ClusterError(
            f"A replica that evaluates has not finished a batch within {_BATCH_SECS:.0f} s; see its log."
        )

    def end(self) -> None:
        # Close the pipes: a process that still sends gets a BrokenPipeError, which ends its `send`.
        for receiver, _ in self._pipes:
            receiver.close()

    def send(self, batches: Iterator[EvaluatedBatch]) -> None:
        with suppress(BrokenPipeError):
            for batch in batches:
                self._sender.send_bytes(pack_batch(batch))
            self._sender.send_bytes(b"")
