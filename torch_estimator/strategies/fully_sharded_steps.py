"""Steps of fully sharded training: each process holds some rows of every parameter."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torch_estimator import files
from torch_estimator.checkpoint.writer import ShardWriter
from torch_estimator.distributed.lost import PeerLost
from torch_estimator.distributed.packing import LOSS
from torch_estimator.distributed.split_step import STEPS
from torch_estimator.distributed.step_exchange import FAILED, FURTHER, PREEMPTED, STOPS, WAITS, InStep
from torch_estimator.errors import CheckpointError, UserError
from torch_estimator.hooks.hook import RunContext
from torch_estimator.hooks.nan_tensor import NotFinite, check_finite
from torch_estimator.strategies.fully_sharded_step import ShardedStep
from torch_estimator.train.batches import Batches
from torch_estimator.train.runner import EagerRunner
from torch_estimator.train.training import HOOKS, Training

if TYPE_CHECKING:
    from torch_estimator.distributed.group import Group

logger = logging.getLogger("torch_estimator")

_SAVES = FURTHER
"""Of the chief: all others are to save their rows, before they go on with what they are doing."""
_NEVER_HAD = FURTHER + 1
"""Of a process without a batch, which cannot even compute one again."""


class ShardedSteps(InStep):
    """Takes the steps of one process, which computes on a batch of its own, with the parameters of all.

    Where one is lost, so are its rows, and all are to be started again. A process whose input has ended computes its
    last batch again as long as others have some, since they need its rows; it counts for nothing.

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
        self._position: Mapping[str, Any] = {}
        self._batches: Batches | None = None
        buffers = training.model.module.buffers()
        self._buffers = [one for one in buffers if one.is_floating_point() or one.is_complex()]
        self._in_step = False

    def invalidate(self) -> None:
        """Have the next step look for changes, after a hook of the user's has run."""
        self._runner.invalidate()

    def close(self, *exception: object) -> None:
        """Do nothing: no code is compiled in the background."""

    def _note_position(self) -> None:
        """Note where the input stands: the chief may ask for it while this process waits with the next batch."""
        if self.group.rank:
            self._position = {**self._training.state(), HOOKS: self._training.hook_states()}

    def take(self, most: int) -> Sequence[Tensor | float]:
        """Take one step, with or without a batch; none where no process has a batch, or the chief ends the training.

        Raises:
            PeerLost: Another process is lost.
        """
        self._note_position()
        batches, context = self._training.next_batches(1), self._context
        self._note_wish(context)
        self._batches = batches or self._batches
        code = STEPS if batches is not None else _NEVER_HAD if self._batches is None else WAITS
        codes = self._exchange_and_save(code)
        if self._is_dismissed(codes):
            return ()
        if STEPS not in codes:
            return ()
        self._heed_wishes()
        return self._stepped(codes, self._batches, context)

    def gather_shards(self, directory: str) -> list[Any]:
        """For the chief, between two steps: has the others write their rows.

        Args:
            directory: Where to.

        Returns:
            Where the others are, by rank, and None for the chief.

        Raises:
            CheckpointError: One of them could not.
            NotFinite: A trained variable is NaN or infinite in the rows of one of them.
        """
        self._exchange(_SAVES)
        self.group.gather_texts(directory)
        told = [json.loads(text) if text else None for text in self.group.gather_texts("")]
        for rank, one in enumerate(told):
            if one is not None and "not_finite" in one:
                raise NotFinite(*one["not_finite"])
            if one is not None and "problem" in one:
                raise CheckpointError(f"{self.group.name(rank)} could not save its shard: {one['problem']}")
        return [one and one["where"] for one in told]

    def end(self, *, preempted: bool) -> None:
        """Leaves the others: the chief has them leave, the others wait for that.

        Args:
            preempted: Whether the chief has to go, so that all are to be started again.
        """
        if self._dismissed:
            return
        if self.group.rank == 0:
            self.preempted |= preempted
            with suppress(PeerLost):
                self._exchange(PREEMPTED if self.preempted else STOPS)
            return
        self._note_position()
        while (code := self._exchange_and_save(WAITS)[0]) not in (STOPS, PREEMPTED):
            pass
        self.preempted |= code == PREEMPTED

    def fail(self) -> None:
        """Tells the others; in the middle of a step they find out by themselves."""
        if not self._in_step:
            self._exchange(FAILED)

    def _exchange_and_save(self, code: float) -> list[float]:
        while (codes := self._exchange(code))[0] == _SAVES:
            self._save()
        return codes

    def _exchange(self, code: float) -> list[float]:
        return self._gathered(torch.zeros(LOSS), code)

    def _save(self) -> None:
        told: dict[str, Any] = {"where": self._position}
        directory = self.group.gather_texts("")[0]
        try:
            check_finite(self._training.trained_variables())
            self._shard_file.write(directory, self._training.model.variables(), self._training.slots())
        except NotFinite as found:
            told = {"not_finite": found.args}
        except (OSError, UserError) as error:
            told = {"problem": f"{files.reason(error)}."}
        self.group.gather_texts(json.dumps(told))

    def _stepped(
        self, codes: Sequence[float], batches: Batches | None, context: RunContext
    ) -> Sequence[Tensor | float]:
        if _NEVER_HAD in codes:
            who = self.group.name(codes.index(_NEVER_HAD))
            logger.warning("Training ends though there are batches left: %s has none, and others need its rows.", who)
            return ()
        assert batches is not None
        share = 1.0 / codes.count(STEPS) if self._training.averages_losses else 1.0
        here = float(codes[self.group.rank] == STEPS)
        # Gradients are averaged over all.
        self._step.scale = here * share * self.group.size
        self._in_step = True
        with self.group.watched():
            (loss,) = self._runner.take(batches, context)
        losses = loss.new_empty(self.group.size, 1)
        self.group.gather(loss.reshape(1) * (here * share), losses)
        self.group.broadcast(self._buffers)
        self._in_step = False
        return [losses.sum()]
