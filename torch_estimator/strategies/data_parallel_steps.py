"""Steps of data-parallel training: compute gradients, exchange them with the other replicas, update on their sum."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torch_estimator.cluster.task import Task
from torch_estimator.distributed.input_cursors import decoded, encoded
from torch_estimator.distributed.lost import PeerLost, TrainingOver
from torch_estimator.distributed.packing import LACKS, LOSS, READY, Layout
from torch_estimator.distributed.peer_recovery import Status, handed, leader_of
from torch_estimator.distributed.shared_evaluation.rounds import GroupShare
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
from torch_estimator.strategies.data_parallel import COMPILED_PARTS
from torch_estimator.strategies.replica_state import ReplicaState
from torch_estimator.train.batches import Batches, TensorBatch
from torch_estimator.train.preemption import Preempted
from torch_estimator.train.runner import GRADIENTS, UPDATE, EagerRunner, StepRunner
from torch_estimator.train.training import HOOKS, Training, own_state

if TYPE_CHECKING:
    from torch_estimator.distributed.group import Group

logger = logging.getLogger("torch_estimator")

_NEEDS_ROOM = FURTHER

_LAYOUT = "layout"
_COMPILED_GRADIENTS = "compiled_gradients"
"""Key of a checkpoint's state: what each replica has compiled of the first half of its step."""


