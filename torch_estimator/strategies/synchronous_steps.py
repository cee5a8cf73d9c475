"""Steps that several processes take together: how they agree, before each step, on what comes next.

Each step begins with one exchange, in which every process sends a message to all others. The first number of a message
is a *code*: what its sender is about to do. After the exchange all processes hold the same list of codes, so they draw
the same conclusions without sending anything else:

- a process fails: the others raise `PeerLost`;
- the chief says that training is over, or was preempted: all leave;
- the chief calls for an evaluation, or for shards of a checkpoint: all others take part, then exchange again;
- no process has a batch: the input has ended everywhere;
- otherwise all take the step, also the processes without a batch, whose part counts for nothing.

A worker cannot end training by itself, because the others may be computing a step already. It sends its wish to stop
with its next step, and all processes stop after that one. The chief, in contrast, stops between two steps, and says so
in the next exchange.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from torch_estimator.distributed.errors import PeerLost
from torch_estimator.distributed.gradient_message import (
    CODE,
    LOSS,
    MISSING_GRADIENTS,
    STOP_WISH,
    UPDATE_COMPILED,
)
from torch_estimator.errors import ClusterError
from torch_estimator.hooks.hook import RunContext
from torch_estimator.train.loop import StopReason, TrainingResult
from torch_estimator.train.preemption import Preempted

if TYPE_CHECKING:
    from torch_estimator.distributed.group import Group

# Codes; `HAS_BATCH` is 1. The strategies have further codes, from `FIRST_FREE_CODE` on.
NO_BATCH = 2.0
"""The input of the sender has ended."""
TRAINING_ENDS = 3.0
"""From the chief: training is over. As a wish, from any process: training shall end after this step."""
PREEMPTED = 4.0
"""As `TRAINING_ENDS`, and all processes are to be started again."""
FAILED = 5.0
"""The sender has raised an exception and leaves."""
EVALUATION = 6.0
"""From the chief: all take part in an evaluation before they go on with what they are doing."""
FIRST_FREE_CODE = 7.0


class SynchronousSteps:
    """Base of the steps that a process takes together with the other processes of a group.

    Args:
        group: The processes.

    Attributes:
        group: The processes.
        stopped: Whether training ends after the last step, since a process wanted it to.
        preempted: Whether all processes are to be started again.
    """

    after_failure: str
    """What the error of `PeerLost` says behind the name of a process that has failed."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.stopped = self.preempted = False
        # Whether the chief has ended the training, so that nothing is to be exchanged any more.
        self._dismissed = False
        self._stop_wish = 0.0
        self._messages = torch.empty(group.size, LOSS)
        self._headers: list[list[float]] = []

    # What the training loop and the session call; see `Steps` of `torch_estimator.train.loop`.

    def stops(self, context: RunContext) -> bool:
        """Return whether to end before the next step.

        The chief ends at once when a hook or a signal asks for it: batches that the others are computing do not count
        in their input cursors, so a resumed training reads them again. All other processes first tell their wish with
        one more step. If one of them ended at once, the chief might have taken its next batch already, and the
        checkpoint that it saves would be one batch ahead.
        """
        return self.stopped or (self.group.rank == 0 and context.stop_requested)

    def fail(self) -> None:
        """Tell the other processes, as far as possible, that this one cannot go on."""
        raise NotImplementedError

    def end(self, *, preempted: bool) -> None:
        """Leave the others after the last step: the chief ends the training, all others wait for that.

        Args:
            preempted: For the chief: whether a signal has asked it to end.
        """
        raise NotImplementedError

    def close(self, *exception: object) -> None:
        """Release what the steps hold, at the end of training."""

    @contextmanager
    def notifying_others(self) -> Iterator[Self]:
        """Close the steps at the end of the body; where the body fails, notify the other processes first."""
        try:
            yield self
        except BaseException as error:
            if not isinstance(error, ClusterError | Preempted):
                with suppress(ClusterError):
                    self.fail()
            self.close(type(error), error, error.__traceback__)
            raise
        self.close(None, None, None)

    def leave(self, result: TrainingResult) -> TrainingResult:
        """Leave the others after the last step; return why training has ended for all of them."""
        self.end(preempted=result.reason is StopReason.PREEMPTED)
        if self.preempted:
            return dataclasses.replace(result, reason=StopReason.PREEMPTED)
        return dataclasses.replace(result, reason=StopReason.HOOK) if self.stopped else result

    # What subclasses call.

    def _note_stop_wish(self, context: RunContext) -> None:
        """Have the next step tell the others that this process wants training to end."""
        if context.stop_requested:
            self._stop_wish = PREEMPTED if context.preempted else TRAINING_ENDS

    def _exchange_codes(self, message: Tensor, code: float, *, update_compiled: bool = False) -> list[float]:
        """Send a message to all processes and receive theirs; return the codes by rank.

        Args:
            message: The message, at least as long as a header up to the loss; its header is filled here.
            code: The code of this process.
            update_compiled: Whether this process could update with compiled code.

        Raises:
            PeerLost: Another process is gone, or has failed.
        """
        message[:LOSS] = header(code, update_compiled=update_compiled, stop_wish=self._stop_wish)
        self.group.all_gather(message, self._messages)
        self._headers = self._messages[:, : MISSING_GRADIENTS + 1].tolist()
        codes = [one[CODE] for one in self._headers]
        if FAILED in codes and code != FAILED:
            raise PeerLost(f"{self.group.name(codes.index(FAILED))} has failed; {self.after_failure}")
        return codes

    def _has_training_ended(self, codes: list[float]) -> bool:
        """Return whether the chief has ended the training, and note it."""
        if codes[0] not in (TRAINING_ENDS, PREEMPTED):
            return False
        self.stopped = self._dismissed = True
        self.preempted |= codes[0] == PREEMPTED
        return True

    def _note_stop_wishes_of_all(self) -> None:
        """Note whether a process that takes this step wants training to end after it."""
        wishes = [one[STOP_WISH] for one in self._headers]
        self.preempted = PREEMPTED in wishes
        self.stopped = any(wishes)


def header(code: float, *, update_compiled: bool = False, stop_wish: float = 0.0) -> Tensor:
    """Return the numbers of a message that precede the loss, ``[LOSS]``."""
    numbers = [0.0] * LOSS
    numbers[CODE], numbers[UPDATE_COMPILED], numbers[STOP_WISH] = code, float(update_compiled), stop_wish
    return torch.tensor(numbers)
