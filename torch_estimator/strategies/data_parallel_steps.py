"""Steps of data-parallel training: compute gradients, exchange them between the replicas, update with their sum.

One step of a replica:

1. Take a batch from the input and compute its gradients, packed into a message (`SendingStep`). A replica whose input
   has ended sends a message without gradients, as long as others have batches.
2. Exchange the messages, which also hold the codes and input cursors. If the chief's code calls for an evaluation, take
   part in it and exchange again. If a batch did not fit into the message, first agree with the other replicas on a
   larger one.
3. Update the parameters with the messages of all replicas (`ReceivingStep`). All replicas compute the same numbers from
   the same messages, so their parameters stay equal bit for bit without ever being compared.

If a replica is lost in the exchange, the survivors wait for its replacement, or go on without it if the group is
elastic. Then all processes load the state after the last complete step (see
`torch_estimator.distributed.peer_recovery`), and exchange the gradients that they have already computed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torch_estimator.cluster.task import Task
from torch_estimator.distributed.errors import PeerLost, TrainingOver
from torch_estimator.distributed.gradient_message import (
    CODE,
    HAS_BATCH,
    LOSS,
    MISSING_GRADIENTS,
    UPDATE_COMPILED,
    Layout,
    MessageTooSmall,
    ReceivingStep,
    SendingStep,
)
from torch_estimator.distributed.peer_recovery import Status, decode_cursors, encode_cursor, find_leader, hand_over
from torch_estimator.distributed.shared_evaluation import GroupShare
from torch_estimator.hooks.hook import RunContext
from torch_estimator.strategies.data_parallel import COMPILED_PARTS
from torch_estimator.strategies.replica_state import ReplicaState
from torch_estimator.strategies.synchronous_steps import (
    EVALUATION,
    FAILED,
    FIRST_FREE_CODE,
    NO_BATCH,
    PREEMPTED,
    TRAINING_ENDS,
    SynchronousSteps,
    header,
)
from torch_estimator.train.batches import Batches, TensorBatch
from torch_estimator.train.preemption import Preempted
from torch_estimator.train.runner import GRADIENTS, UPDATE, EagerRunner, StepRunner
from torch_estimator.train.training import HOOKS, Training, own_state

if TYPE_CHECKING:
    from torch_estimator.distributed.group import Group

logger = logging.getLogger("torch_estimator")

_MESSAGE_TOO_SMALL = FIRST_FREE_CODE
"""Code of a replica whose batch does not fit into the message."""

_LAYOUT = "layout"
_COMPILED_GRADIENTS = "compiled_gradients"
"""Key in a replica's saved state: its value says how the replica compiled the first half of its step."""


