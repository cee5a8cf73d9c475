"""Data-parallel training: every process has a copy of the model, and all processes take each step together.

A user configures `MultiWorkerMirroredStrategy`; `joined` makes the session of one process. A training runs in this
order:

1. `joined_group` waits until all processes of the cluster are connected.
2. `DataParallelSession.begin` checks that all processes run the same program with the same settings. It then loads the
   state to start from: a checkpoint, the chief's initial weights, or, in the replacement of a lost process, the state
   of the survivors.
3. `DataParallelSteps` takes the steps; it also recovers lost processes.
4. `DataParallelSession.end` leaves the group, once training has ended for all processes.

torch is imported inside functions only, because programs that never train import this module, too, through
`torch_estimator.distribute`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from torch_estimator.cluster.addresses import warn_if_unresolved
from torch_estimator.cluster.task import Task
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.run_config import RunConfig
from torch_estimator.strategies.checks import check_silence, refuse_parameter_servers
from torch_estimator.strategy import CheckpointContent, EvaluationShare, Session, Strategy

if TYPE_CHECKING:
    from torch_estimator.distributed.forked_replicas import ForkedReplicas
    from torch_estimator.distributed.group import Group
    from torch_estimator.hooks.hook import RunContext
    from torch_estimator.strategies.data_parallel_steps import DataParallelSteps
    from torch_estimator.train.loop import Steps, TrainingResult
    from torch_estimator.train.training import Training

logger = logging.getLogger("torch_estimator")

_COMMUNICATIONS = ("AUTO", "RING", "NCCL")

COMPILED_PARTS = "compiled_parts"
"""Key in a checkpoint's state: its value says how the two halves of a step were compiled."""

# Warn if an embedding has more parameters than this: to exchange its gradient takes longer than most models' steps.
_MANY_NUMBERS = 1_000_000

# One entry for each process group that this process is in. A process that is in a group evaluates alone, because the
# other processes of the cluster are busy with the work of the group.
_busy: list[None] = []


