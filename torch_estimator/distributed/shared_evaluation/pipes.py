"""An evaluation that processes share which are forked for it from the one that evaluates."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

from torch_estimator.data.dataset import Dataset
from torch_estimator.distributed.forked_replicas import Replicas
from torch_estimator.distributed.shared_evaluation.packing import Evaluated, packed, unpacked
from torch_estimator.distributed.shared_evaluation.turns import evaluate_in_turns
from torch_estimator.errors import ClusterError
from torch_estimator.hooks.hook import RunContext
from torch_estimator.hooks.schedule import HookSchedule
from torch_estimator.strategy import EvaluationShare
from torch_estimator.train.model import Model
from torch_estimator.train.scores import Scores

_LOOK_EVERY_SECS = 0.5
_BATCH_SECS = 7200.0

Pipe = tuple[Connection, Connection]


class ReplicaShare(EvaluationShare):
    """Processes forked for one evaluation: each runs every n-th batch, the first adds up the scores.

    Args:
        devices: The device of each process, as torch names it.
    """

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
        """Fork the processes and run the batches of each; see `EvaluationShare.evaluate`.

        Raises:
            UserError: A replica has failed.
        """
        pipes = [multiprocessing.Pipe(duplex=False) for _ in self._devices[1:]]
        with Replicas(self._devices, "Evaluating") as replicas:
            rank, size = replicas.task.rank, len(self._devices)
            others = _Pipes(pipes, rank, replicas)
            evaluate_in_turns(model, dataset, scores, steps, context, schedule, others, place=rank, size=size)


class _Pipes:
    """From every replica to the first."""

    def __init__(self, pipes: Sequence[Pipe], rank: int, replicas: Replicas) -> None:
        self._pipes = pipes
        self._replicas = replicas
        self._own: Evaluated | None = None
        for place, (receiver, sender) in enumerate(pipes, start=1):
            if rank:
                receiver.close()
            if place != rank:
                sender.close()
        self._sender = pipes[rank - 1][1]

    def begin_round(self, own: Evaluated) -> None:
        self._own = own

    def received(self, place: int) -> Evaluated | None:
        assert self._own is not None
        receiver = self._pipes[place - 1][0]
        deadline = time.monotonic() + _BATCH_SECS
        while time.monotonic() < deadline:
            # Between a replica's last word and its end there is an end of the pipe, which can be read, too.
            with suppress(EOFError):
                if receiver.poll(_LOOK_EVERY_SECS):
                    data = receiver.recv_bytes()
                    return unpacked(data, self._own) if data else None
            self._replicas.watch()
        raise ClusterError(
            f"A replica that evaluates has not finished a batch within {_BATCH_SECS:.0f} s; see its log."
        )

    def end(self) -> None:
        # Who still wants to send something is not listened to any more.
        for receiver, _ in self._pipes:
            receiver.close()

    def send(self, batches: Iterator[Evaluated]) -> None:
        with suppress(BrokenPipeError):
            for batch in batches:
                self._sender.send_bytes(packed(batch))
            self._sender.send_bytes(b"")