class DataParallelSteps(SynchronousSteps):
    """Training steps of one replica, taken together with all other replicas.

    `agree` checks that all replicas run the same program; it is called after a replica was replaced. `before` is the
    `state` that the previous run has saved, if training is resumed. `cursors` are the input cursors of all replicas, as
    a `Snapshot` holds them; None before the first step.
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
        cursors: Tensor | None,
    ) -> None:
        super().__init__(group)
        self._training = training
        self._context = context
        self._agree = agree
        self._replica = ReplicaState(training, self.whole_state)
        # Use a separate context for the update, so that hooks observe only the tensors of the forward pass.
        self._update_context = RunContext(global_step=context.global_step)
        # Each half of the step (before and after the exchange) has a runner, which executes it. The layout of the
        # messages is not known before the first batch; until then these attributes are None.
        self._layout: Layout | None = None
        self._sending: SendingStep | None = None
        self._senders: StepRunner | None = None
        self._receivers: StepRunner | None = None
        self._header_only = torch.zeros(LOSS)
        # The input cursor of this replica after the current batch.
        self._own_cursor = b""
        # Copies of the input cursors of all replicas after the last step. A failed exchange may overwrite messages.
        self._cursors = cursors
        self._loss: Tensor | float = 0.0
        before = before or {}
        layouts = [Layout.from_json(before[_LAYOUT])] if _LAYOUT in before else []
        if group.is_training_under_way:
            layouts += _layouts_of(find_leader(group.statuses)[1])
        if layouts:
            self._use_layout(layouts[0].joined(layouts[1:]), before)

    # The next three methods return what a checkpoint contains.

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs to compute the same numbers: message layout, and how steps are compiled."""
        if self._layout is None or self._senders is None or self._receivers is None:
            return {}
        return {
            _LAYOUT: self._layout.as_json(),
            GRADIENTS: self._senders.state(),
            UPDATE: self._receivers.state(),
        }

    def whole_state(self) -> dict[str, Any]:
        """Return the chief's part of a checkpoint without the tensors, such as the chief's own input cursor."""
        return {**self._training.state(), COMPILED_PARTS: self.state()}

    def cursors(self) -> list[Any] | None:
        """Return the replicas' input cursors by rank, with None for the chief; before the first step, return None."""
        if self._cursors is None:
            return None
        return [None, *decode_cursors(self._cursors)[1:]]

    def invalidate(self) -> None:
        """Make the next step check whether a user's hook has changed the model or the optimizers."""
        if self._senders is not None and self._receivers is not None:
            self._senders.invalidate()
            self._receivers.invalidate()

    # The following methods take one step.

    def take(self, most: int) -> Sequence[Tensor | float]:
        """Take one step with the next batch, or without a batch if this replica's input has ended.

        Return the loss over the batches of all replicas; nothing if no replica has a batch, or if the chief has ended
        the training. Raise `Preempted` if a signal has asked this process to end while it waits for others; the chief
        has then saved a checkpoint of the last complete step.
        """
        batches = self._training.next_batches(1)
        try:
            return self._take(batches, self._context)
        except Preempted:
            saver = self._training.saver
            if saver is not None and self._cursors is not None:
                # Save the last complete step now: if all processes are restarted, none of them has its state in memory.
                step = self._update_context.global_step
                saver.save_content(step, self._replica.content(step, float(self._loss), self._cursors))
            raise

    def _take(self, batches: Batches | None, context: RunContext) -> Sequence[Tensor | float]:
        self._request_stop(context)
        self._replica.begin_step()
        unsent = self._compute(batches, context) if batches is not None else None
        self._own_cursor = encode_cursor(
            {
                **self._training.input_position(cpu_generator=False),
                _COMPILED_GRADIENTS: None if self._senders is None else self._senders.state(),
                HOOKS: self._training.hook_states(),
            }
        )
        # Repeat the exchange after a replica was lost or the message was enlarged, but compute the gradients only once.
        while True:
            fits = unsent is None and (self._layout is None or self._layout.cursor_bytes >= len(self._own_cursor))
            code = (NO_BATCH if batches is None else HAS_BATCH) if fits else _MESSAGE_TOO_SMALL
            try:
                codes = self._exchange_and_evaluate(code)
                if self._has_training_ended(codes):
                    return ()
                if _MESSAGE_TOO_SMALL in codes:
                    self._enlarge_messages(unsent)
                    unsent = None
                elif HAS_BATCH in codes:
                    return self._update()
                else:
                    self._keep_cursors()
                    return ()
            except PeerLost as lost:
                if self._recover(lost):
                    # Another replica (the leader) had already completed this step, and this replica has loaded the
                    # leader's state. So return the leader's loss instead of updating again.
                    return [self._loss]
                if self._dismissed:
                    return ()

    def _compute(self, batches: Batches, context: RunContext) -> MessageTooSmall | None:
        """Compute the gradients of a batch and pack them into the message; return them if they do not fit into it."""
        if self._senders is None:
            self._sending, _ = self._halves(None)
            self._senders = EagerRunner(self._sending)
        try:
            self._senders.take(batches, context)
        except MessageTooSmall as unsent:
            return unsent
        return None

    def _exchange_and_evaluate(self, code: float) -> list[float]:
        """Exchange messages, and again after each evaluation of the chief; return the last code of each replica."""
        while (codes := self._exchange(code))[0] == EVALUATION:
            request = self.group.all_gather_texts("")[0]
            self._training.evaluator.evaluate_with_chief(GroupShare(self.group), request)
        return codes

    def _exchange(self, code: float) -> list[float]:
        message = self._header_only
        if self._sending is not None and self._layout is not None:
            message = self._sending.message
            if code == NO_BATCH:
                self._sending.packing.pack_nothing(message)
            if code in (HAS_BATCH, NO_BATCH):
                self._sending.packing.put_cursor(message, self._own_cursor)

        def fill() -> None:
            self._messages.copy_(message)
            self._messages[:, CODE] = HAS_BATCH

        context = self._update_context
        can_compile = self._receivers is not None and self._receivers.is_ready_for(self._received, context, fill)
        return self._exchange_codes(message, code, update_compiled=can_compile)

    def _update(self) -> Sequence[Tensor | float]:
        """Update the parameters with the gradients in all replicas' messages; return the loss over all batches."""
        assert self._receivers is not None and self._sending is not None
        self._keep_cursors()
        self._collect_stop_requests()
        # Update with compiled code only if all replicas can: compiled code and Python may round differently, and then
        # the parameters of the replicas would drift apart. Also update in Python if a parameter has no gradient in any
        # message: compiled code would use zeros, and an optimizer with momentum would change the parameter.
        all_compiled = all(one[UPDATE_COMPILED] for one in self._headers)
        is_any_missing = any(one[MISSING_GRADIENTS] for one in self._headers)
        self._receivers.in_python = not all_compiled or (
            is_any_missing and bool(self._sending.packing.missing(self._messages))
        )
        losses = self._receivers.take(self._received, self._update_context)
        if self._advances_schedules and self._senders is not None:
            self._senders.refresh_settings()
        self._update_context.global_step += len(losses)
        self._loss = losses[-1]
        return losses

    # The following methods are called between two steps, and after the last step.

    def call_to_evaluation(self, request: str) -> bool:
        """As the chief, ask all other replicas to join an evaluation; return False if a replica is lost.

        `request` describes the evaluation; see `SharedEvaluator.evaluate_with_chief`.
        """
        # Do not recover here: the next step notices the lost replica again and recovers.
        with suppress(PeerLost):
            self._exchange(EVALUATION)
            self.group.all_gather_texts(request)
            return True
        return False

    def end(self, *, preempted: bool) -> None:
        if self._dismissed:
            return
        if self.group.rank == 0:
            self.preempted |= preempted
            self.group.admit_nobody(is_over=not self.preempted)
            with suppress(PeerLost):
                self._exchange(PREEMPTED if self.preempted else TRAINING_ENDS)
            return
        # Exchange messages until the chief ends the training, since the chief may still call for evaluations.
        while True:
            try:
                code = self._exchange_and_evaluate(NO_BATCH)[0]
            except PeerLost as lost:
                self._recover(lost)
                if self._dismissed:
                    return
                continue
            if code in (TRAINING_ENDS, PREEMPTED):
                self.preempted |= code == PREEMPTED
                return

    def fail(self) -> None:
        if self.group.is_formed:
            self._exchange(FAILED)

    def close(self, *exception: object) -> None:
        """End the use of both runners; see `StepRunner.__exit__`."""
        for runner in (self._senders, self._receivers):
            if runner is not None:
                runner.__exit__(*exception)

    # The following methods recover from the loss of a replica.

    def _recover(self, lost: PeerLost) -> bool:
        """Reconnect the replicas after a loss; return whether this replica was one step behind and has caught up.

        Raise `lost` itself if the lost replica cannot be replaced.
        """
        while True:
            try:
                return self._rejoin_and_catch_up(lost)
            except PeerLost as another:
                if another is lost:
                    raise
                lost = another
            except TrainingOver:
                self.stopped = self._dismissed = True
                return False

    def _rejoin_and_catch_up(self, lost: PeerLost) -> bool:
        group, step = self.group, self._update_context.global_step
        layout = None if self._layout is None else self._layout.as_json()
        # Before the first step, wait for all lost replicas: no other replica has their input cursors yet.
        group.rejoin(lost, Status(step, layout).as_text(), may_miss=self._cursors is not None)
        leader, statuses = find_leader(group.statuses)
        self._agree()
        own = self._replica.snapshot(step, float(self._loss), self._cursors) if group.rank == leader else None
        snapshot = hand_over(group, leader, own)
        layouts = _layouts_of(statuses)
        if layouts and (joined := layouts[0].joined(layouts[1:])) != self._layout:
            self._change_layout(joined)
        if group.absent:
            logger.warning(
                "Going on at global step %d without %s.", snapshot.step, ", ".join(map(group.name, group.absent))
            )
        else:
            logger.info("All %d processes are connected again; going on at global step %d.", group.size, snapshot.step)
        if is_behind := snapshot.step != step:
            self._replica.take_over(snapshot)
            self.invalidate()
            self._update_context.global_step, self._loss = snapshot.step, snapshot.loss
            self._cursors = snapshot.cursors
        self._fill_messages_of_absent()
        return is_behind

    def _fill_messages_of_absent(self) -> None:
        """Write a message for each absent replica, with no batch and with the last input cursor of that replica.

        No exchange overwrites these messages. So the update adds nothing for absent replicas, and checkpoints and
        snapshots keep their cursors: a replica that comes back continues its input where it stopped.
        """
        for rank in self.group.absent:
            message = self._messages[rank]
            if self._sending is not None and self._layout is not None:
                self._sending.packing.pack_nothing(message)
                if self._cursors is not None:
                    self._sending.packing.put_cursor(message, self._cursors[rank].numpy().tobytes())
            message[:LOSS] = header(NO_BATCH, update_compiled=True)

    def _keep_cursors(self) -> None:
        if self._layout is not None:
            self._cursor_copy.copy_(self._cursors_received)
            self._cursors = self._cursor_copy.view(torch.uint8)

    # The following methods change the layout, that is, the parts that a message has space for.

    def _enlarge_messages(self, unsent: MessageTooSmall | None) -> None:
        """Agree with all replicas on larger messages; pack the gradients that did not fit into the new message."""
        needed = [] if self._layout is None else [self._layout]
        if unsent is not None:
            needed.append(unsent.needed)
        needed = [one.with_cursor(len(self._own_cursor)) for one in needed]
        texts = self.group.all_gather_texts(json.dumps([one.as_json() for one in needed]))
        layouts = [Layout.from_json(one) for text in texts if text for one in json.loads(text)]
        self._change_layout(layouts[0].joined(layouts[1:]))
        if unsent is not None and self._sending is not None:
            self._sending.packing.pack(self._sending.message, unsent.loss, unsent.dense, unsent.mentions)

    def _change_layout(self, layout: Layout) -> None:
        """Replace the messages by messages of another layout, and copy this replica's gradients to its new message."""
        before = self._sending if self._layout is not None else None
        self.close()
        self._use_layout(layout, {})
        if before is not None and self._sending is not None:
            loss, dense, mentions = before.packing.unpack(before.message.unsqueeze(0), 1.0)
            self._sending.packing.pack(self._sending.message, loss, dense, mentions)

    def _use_layout(self, layout: Layout, before: Mapping[str, Any]) -> None:
        """Create all that depends on the message layout: both halves of the step, their runners, and the messages."""
        self._layout = layout
        self._sending, receiving = self._halves(layout)
        self._advances_schedules = bool(receiving.schedules)
        self._messages = self._sending.message.new_zeros(self.group.size, len(self._sending.message))
        self._received = Batches(TensorBatch(self._messages, None, None), lasting=True)
        self._cursors_received = self._sending.packing.cursors(self._messages)
        self._cursor_copy = torch.empty(self._cursors_received.shape, dtype=self._cursors_received.dtype)
        self._fill_messages_of_absent()
        self._senders = self._training.runner(self._sending, before.get(GRADIENTS), GRADIENTS)
        self._receivers = self._training.runner(receiving, before.get(UPDATE), UPDATE)
        for runner in (self._senders, self._receivers):
            runner.__enter__()

    def _halves(self, layout: Layout | None) -> tuple[SendingStep, ReceivingStep]:
        """Return both halves of the step for messages of a layout; None stands for messages without gradients."""
        training = self._training
        if layout is None:
            whole = training.whole_step()
            layout = Layout.of([None] * len(whole.dense), [None] * len(whole.tables))
        receiving = ReceivingStep(
            *training.step_arguments, schedules=training.schedules, layout=layout, averages=training.averages_losses
        )
        return SendingStep(*training.step_arguments, layout=layout), receiving


def restored_state(training: Training, task: Task) -> dict[str, Any]:
    """Return this replica's part of the state in the checkpoint that training starts from; empty if there is none."""
    if training.checkpoint is None:
        return {}
    own = own_state(training.checkpoint.state, task.rank, task.num_workers, [_COMPILED_GRADIENTS])
    if _COMPILED_GRADIENTS in own:
        own[COMPILED_PARTS] = {**(own.get(COMPILED_PARTS) or {}), GRADIENTS: own[_COMPILED_GRADIENTS]}
    return own


def _layouts_of(statuses: Sequence[Status]) -> list[Layout]:
    return [Layout.from_json(one.layout) for one in statuses if one.layout is not None]
