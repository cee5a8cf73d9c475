"""Data-parallel training: every process has the whole model, and all take each step together."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch_estimator.cluster.task import Task
from torch_estimator.errors import ClusterError, InvalidTypeError, InvalidValueError
from torch_estimator.run_config import RunConfig
from torch_estimator.strategies.checks import check_silence, refuse_parameter_servers
from torch_estimator.train.strategy import CheckpointContent, EvaluationShare, Session, Strategy

if TYPE_CHECKING:
    from torch_estimator.distributed.forked_replicas import Replicas
    from torch_estimator.distributed.group import Group
    from torch_estimator.hooks.run_context import RunContext
    from torch_estimator.strategies.data_parallel_steps import DataParallelSteps
    from torch_estimator.train.loop import Steps, TrainingResult
    from torch_estimator.train.training import Training

logger = logging.getLogger("torch_estimator")

_COMMUNICATIONS = ("AUTO", "RING", "NCCL")

COMPILED_PARTS = "compiled_parts"
"""Key of a checkpoint's state: what was compiled of the two halves of a step."""

# A table of more numbers takes longer to exchange than most models take for a step.
_MANY_NUMBERS = 1_000_000

# One entry for each group or job that this process is in; meanwhile its evaluations are not shared.
_busy: list[None] = []


@dataclass(frozen=True, slots=True)
class MultiWorkerMirroredStrategy(Strategy):
    """Every worker has the whole model; all workers take each step together, on the sum of their gradients.

    What the processes of a cluster without parameter servers do by default. A batch of the ``input_fn`` is that of one
    worker: with n workers a step is one of n times as many rows. Losses that are sums are added up over the workers,
    all others averaged, and so are their gradients.

    Args:
        communication: ``"RING"`` is gloo over TCP, ``"NCCL"`` is for GPUs; ``"AUTO"`` chooses.
        silence_secs: Seconds after which the logs name a process that all others wait for; they go on waiting.
        elastic: Whether to go on without a worker that is lost, with steps of fewer rows, until it is back. All workers
            are waited for at the start and where the chief is replaced; the chief is always waited for.

    Raises:
        InvalidTypeError: The seconds are no number, or ``elastic`` is no bool.
        InvalidValueError: There is no such communication, or the seconds are not positive.

    >>> MultiWorkerMirroredStrategy(elastic=True).communication
    'AUTO'
    """

    communication: Literal["AUTO", "RING", "NCCL"] = "AUTO"
    silence_secs: float = 300.0
    elastic: bool = False

    def __post_init__(self) -> None:
        if self.communication not in _COMMUNICATIONS:
            raise InvalidValueError(
                f"communication must be one of {', '.join(_COMMUNICATIONS)}, but got {self.communication!r}."
            )
        check_silence(self.silence_secs)
        if not isinstance(self.elastic, bool):
            raise InvalidTypeError(f"elastic must be True or False, but got {self.elastic!r}.")

    @property
    def backend(self) -> str:
        """Name of the backend of torch.distributed.

        Raises:
            InvalidValueError: The communication needs GPUs, and there are none, or cannot be elastic.
        """
        import torch

        if self.elastic and self.communication != "RING" and torch.cuda.is_available():
            raise InvalidValueError(
                "elastic=True needs communication='RING': who waits in NCCL does not notice a loss."
            )
        if self.communication == "NCCL" and not torch.cuda.is_available():
            raise InvalidValueError("communication='NCCL' needs GPUs, but there are none here; use 'RING' or 'AUTO'.")
        # Texts go through gloo in any case.
        return "cpu:gloo,cuda:nccl" if self.communication != "RING" and torch.cuda.is_available() else "gloo"

    def check(self, task: Task) -> None:
        refuse_parameter_servers(self, task)

    def join(self, config: RunConfig) -> AbstractContextManager[Session]:
        return joined(config, config._task, self)

    @property
    def evaluates(self) -> bool:
        return True

    @contextmanager
    def share_evaluation(self, config: RunConfig) -> Iterator[EvaluationShare | None]:
        if not shares_evaluation(config) or _busy:
            if config._task.is_of_cluster and not shares_evaluation(config):
                _warn_of_evaluating_alone()
            yield None
            return
        from torch_estimator.distributed.shared_evaluation.rounds import GroupShare

        with joined_group(config._task, self, config, purpose="evaluate") as group:
            yield GroupShare(group)


def shares_evaluation(config: RunConfig) -> bool:
    """Return whether the processes that train together also share evaluations."""
    task = config._task
    return isinstance(config.eval_distribute, MultiWorkerMirroredStrategy) and task.num_workers > 1 and not task.num_ps


def _warn_of_evaluating_alone() -> None:
    if _warned:
        return
    _warned.append(None)
    logger.warning(
        "eval_distribute is a %s: this process evaluates alone, with the same results; a MirroredStrategy has "
        "replicas of its machine share the work.",
        MultiWorkerMirroredStrategy.__name__,
    )


