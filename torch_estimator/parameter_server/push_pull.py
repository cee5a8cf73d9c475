"""Training steps of a worker with parameter servers: pull the parameters for a batch, push the batch's gradients.

One step is one message to each server and one reply. The message pushes the gradients of the previous batch and pulls
what this batch needs:

    look up     which rows of tables the batch needs (`lookups`)
    exchange    push the pending gradients; pull these rows and all dense parameters; write them into the model
    compute     loss and gradients (`gradients`), which are pending until the next exchange

So if only one process trains, it computes its gradients with the current parameters, as it would without servers. If
steps are pipelined, the exchange for the next batch is under way while this batch is computed, and gradients are
computed with parameters that are one step older.

Servers and connections may die at any moment. `client` sends a request again until its reply has come. A server that
was started again holds nothing and replies EMPTY: the chief restores it from the last checkpoint (`server_state`), and
every worker sends its request once more. Its push is then applied to the restored parameters.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from torch import Tensor

from torch_estimator import activity
from torch_estimator.checkpoint.row_file import RowFileName
from torch_estimator.distributed.consistency import Description
from torch_estimator.errors import InvalidValueError
from torch_estimator.hooks.hook import RunContext
from torch_estimator.parameter_server.client import Frames, ServerClient, TrainingIsOver
from torch_estimator.parameter_server.gradients import GradientComputation
from torch_estimator.parameter_server.lookups import Lookups, UniqueRows
from torch_estimator.parameter_server.placement import Placement
from torch_estimator.parameter_server.protocol import (
    PULLS,
    PUSHES,
    SAVED,
    STOP_ALL,
    STOPPING,
    Header,
    Kind,
    Push,
    pack_exchange,
    unpack_parameters,
)
from torch_estimator.parameter_server.run_id import RunIdFile
from torch_estimator.parameter_server.server_state import STARTS_OVER, PushPullSettings, ServerState
from torch_estimator.train.batches import Batches, batch_size
from torch_estimator.train.threads import sized_threads
from torch_estimator.train.training import REPLICAS, Training

logger = logging.getLogger("torch_estimator")

_COMPILED_PARTS = "compiled_parts"

# How long one call of `take` should last. Hooks run between two calls.
_CALL_SECS = 0.05
_MOST_STEPS_PER_CALL = 128

_REPORT_CURSOR_EVERY_SECS = 1.0
_CHECK_EVERY_SECS = 0.05
_LOG_EVERY_SECS = 10.0

# How long the chief waits, after the end of its input, for workers that have not joined yet. By default the last worker
# starts a minute after the chief.
_MOST_SECS_TO_JOIN = 120.0


class _UnderWay(NamedTuple):
    """An exchange (a push, a pull or both) whose replies have not been read yet.

    `requests` holds the request to each server; it is empty for no exchange.
    """

    rows: list[UniqueRows]
    requests: Mapping[int, Frames]


_NOTHING = _UnderWay([], {})


class PushPullSteps:
    """Training steps of one worker. Other workers take steps at the same time.

    `description` holds properties that must be identical in all processes, as they were at the beginning of the
    training. `global_step` is that in the last reply of the first server.
    """

    def __init__(
        self,
        client: ServerClient,
        training: Training,
        context: RunContext,
        *,
        settings: PushPullSettings,
        run_id: RunIdFile,
        description: Description,
    ) -> None:
        self.over = False
        self.global_step = self._first_step = context.global_step
        self._client = client
        self._training = training
        self._context = context
        self._settings = settings
        self._run_id = run_id
        self._is_chief = client.rank == 0
        client.log_every_secs = min(client.log_every_secs, settings.silence_secs)
        if settings.max_staleness is not None:
            client.held_back_secs = settings.silence_secs
        self._gradients = GradientComputation(training, training.saved_state.get(_COMPILED_PARTS) or {})
        step = self._gradients.step
        self._placement = Placement(step, len(client), str(step.message.numpy().dtype))
        self._lookups = Lookups(step)
        self._server_state = ServerState(
            client, training, self._placement, settings=settings, run_id=run_id, description=description
        )
        # The gradients of the last batch, which the next exchange pushes.
        self._pending: Push | None = None
        self._schedule_step = context.global_step
        # Indices of the servers that are shutting down.
        self._stopping: set[int] = set()
        # Indices of the servers among these whose parameters the chief has not saved yet.
        self._unsaved: set[int] = set()
        self._reported_at = -math.inf
        self._secs_per_step = _CALL_SECS
        # Whether the servers' global step has gone back because they were restored from a checkpoint.
        # `_update_global_step` resets it.
        self._went_back = False

    def begin(self) -> None:
        """Wait until the servers hold this training, and adopt their global step. The chief sends the parameters."""
        step = self._server_state.begin(self.global_step)
        self.global_step = self._first_step = self._context.global_step = step

    @property
    def steps_per_call(self) -> int:
        """Number of steps to take in one call of `take`: few, because hooks have to wait until the call ends."""
        return max(1, min(_MOST_STEPS_PER_CALL, int(_CALL_SECS / self._secs_per_step)))

    def stops(self, context: RunContext) -> bool:
        """Return whether training must end before the next step, because a hook or a signal has requested a stop."""
        return context.stop_requested

    def invalidate(self) -> None:
        """Make the next step check the model and the optimizers for changes. Called after a user's hook has run."""
        self._gradients.invalidate()

    def take(self, most: int) -> Sequence[Tensor | float]:
        """Take at most `most` training steps; return their losses: none if the input or the training has ended."""
        self._save_for_stopping_servers()
        self.report_cursor()
        batches = self._training.next_batches(most)
        losses: list[float] = []
        if batches is not None:
            started = time.perf_counter()
            rows = batch_size(batches.whole.features) // batches.of
            with sized_threads(self._gradients.step.module, rows, with_input_thread=True):
                self._gradients.begin(batches, self._context)
                losses = self._take_steps(batches)
            if losses:
                self._secs_per_step = (time.perf_counter() - started) / len(losses)
            self._update_global_step(len(losses))
        if not losses:
            # The chief ends the training, so it first waits until the inputs of all other workers have ended.
            self._flush()
            if self._is_chief:
                self._wait_for_others()
        return losses

    def _take_steps(self, batches: Batches) -> list[float]:
        """Take a step with each of these batches; return the losses. Stop after a loss that is not finite."""
        losses: list[float] = []
        rows = self._look_up(batches, 0)
        self._exchange(rows)
        ahead = self._send_ahead(batches, 1)
        while not self.over:
            number = len(losses)
            loss, push = self._compute(batches, number, rows)
            if push is None:
                # The batch has looked up rows that its features do not hold. Pull these, and compute the batch again.
                self._lookups.observe_each_batch()
                self._collect(ahead.requests)
                ahead = _NOTHING
                rows = self._look_up(batches, number)
                self._exchange(rows)
                loss, push = self._compute(batches, number, rows)
                if push is None:
                    raise InvalidValueError(
                        "The model looks up other ids of a table in each forward pass over the same batch, so "
                        "servers cannot send the rows ahead; compute the ids from features, or draw them with torch."
                    )
            losses.append(loss)
            if not math.isfinite(loss):
                # Do not push these gradients. The training loop ends the training when it sees the loss.
                break
            self._pending = push
            if number + 1 == batches.count or self.over:
                break
            if ahead.requests:
                rows, ahead = ahead.rows, self._receive(ahead, batches, number + 2)
            else:
                rows = self._look_up(batches, number + 1)
                self._exchange(rows)
                ahead = self._send_ahead(batches, number + 2)
        if not self.over:
            self._collect(ahead.requests)
        return losses

    def _look_up(self, batches: Batches, number: int) -> list[UniqueRows]:
        """Return for each table the rows that one batch needs."""
        return self._gradients.unique_rows(self._lookups.ids(batches, number))

    def _compute(self, batches: Batches, number: int, rows: Sequence[UniqueRows]) -> tuple[float, Push | None]:
        """Compute a batch; return the loss and the gradients. The gradients are None if needed rows were not pulled."""
        # Learning-rate schedules follow the global step, which other workers advance, too.
        while self._schedule_step < self.global_step and self._training.schedules:
            self._training.schedules.advance()
            self._schedule_step += 1
            self._gradients.refresh_settings()
        loss = self._gradients.compute(batches, number, self._context)
        return loss, self._gradients.push(rows, self._placement.changing_settings())

    def _exchange(self, rows: Sequence[UniqueRows] | None) -> None:
        """Push the pending gradients and pull these rows and all dense parameters; if `rows` is None, only push."""
        replies = self._collect(self._send(rows))
        if rows is not None and not self.over:
            self._write(rows, replies)

    def _send_ahead(self, batches: Batches, number: int) -> _UnderWay:
        """If steps are pipelined, push the pending gradients and pull for batch `number`, without waiting for replies.

        If there is no such batch, only push. `_receive` waits for the replies.
        """
        if not self._settings.pipeline:
            return _NOTHING
        rows = self._look_up(batches, number) if number < batches.count else None
        return _UnderWay(rows or [], self._send(rows))

    def _receive(self, ahead: _UnderWay, batches: Batches, number: int) -> _UnderWay:
        """Send the exchange for batch `number`; wait for the exchange `ahead`, and write its parameters into the model.

        The new exchange is sent first, so that two exchanges are under way at once. With bounded staleness the new
        exchange is sent afterwards: as long as a server holds back the reply to `ahead`, this worker must not push
        further gradients.
        """
        sends_first = self._settings.max_staleness is None
        following = self._send_ahead(batches, number) if sends_first else _NOTHING
        replies = self._collect(ahead.requests)
        if not self.over:
            self._write(ahead.rows, replies)
        return following if sends_first else self._send_ahead(batches, number)

    def _send(self, rows: Sequence[UniqueRows] | None) -> dict[int, Frames]:
        """Send requests that push the pending gradients and pull these rows; return them by server index."""
        push, self._pending = self._pending, None
        if push is None and rows is None:
            return {}
        flags = (PUSHES if push is not None else 0) | (PULLS if rows is not None else 0)
        header = self._client.header(Kind.EXCHANGE, flags, self.global_step)
        requests: dict[int, Frames] = {
            server: [
                pack_exchange(header, self._placement.push_for(server, push), self._placement.pull_for(server, rows))
            ]
            for server in range(len(self._client))
        }
        self._client.send(requests)
        return requests

    def _collect(self, requests: Mapping[int, Frames]) -> dict[int, tuple[Header, Frames]]:
        """Wait for the replies to an exchange; record their global step, and whether training or a server ends."""
        try:
            replies = self._collect_from_restored(requests)
        except TrainingIsOver:
            self.over = True
            return {}
        if replies:
            step = replies[0][0].step
            if step < self.global_step:
                # The first server was restored from a checkpoint. Report the input cursor at once, as in `_restore`.
                self._went_back = True
                self._reported_at = -math.inf
            self.global_step = step
            self.over = any(header.kind is Kind.OVER for header, _ in replies.values())
            stopping = {server for server, (header, _) in replies.items() if header.flags & STOPPING}
            self._unsaved |= stopping - self._stopping
            self._stopping = self._stopping.difference(replies) | stopping
        return replies

    def _collect_from_restored(self, requests: Mapping[int, Frames]) -> dict[int, tuple[Header, Frames]]:
        """Wait for the replies. If servers have lost their state, have it restored, and send the requests again."""
        replies = self._client.collect(requests)
        while empty := [server for server, (header, _) in replies.items() if header.kind is Kind.EMPTY]:
            # Ask again, because the chief may have restored a server after its reply.
            status = self._client.request_all(Kind.STATUS)
            if still_empty := [server for server in empty if status[server][0].kind is Kind.EMPTY]:
                self._restore(still_empty)
            replies |= self._client.request({server: requests[server] for server in empty})
        return replies

    def _restore(self, servers: Sequence[int]) -> None:
        # Report the input cursor at once. The restored server knows only the cursor in the checkpoint, and a process
        # that replaced this one would start there and read all batches since then again.
        self._reported_at = -math.inf
        self._server_state.restore(servers, self.global_step)

    def _write(self, rows: Sequence[UniqueRows], replies: Mapping[int, tuple[Header, Frames]]) -> None:
        """Write the pulled parameters, which the servers' replies contain, into the model."""
        self._gradients.place(rows)
        for server, (_, frames) in replies.items():
            pull = self._placement.pull_for(server, rows)
            dense, values = unpack_parameters(frames[0], self._placement.plans[server], pull)
            self._placement.write_pulled(server, rows, dense, values)

    def _flush(self) -> None:
        """Push the pending gradients now, instead of with the next step."""
        if self._pending is not None:
            self._exchange(None)

    def _update_global_step(self, losses: int) -> None:
        """Set the global step in the context such that it is right once the training loop has added `losses` steps."""
        # The servers count the steps of all workers. They have not received the last push of this call yet, so add 1.
        # The training loop adds the steps of this call, so subtract them.
        step = self.global_step + 1 - losses
        # Hooks must not see the global step go back, unless the servers were restored from a checkpoint, and even then
        # not below the step at which this process began.
        least = self._first_step if self._went_back else self._context.global_step
        self._context.global_step = max(least, step)
        self._went_back = False

    def report_cursor(self, *, at_once: bool = False) -> None:
        """Report the current input cursor to the first server; without `at_once`, at most once a second.

        A process that replaces this one continues from that cursor. So the pending gradients are pushed first:
        otherwise those of the last batch could be lost.
        """
        if at_once or time.monotonic() > self._reported_at + _REPORT_CURSOR_EVERY_SECS:
            self._flush()
            with suppress(TrainingIsOver):
                self._client.report_cursor({**self._training.input_position(), STARTS_OVER: False})
            self._reported_at = time.monotonic()

    def _save_for_stopping_servers(self) -> None:
        """As the chief, save a checkpoint if servers are shutting down; afterwards inform the servers."""
        unsaved, self._unsaved = self._unsaved, set()
        if not unsaved or not self._is_chief:
            return
        names = ", ".join(f"ps {server}" for server in sorted(unsaved))
        logger.info("%s is shutting down; saving its parameters.", names)
        if self._training.saver is not None:
            self._training.saver.hook.save(self._context)
            self._training.settle()
            if self._training.saver.has_saved(self._context.global_step):
                with suppress(TrainingIsOver):
                    self._client.request_all(Kind.STATUS, SAVED)

    @activity.OTHERS
    def _wait_for_others(self) -> None:
        """As the chief, wait until all other workers have stopped training; late workers get 120 s to join."""
        started, logged = time.monotonic(), -math.inf
        last_step = self._training.last_step
        while not self.over and not self._client.is_preempted():
            replies = self._client.request_all(Kind.STATUS)
            if empty := [server for server, (header, _) in enumerate(replies) if header.kind is Kind.EMPTY]:
                # The other workers wait until these servers are restored.
                self._restore(empty)
                continue
            header, status = replies[0]
            now = time.monotonic()
            everybody = set(range(len(self._server_state.names)))
            waits_for = everybody.intersection(status["active"])
            if now < started + _MOST_SECS_TO_JOIN:
                waits_for = everybody.difference(status["left"], status["silent"])
            waits_for.discard(self._client.rank)
            if not waits_for or (last_step is not None and header.step >= last_step):
                return
            names = [self._server_state.names[rank] for rank in sorted(waits_for)]
            if now > logged + _LOG_EVERY_SECS:
                logged = now
                logger.info("The input has ended here; waiting for %s.", ", ".join(names))
            with activity.waiting(names.copy):
                time.sleep(_CHECK_EVERY_SECS)

    def refresh(self, context: RunContext) -> None:
        """Copy the servers' state into the model and the optimizers, and their global step into the context."""
        self._flush()
        step = self._server_state.read_back(self.global_step)
        if step < self.global_step:
            self._reported_at = -math.inf
        self.global_step = context.global_step = step

    def write_rows(self, reserve: Callable[[], str]) -> Callable[[], list[RowFileName]] | None:
        """Let the servers write their rows of large tables, as of the last `refresh`, into the reserved directory.

        Return a function that waits for them, which another thread may call; None if there are no such tables.
        """
        return self._server_state.write_rows(reserve)

    def checkpoint_state(self) -> dict[str, Any]:
        """Return the state without tensors for the chief's checkpoint, including the input cursors of all workers.

        JSON can represent all values.
        """
        compiled = {} if self._gradients.is_eager and not self._pending else self._gradients.state()
        others = range(1, len(self._server_state.names))
        return {
            **self._training.state(),
            _COMPILED_PARTS: compiled,
            REPLICAS: [None, *(self._server_state.cursors.get(str(rank)) for rank in others)],
        }

    def end(self, *, stops: bool) -> None:
        """As a worker, leave the training. As the chief, end the training in all processes, servers included.

        `stops` says whether all other workers must stop, because this process has been asked to stop.
        """
        if self._is_chief:
            self._client.request_all(Kind.END)
            self._run_id.remove()
        else:
            self.leave(stops=stops)

    def leave(self, *, stops: bool = False) -> None:
        """Leave the training, which the other processes continue unless `stops` is set."""
        self._flush()
        with suppress(TrainingIsOver):
            self._client.request_all(Kind.LEAVE, STOP_ALL if stops else 0)

    def close(self, *exception: object) -> None:
        """Stop a compilation in the background, or let it finish for later runs."""
        self._gradients.close(*exception)