@dataclass(frozen=True, slots=True)
class MultiWorkerMirroredStrategy(Strategy):
    """Strategy in which every worker has a copy of the model, and all workers update with the sum of their gradients.

    This is the default of a cluster without parameter servers. In each step, each worker takes one batch of its own
    ``input_fn``. So with n workers, a step is computed on n times as many rows. Losses that are sums, and their
    gradients, are added up over the workers; all other losses are averaged.

    Args:
        communication: ``"RING"`` is gloo over TCP, ``"NCCL"`` is for GPUs; ``"AUTO"`` is NCCL if there are GPUs.
        silence_secs: Seconds that a process waits for the others before it logs a warning that names them. It goes on
            waiting after the warning.
        elastic: Whether to go on without a lost worker, with fewer rows per step, until it is back. At the start, and
            after the chief was lost, training always waits for all workers.

    Raises:
        InvalidTypeError: ``silence_secs`` is not a number, or ``elastic`` is not a bool.
        InvalidValueError: The communication is unknown, or ``silence_secs`` is not positive.

    >>> strategy = te.distribute.MultiWorkerMirroredStrategy(communication="RING", elastic=True)
    >>> strategy.backend
    'gloo'
    >>> config = te.RunConfig("runs/census", train_distribute=strategy)
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
        """Name of the torch.distributed backend, such as ``gloo``.

        Raises:
            InvalidValueError: ``communication`` needs GPUs and there are none, or it does not work with ``elastic``.
        """
        import torch

        if self.elastic and self.communication != "RING" and torch.cuda.is_available():
            raise InvalidValueError(
                "elastic=True needs communication='RING': in NCCL, a process that waits does not notice that another "
                "one is lost."
            )
        if self.communication == "NCCL" and not torch.cuda.is_available():
            raise InvalidValueError("communication='NCCL' needs GPUs, but there are none here; use 'RING' or 'AUTO'.")
        # Always use gloo for CPU tensors, because strings are exchanged as CPU tensors.
        return "cpu:gloo,cuda:nccl" if self.communication != "RING" and torch.cuda.is_available() else "gloo"

    def check(self, task: Task) -> None:
        refuse_parameter_servers(self, task)

    def join(self, config: RunConfig) -> AbstractContextManager[Session]:
        return joined(config, config.task, self)

    @property
    def evaluates(self) -> bool:
        return True

    @contextmanager
    def share_evaluation(self, config: RunConfig) -> Iterator[EvaluationShare | None]:
        if not shares_evaluation(config) or _busy:
            if config.task.is_of_cluster and not shares_evaluation(config):
                _warn_of_evaluating_alone()
            yield None
            return
        from torch_estimator.distributed.shared_evaluation import GroupShare

        with joined_group(config.task, self, config, purpose="evaluate") as group:
            yield GroupShare(group)


def shares_evaluation(config: RunConfig) -> bool:
    """Return whether all workers of the cluster share each evaluation.

    They do if ``eval_distribute`` is a `MultiWorkerMirroredStrategy` and the cluster has no parameter servers.
    """
    task = config.task
    return isinstance(config.eval_distribute, MultiWorkerMirroredStrategy) and task.num_workers > 1 and not task.num_ps


def _warn_of_evaluating_alone() -> None:
    """Log a warning, at most once, that ``eval_distribute`` has no effect because this process evaluates alone."""
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
    """Make this process evaluate alone while the body runs, since the other processes of its group are busy."""
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
    replicas: ForkedReplicas | None = None,
    replaceable: bool = True,
) -> Iterator[Group]:
    """Connect to all processes of a training or an evaluation; yield their `Group`, and leave it at the end.

    `purpose` is ``train`` or ``evaluate``. `replicas` is None if each process was started separately. `replaceable`
    says whether a new process can take the place of a lost one.
    """
    import torch

    from torch_estimator.distributed.generation import FILE_PREFIX
    from torch_estimator.distributed.group import Group
    from torch_estimator.parameter_server.encryption import KEY_FILE
    from torch_estimator.train.device import device_of

    if KEY_FILE in os.environ and replicas is None:
        logger.warning("%s is set, but this cluster has no parameter servers: it encrypts nothing here.", KEY_FILE)
    evaluates = purpose == "evaluate"
    device = torch.device(task.device or device_of(config))
    settings = strategy if isinstance(strategy, MultiWorkerMirroredStrategy) else MultiWorkerMirroredStrategy()
    if replicas is None:
        wait = "This process is %s; waiting at %s for all %d that %s."
        logger.info(wait, task, task.rendezvous, task.num_workers, purpose)
        if task.rank and task.rendezvous is not None and not task.rendezvous.startswith(FILE_PREFIX):
            warn_if_unresolved(str(task), task.name_of_rank(0), task.rendezvous)
    with (
        # NCCL works on the current GPU, so choose it before the group connects.
        torch.cuda.device(device) if device.type == "cuda" else nullcontext(),
        Group(
            task,
            "gloo" if device.type == "cpu" and settings.communication != "NCCL" else settings.backend,
            wait_secs=config.session_creation_timeout_secs,
            silence_secs=getattr(strategy, "silence_secs", settings.silence_secs),
            check_peers=replicas.check if replicas is not None else lambda: None,
            replaceable=replaceable and not evaluates,
            elastic=settings.elastic and not evaluates,
            purpose=purpose,
        ) as group,
        busy_with_group(),
    ):
        yield group


@contextmanager
def joined(
    config: RunConfig, task: Task, strategy: Strategy, *, replicas: ForkedReplicas | None = None
) -> Iterator[Session]:
    """Connect to the processes of a data-parallel training; yield this process's session, and disconnect at the end.

    If the cluster has a single process, its session is a `SingleSession`. `replicas` is None if each process was
    started separately.
    """
    from torch_estimator.distributed.errors import LeftBehind, TrainingOver
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
    """One process's part of a data-parallel training, in which all processes take each step together.

    `shares_input` says whether the processes were forked from one program. Then all read the same input, each process
    takes every n-th batch of it, and only the first process has to see the model directory. `is_elastic` says whether
    the group goes on without a lost process.
    """

    _training: Training
    _steps: DataParallelSteps

    def __init__(self, config: RunConfig, task: Task, group: Group, *, shares_input: bool, is_elastic: bool) -> None:
        super().__init__(config, task)
        self.group = group
        self._shares_input = shares_input
        self._is_elastic = is_elastic
        self._agree: Callable[..., None] = lambda: None
        self._cursors: Any = None

    @contextmanager
    def attempt(self) -> Iterator[None]:
        from torch_estimator.distributed.errors import PeerLost

        try:
            yield
        except PeerLost as lost:
            # Before the first step there is no state to recover, so form the group again and start over. Later losses
            # are handled by `DataParallelSteps`. Its error arrives here only if the group cannot form again; then
            # `rejoin` raises that error.
            self.group.rejoin(lost)

    def begin(self, training: Training) -> None:
        from torch_estimator.distributed.consistency import CLUSTER, check_same_training, describe_training
        from torch_estimator.distributed.peer_recovery import find_leader, hand_over
        from torch_estimator.strategies.data_parallel_steps import restored_state

        group, others_train = self.group, self.group.is_training_under_way
        group.is_over = training.is_over
        if not others_train:
            training.warm_start()
        training.make_optimizers()
        # Describe the training before the checkpoint is restored: a restored schedule changes its optimizer's settings.
        trainers = (training.optimizers, training.schedules)
        description = {
            CLUSTER: {"the number of processes that train": self.task.num_workers},
            **describe_training(training.model, trainers, training.model_fn),
        }
        model_dir = None if self._shares_input else training.model_dir

        def agree(begins_with: str | None = None, last_step: int | None = None) -> None:
            check_same_training(
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
            snapshot = hand_over(group, find_leader(group.statuses)[0], None)
            training.checkpoint, training.last_step = snapshot.as_checkpoint(training.model_dir), snapshot.last_step
            self._cursors = snapshot.cursors
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
            # The processes need the same random numbers to make the same dataset, but different ones to train.
            vary_random_numbers(self.task.rank)
        self._training = training
        self.group.check_preempted = checking_preemption(context)
        if training.checkpoint is None:
            self.group.broadcast([*training.model.variables().values(), *training.slots().values()])
        self._steps = DataParallelSteps(
            self.group,
            training,
            context,
            agree=self._agree,
            before=training.saved_state.get(COMPILED_PARTS),
            cursors=self._cursors,
        )
        with self._steps.notifying_others():
            yield self._steps

    def snapshot(self, reserve: Callable[[], str]) -> CheckpointContent:
        from torch_estimator.train.training import REPLICAS

        training = self._training
        cursors = self._steps.cursors() or training.saved_state.get(REPLICAS) or [None] * self.group.size
        return CheckpointContent(
            variables=training.model.variables(),
            slots=training.slots(),
            state={**self._steps.whole_state(), REPLICAS: cursors},
        )

    def call_to_evaluation(self, request: str) -> EvaluationShare | None:
        from torch_estimator.distributed.shared_evaluation import GroupShare

        return GroupShare(self.group) if self._steps.call_to_evaluation(request) else None

    def end(self, result: TrainingResult) -> TrainingResult:
        return self._steps.leave(result)


def agree_on_start(training: Training, agree: Callable[..., None], group: Group) -> None:
    """Check that training starts and ends at the same steps in all processes.

    `agree` compares ``begins_with`` and ``last_step``. Also sets ``training.starts_input_over`` to the chief's value,
    which only the chief can know.
    """
    from torch_estimator import files

    begins_with = None if training.checkpoint is None else files.basename(training.checkpoint.path)
    agree(begins_with=begins_with, last_step=training.last_step)
    # Use the chief's value, because only the chief reads whether the last training was interrupted.
    training.starts_input_over = bool(group.all_gather_texts("yes" if training.starts_input_over else "")[0])


def vary_random_numbers(rank: int) -> None:
    """Seed torch differently in each process, so that dropout and shuffling draw different random numbers."""
    import torch

    if rank:
        torch.manual_seed((torch.initial_seed() + rank) % 2**63)


def warn_of_whole_tables(training: Training) -> None:
    """Log a warning for each large embedding of the user's module, since its whole gradient is sent in every step.

    Tables of feature columns are not reported, because only the rows that a batch uses are exchanged.
    """
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