_warned: list[None] = []


@contextmanager
def busy_with_group() -> Iterator[None]:
    """Keep evaluations in the body to this process: the other processes are busy with something else."""
    _busy.append(None)
    try:
        yield
    finally:
        _busy.pop()


@contextmanager
def joined_group(
    task: Task,
    strategy: Strategy,
    config: RunConfig,
    *,
    purpose: str = "train",
    replicas: Replicas | None = None,
    replaceable: bool = True,
) -> Iterator[Group]:
    """Wait for all processes that train or evaluate together with this one; leave them at the end.

    Args:
        task: The place of this process among them.
        strategy: The strategy that they share.
        config: The job's settings.
        purpose: ``train`` or ``evaluate``.
        replicas: The processes that this one was forked with, or None where they were started one by one.
        replaceable: Whether another process can take the place of one that is lost.

    Raises:
        ClusterError: They did not come.
    """
    from torch_estimator.distributed.group import Group
    from torch_estimator.parameter_server.encryption import KEY_FILE

    if KEY_FILE in os.environ and replicas is None:
        logger.warning("%s is set, but this cluster has no parameter servers: it encrypts nothing here.", KEY_FILE)
    evaluates = purpose == "evaluate"
    settings = strategy if isinstance(strategy, MultiWorkerMirroredStrategy) else MultiWorkerMirroredStrategy()
    if replicas is None:
        wait = "This process is %s; waiting at %s for all %d that %s."
        logger.info(wait, task, task.rendezvous, task.num_workers, purpose)
    with (
        Group(
            task,
            "gloo" if replicas is not None and task.device == "cpu" else settings.backend,
            wait_secs=config.session_creation_timeout_secs,
            silence_secs=getattr(strategy, "silence_secs", settings.silence_secs),
            watch=replicas.watch if replicas is not None else lambda: None,
            replaceable=replaceable and not evaluates,
            elastic=settings.elastic and not evaluates,
            purpose=purpose,
        ) as group,
        busy_with_group(),
    ):
        yield group


@contextmanager
def joined(config: RunConfig, task: Task, strategy: Strategy, *, replicas: Replicas | None = None) -> Iterator[Session]:
    """Join the processes that take each step together; a process that has no others trains alone.

    Args:
        config: The settings of this process.
        task: Its place among the processes.
        strategy: The strategy that they share.
        replicas: The processes that this one was forked with, or None where they were started one by one.
    """
    from torch_estimator.distributed.lost import LeftBehind, TrainingOver
    from torch_estimator.train.preemption import Preempted

    if task.num_workers <= 1:
        from torch_estimator.strategies.single import SingleSession

        yield SingleSession(config, task)
        return
    try:
        with joined_group(task, strategy, config, replicas=replicas) as group:
            yield DataParallelSession(
                config, task, group, shares_input=replicas is not None, is_elastic=getattr(strategy, "elastic", False)
            )
    except TrainingOver:
        logger.info("The others have ended the training.")
    except LeftBehind as behind:
        logger.error("%s", behind)
        raise Preempted from behind


