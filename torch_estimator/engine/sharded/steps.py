"""The loop of a process that holds some rows of each parameter."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from torch_estimator import files
from torch_estimator.engine.batches import Batches
from torch_estimator.engine.compiled.choice import EagerSteps
from torch_estimator.engine.replicas.packing import CODE
from torch_estimator.engine.replicas.rounds import SAVES, WAITS, Rounds
from torch_estimator.engine.replicas.steps import STEPS
from torch_estimator.engine.sharded.step import ShardedStep
from torch_estimator.errors import CheckpointError, UserError
from torch_estimator.hooks.run_context import RunContext

if TYPE_CHECKING:
    from torch_estimator.distribute.group import Group


logger = logging.getLogger("torch_estimator")

_NEVER_HAD = 8.0
"""Of a process without a batch, which cannot even compute one again."""


class ShardedSteps(Rounds):
    """Takes the steps of one process, which computes on a batch of its own, with the parameters of all.

    A process whose input has ended computes its last batch again as long as others have some, since they need its
    rows; it counts for nothing.

    Args:
        group: The processes.
        step: Of this process.
        averages: Whether losses are averaged over the processes, not added up.
        state: Where this process is, before its next batch is read.
        write: Writes what this process saves into a directory.
    """

    def __init__(
        self,
        group: Group,
        step: ShardedStep,
        *,
        averages: bool,
        state: Callable[[], Mapping[str, Any]],
        write: Callable[[str], None],
    ) -> None:
        super().__init__(group, state=state)
        self._step = step
        self._steps = EagerSteps(step)
        self._averages = averages
        self._write = write
        self._batches: Batches | None = None
        self._buffers = [one for one in step.module.buffers() if one.is_floating_point() or one.is_complex()]
        self._in_step = False

    def state(self) -> dict[str, Any]:
        """Nothing was compiled."""
        return {}

    def look_again(self) -> None:
        """Python sees every change but one of what is trained."""
        self._steps.look_again()

    def close(self) -> None:
        """There is nothing to end."""

    def gather_shards(self, directory: str) -> list[Any]:
        """For the chief, between two steps: has the others write their shards; returns what `gather_states` does.

        Raises:
            CheckpointError: One of them could not.
        """
        self._exchange(SAVES)
        self._group.gather_texts(directory)
        told = [json.loads(text) if text else None for text in self._group.gather_texts("")]
        for rank, one in enumerate(told):
            if one is not None and "problem" in one:
                raise CheckpointError(f"{self._group.name(rank)} could not save its shard: {one['problem']}")
        return [one and one["where"] for one in told]

    def fail(self) -> None:
        """Tells the others; in the middle of a step they find out by themselves."""
        if not self._in_step:
            super().fail()

    def _tell_where(self) -> None:
        told: dict[str, Any] = {"where": self._where}
        directory = self._group.gather_texts("")[0]
        try:
            self._write(directory)
        except (OSError, UserError) as error:
            told = {"problem": f"{files.reason(error)}."}
        self._group.gather_texts(json.dumps(told))

    def _begun(self, batches: Batches | None, context: RunContext) -> float:
        self._batches = batches or self._batches
        if batches is None:
            return WAITS if self._batches is not None else _NEVER_HAD
        return STEPS

    def _stepped(self, context: RunContext) -> Sequence[Tensor | float]:
        codes = self._messages[:, CODE]
        if _NEVER_HAD in codes:
            who = self._group.name(codes.tolist().index(_NEVER_HAD))
            logger.warning("Training ends though there are batches left: %s has none, and others need its rows.", who)
            return ()
        stepping = codes == STEPS
        share = 1.0 / float(stepping.sum()) if self._averages else 1.0
        here = float(stepping[self._group.rank])
        # Gradients are averaged over all.
        self._step.scale = here * share * self._group.size
        assert self._batches is not None
        self._in_step = True
        (loss,) = self._steps.take(self._batches, context)
        losses = loss.new_empty(self._group.size, 1)
        self._group.gather(loss.reshape(1) * (here * share), losses)
        self._group.broadcast(self._buffers)
        self._in_step = False
        return [losses.sum()]
