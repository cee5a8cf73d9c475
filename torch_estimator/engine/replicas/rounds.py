"""What processes that take steps together tell each other before each of them."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torch_estimator.engine.batches import Batches
from torch_estimator.engine.replicas.packing import CODE, LEAVES, LOSS
from torch_estimator.engine.replicas.steps import STEPS
from torch_estimator.errors import ClusterError
from torch_estimator.hooks.run_context import RunContext

if TYPE_CHECKING:
    from torch_estimator.distribute.group import Group

# What a process' message says; `STEPS` is another one.
WAITS = 2.0
"""It has no batch, and will have none."""
NEEDS_ROOM = 3.0
SAVES = 4.0
"""Of the chief: all others are to tell where they are, before they go on with what they are doing."""
STOPS = 5.0
"""Of the chief: training is over."""
PREEMPTED = 6.0
"""As `STOPS`, and all are to be started again."""
FAILED = 7.0


class Rounds(ABC):
    """Takes the steps of one process, all processes together.

    Every exchange is one message of each process to all others, of the same size, whose first number says what its
    sender is doing; so all of them know at the same time what to do next.

    Args:
        group: The processes.
        state: Where this process is, before its next batch is read.

    Attributes:
        stopped: Whether somebody has ended training.
        preempted: Whether all are to be started again.
    """

    def __init__(self, group: Group, *, state: Callable[[], Mapping[str, Any]]) -> None:
        self.stopped = self.preempted = False
        self._dismissed = False
        self._group = group
        self._position = state
        self._where: Mapping[str, Any] = {}
        self._leaves = 0.0
        self._messages = torch.empty(group.size, LOSS)
        self._idle = torch.zeros(LOSS)

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Returns what a resumed run needs to go on exactly alike, as JSON."""

    @abstractmethod
    def look_again(self) -> None:
        """After somebody else's code has run."""

    @abstractmethod
    def close(self) -> None:
        """Ends what goes on beside."""

    @abstractmethod
    def _begun(self, batches: Batches | None, context: RunContext) -> float:
        """Does what comes before the exchange; returns what to tell the others."""

    @abstractmethod
    def _stepped(self, context: RunContext) -> Sequence[Tensor | float]:
        """Takes the step, when all have told what they do; returns its loss."""

    def _make_room(self, code: float) -> float:
        """Where a message has to be larger; returns what to tell the others then."""
        return code

    def _message(self, code: float) -> Tensor:
        """What goes to the others, but for the numbers that are common to all kinds of messages."""
        return self._idle

    def before_batch(self) -> None:
        """Notes where this process is, which it may be asked for while it waits with the batch that comes."""
        if self._group.rank:
            self._where = self._position()

    def stops(self, context: RunContext) -> bool:
        """Whether to end before the next step: the chief at its own wish, all at what one said with the last step.

        What the others are computing when the chief leaves was not counted in what it saves of them; but what the chief
        is computing when another one wishes to leave has moved its input and its random numbers on.
        """
        return self.stopped or (self._group.rank == 0 and context.stop_requested)

    def take(self, batches: Batches | None, context: RunContext) -> Sequence[Tensor | float]:
        """Takes one step, with or without a batch of one's own; none where nobody has one, or the chief leaves."""
        if context.stop_requested:
            self._leaves = PREEMPTED if context.preempted else STOPS
        code = self._begun(batches, context)
        while True:
            codes = self._exchange(code)
            if codes[0] in (STOPS, PREEMPTED):
                self.stopped = self._dismissed = True
                self.preempted |= codes[0] == PREEMPTED
                return ()
            if codes[0] == SAVES:
                self._tell_where()
            elif NEEDS_ROOM in codes:
                code = self._make_room(code)
            elif STEPS in codes:
                leave = self._messages[:, LEAVES]
                self.preempted = bool((leave == PREEMPTED).any())
                self.stopped = bool(leave.any())
                return self._stepped(context)
            else:
                return ()

    def gather_states(self) -> list[Any]:
        """For the chief, between two steps: where each of the others is, by rank; None for the chief itself."""
        self._exchange(SAVES)
        return [json.loads(text) if text else None for text in self._group.gather_texts("")]

    def end(self, *, preempted: bool) -> None:
        """Leaves the others: the chief has them leave, the others wait for that.

        Args:
            preempted: Whether the chief has to go, so that all are to be started again.
        """
        if self._dismissed:
            return
        if self._group.rank == 0:
            self.preempted |= preempted
            self._exchange(PREEMPTED if self.preempted else STOPS)
            return
        self._where = self._position()
        while (code := self._exchange(WAITS)[0]) not in (STOPS, PREEMPTED):
            if code == SAVES:
                self._tell_where()
        self.preempted |= code == PREEMPTED

    def fail(self) -> None:
        """Tells the others, as far as they can be told, that this process cannot go on."""
        self._exchange(FAILED)

    def _tell_where(self) -> None:
        self._group.gather_texts(json.dumps(self._where))

    def _exchange(self, code: float) -> list[float]:
        message = self._message(code)
        message[CODE] = code
        message[LEAVES] = self._leaves
        self._group.gather(message, self._messages)
        codes: list[float] = self._messages[:, CODE].tolist()
        if FAILED in codes and code != FAILED:
            who = self._group.name(codes.index(FAILED))
            raise ClusterError(f"{who} has failed, so that training cannot go on; its log says why.")
        return codes
