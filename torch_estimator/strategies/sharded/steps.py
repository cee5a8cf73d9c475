"""The loop of a process that holds some rows of each parameter."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torch_estimator import files
from torch_estimator.compile.choice import EagerSteps
from torch_estimator.distributed.lost import PeerLost
from torch_estimator.distributed.packing import LOSS
from torch_estimator.distributed.split_step import STEPS
from torch_estimator.distributed.step_exchange import FAILED, FURTHER, PREEMPTED, STOPS, WAITS, InStep
from torch_estimator.errors import CheckpointError, UserError
from torch_estimator.hooks.hook import RunContext
from torch_estimator.hooks.nan_tensor import NotFinite
from torch_estimator.strategies.sharded.step import ShardedStep
from torch_estimator.train.batches import Batches

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
        step: Of this process.
        averages: Whether losses are averaged over the processes, not added up.
        position: Where this process is, before its next batch is read.
        write: Writes what this process saves into a directory.
    """

    after_failure = "see its log, and start all of them again: training goes on from the last checkpoint."

    def __init__(
        self,
        group: Group,
        step: ShardedStep,
        *,
        averages: bool,
        position: Callable[[], Mapping[str, Any]],
        write: Callable[[str], None],
    ) -> None:
        super().__init__(group)
        self._step = step
        self._steps = EagerSteps(step)
        self._averages = averages
        self._position = position
        self._write = write
        self._where: Mapping[str, Any] = {}
        self._batches: Batches | None = None
        self._buffers = [one for one in step.module.buffers() if one.is_floating_point() or one.is_complex()]
        self._in_step = False

    def state(self) -> dict[str, Any]:
        """Nothing was compiled."""
        return {}

    def look_again(self) -> None:
        """Python sees every change but one of what is trained."""
        self._steps.look_again()

    def close(self, *exception: object) -> None:
        """There is nothing to end."""

    def note_position(self) -> None:
        """Notes where this process is, which it may be asked for while it waits with the batch that comes."""
        if self.group.rank:
            self._where = self._position()

    def take(self, batches: Batches | None, context: RunContext) -> Sequence[Tensor | float]:
        """Takes one step, with or without a batch of one's own; none where nobody has one, or the chief leaves.

        Raises:
            PeerLost: Another process is gone.
        """
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
        self.note_position()
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
        told: dict[str, Any] = {"where": self._where}
        directory = self.group.gather_texts("")[0]
        try:
            self._write(directory)
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
        share = 1.0 / codes.count(STEPS) if self._averages else 1.0
        here = float(codes[self.group.rank] == STEPS)
        # Gradients are averaged over all.
        self._step.scale = here * share * self.group.size
        self._in_step = True
        with self.group.watched():
            (loss,) = self._steps.take(batches, context)
        losses = loss.new_empty(self.group.size, 1)
        self.group.gather(loss.reshape(1) * (here * share), losses)
        self.group.broadcast(self._buffers)
        self._in_step = False
        return [losses.sum()]
