"""The loop of a replica: it computes gradients, exchanges them with the others, and updates when all have come."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from torch_estimator.engine.batches import Batches, TensorBatch
from torch_estimator.engine.compiled.choice import GRADIENTS, UPDATE, AnySteps, EagerSteps
from torch_estimator.engine.compiled.steps import CompiledSteps
from torch_estimator.engine.replicas.packing import READY, Layout
from torch_estimator.engine.replicas.rounds import NEEDS_ROOM, WAITS, Rounds
from torch_estimator.engine.replicas.steps import STEPS, NoRoom, ReceivingStep, SendingStep
from torch_estimator.hooks.run_context import RunContext

if TYPE_CHECKING:
    from torch_estimator.distribute.group import Group

_LAYOUT = "layout"


class ReplicaSteps(Rounds):
    """Takes the steps of one replica, all replicas together.

    Each has the whole model; what they exchange are their gradients.

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
        super().__init__(group, state=state)
        self._halves = halves
        self._compiled = compiled
        # Whoever looks at the forward pass has nothing to see in the second half.
        self._inner = RunContext(global_step=global_step)
        before = before or {}
        layout = Layout.from_json(before[_LAYOUT]) if _LAYOUT in before else None
        self._sending: SendingStep | None = None
        self._senders: AnySteps | None = None
        self._receivers: AnySteps | None = None
        self._layout = layout
        self._unsent: NoRoom | None = None
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

    def close(self) -> None:
        """Ends what compiles beside."""
        for steps in (self._senders, self._receivers):
            if steps is not None:
                steps.__exit__(None, None, None)

    def _begun(self, batches: Batches | None, context: RunContext) -> float:
        self._unsent = None
        if batches is None:
            return WAITS
        if self._senders is None:
            self._sending, _ = self._halves(None)
            self._senders = EagerSteps(self._sending)
        try:
            self._senders.take(batches, context)
        except NoRoom as unsent:
            self._unsent = unsent
            return NEEDS_ROOM
        return STEPS

    def _message(self, code: float) -> Tensor:
        message = self._idle
        if self._sending is not None and self._layout is not None:
            message = self._sending.message
            if code == WAITS:
                self._sending.packing.nothing(message)
        if self._receivers is not None:
            message[READY] = float(self._is_ready(self._receivers))
        return message

    def _is_ready(self, receivers: AnySteps) -> bool:
        if not isinstance(receivers, CompiledSteps):
            return False
        return receivers.is_ready_for(self._received(), self._inner)

    def _received(self) -> Batches:
        return Batches(TensorBatch(self._messages, None, None))

    def _make_room(self, code: float) -> float:
        unsent, self._unsent = self._unsent, None
        own = [one for one in (self._layout, unsent.needed if unsent is not None else None) if one is not None]
        texts = self._group.gather_texts(json.dumps([one.as_json() for one in own]))
        needed = [Layout.from_json(one) for text in texts for one in json.loads(text)]
        kept = self._sending.message if self._sending is not None and self._layout is not None else None
        before = self._sending
        self.close()
        self._use(needed[0].joined(needed[1:]), {})
        if self._sending is not None and unsent is not None:
            self._sending.packing.pack(self._sending.message, unsent.loss, unsent.dense, unsent.mentions)
        elif self._sending is not None and kept is not None and before is not None:
            # It was packed already, into the smaller one.
            loss, dense, mentions = before.packing.unpack(kept.unsqueeze(0), 1.0)
            self._sending.packing.pack(self._sending.message, loss, dense, mentions)
        return code if code == WAITS else STEPS

    def _stepped(self, context: RunContext) -> Sequence[Tensor | float]:
        assert self._receivers is not None and self._sending is not None
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