class DataParallelSession(Session):
    """One of several processes that have the same model and take each step together.

    Args:
        config: The settings of this process.
        task: Its place among the processes.
        group: The processes.
        shares_input: Whether the processes were forked from one: they read one input, of which each takes its batches,
            and only the first one has to see the model directory.
        is_elastic: Whether the group goes on without a lost process.
    """

    _training: Training
    _steps: DataParallelSteps

    def __init__(self, config: RunConfig, task: Task, group: Group, *, shares_input: bool, is_elastic: bool) -> None:
        super().__init__(config, task)
        self.group = group
        self._shares_input = shares_input
        self._is_elastic = is_elastic
        self._agree: Callable[..., None] = lambda: None
        self._positions: Any = None

    @contextmanager
    def attempt(self) -> Iterator[None]:
        from torch_estimator.distributed.lost import PeerLost

        try:
            yield
        except PeerLost as lost:
            # Once a step is taken, the steps themselves recover what the lost process held.
            self.group.meet_another(lost)

    def begin(self, training: Training) -> None:
        from torch_estimator.distributed.agreement import agree_on_training
        from torch_estimator.distributed.description import CLUSTER, Trainers, describe_training
        from torch_estimator.distributed.peer_recovery import handed, leader_of
        from torch_estimator.strategies.data_parallel_steps import restored_state

        group, others_train = self.group, self.group.was_under_way
        if not others_train:
            training.warm_start()
        training.make_optimizers()
        trainers: Trainers = (training.optimizers, training.schedules)
        # A schedule moves the settings of its optimizer, so they are described as they are at first.
        description = {
            CLUSTER: {"the number of processes that train": self.task.num_workers},
            **describe_training(training.model, trainers),
        }
        model_dir = None if self._shares_input else training.model_dir

        def agree(begins_with: str | None = None, last_step: int | None = None) -> None:
            agree_on_training(
                group,
                description=description,
                model_dir=model_dir,
                config=self.config,
                strategy_settings={"elastic": self._is_elastic},
                begins_with=begins_with,
                last_step=last_step,
            )

        self._agree = agree
        if others_train:
            agree()
            snapshot = handed(group, leader_of(group.statuses)[0], None)
            training.checkpoint, training.last_step = snapshot.as_checkpoint(training.model_dir), snapshot.last_step
            self._positions = snapshot.positions
            logger.info("The others are at global step %d; going on with them.", snapshot.step)
        else:
            agree_on_start(training, agree, group)
        if not self._shares_input:
            vary_random_numbers(self.task.rank)
        training.restore(restored_state(training, self.task))
        warn_of_whole_tables(training)

    @contextmanager
    def steps(self, training: Training, context: RunContext) -> Iterator[Steps]:
        from torch_estimator.strategies.data_parallel_steps import DataParallelSteps
        from torch_estimator.train.preemption import checking_preemption
        from torch_estimator.train.training import RANDOM

        training.restore_input(training.saved_state)
        if self._shares_input and RANDOM not in training.saved_state:
            # The dataset was made with the same generators, so that all go through the same input.
            vary_random_numbers(self.task.rank)
        self._training = training
        self.group.heed = checking_preemption(context)
        if training.checkpoint is None:
            self.group.broadcast([*training.model.variables().values(), *training.slots().values()])
        self._steps = DataParallelSteps(
            self.group,
            training,
            context,
            agree=self._agree,
            before=training.saved_state.get(COMPILED_PARTS),
            positions=self._positions,
        )
        with notifying_of_failure(self._steps):
            yield self._steps

    def snapshot(self, reserve: Callable[[], str]) -> CheckpointContent:
        from torch_estimator.train.training import REPLICAS

        training = self._training
        others = self._steps.positions() or training.saved_state.get(REPLICAS) or [None] * self.group.size
        return CheckpointContent(
            variables=training.model.variables(),
            slots=training.slots(),
            state={**self._steps.whole_state(), REPLICAS: others},
        )

    def call_to_evaluation(self, request: str) -> EvaluationShare | None:
        from torch_estimator.distributed.shared_evaluation.rounds import GroupShare

        return GroupShare(self.group) if self._steps.call_to_evaluation(request) else None

    def end(self, result: TrainingResult) -> TrainingResult:
        return leave_together(self._steps, result)


@contextmanager
def notifying_of_failure(steps: Any) -> Iterator[None]:
    """Close the steps at the end; where the body fails, notify the other processes first."""
    from torch_estimator.train.preemption import Preempted

    try:
        yield
    except BaseException as error:
        if not isinstance(error, ClusterError | Preempted):
            with suppress(ClusterError):
                steps.fail()
        steps.close(type(error), error, error.__traceback__)
        raise
    steps.close(None, None, None)


def leave_together(steps: Any, result: TrainingResult) -> TrainingResult:
    """Leave the others after the last step; return why the training has ended for all of them."""
    from torch_estimator.train.loop import StopReason

    steps.end(preempted=result.reason is StopReason.PREEMPTED)
    if steps.preempted:
        return dataclasses.replace(result, reason=StopReason.PREEMPTED)
    return dataclasses.replace(result, reason=StopReason.HOOK) if steps.stopped else result


def agree_on_start(training: Training, agree: Callable[..., None], group: Group) -> None:
    """Compare with the chief where the training starts and ends; take over what only the chief knows."""
    from torch_estimator import files

    begins_with = None if training.checkpoint is None else files.basename(training.checkpoint.path)
    agree(begins_with=begins_with, last_step=training.last_step)
    # Only the chief knows whether this training was interrupted.
    training.starts_input_over = bool(group.gather_texts("yes" if training.starts_input_over else "")[0])


def vary_random_numbers(rank: int) -> None:
    """Give each process random numbers of its own, for dropout and for shuffling its part of the input."""
    import torch

    if rank:
        torch.manual_seed((torch.initial_seed() + rank) % 2**63)


def warn_of_whole_tables(training: Training) -> None:
    """Warn of big embeddings that are exchanged whole, unlike those of feature columns."""
    from torch import nn

    if not training.is_chief:
        return
    for name, table in training.model.module.named_modules():
        if isinstance(table, nn.Embedding | nn.EmbeddingBag) and table.weight.requires_grad:
            numbers = table.weight.numel()
            if numbers > _MANY_NUMBERS:
                logger.warning(
                    "All %d numbers of %s, which is a torch.nn.%s, are exchanged in every step; of an embedding_column "
                    "only the rows that a batch mentions are.",
                    numbers,
                    name or "the model",
                    type(table).__name__,
                )
