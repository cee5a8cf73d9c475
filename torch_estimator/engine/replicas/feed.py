"""The loop of a replica: it computes gradients, exchanges them with the others, and updates when all have come."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torch_estimator.engine.batches import Batches, TensorBatch
from torch_estimator.engine.compiled.choice import GRADIENTS, UPDATE, AnySteps, EagerSteps
from torch_estimator.engine.compiled.steps import CompiledSteps
from torch_estimator.engine.replicas.packing import CODE, LEAVES, LOSS, READY, Layout
from torch_estimator.engine.replicas.steps import STEPS, NoRoom, ReceivingStep, SendingStep
from torch_estimator.errors import ClusterError
from torch_estimator.hooks.run_context import RunContext

if TYPE_CHECKING:
    from torch_estimator.distribute.group import Group

# What a replica's message says; `STEPS` is another one.
_WAITS = 2.0
"""It has no batch, and will have none."""
_NEEDS_ROOM = 3.0
_SAVES = 4.0
"""Of the chief: all others are to tell where they are, before they go on with what they are doing."""
_STOPS = 5.0
"""Of the chief: training is over."""
_PREEMPTED = 6.0
"""As `_STOPS`, and all are to be started again."""
_FAILED = 7.0

_LAYOUT = "layout"


class ReplicaSteps:
    """Takes the steps of one replica, all replicas together.

    Every exchange is one message of each replica to all others, of the same size, whose first number says what its
    sender is doing; so all of them know at the same time what to do next.

    Args:
        group: The replicas.
        halves: Makes the halves of a step for a layout; for None the first half, for one without room.
        compiled: Makes what takes the steps of a half, by its name, from what it had saved before.
        state: Where this replica is, before its next batch is read.
        before: What `state` returned in the run before a resume.
        global_step: To start from.
    """

    def __init__(
        self,
        group: Group,
        halves: Callable[[Layout | None], tuple[SendingStep, ReceivingStep]],
        compiled: Callable[[SendingStep | ReceivingStep, str, Any], AnySteps],
        *,
        state: Callable[[], Mapping[str, Any]],
        before: Mapping[str, Any] | None,
        global_step: int,
    ) -> None:
        self.stopped = self.preempted = False
        self._dismissed = False
        self._group = group
        self._halves = halves
        self._compiled = compiled
        self._position = state
        # Whoever looks at the forward pass has nothing to see in the second half.
        self._inner = RunContext(global_step=global_step)
        self._where: Mapping[str, Any] = {}
        before = before or {}
        layout = Layout.from_json(before[_LAYOUT]) if _LAYOUT in before else None
        self._sending: SendingStep | None = None
        self._senders: AnySteps | None = None
        self._receivers: AnySteps | None = None
        self._layout = layout
        self._leaves = 0.0
        self._messages = torch.empty(group.size, LOSS)
        self._idle = torch.zeros(LOSS)
        if layout is not None:
            self._use(layout, before)

    def state(self) -> dict[str, Any]:
        """Returns what a resumed run needs to go on exactly alike, as JSON."""
        if self._layout is None or self._senders is None or self._receivers is None:
            return {}
        return {
            _LAYOUT: self._layout.as_json(),
            GRADIENTS: self._senders.state(),
            UPDATE: self._receivers.state(),
        }

    def look_again(self) -> None:
        """After somebody else's code has run."""
        if self._senders is not None and self._receivers is not None:
            self._senders.look_again()
            self._receivers.look_again()

    def before_batch(self) -> None:
        """Notes where this replica is, which it may be asked for while it waits with the batch that comes."""
        if self._group.rank:
            self._where = self._position()

    def stops(self, context: RunContext) -> bool:
        """Whether to end before the next step: the chief at its own wish, all at what one said with the last step.

        What the others are computing when the chief leaves was not counted in what it saves of them; but what the chief
        is computing when another one wishes to leave has moved its input and its random numbers on.
        """
        return self.stopped or (self._group.rank == 0 and context.stop_requested)

    def take(self, batches: Batches | None, context: RunContext) -> Sequence[Tensor | float]:
        """Takes one step, with or without a batch of one's own; none where no replica has one, or the chief leaves."""
        if context.stop_requested:
            self._leaves = _PREEMPTED if context.preempted else _STOPS
        unsent: NoRoom | None = None
        code = _WAITS
        if batches is not None:
            code, unsent = self._computed(batches, context)
        while True:
            codes = self._exchange(code)
            if codes[0] in (_STOPS, _PREEMPTED):
                self.stopped = self._dismissed = True
                self.preempted |= codes[0] == _PREEMPTED
                return ()
            if codes[0] == _SAVES:
                self._tell_where()
            elif _NEEDS_ROOM in codes:
                self._make_room(unsent)
                if batches is not None:
                    code, unsent = self._packed(unsent), None
            elif STEPS in codes:
                return self._updated()
            else:
                return ()

    def gather_states(self) -> list[Any]:
        """For the chief, between two steps: where each of the others is, by rank; None for the chief itself."""
        self._exchange(_SAVES)
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
            self._exchange(_PREEMPTED if self.preempted else _STOPS)
            return
        self._where = self._position()
        while (code := self._exchange(_WAITS)[0]) not in (_STOPS, _PREEMPTED):
            if code == _SAVES:
                self._tell_where()
        self.preempted |= code == _PREEMPTED

    def fail(self) -> None:
        """Tells the others, as far as they can be told, that this replica cannot go on."""
        self._exchange(_FAILED)

    def close(self) -> None:
        """Ends what compiles beside."""
        for steps in (self._senders, self._receivers):
            if steps is not None:
                steps.__exit__(None, None, None)

    def _tell_where(self) -> None:
        self._group.gather_texts(json.dumps(self._where))

    def _computed(self, batches: Batches, context: RunContext) -> tuple[float, NoRoom | None]:
        if self._senders is None:
            self._sending, _ = self._halves(None)
            self._senders = EagerSteps(self._sending)
        try:
            self._senders.take(batches, context)
        except NoRoom as unsent:
            return _NEEDS_ROOM, unsent
        return STEPS, None

    def _exchange(self, code: float) -> list[float]:
        message = self._idle
        if self._sending is not None and self._layout is not None:
            message = self._sending.message
            if code == _WAITS:
                self._sending.packing.nothing(message)
        message[CODE] = code
        message[LEAVES] = self._leaves
        if self._receivers is not None:
            message[READY] = float(self._is_ready(self._receivers))
        self._group.gather(message, self._messages)
        codes: list[float] = self._messages[:, CODE].tolist()
        if _FAILED in codes and code != _FAILED:
            who = self._group.name(codes.index(_FAILED))
            raise ClusterError(f"{who} has failed, so that training cannot go on; its log says why.")
        return codes

    def _is_ready(self, receivers: AnySteps) -> bool:
        if not isinstance(receivers, CompiledSteps):
            return False
        return receivers.is_ready_for(self._received(), self._inner)

    def _received(self) -> Batches:
        return Batches(TensorBatch(self._messages, None, None))

    def _make_room(self, unsent: NoRoom | None) -> None:
        own = [one for one in (self._layout, unsent.needed if unsent is not None else None) if one is not None]
        texts = self._group.gather_texts(json.dumps([one.as_json() for one in own]))
        needed = [Layout.from_json(one) for text in texts for one in json.loads(text)]
        kept = self._sending.message if self._sending is not None and self._layout is not None else None
        before = self._sending
        self.close()
        self._use(needed[0].joined(needed[1:]), {})
        if unsent is None and kept is not None and before is not None and self._sending is not None:
            # It was packed already, into the smaller one.
            loss, dense, mentions = before.packing.unpack(kept.unsqueeze(0), 1.0)
            self._sending.packing.pack(self._sending.message, loss, dense, mentions)

    def _packed(self, unsent: NoRoom | None) -> float:
        if unsent is not None and self._sending is not None:
            self._sending.packing.pack(self._sending.message, unsent.loss, unsent.dense, unsent.mentions)
        return STEPS

    def _updated(self) -> Sequence[Tensor | float]:
        assert self._receivers is not None and self._sending is not None
        leave = self._messages[:, LEAVES]
        self.preempted = bool((leave == _PREEMPTED).any())
        self.stopped = bool(leave.any())
        if isinstance(self._receivers, CompiledSteps):
            # Replicas that round differently would drift apart; and a compiled update takes a missing gradient for 0.
            ready = bool((self._messages[:, READY] == 1.0).all())
            self._receivers.in_python = not ready or bool(self._sending.packing.missing(self._messages))
        losses = self._receivers.take(self._received(), self._inner)
        self._inner.global_step += len(losses)
        return losses

    def _use(self, layout: Layout, before: Mapping[str, Any]) -> None:
        self._layout = layout
        self._sending, receiving = self._halves(layout)
        self._messages = self._sending.message.new_zeros(self._group.size, len(self._sending.message))
        self._senders = self._compiled(self._sending, GRADIENTS, before.get(GRADIENTS))
        self._receivers = self._compiled(receiving, UPDATE, before.get(UPDATE))
        for steps in (self._senders, self._receivers):
            steps.__enter__()
