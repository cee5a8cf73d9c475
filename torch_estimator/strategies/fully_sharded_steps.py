"""Steps of fully sharded training, in which each process holds some rows of every parameter.

Before each step all processes exchange codes (see `synchronous_steps.py`), so that either all of them enter the
collectives of the forward and backward pass, or none does. Every process has to take part in each step, because the
others need its rows. So a process whose input has ended computes its last batch again, with its loss multiplied by 0.

All processes write a part of each checkpoint. The chief asks for it between two steps; then each process writes its
rows into a file of its own and sends its input cursor to the chief, which writes the rest.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torch_estimator import files
from torch_estimator.checkpoint.sharded_tensors import to_local
from torch_estimator.checkpoint.writer import ShardWriter
from torch_estimator.distributed.errors import PeerLost, short_reason
from torch_estimator.distributed.gradient_message import HAS_BATCH, LOSS
from torch_estimator.errors import CheckpointError, InvalidValueError, UserError
from torch_estimator.hooks.hook import RunContext
from torch_estimator.hooks.nan_tensor import NotFinite, check_finite
from torch_estimator.optim.base import Optimizer
from torch_estimator.strategies.synchronous_steps import (
    FAILED,
    FIRST_FREE_CODE,
    NO_BATCH,
    PREEMPTED,
    TRAINING_ENDS,
    SynchronousSteps,
)
from torch_estimator.train.batches import Batches
from torch_estimator.train.live_group import LiveGroup
from torch_estimator.train.runner import EagerRunner
from torch_estimator.train.sparse_update import SparseGrad
from torch_estimator.train.step import TrainStep
from torch_estimator.train.training import HOOKS, Training

if TYPE_CHECKING:
    from torch_estimator.distributed.group import Group

logger = logging.getLogger("torch_estimator")

_SAVE_SHARDS = FIRST_FREE_CODE
"""From the chief: all other processes save their rows, then exchange codes again."""
_NEVER_HAD_BATCH = FIRST_FREE_CODE + 1
"""The input of the sender was empty, so it has no batch that it could compute again."""

# torch raises a plain RuntimeError for some lost connections. The message of such an error has one of these words.
_CONNECTION_ERRORS = ("gloo", "NCCL", "Connection closed", "Connection reset")


class ShardedSteps(SynchronousSteps):
    """Training steps of one process, computed on its own batches with the parameters of all processes."""

    after_failure = "see its log, and start all of them again: training goes on from the last checkpoint."
    steps_per_call = 1

    def __init__(self, group: Group, training: Training, context: RunContext) -> None:
        super().__init__(group)
        self._training = training
        self._context = context
        self._step = ShardedStep(
            *training.step_arguments, schedules=training.schedules, averages=training.averages_losses
        )
        self._runner = EagerRunner(self._step)
        self._shard_file = ShardWriter(group.rank, group.size)
        self._state: Mapping[str, Any] = {}
        self._batches: Batches | None = None
        buffers = training.model.module.buffers()
        self._buffers = [one for one in buffers if one.is_floating_point() or one.is_complex()]
        self._in_step = False

    def invalidate(self) -> None:
        """Warn if a user's hook has unfrozen parameters, because they are not trained. Other changes need no action."""
        self._runner.invalidate()

    def _keep_state(self) -> None:
        """Keep the input cursor from before the next batch is read, since the chief may save a checkpoint later."""
        if self.group.rank:
            self._state = {**self._training.state(), HOOKS: self._training.hook_states()}

    def take(self, most: int) -> Sequence[Tensor | float]:
        """Take one step with the next batch of this process, or with its last batch again if its input has ended.

        Return the loss over the batches of all processes; nothing if no process has a batch, or if the chief has ended
        the training.
        """
        self._keep_state()
        batches, context = self._training.next_batches(1), self._context
        self._request_stop(context)
        self._batches = batches or self._batches
        code = HAS_BATCH if batches is not None else _NEVER_HAD_BATCH if self._batches is None else NO_BATCH
        codes = self._exchange_and_save(code)
        if self._has_training_ended(codes) or HAS_BATCH not in codes:
            return ()
        self._collect_stop_requests()
        return self._step_together(codes, self._batches, context)

    def gather_shards(self, directory: str) -> list[Any]:
        """As the chief, between two steps, make all other processes write their rows into an unfinished checkpoint.

        Return the input cursors of the other processes by rank; None for the chief. Raise `CheckpointError` if another
        process could not write its rows, and `NotFinite` if these hold NaN or infinity.
        """
        self._exchange(_SAVE_SHARDS)
        self.group.all_gather_texts(directory)
        answers = [json.loads(text) if text else None for text in self.group.all_gather_texts("")]
        for rank, answer in enumerate(answers):
            if answer is not None and "not_finite" in answer:
                raise NotFinite(*answer["not_finite"])
            if answer is not None and "problem" in answer:
                raise CheckpointError(f"{self.group.name(rank)} could not save its shard: {answer['problem']}")
        return [answer and answer["state"] for answer in answers]

    def end(self, *, preempted: bool) -> None:
        if self._dismissed:
            return
        if self.group.rank == 0:
            self.preempted |= preempted
            with suppress(PeerLost):
                self._exchange(PREEMPTED if self.preempted else TRAINING_ENDS)
            return
        self._keep_state()
        # Exchange codes until the chief ends the training, since the chief may save a checkpoint before that.
        while (code := self._exchange_and_save(NO_BATCH)[0]) not in (TRAINING_ENDS, PREEMPTED):
            pass
        self.preempted |= code == PREEMPTED

    def fail(self) -> None:
        # Send nothing in the middle of a step: the other processes then wait in a collective of the step, not for a
        # code. That collective fails when this process ends.
        if not self._in_step:
            self._exchange(FAILED)

    def _exchange_and_save(self, code: float) -> list[float]:
        """Exchange status codes, repeat while the chief saves, and return the last code of each rank."""
        while (codes := self._exchange(code))[0] == _SAVE_SHARDS:
            self._save_shard()
        return codes

    def _exchange(self, code: float) -> list[float]:
        return self._exchange_codes(torch.zeros(LOSS), code)

    def _save_shard(self) -> None:
        """Write this process's rows into a checkpoint; send the chief the input cursor, or the reason for an error."""
        answer: dict[str, Any] = {"state": self._state}
        directory = self.group.all_gather_texts("")[0]
        try:
            check_finite(self._training.trained_variables())
            self._shard_file.write(directory, self._training.model.variables(), self._training.slots())
        except NotFinite as found:
            answer = {"not_finite": found.args}
        except (OSError, UserError) as error:
            answer = {"problem": f"{files.reason(error)}."}
        self.group.all_gather_texts(json.dumps(answer))

    def _step_together(
        self, codes: Sequence[float], batches: Batches | None, context: RunContext
    ) -> Sequence[Tensor | float]:
        """Take a step with this process's batch, or with its last batch again; return the loss over all batches."""
        if _NEVER_HAD_BATCH in codes:
            empty = self.group.name(codes.index(_NEVER_HAD_BATCH))
            logger.warning("Training ends though there are batches left: %s has none, and others need its rows.", empty)
            return ()
        assert batches is not None
        share = 1.0 / codes.count(HAS_BATCH) if self._training.averages_losses else 1.0
        counts = float(codes[self.group.rank] == HAS_BATCH)
        # torch averages the gradients over all processes, even if some have no batch. Multiplying by the number of
        # processes turns this average into a sum.
        self._step.scale = counts * share * self.group.size
        self._in_step = True
        with self.group.waiting():
            (loss,) = self._runner.take(batches, context)
        losses = loss.new_empty(self.group.size, 1)
        self.group.all_gather(loss.reshape(1) * (counts * share), losses)
        self.group.broadcast(self._buffers)
        self._in_step = False
        return [losses.sum()]


