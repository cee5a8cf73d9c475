"""Training with parameter servers: servers hold the parameters, and workers pull parameters and push gradients."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch_estimator import activity
from torch_estimator.cluster.task import PARAMETER_SERVER, Task, check_has_chief
from torch_estimator.errors import ClusterError, InvalidTypeError, InvalidValueError, UserError
from torch_estimator.run_config import RunConfig
from torch_estimator.strategies.checks import check_silence
from torch_estimator.strategy import CheckpointContent, Session, Strategy

if TYPE_CHECKING:
    from torch_estimator.hooks.hook import RunContext
    from torch_estimator.parameter_server.client import ServerClient
    from torch_estimator.parameter_server.push_pull import PushPullSteps
    from torch_estimator.train.loop import Steps, TrainingResult
    from torch_estimator.train.training import Training

logger = logging.getLogger("torch_estimator")

_MOST_SECS_TO_END = 10.0


@dataclass(frozen=True, slots=True)
class ParameterServerStrategy(Strategy):
    """Strategy in which servers hold the parameters, and every worker takes steps without waiting for other workers.

    This is the default if the cluster has ``ps`` tasks. A global step is one batch of one worker.

    Args:
        pipeline: Whether to compute a batch while the gradients of the previous batch are being sent. This gives more
            steps per second, but gradients are computed with parameters that are one step older. Without it, a cluster
            with one worker computes the same numbers as a single process.
        max_staleness: How many steps a worker may be ahead of the slowest connected worker before it waits for that
            worker; None for no limit.
        silence_secs: After this number of seconds without a message from a worker, the first server logs a warning that
            names the worker. From then on, neither the end of the training nor ``max_staleness`` waits for it. Choose
            more than the longest pause between two steps.

    Raises:
        InvalidTypeError: An argument has the wrong type.
        InvalidValueError: ``silence_secs`` is not positive, or ``max_staleness`` is negative.

    >>> strategy = te.distribute.ParameterServerStrategy(pipeline=True)
    >>> te.RunConfig("runs/census", train_distribute=strategy).train_distribute
    ParameterServerStrategy(pipeline=True, max_staleness=None, silence_secs=300.0)
    """

    pipeline: bool = False
    max_staleness: int | None = None
    silence_secs: float = 300.0

    def __post_init__(self) -> None:
        if not isinstance(self.pipeline, bool):
            raise InvalidTypeError(f"pipeline must be True or False, but got {self.pipeline!r}.")
        if self.max_staleness is not None:
            if not isinstance(self.max_staleness, int) or isinstance(self.max_staleness, bool):
                raise InvalidTypeError(f"max_staleness must be a whole number or None, but got {self.max_staleness!r}.")
            if self.max_staleness < 0:
                raise InvalidValueError(f"max_staleness must be 0 or more, but got {self.max_staleness}.")
        check_silence(self.silence_secs)

    def check(self, task: Task) -> None:
        if task.num_workers > 1 and not task.num_ps:
            raise InvalidValueError(
                f"train_distribute is a ParameterServerStrategy, but {task.source} names no parameter servers; add "
                "'ps' to the cluster, or leave train_distribute out of RunConfig."
            )
        check_has_chief(task)

    @contextmanager
    def join(self, config: RunConfig) -> Iterator[Session]:
        from torch_estimator.distributed.errors import TrainingOver
        from torch_estimator.strategies.single import SingleSession

        task = config.task
        if not task.num_ps:
            yield SingleSession(config, task)
            return
        # `ParameterServerSession.steps` raises TrainingOver if the chief had ended the training before this process
        # took its first step. Suppress it, because a worker that comes too late is not an error.
        with suppress(TrainingOver), connected_client(config) as client:
            yield ParameterServerSession(config, task, client, self)

    def dismiss(self, config: RunConfig, *, is_over: bool = False) -> None:
        """End all parameter servers, except those of an unfinished training. Called if nothing is left to train."""
        from torch_estimator.parameter_server.protocol import Kind
        from torch_estimator.parameter_server.run_id import LAST_STEP, RunIdFile

        if not (config.task.is_chief and config.task.num_ps):
            return
        # The servers may already have ended with the last training, so wait for them only a short time.
        logger.info("Ending the parameter servers, where they have not ended before (%g s at most).", _MOST_SECS_TO_END)
        with suppress(ClusterError), connected_client(config, most_secs=_MOST_SECS_TO_END) as client:
            run_id = RunIdFile(str(config.model_dir), client.name).read_if_there()
            replies = client.request_all(Kind.HELLO)
            # The first server counts the global steps, so only its reply says whether the last step was taken.
            first, last_step = replies[0][0], replies[0][1].get(LAST_STEP)
            is_over = is_over or first.kind is Kind.EMPTY or (last_step is not None and first.step >= last_step)
            unused = [
                index
                for index, (header, _) in enumerate(replies)
                if header.kind is Kind.EMPTY or (is_over and header.run_id == run_id)
            ]
            end = client.header(Kind.END)
            client.request({index: [end._replace(run_id=replies[index][0].run_id).pack()] for index in unused})


@contextmanager
def connected_client(config: RunConfig, *, most_secs: float = math.inf) -> Iterator[ServerClient]:
    """Connect to all parameter servers of the cluster; yield the client, and disconnect at the end.

    `most_secs` limits the wait for a server, if ``session_creation_timeout_secs`` is longer.
    """
    from torch_estimator.parameter_server.client import ServerClient
    from torch_estimator.parameter_server.encryption import key_from_environment

    task = config.task
    addresses, key = task.cluster[PARAMETER_SERVER], key_from_environment()
    with_key = f", with the key in {key.path}" if key else ""
    logger.info("This process is %s; parameters are at %s%s.", task, ", ".join(addresses), with_key)
    wait_secs = min(config.session_creation_timeout_secs, most_secs)
    client = ServerClient(str(task), task.rank, addresses, wait_secs=wait_secs, key=key)
    try:
        with activity.waiting(client.waits_for):
            yield client
    finally:
        client.close()


def check_large_tables(training: Training) -> None:
    """Check that parameter servers can update each table that is on them, and name large tables that are not."""
    from torch_estimator.feature_column.table import LARGE_BYTES, tables_of

    held = {update.table for update in training.whole_step().tables}
    for table in tables_of(training.model.module):
        name, size = table.pieces[0].name, table.weight.nbytes
        if table.weight.is_meta and table not in held:
            raise InvalidValueError(
                f"The table of {name!r} has {table.rows} rows, so it is on parameter servers, which update rows with "
                "the optimizers of te.optim only; train it with one of these, create it with trainable=False, or "
                "train without parameter servers."
            )
        if not table.weight.is_meta and size >= LARGE_BYTES and training.is_chief:
            logger.warning(
                "Every process holds the table of %r, %d bytes: on parameter servers alone are only tables that the "
                "model_fn or columns= makes, and that are trained.",
                name,
                size,
            )


def _reading_of_meta(error: BaseException, training: Training) -> str | None:
    """Return a sentence for an error of torch that code which runs in training has read a table on parameter servers.

    Return None for any other error.
    """
    from torch_estimator.feature_column.table import tables_of

    tables = [one for one in tables_of(training.model.module) if one.weight.is_meta]
    if not (tables and isinstance(error, RuntimeError | TypeError) and re.search(r"\bmeta\b", str(error))):
        return None
    packages = tuple(os.path.dirname(str(sys.modules[name].__file__)) + os.sep for name in ("torch", "torch_estimator"))
    frames = [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith(packages)]
    place = f"{frames[-1].filename}, line {frames[-1].lineno}," if frames else "A model, loss, hook or summary"
    names = ", ".join(repr(one.pieces[0].name) for one in tables)
    return (
        f"{place} reads a whole table, and large ones are on parameter servers ({names}); read it from checkpoints, "
        "with Estimator.get_variable_value or by evaluating these."
    )


class ParameterServerSession(Session):
    """One process's part of a training with parameter servers, in which each process trains at its own speed."""

    _training: Training
    _steps: PushPullSteps
    has_servers = True

    def __init__(self, config: RunConfig, task: Task, client: ServerClient, strategy: ParameterServerStrategy) -> None:
        super().__init__(config, task)
        self._client = client
        self._strategy = strategy

    def begin(self, training: Training) -> None:
        from torch_estimator.distributed.consistency import CLUSTER, describe_training
        from torch_estimator.strategies.data_parallel import vary_random_numbers, warn_of_whole_tables
        from torch_estimator.train.training import own_state

        training.warm_start()
        training.make_optimizers()
        check_large_tables(training)
        # Describe the training before the checkpoint is restored: a restored schedule changes its optimizer's settings.
        self._description = {
            CLUSTER: {"the number of processes that train": self.task.num_workers},
            **describe_training(training.model, (training.optimizers, training.schedules), training.model_fn),
        }
        if training.max_steps is not None:
            self._description["the end of training"] = {"max_steps": int(training.max_steps)}
        vary_random_numbers(self.task.rank)
        # Restore the checkpoint's state on the chief only; a worker gets its input cursor from the servers.
        state = training.checkpoint.state if training.checkpoint is not None and training.is_chief else {}
        try:
            training.restore(own_state(state, 0, self.task.num_workers))
        except UserError as error:
            if training.is_chief:
                raise
            raise type(error)(
                f"{str(error)[:-1]}; if the chief goes on with it, start {self._client.name} with the same code and "
                "the same arguments as the chief."
            ) from error
        warn_of_whole_tables(training)

    @contextmanager
    def steps(self, training: Training, context: RunContext) -> Iterator[Steps]:
        from torch_estimator.checkpoint.checkpoint import is_reached
        from torch_estimator.distributed.errors import TrainingOver
        from torch_estimator.parameter_server.client import TrainingIsOver
        from torch_estimator.parameter_server.push_pull import PushPullSteps
        from torch_estimator.parameter_server.run_id import RunIdFile
        from torch_estimator.train.loop import StopReason, TrainingResult
        from torch_estimator.train.preemption import stop_signal
        from torch_estimator.train.training import log_end

        client = self._client
        run_id = RunIdFile(training.model_dir, client.name, training.is_over)
        client.is_preempted = lambda: context.preempted
        client.stop_signal = lambda: stop_signal(context)
        if not training.is_chief:
            client.is_over = lambda: run_id.is_training_over() or is_reached(training.model_dir, training.last_step)
        self._training = training
        self._steps = steps = PushPullSteps(
            client, training, context, settings=self._strategy, run_id=run_id, description=self._description
        )
        try:
            try:
                steps.begin()
            except TrainingIsOver:
                reached = is_reached(training.model_dir, training.last_step)
                reason = StopReason.LAST_STEP if reached else StopReason.OVER
                log_end(TrainingResult(context.global_step, 0, reason))
                raise TrainingOver from None
            yield steps
        except BaseException as error:
            steps.close(type(error), error, error.__traceback__)
            if sentence := _reading_of_meta(error, training):
                raise InvalidValueError(sentence) from error
            raise
        steps.close(None, None, None)

    def refresh(self, context: RunContext) -> None:
        self._steps.refresh(context)

    def snapshot(self, reserve: Callable[[], str]) -> CheckpointContent:
        training = self._training
        return CheckpointContent(
            variables=training.model.variables(),
            slots=training.slots(),
            state=self._steps.checkpoint_state(),
            row_files=self._steps.write_rows(reserve),
        )

    def end(self, result: TrainingResult) -> TrainingResult:
        from torch_estimator.train.loop import StopReason

        training, steps = self._training, self._steps
        preempted = training.context is not None and training.context.preempted
        if result.reason is StopReason.END_OF_INPUT and preempted and not steps.over:
            # The chief's input had ended, and SIGTERM arrived while the chief waited for the other workers. Training is
            # not complete, so report a preemption, not the end of the input.
            result = dataclasses.replace(result, reason=StopReason.PREEMPTED)
        if result.reason is StopReason.PREEMPTED:
            steps.report_cursor(at_once=True)
            steps.leave()
            return result
        # Write the last checkpoint before the servers end: after that, training can resume only from a checkpoint.
        training.wait()
        steps.end(stops=result.reason is StopReason.HOOK)
        if not steps.over:
            return result
        # Report the servers' global step, because a worker that was disconnected may have seen only an earlier step.
        is_last = training.last_step is not None and steps.global_step >= training.last_step
        reason = StopReason.LAST_STEP if is_last else StopReason.OVER
        return dataclasses.replace(result, reason=reason, global_step=steps.global_step)
