"""The loop of a replica: it computes gradients, exchanges them with the others, and updates when all have come."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torch_estimator.compile.choice import GRADIENTS, UPDATE, AnySteps, EagerSteps
from torch_estimator.compile.steps import CompiledSteps
from torch_estimator.distributed.input_cursors import decoded
from torch_estimator.distributed.lost import PeerLost, TrainingOver
from torch_estimator.distributed.packing import LACKS, LOSS, READY, Layout
from torch_estimator.distributed.peer_recovery import Status, handed, leader_of
from torch_estimator.distributed.replica_state import Place
from torch_estimator.distributed.split_step import STEPS, NoRoom, ReceivingStep, SendingStep
from torch_estimator.distributed.step_exchange import (
    EVALUATES,
    FAILED,
    FURTHER,
    PREEMPTED,
    STOPS,
    WAITS,
    InStep,
    head_of,
)
from torch_estimator.hooks.hook import RunContext
from torch_estimator.train.batches import Batches, TensorBatch
from torch_estimator.train.preemption import Preempted

if TYPE_CHECKING:
    from torch_estimator.distributed.group import Group

logger = logging.getLogger("torch_estimator")

_NEEDS_ROOM = FURTHER

_LAYOUT = "layout"


class ReplicaSteps(InStep):
    """Takes the steps of one replica, all replicas together.

    Each has the whole model; their messages hold gradients, and say where their senders are in their inputs: where one
    is lost, those that are left hand what they hold to the one that comes in its place.

    Args:
        group: The replicas.
        halves: Makes the halves of a step for a layout; for None the first half, for one without room.
        compiled: Makes what takes the steps of a half, by its name, from what it had saved before.
        place: What this replica holds.
        before: What `state` returned in the run before a resume.
        positions: Where the replicas are, as a snapshot has it, or None.
        global_step: To start from.
    """

    after_failure = "its log says why"

    def __init__(
        self,
        group: Group,
        halves: Callable[[Layout | None], tuple[SendingStep, ReceivingStep]],
        compiled: Callable[[SendingStep | ReceivingStep, str, Any], AnySteps],
        *,
        place: Place,
        before: Mapping[str, Any] | None,
        positions: Tensor | None,
        global_step: int,
    ) -> None:
        super().__init__(group)
        self._halves = halves
        self._compiled = compiled
        self._place = place
        # Whoever looks at the forward pass has nothing to see in the second half.
        self._inner = RunContext(global_step=global_step)
        before = before or {}
        layouts = [Layout.from_json(before[_LAYOUT])] if _LAYOUT in before else []
        if group.was_under_way:
            layouts += _layouts_of(leader_of(group.statuses)[1])
        layout = layouts[0].joined(layouts[1:]) if layouts else None
        self._sending: SendingStep | None = None
        self._senders: AnySteps | None = None
        self._receivers: AnySteps | None = None
        self._layout = layout
        self._idle = torch.zeros(LOSS)
        self._position = b""
        # As of the last step taken, while the exchange at hand may be overwriting the messages.
        self._positions = positions
        self._loss: Tensor | float = 0.0
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

    def gradients_state(self) -> Any:
        """The part of `state` that each replica has of its own."""
        return None if self._senders is None else self._senders.state()

    def positions(self) -> list[Any] | None:
        """Where the others are, by rank, and None for the chief; None altogether where no step was taken yet."""
        if self._positions is None:
            return None
        return [None, *decoded(self._positions)[1:]]

    def look_again(self) -> None:
        """After somebody else's code has run."""
        if self._senders is not None and self._receivers is not None:
            self._senders.look_again()
            self._receivers.look_again()

    def take(self, batches: Batches | None, context: RunContext) -> Sequence[Tensor | float]:
        """Takes one step, with or without a batch of one's own; none where no replica has one, or the chief leaves.

        Raises:
            Preempted: This process has to go, and others keep it waiting; the chief has saved the last step before.
        """
        try:
            return self._taken(batches, context)
        except Preempted:
            if self.group.rank == 0 and self._positions is not None:
                # The next chief may come to nobody who knows.
                self._place.save(self._place.snapshot(self._inner.global_step, float(self._loss), self._positions))
            raise

    def _taken(self, batches: Batches | None, context: RunContext) -> Sequence[Tensor | float]:
        self._note_wish(context)
        self._place.begin_step()
        unsent = self._computed(batches, context) if batches is not None else None
        self._position = self._place.position()
        while True:
            fits = unsent is None and (self._layout is None or self._layout.position >= len(self._position))
            code = (WAITS if batches is None else STEPS) if fits else _NEEDS_ROOM
            try:
                codes = self._exchange_and_evaluate(code)
                if self._is_dismissed(codes):
                    return ()
                if _NEEDS_ROOM in codes:
                    self._make_room(unsent)
                    unsent = None
                elif STEPS in codes:
                    return self._updated()
                else:
                    self._keep_positions()
                    return ()
            except PeerLost as lost:
                if self._go_on_after(lost):
                    # The others had all of this step.
                    return [self._loss]
                if self._dismissed:
                    return ()

    def call_to_evaluation(self, what: str) -> bool:
        """For the chief, between two steps: has the others evaluate something with it, if none of them is lost."""
        # Whoever is lost is also lost in the next step.
        with suppress(PeerLost):
            self._exchange(EVALUATES)
            self.group.gather_texts(what)
            return True
        return False

    def end(self, *, preempted: bool) -> None:
        """Leaves the others: the chief has them leave, the others wait for that.

        Args:
            preempted: Whether the chief has to go, so that all are to be started again.
        """
        if self._dismissed:
            return
        if self.group.rank == 0:
            self.preempted |= preempted
            self.group.is_over(for_good=not self.preempted)
            with suppress(PeerLost):
                self._exchange(PREEMPTED if self.preempted else STOPS)
            return
        while True:
            try:
                code = self._exchange_and_evaluate(WAITS)[0]
            except PeerLost as lost:
                self._go_on_after(lost)
                if self._dismissed:
                    return
                continue
            if code in (STOPS, PREEMPTED):
                self.preempted |= code == PREEMPTED
                return

    def fail(self) -> None:
        """Tells the others, as far as they can be told, that this replica cannot go on."""
        if self.group.has_met:
            self._exchange(FAILED)

    def close(self, *exception: object) -> None:
        """End what compiles beside; see `CompiledSteps`."""
        for steps in (self._senders, self._receivers):
            if steps is not None:
                steps.__exit__(*exception)

    def _computed(self, batches: Batches, context: RunContext) -> NoRoom | None:
        if self._senders is None:
            self._sending, _ = self._halves(None)
            self._senders = EagerSteps(self._sending)
        try:
            self._senders.take(batches, context)
        except NoRoom as unsent:
            return unsent
        return None

    def _exchange_and_evaluate(self, code: float) -> list[float]:
        while (codes := self._exchange(code))[0] == EVALUATES:
            self._place.evaluate(self.group)
        return codes

    def _exchange(self, code: float) -> list[float]:
        message = self._idle
        if self._sending is not None and self._layout is not None:
            message = self._sending.message
            if code == WAITS:
                self._sending.packing.nothing(message)
            if code in (STEPS, WAITS):
                self._sending.packing.put_position(message, self._position)
        is_ready = isinstance(self._receivers, CompiledSteps) and self._receivers.is_ready_for(
            self._received, self._inner
        )
        return self._gathered(message, code, is_ready=is_ready)

    def _make_room(self, unsent: NoRoom | None) -> None:
        """Makes the messages of all as large as one of them needs, and packs what did not fit."""
        own = [] if self._layout is None else [self._layout]
        if unsent is not None:
            own.append(unsent.needed)
        own = [one.with_position(len(self._position)) for one in own]
        texts = self.group.gather_texts(json.dumps([one.as_json() for one in own]))
        needed = [Layout.from_json(one) for text in texts if text for one in json.loads(text)]
        self._resize(needed[0].joined(needed[1:]))
        if unsent is not None and self._sending is not None:
            self._sending.packing.pack(self._sending.message, unsent.loss, unsent.dense, unsent.mentions)

    def _resize(self, layout: Layout) -> None:
        """Takes another layout; what was packed already into the message is packed again."""
        before = self._sending if self._layout is not None else None
        self.close()
        self._use(layout, {})
        if before is not None and self._sending is not None:
            loss, dense, mentions = before.packing.unpack(before.message.unsqueeze(0), 1.0)
            self._sending.packing.pack(self._sending.message, loss, dense, mentions)

    def _go_on_after(self, lost: PeerLost) -> bool:
        """Waits for the one that comes in the place of another; returns whether a step was taken without this one."""
        while True:
            try:
                return self._met_another(lost)
            except PeerLost as another:
                if another is lost:
                    raise
                lost = another
            except TrainingOver:
                self.stopped = self._dismissed = True
                return False

    def _met_another(self, lost: PeerLost) -> bool:
        group, step = self.group, self._inner.global_step
        layout = None if self._layout is None else self._layout.as_json()
        group.meet_another(lost, Status(step, layout).as_text(), may_miss=self._positions is not None)
        leader, statuses = leader_of(group.statuses)
        self._place.agree(group)
        own = self._place.snapshot(step, float(self._loss), self._positions) if group.rank == leader else None
        snapshot = handed(group, leader, own)
        layouts = _layouts_of(statuses)
        if layouts and (joined := layouts[0].joined(layouts[1:])) != self._layout:
            self._resize(joined)
        if group.absent:
            logger.warning(
                "Going on at global step %d without %s.", snapshot.step, ", ".join(map(group.name, group.absent))
            )
        else:
            logger.info("All %d are here again; going on at global step %d.", group.size, snapshot.step)
        if is_behind := snapshot.step != step:
            self._place.take_over(snapshot)
            self.look_again()
            self._inner.global_step, self._loss, self._positions = snapshot.step, snapshot.loss, snapshot.positions
        self._stand_in()
        return is_behind

    def _updated(self) -> Sequence[Tensor | float]:
        assert self._receivers is not None and self._sending is not None
        self._keep_positions()
        self._heed_wishes()
        if isinstance(self._receivers, CompiledSteps):
            # Replicas that round differently would drift apart; and a compiled update takes a missing gradient for 0.
            ready = all(head[READY] for head in self._heads)
            lacks = any(head[LACKS] for head in self._heads)
            self._receivers.in_python = not ready or (lacks and bool(self._sending.packing.missing(self._messages)))
        losses = self._receivers.take(self._received, self._inner)
        if self._moves_settings and isinstance(self._senders, CompiledSteps):
            self._senders.look_at_settings()
        self._inner.global_step += len(losses)
        self._loss = losses[-1]
        return losses

    def _keep_positions(self) -> None:
        if self._layout is not None:
            self._kept.copy_(self._told)
            self._positions = self._kept.view(torch.uint8)

    def _stand_in(self) -> None:
        """Says what those that are not there would say, had they no batch; where they were is where they are."""
        for rank in self.group.absent:
            message = self._messages[rank]
            if self._sending is not None and self._layout is not None:
                self._sending.packing.nothing(message)
                if self._positions is not None:
                    self._sending.packing.put_position(message, self._positions[rank].numpy().tobytes())
            message[:LOSS] = head_of(WAITS, is_ready=True)

    def _use(self, layout: Layout, before: Mapping[str, Any]) -> None:
        self._layout = layout
        self._sending, receiving = self._halves(layout)
        self._moves_settings = bool(receiving.schedules)
        self._messages = self._sending.message.new_zeros(self.group.size, len(self._sending.message))
        self._received = Batches(TensorBatch(self._messages, None, None), lasting=True)
        self._told = self._sending.packing.positions(self._messages)
        self._kept = torch.empty(self._told.shape, dtype=self._told.dtype)
        self._stand_in()
        self._senders = self._compiled(self._sending, GRADIENTS, before.get(GRADIENTS))
        self._receivers = self._compiled(receiving, UPDATE, before.get(UPDATE))
        for steps in (self._senders, self._receivers):
            steps.__enter__()


def _layouts_of(statuses: Sequence[Status]) -> list[Layout]:
    return [Layout.from_json(one.layout) for one in statuses if one.layout is not None]
