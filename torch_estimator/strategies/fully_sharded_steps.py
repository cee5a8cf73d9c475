"""Steps of fully sharded training, in which each process holds some rows of every parameter.

Before each step all processes exchange codes (see `synchronous_steps.py`), so that they enter the collectives of the
forward and backward pass together, or none does. Every process has to take part in each step, because the others need
its rows: a process whose input has ended computes its last batch again, with a loss that counts for nothing.

A checkpoint is written by all: the chief asks for it between two steps, each process writes its rows into a file of its
own, and sends its input cursor to the chief, which writes the rest.
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
from torch_estimator.train.row_update import Mentions
from torch_estimator.train.runner import EagerRunner
from torch_estimator.train.step import TrainStep
from torch_estimator.train.training import HOOKS, Training

if TYPE_CHECKING:
    from torch_estimator.distributed.group import Group

logger = logging.getLogger("torch_estimator")

_SAVE_SHARDS = FIRST_FREE_CODE
"""From the chief: all others save their rows before they go on with what they are doing."""
_NEVER_HAD_BATCH = FIRST_FREE_CODE + 1
"""The input of the sender was empty, so it has no batch that it could compute again."""

# Words in the errors of torch for a lost connection, which have no type of their own.
_CONNECTION_ERRORS = ("gloo", "NCCL", "Connection closed", "Connection reset")


class ShardedSteps(SynchronousSteps):
    """Takes the steps of one process, on its own batches, with the parameters of all processes.

    Args:
        group: The processes.
        training: The training of this process.
        context: What hooks are called with.
    """

    after_failure = "see its log, and start all of them again: training goes on from the last checkpoint."
    steps_per_call = 1

    def __init__(self, group: Group, training: Training, context: RunContext) -> None:
        super().__init__(group)
        self._training = training
        self._context = context
        self._step = ShardedStep(*training.step_arguments, schedules=training.schedules)
        self._runner = EagerRunner(self._step)
        self._shard_file = ShardWriter(group.rank, group.size)
        self._state: Mapping[str, Any] = {}
        self._batches: Batches | None = None
        buffers = training.model.module.buffers()
        self._buffers = [one for one in buffers if one.is_floating_point() or one.is_complex()]
        self._in_step = False

    def invalidate(self) -> None:
        """Have the next step look for changes, after a hook of the user's has run."""
        self._runner.invalidate()

    def _note_state(self) -> None:
        """Note the input cursor before the next batch is read: the chief may ask for it after that, to save it."""
        if self.group.rank:
            self._state = {**self._training.state(), HOOKS: self._training.hook_states()}

    def take(self, most: int) -> Sequence[Tensor | float]:
        """Take one step, with or without a batch of this process.

        Returns:
            The loss over the batches of all processes; nothing where no process has a batch, or the chief has ended the
            training.

        Raises:
            PeerLost: Another process is lost.
        """
        self._note_state()
        batches, context = self._training.next_batches(1), self._context
        self._note_stop_wish(context)
        self._batches = batches or self._batches
        code = HAS_BATCH if batches is not None else _NEVER_HAD_BATCH if self._batches is None else NO_BATCH
        codes = self._exchange_and_save(code)
        if self._has_training_ended(codes) or HAS_BATCH not in codes:
            return ()
        self._note_stop_wishes_of_all()
        return self._step_together(codes, self._batches, context)

    def gather_shards(self, directory: str) -> list[Any]:
        """Have the other processes write their rows; the chief calls this between two steps.

        Args:
            directory: Directory of the unfinished checkpoint.

        Returns:
            The input cursors of the others by rank, as JSON; None for the chief.

        Raises:
            CheckpointError: Another process could not write its rows.
            NotFinite: A trained variable is NaN or infinite in the rows of another process.
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
        self._note_state()
        # The chief may still save a checkpoint before it ends the training.
        while (code := self._exchange_and_save(NO_BATCH)[0]) not in (TRAINING_ENDS, PREEMPTED):
            pass
        self.preempted |= code == PREEMPTED

    def fail(self) -> None:
        # In the middle of a step the others wait in another collective, which fails when this process ends.
        if not self._in_step:
            self._exchange(FAILED)

    def _exchange_and_save(self, code: float) -> list[float]:
        """Exchange codes, saving shards whenever the chief asks for them; return the codes of the next step."""
        while (codes := self._exchange(code))[0] == _SAVE_SHARDS:
            self._save_shard()
        return codes

    def _exchange(self, code: float) -> list[float]:
        return self._exchange_codes(torch.zeros(LOSS), code)

    def _save_shard(self) -> None:
        """Write the rows of this process, and tell the chief the input cursor or what went wrong."""
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
        # torch averages gradients over all processes, with and without a batch; the factor undoes that.
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
    """Takes one step together with the other processes, which have to take theirs at the same time.

    Attributes:
        scale: Factor of the loss, before its gradients are averaged over the processes.
    """

    scale = 1.0

    def __call__(self, features: Any, labels: Any, weights: Tensor | None) -> Tensor:
        """Take one step; return the loss of this process's batch, computed before the update.

        Raises:
            PeerLost: Another process is gone.
            InvalidValueError: A parameter is used where it is not gathered.
        """
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
    ) -> tuple[Tensor, list[Tensor | None], list[Mentions | None]]:
        """Compute gradients as `TrainStep.differentiate` does: of this process's rows, averaged over all processes."""
        loss = self.loss(features, labels, weights)
        self.check_loss(loss)
        (loss * self.scale).backward()  # type: ignore[no-untyped-call]
        dense = [parameter.grad for parameter in self.dense]
        for parameter in self.dense:
            parameter.grad = None
        return loss, dense, []

    def update(self, optimizer: Optimizer, parameter: Tensor, gradient: Tensor, group: LiveGroup) -> None:
        """Update this process's rows. Update rules treat every element by itself, so they need no other rows."""
        state = {key: to_local(value) for key, value in optimizer.state[parameter].items()}
        optimizer.update(to_local(parameter), to_local(gradient), state, group.values)
        optimizer.advance(state, group.values)