class DataParallelSteps(InStep):
    """Takes the steps of one replica, together with all others.

    Each replica has the whole model. Its messages hold gradients, and the position of its input: where a replica is
    lost, the others hand all that they hold to the process that replaces it.

    Args:
        group: The replicas.
        training: The training of this replica.
        context: What hooks are called with.
        agree: Compares this process with the others, once a process has been replaced.
        before: What `state` returned in the run before a resume, or None.
        positions: The positions of all replicas' inputs, as a `Snapshot` has them, or None before the first step.
    """

    after_failure = "its log says why"
    steps_per_call = 1

    def __init__(
        self,
        group: Group,
        training: Training,
        context: RunContext,
        *,
        agree: Callable[[], None],
        before: Mapping[str, Any] | None,
        positions: Tensor | None,
    ) -> None:
        super().__init__(group)
        self._training = training
        self._context = context
        self._agree = agree
        self._replica = ReplicaState(training, self.whole_state)
        # The update runs with a context of this package: what hooks observe is the forward pass.
        self._inner = RunContext(global_step=context.global_step)
        before = before or {}
        layouts = [Layout.from_json(before[_LAYOUT])] if _LAYOUT in before else []
        if group.was_under_way:
            layouts += _layouts_of(leader_of(group.statuses)[1])
        layout = layouts[0].joined(layouts[1:]) if layouts else None
        self._sending: SendingStep | None = None
        self._senders: StepRunner | None = None
        self._receivers: StepRunner | None = None
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

    def whole_state(self) -> dict[str, Any]:
        """Return what a checkpoint of the chief holds beside tensors, but for the positions of the others."""
        return {**self._training.state(), COMPILED_PARTS: self.state()}

    def positions(self) -> list[Any] | None:
        """Return the positions of the others by rank, None for the chief; None where no step was taken yet."""
        if self._positions is None:
            return None
        return [None, *decoded(self._positions)[1:]]

    def invalidate(self) -> None:
        """Have the next step look for changes, after a hook of the user's has run."""
        if self._senders is not None and self._receivers is not None:
            self._senders.invalidate()
            self._receivers.invalidate()

    def take(self, most: int) -> Sequence[Tensor | float]:
        """Take one step, with or without a batch; none where no replica has a batch, or the chief ends the training.

        Raises:
            Preempted: This process has to end, and others keep it waiting; the chief has saved the last step before.
        """
        batches = self._training.next_batches(1)
        try:
            return self._taken(batches, self._context)
        except Preempted:
            saver = self._training.saver
            if saver is not None and self._positions is not None:
                # If every process restarts, nobody else holds this step, so save it now.
                step = self._inner.global_step
                saver.save_content(step, self._replica.content(step, float(self._loss), self._positions))
            raise

    def _taken(self, batches: Batches | None, context: RunContext) -> Sequence[Tensor | float]:
        self._note_wish(context)
        self._replica.begin_step()
        unsent = self._computed(batches, context) if batches is not None else None
        self._position = encoded(self._own_position())
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
        """End what the runners do in the background."""
        for steps in (self._senders, self._receivers):
            if steps is not None:
                steps.__exit__(*exception)

    def _computed(self, batches: Batches, context: RunContext) -> NoRoom | None:
        if self._senders is None:
            self._sending, _ = self._halves(None)
            self._senders = EagerRunner(self._sending)
        try:
            self._senders.take(batches, context)
        except NoRoom as unsent:
            return unsent
        return None

    def _exchange_and_evaluate(self, code: float) -> list[float]:
        while (codes := self._exchange(code))[0] == EVALUATES:
            request = self.group.gather_texts("")[0]
            self._training.evaluator.evaluate_with_chief(GroupShare(self.group), request)
        return codes

    def _exchange(self, code: float) -> list[float]:
        message = self._idle
        if self._sending is not None and self._layout is not None:
            message = self._sending.message
            if code == WAITS:
                self._sending.packing.nothing(message)
            if code in (STEPS, WAITS):
                self._sending.packing.put_position(message, self._position)
        is_ready = self._receivers is not None and self._receivers.is_ready_for(self._received, self._inner)
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
        self._agree()
        own = self._replica.snapshot(step, float(self._loss), self._positions) if group.rank == leader else None
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
            self._replica.take_over(snapshot)
            self.invalidate()
            self._inner.global_step, self._loss, self._positions = snapshot.step, snapshot.loss, snapshot.positions
        self._stand_in()
        return is_behind

    def _updated(self) -> Sequence[Tensor | float]:
        assert self._receivers is not None and self._sending is not None
        self._keep_positions()
        self._heed_wishes()
        # Replicas that round differently would drift apart, so they all update with compiled code, or none does. And
        # compiled code takes a missing gradient for 0.
        ready = all(head[READY] for head in self._heads)
        lacks = any(head[LACKS] for head in self._heads)
        self._receivers.in_python = not ready or (lacks and bool(self._sending.packing.missing(self._messages)))
        losses = self._receivers.take(self._received, self._inner)
        if self._moves_settings and self._senders is not None:
            self._senders.refresh_settings()
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

    def _own_position(self) -> dict[str, Any]:
        return {
            **self._training.input_position(cpu_generator=False),
            _COMPILED_GRADIENTS: None if self._senders is None else self._senders.state(),
            HOOKS: self._training.hook_states(),
        }

    def _halves(self, layout: Layout | None) -> tuple[SendingStep, ReceivingStep]:
        training = self._training
        if layout is None:
            whole = training.whole_step()
            layout = Layout.of([None] * len(whole.dense), [None] * len(whole.tables))
        receiving = ReceivingStep(
            *training.step_arguments, schedules=training.schedules, layout=layout, averages=training.averages_losses
        )
        return SendingStep(*training.step_arguments, layout=layout), receiving

    def _use(self, layout: Layout, before: Mapping[str, Any]) -> None:
        self._layout = layout
        self._sending, receiving = self._halves(layout)
        self._moves_settings = bool(receiving.schedules)
        self._messages = self._sending.message.new_zeros(self.group.size, len(self._sending.message))
        self._received = Batches(TensorBatch(self._messages, None, None), lasting=True)
        self._told = self._sending.packing.positions(self._messages)
        self._kept = torch.empty(self._told.shape, dtype=self._told.dtype)
        self._stand_in()
        self._senders = self._training.runner(self._sending, before.get(GRADIENTS), GRADIENTS)
        self._receivers = self._training.runner(receiving, before.get(UPDATE), UPDATE)
        for steps in (self._senders, self._receivers):
            steps.__enter__()


def restored_state(training: Training, task: Task) -> dict[str, Any]:
    """Return this replica's part of the checkpoint's state; see `own_state`."""
    if training.checkpoint is None:
        return {}
    own = own_state(training.checkpoint.state, task.rank, task.num_workers, [_COMPILED_GRADIENTS])
    if _COMPILED_GRADIENTS in own:
        own[COMPILED_PARTS] = {**(own.get(COMPILED_PARTS) or {}), GRADIENTS: own[_COMPILED_GRADIENTS]}
    return own


def _layouts_of(statuses: Sequence[Status]) -> list[Layout]:
    return [Layout.from_json(one.layout) for one in statuses if one.layout is not None]
