"""Steps that several processes take together: how the processes agree, before each step, on what to do next.

Each step begins with one exchange, in which every process sends a message to all others. The first number of a message
is a *code*, which says what its sender is about to do. After the exchange all processes hold the same list of codes, so
all make the same decision without any further message:

- If a process has failed, the others raise `PeerLost`.
- If the chief's code says that training is over, or was preempted, all processes leave.
- If the chief's code calls for an evaluation, or for shards of a checkpoint, all processes take part, then exchange
  codes again.
- If no process has a batch, the input has ended everywhere, and no step is taken.
- Otherwise all processes take the step. A process without a batch takes it, too, but contributes nothing to the update.

A worker cannot end training by itself, because the others may be computing a step already. It sends its stop request
with its next step, and all processes stop after that step. The chief, in contrast, stops between two steps, and says so
with its code in the next exchange.
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
    STOP_REQUEST,
    UPDATE_COMPILED,
)
from torch_estimator.errors import ClusterError
from torch_estimator.hooks.hook import RunContext
from torch_estimator.train.loop import StopReason, TrainingResult
from torch_estimator.train.preemption import Preempted

if TYPE_CHECKING:
    from torch_estimator.distributed.group import Group

# Codes that a process sends before a step. `HAS_BATCH` is 1, and strategies add codes from `FIRST_FREE_CODE` on.
NO_BATCH = 2.0
"""The input of the sender has ended."""
TRAINING_ENDS = 3.0
"""As the chief's code: training is over. As a stop request of any process: end training after this step."""
PREEMPTED = 4.0
"""Like `TRAINING_ENDS`, but training is not complete: all processes end and have to be started again."""
FAILED = 5.0
"""The sender has raised an exception and leaves."""
EVALUATION = 6.0
"""From the chief: all processes take part in an evaluation, then exchange codes again."""
FIRST_FREE_CODE = 7.0


class SynchronousSteps:
    """Base class for training steps that all processes of a group take together.

    `stopped` says that training ends after the last step because a process has requested it; `preempted` that all
    processes end and have to be started again.
    """

    after_failure: str
    """End of the message of `PeerLost`, after the name of a process that has failed."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.stopped = self.preempted = False
        # Whether the chief has ended the training, so that no further exchange takes place.
        self._dismissed = False
        self._stop_request = 0.0
        self._messages = torch.empty(group.size, LOSS)
        self._headers: list[list[float]] = []

    # The training loop and the session call the following methods; see `Steps` of `torch_estimator.train.loop`.

    def stops(self, context: RunContext) -> bool:
        """Return whether this process must end the training before the next step.

        The chief ends at once when a hook or a signal asks for it: the input cursors do not count the batches that the
        others are computing, so a resumed training reads these batches again. Any other process first sends its stop
        request with one more step. If it ended at once, the chief might have taken its next batch already, and the
        checkpoint that the chief saves would be one batch ahead.
        """
        return self.stopped or (self.group.rank == 0 and context.stop_requested)

    def fail(self) -> None:
        """Try to notify the other processes that this process has failed."""
        raise NotImplementedError

    def end(self, *, preempted: bool) -> None:
        """Leave the group after the last step. The chief sends the code that ends the training; the others wait for it.

        On the chief, `preempted` says whether a signal has asked it to end.
        """
        raise NotImplementedError

    def close(self, *exception: object) -> None:
        """Release resources at the end of training."""

    @contextmanager
    def notifying_others(self) -> Iterator[Self]:
        """Release resources after the body; if the body fails, first notify the other processes of the failure."""
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
        """Leave the group after the last step; return the result with the reason for which all processes stopped."""
        self.end(preempted=result.reason is StopReason.PREEMPTED)
        if self.preempted:
            return dataclasses.replace(result, reason=StopReason.PREEMPTED)
        return dataclasses.replace(result, reason=StopReason.HOOK) if self.stopped else result

    # Subclasses call the following methods.

    def _request_stop(self, context: RunContext) -> None:
        """If a hook or a signal asks this process to stop, send a stop request in the message of the next step."""
        if context.stop_requested:
            self._stop_request = PREEMPTED if context.preempted else TRAINING_ENDS

    def _exchange_codes(self, message: Tensor, code: float, *, update_compiled: bool = False) -> list[float]:
        """Send a message to all processes and receive their messages; return the code of each process, by rank.

        The message has at least `LOSS` numbers; this method fills its header up to the loss. `update_compiled` says
        whether this process can update with compiled code.
        """
        message[:LOSS] = header(code, update_compiled=update_compiled, stop_request=self._stop_request)
        self.group.all_gather(message, self._messages)
        self._headers = self._messages[:, : MISSING_GRADIENTS + 1].tolist()
        codes = [one[CODE] for one in self._headers]
        if FAILED in codes and code != FAILED:
            raise PeerLost(f"{self.group.name(codes.index(FAILED))} has failed; {self.after_failure}")
        return codes

    def _has_training_ended(self, codes: list[float]) -> bool:
        """Return whether the chief's code ends the training. If so, set `stopped`, and on preemption `preempted`."""
        if codes[0] not in (TRAINING_ENDS, PREEMPTED):
            return False
        self.stopped = self._dismissed = True
        self.preempted |= codes[0] == PREEMPTED
        return True

    def _collect_stop_requests(self) -> None:
        """Set `stopped` and `preempted` from the stop requests in the messages that all processes have sent."""
        requests = [one[STOP_REQUEST] for one in self._headers]
        self.preempted = PREEMPTED in requests
        self.stopped = any(requests)


def header(code: float, *, update_compiled: bool = False, stop_request: float = 0.0) -> Tensor:
    """Return the numbers before the loss in a message header: code, compile flag and stop request."""
    numbers = [0.0] * LOSS
    numbers[CODE], numbers[UPDATE_COMPILED], numbers[STOP_REQUEST] = code, float(update_compiled), stop_request
    return torch.tensor(numbers)