class ShardedStep(TrainStep):
    """Training step of a sharded model. All processes have to take the step at the same time.

    `scale` is the factor by which the loss is multiplied before the backward pass, which averages gradients over
    processes.
    """

    scale = 1.0

    def __call__(self, features: Any, labels: Any, weights: Tensor | None) -> Tensor:
        """Take one step; return the loss of this process's batch, computed before the update."""
        try:
            return super().__call__(features, labels, weights)
        except RuntimeError as error:
            text = str(error)
            if isinstance(error, torch.distributed.DistError) or any(one in text for one in _CONNECTION_ERRORS):
                raise PeerLost(
                    f"Another process of the cluster was lost in the middle of a step ({short_reason(error)}); "
                    "see its log, and start all of them again: training goes on from the last checkpoint."
                ) from error
            if "mixed torch.Tensor and DTensor" in text:
                raise InvalidValueError(
                    "A parameter is used outside of the forward pass of its unit, where it is not gathered; give "
                    "FullyShardedStrategy units that use their parameters themselves."
                ) from error
            raise

    def differentiate(
        self, features: Any, labels: Any, weights: Tensor | None
    ) -> tuple[Tensor, list[Tensor | None], list[SparseGrad | None]]:
        """Compute the gradients of this process's rows, averaged over all processes; see `TrainStep.differentiate`."""
        loss = self.loss(features, labels, weights)
        self.check_loss(loss)
        (loss * self.scale).backward()  # type: ignore[no-untyped-call]
        dense = [parameter.grad for parameter in self.dense]
        for parameter in self.dense:
            parameter.grad = None
        return loss, dense, []

    def update(self, optimizer: Optimizer, parameter: Tensor, gradient: Tensor, group: LiveGroup) -> None:
        """Update this process's rows of a parameter. Other rows are not needed, as the update rules are elementwise."""
        state = {key: to_local(value) for key, value in optimizer.state[parameter].items()}
        optimizer.update(to_local(parameter), to_local(gradient), state, group.values)
        optimizer.advance(state, group.values)
