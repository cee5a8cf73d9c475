"""Fully sharded training: every process holds some rows of each parameter; all processes take each step together.

The parameters of one part of the model (a *unit*) are gathered from all processes just before that part computes, and
freed afterwards, so that no process holds the whole model while it trains (`torch.distributed.fsdp`). The optimizer
state is sharded in the same way. Three files, in order of execution:

1. `FullyShardedSession.begin`, in this file, checks that all processes run the same program, and shards the model.
2. `fully_sharded_units.py` finds the units, and refuses models that cannot be sharded.
3. `fully_sharded_steps.py` takes the steps; every process writes its shard of a checkpoint.

If a process is lost, its rows are lost, too. So the survivors cannot recover: all processes end with an exit status
that asks the launcher to start them again, and training goes on from the last checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch_estimator.cluster.task import Task
from torch_estimator.errors import InvalidTypeError
from torch_estimator.run_config import RunConfig
from torch_estimator.strategies.checks import check_silence, refuse_parameter_servers
from torch_estimator.strategies.data_parallel import (
    agree_on_start,
    joined_group,
    vary_random_numbers,
)
from torch_estimator.strategy import CheckpointContent, Session, Strategy

if TYPE_CHECKING:
    from torch_estimator.distributed.group import Group
    from torch_estimator.hooks.hook import RunContext
    from torch_estimator.strategies.fully_sharded_steps import ShardedSteps
    from torch_estimator.train.loop import Steps, TrainingResult
    from torch_estimator.train.training import Training

logger = logging.getLogger("torch_estimator")


@dataclass(frozen=True, slots=True)
class FullyShardedStrategy(Strategy):
    """Strategy in which every worker holds some rows of each parameter, for models that do not fit on one device.

    The optimizer state is sharded in the same way. The workers take each step together, as with
    `MultiWorkerMirroredStrategy`. The parameters of a part of the module are gathered while that part computes
    (`torch.distributed.fsdp.fully_shard`). Each worker writes its rows into the checkpoint, which any number of
    processes can read. A single process trains as without a strategy.

    Args:
        units: Types of the modules that are gathered one at a time, such as ``[TransformerBlock]``; the parameters of
            all other modules are gathered together. None stands for the members of each `nn.ModuleList` and
            `nn.Sequential`. The parameters of a unit may be used in its ``forward`` only. In each step, either the
            batches of all workers use a unit, or none does.
        silence_secs: As in `MultiWorkerMirroredStrategy`.

    Raises:
        InvalidTypeError: ``units`` are not types, or ``silence_secs`` is not a number.
        InvalidValueError: ``silence_secs`` is not positive.

    >>> strategy = te.distribute.FullyShardedStrategy(units=[torch.nn.TransformerEncoderLayer])
    >>> config = te.RunConfig("runs/translation", train_distribute=strategy, mixed_precision="bf16")
    """

    units: Sequence[type[Any]] | None = None
    silence_secs: float = 300.0

    def __post_init__(self) -> None:
        check_silence(self.silence_secs)
        if self.units is None:
            return
        if not isinstance(self.units, Sequence) or not self.units or not all(isinstance(o, type) for o in self.units):
            raise InvalidTypeError(f"units must be a list of types of modules, but got {self.units!r}.")
        object.__setattr__(self, "units", tuple(self.units))

    def check(self, task: Task) -> None:
        refuse_parameter_servers(self, task)

    @contextmanager
    def join(self, config: RunConfig) -> Iterator[Session]:
        from torch_estimator.distributed.errors import PeerLost
        from torch_estimator.train.preemption import Preempted

        task = config.task
        if task.num_workers <= 1:
            from torch_estimator.strategies.single import SingleSession

            yield SingleSession(config, task)
            return
        try:
            with joined_group(task, self, config, replaceable=False) as group:
                yield FullyShardedSession(config, task, group, self)
        except PeerLost as lost:
            # Ask the launcher to start all processes again, because the rows of the lost process are lost, too.
            logger.error("%s", lost)
            raise Preempted from lost


class FullyShardedSession(Session):
    """One process's part of a fully sharded training, in which each process holds some rows of every parameter."""

    moves_module = False
    _training: Training
    _steps: ShardedSteps

    def __init__(self, config: RunConfig, task: Task, group: Group, strategy: FullyShardedStrategy) -> None:
        super().__init__(config, task)
        self.group = group
        self._strategy = strategy

    def begin(self, training: Training) -> None:
        from torch_estimator.distributed.consistency import (
            CLUSTER,
            check_same,
            check_same_training,
            describe_optimizers,
            describe_training,
        )
        from torch_estimator.strategies.fully_sharded_units import check_optimizers, shard
        from torch_estimator.train.training import own_state

        training.warm_start()
        description = {
            CLUSTER: {"the number of processes that train": self.task.num_workers},
            **describe_training(training.model, None, training.model_fn),
        }

        def agree(**start: Any) -> None:
            check_same_training(
                self.group,
                description=description,
                model_dir=training.model_dir,
                config=self.config,
                strategy_settings={"train_distribute": repr(self._strategy)},
                **start,
            )

        agree_on_start(training, agree, self.group)
        shard(training.model, self.group, self._strategy.units, from_chief=training.checkpoint is None)
        # Make the optimizers after sharding, because sharding replaces the module's parameters.
        training.make_optimizers()
        check_optimizers(training.model, training.optimizers)
        trainers = (training.optimizers, training.schedules)
        check_same(self.group, describe_optimizers(training.model.module, trainers))
        vary_random_numbers(self.task.rank)
        state = {} if training.checkpoint is None else training.checkpoint.state
        training.restore(own_state(state, self.task.rank, self.task.num_workers))

    @contextmanager
    def steps(self, training: Training, context: RunContext) -> Iterator[Steps]:
        from torch_estimator.strategies.fully_sharded_steps import ShardedSteps

        if self.config.compile is True:
            logger.warning("With FullyShardedStrategy training runs in Python: compile=True has no effect.")
        training.restore_input(training.saved_state)
        self._training = training
        self._steps = ShardedSteps(self.group, training, context)
        with self._steps.notifying_others():
            yield self._steps

    def snapshot(self, reserve: Callable[[], str]) -> CheckpointContent:
        from torch_estimator.train.training import REPLICAS

        state = {**self._training.state(), REPLICAS: self._steps.gather_shards(reserve())}
        return CheckpointContent(
            variables=self._training.model.variables(),
            slots=self._training.slots(),
            state=state,
            shards=self.group.size,
        )

    def end(self, result: TrainingResult) -> TrainingResult:
        return self._steps.leave(result)
