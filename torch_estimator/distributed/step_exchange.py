"""What processes that train in step tell each other of what they are about to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torch_estimator.distributed.lost import PeerLost
from torch_estimator.distributed.packing import CODE, LACKS, LEAVES, LOSS, READY
from torch_estimator.hooks.hook import RunContext

if TYPE_CHECKING:
    from torch_estimator.distributed.group import Group

# What a message says; `STEPS` is 1, and what only some of them say is above these.
WAITS = 2.0
"""Its sender has no batch, and will have none."""
STOPS = 3.0
"""Of the chief: training is over."""
PREEMPTED = 4.0
"""As `STOPS`, and all are to be started again."""
FAILED = 5.0
EVALUATES = 6.0
"""Of the chief: all others are to share an evaluation, before they go on with what they are doing."""
FURTHER = 7.0
"""The first that has no meaning here."""


class InStep:
    """One of several processes that take each step together.

    Before or with each step, each gives all others a message of the same size, whose first number says what its sender
    is doing; so all of them know at the same time what to do next.

    Args:
        group: The processes.

    Attributes:
        stopped: Whether one of them wanted to end.
        preempted: Whether all are to be started again.
        group: The processes.
    """

    after_failure: str
    """What a message says of one that has failed, after its name."""

    def __init__(self, group: Group) -> None:
        self.stopped = self.preempted = False
        self.group = group
        self._dismissed = False
        self._leaves = 0.0
        self._messages = torch.empty(group.size, LOSS)
        self._heads: list[list[float]] = []

    def stops(self, context: RunContext) -> bool:
        """Whether to end before the next step: the chief at its own wish, all at what one said with the last step.

        What the others are computing when the chief leaves is not counted in where they are; but what the chief is
        computing when another one wishes to leave has moved its input and its random numbers on.
        """
        return self.stopped or (self.group.rank == 0 and context.stop_requested)

    def _note_wish(self, context: RunContext) -> None:
        """To be told with the next step."""
        if context.stop_requested:
            self._leaves = PREEMPTED if context.preempted else STOPS

    def _gathered(self, message: Tensor, code: float, *, is_ready: bool = False) -> list[float]:
        """Gives everybody a message; returns what all of them say, by rank.

        Raises:
            PeerLost: Another process is gone, or has failed.
        """
        message[:LOSS] = head_of(code, is_ready=is_ready, leaves=self._leaves)
        self.group.gather(message, self._messages)
        self._heads = self._messages[:, : LACKS + 1].tolist()
        codes = [head[CODE] for head in self._heads]
        if FAILED in codes and code != FAILED:
            raise PeerLost(f"{self.group.name(codes.index(FAILED))} has failed; {self.after_failure}")
        return codes

    def _is_dismissed(self, codes: list[float]) -> bool:
        """Whether the chief has ended the training."""
        if codes[0] not in (STOPS, PREEMPTED):
            return False
        self.stopped = self._dismissed = True
        self.preempted |= codes[0] == PREEMPTED
        return True

    def _heed_wishes(self) -> None:
        """Of those who took this step."""
        wishes = [head[LEAVES] for head in self._heads]
        self.preempted = PREEMPTED in wishes
        self.stopped = any(wishes)


def head_of(code: float, *, is_ready: bool = False, leaves: float = 0.0) -> Tensor:
    """What a message has in front of a loss, ``[LOSS]``: see `packing.HEADER`."""
    numbers = [0.0] * LOSS
    numbers[CODE], numbers[READY], numbers[LEAVES] = code, float(is_ready), leaves
    return torch.tensor(numbers)
