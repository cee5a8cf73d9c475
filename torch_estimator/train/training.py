"""One training run: from the last checkpoint, or from nothing, to the last step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from torch_estimator import files
from torch_estimator.checkpoint.checkpoint import Checkpoint, is_reached, latest_checkpoint, load_checkpoint
from torch_estimator.checkpoint.hook_states import hook_states, restore_hooks
from torch_estimator.checkpoint.index import checkpoint_step
from torch_estimator.checkpoint.saver_hook import CheckpointMemoryHook, CheckpointSaverHook
from torch_estimator.checkpoint.shard_file import ShardFile
from torch_estimator.checkpoint.sharded_tensors import part_to_save
from torch_estimator.checkpoint.writer import CheckpointWriter
from torch_estimator.compile.choice import GRADIENTS, AnySteps, steps_for
from torch_estimator.data.dataset import Dataset
from torch_estimator.data.stream import StateMismatch
from torch_estimator.distributed.description import Description, Trainers
from torch_estimator.distributed.packing import Layout
from torch_estimator.distributed.peer_recovery import REPLICAS, Snapshot
from torch_estimator.distributed.replica_state import Place
from torch_estimator.distributed.replica_steps import ReplicaSteps
from torch_estimator.distributed.split_step import ReceivingStep, SendingStep
from torch_estimator.errors import ClusterError, UserError
from torch_estimator.heads.loss_reduction import LossReduction
from torch_estimator.hooks.checkpoint_saver_listener import CheckpointSaverListener
from torch_estimator.hooks.hook import Hook, RunContext
from torch_estimator.hooks.logging_tensor import LoggingTensorHook
from torch_estimator.hooks.step_counter import StepCounterHook
from torch_estimator.hooks.summary_saver import SummarySaverHook
from torch_estimator.run_config import RunConfig
from torch_estimator.strategies.sharded.step import ShardedStep
from torch_estimator.strategies.sharded.steps import ShardedSteps
from torch_estimator.strategies.sharded.units import check_optimizers
from torch_estimator.strategies.strategies import FullyShardedStrategy, ParameterServerStrategy
from torch_estimator.summary.event_writers import EventWriters
from torch_estimator.train.batches import Batches
from torch_estimator.train.damage import NotFinite, check_finite
from torch_estimator.train.loop import StopReason, TrainingResult, run_training
from torch_estimator.train.mixed_precision import in_bfloat16
from torch_estimator.train.model import Model
from torch_estimator.train.optimizer_numbers import NUMBERS, OptimizerNumbers
from torch_estimator.train.preemption import Preempted, ending_on_signals, stop_signal
from torch_estimator.train.progress import ProgressBar, ProgressHook
from torch_estimator.train.random_state import random_state, set_random_state
from torch_estimator.train.step import TrainStep
from torch_estimator.train.variables import named_slots, trained_variables

if TYPE_CHECKING:
    from torch_estimator.distributed.group import Group
    from torch_estimator.parameter_server.client import Links
    from torch_estimator.parameter_server.pushed_step import PushedStep
    from torch_estimator.parameter_server.worker_steps import ServedSteps

logger = logging.getLogger("torch_estimator")

_INPUT = "input"
_INPUT_ENDED = "input_ended"
_RANDOM = "random"
_COMPILED = "compiled"
_COMPILED_PARTS = "compiled_parts"
_GRADIENTS = "compiled_gradients"
_HOOKS = "hooks"
_OVER = "over_when_ended"
# More take longer to exchange than a step of most models.
_MANY_NUMBERS = 1_000_000
_INPUT_POSITION = (_INPUT, _INPUT_ENDED, _RANDOM)
_OF_RANK = (*_INPUT_POSITION, _HOOKS, _GRADIENTS)


class TrainingRun:
    """Trains one model in one model directory.

    Args:
        model: Built for training; its weights are the initial ones.
        trainers: Its optimizers and schedules, just made.
        dataset: The training data.
        config: When to save, log and summarise.
        model_dir: Where to.
        checkpoint: What to go on from, or None.
        input_over_when_ended: Where the checkpoint's input had ended: whether to start the input over (a new call of
            ``train``) or to take no further step (the interrupted one, resumed).
        group: The processes that train this model together, or None.
        servers: That hold its parameters, or None.
        saved_step: Of the last checkpoint in the directory, or None; others of the group may have gone on from there.
        agree: Compares with the others of a group, formed again, what must be the same.
        evaluate: Shares the evaluation that the chief of a group has called the others to.
        description: What must be the same of all who train with the servers.
        positions: Where a group that is under way is in its input, as a `Snapshot` has it, or None.
        is_over: Asked while a server cannot be reached, whether the chief has ended the training.
    """

    def __init__(
        self,
        model: Model,
        trainers: Trainers,
        dataset: Dataset,
        *,
        config: RunConfig,
        model_dir: str,
        checkpoint: Checkpoint | None,
        input_over_when_ended: bool = True,
        group: Group | None = None,
        servers: Links | None = None,
        saved_step: int | None = None,
        agree: Callable[[Group], None] = lambda group: None,
        evaluate: Callable[[Group], None] = lambda group: None,
        description: Description | None = None,
        positions: Tensor | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self._group = group
        self._servers = servers
        self._saved_step = saved_step
        self._agree = agree
        self._evaluate = evaluate
        self._description = description or {}
        self._positions = positions
        self._is_over = is_over
        self._model = model
        self._config = config
        self._model_dir = model_dir
        self._checkpoint = checkpoint
        self._optimizers, self._schedules = trainers
        self._is_sharded = group is not None and isinstance(config.train_distribute, FullyShardedStrategy)
        if self._is_sharded:
            check_optimizers(model, self._optimizers)
        self._numbers = OptimizerNumbers(self._optimizers)
        if checkpoint is not None:
            try:
                model.restore(checkpoint, self._optimizers)
            except UserError as error:
                if servers is None or servers.rank == 0:
                    raise
                raise type(error)(
                    f"{str(error)[:-1]}; if the chief goes on with it, start {servers.name} with the same code and the "
                    "same arguments as the chief."
                ) from error
            self._numbers.restore(checkpoint.state.get(NUMBERS, ()))
            self._schedules.go_to(checkpoint.step)
        self._loss_fn = in_bfloat16(model.loss, model.device) if config.mixed_precision else model.loss
        self._dataset = dataset
        self._batches = model.batches(dataset)
        self._input_ended = False
        self._may_start_over = False
        self._writer: CheckpointWriter | None = None
        self.saver: CheckpointSaverHook | None = None
        self._context: RunContext | None = None
        self._saved_state = self._own_part(checkpoint.state) if checkpoint is not None else {}
        self._steps: AnySteps | ReplicaSteps | ShardedSteps | ServedSteps | None = None
        self._over_when_ended = input_over_when_ended
        # With servers, they may know better.
        if checkpoint is not None and servers is None:
            self._restore_position(self._saved_state, input_over_when_ended)

    def run(
        self,
        *,
        last_step: int | None,
        hooks: Sequence[Hook],
        listeners: Sequence[CheckpointSaverListener],
    ) -> TrainingResult:
        """Train; see `run_training`."""
        result = self._run(last_step, hooks, listeners)
        return replace(result, reason=StopReason.INTERRUPTED) if self.is_interrupted else result

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C has asked this training to end."""
        return self._context is not None and self._context.interrupted

    def _run(
        self, last_step: int | None, hooks: Sequence[Hook], listeners: Sequence[CheckpointSaverListener]
    ) -> TrainingResult:
        resumed_at = self._checkpoint.step if self._checkpoint is not None else None
        with ExitStack() as stack:
            stack.callback(lambda: self._batches.close())
            writers = stack.enter_context(EventWriters(resumed_at))
            self._context = context = RunContext(
                global_step=resumed_at or 0,
                module=self._model.module,
                model_dir=self._model_dir,
                output_dir=None if self._is_chief else files.join(self._model_dir, f"replica_{self._rank}"),
                optimizers=self._optimizers,
                writers=writers,
            )
            if resumed_at is not None and self._is_chief:
                context.summary_writer()
            stack.enter_context(ending_on_signals(context, saves=self._saves))
            bar = stack.enter_context(
                ProgressBar("Training", total=last_step, initial=context.global_step, hidden=not self._is_chief)
            )
            given = [*self._model.spec.training_hooks, *hooks]
            restore_hooks(given, self._saved_state.get(_HOOKS, {}))
            all_hooks = [
                *self._summaries(),
                *(hook for hook in given if not hook.after_saving),
                *self._saver(stack, given, listeners),
                *self._log_lines(bar),
                *(hook for hook in given if hook.after_saving),
            ]
            if self._is_chief and not self._is_sharded and self._trains_with_others:
                _tell_of_whole_tables(self._model.module)
            if self._servers is not None:
                return self._run_served(self._servers, stack, context, last_step, all_hooks)
            if self._group is None:
                self._steps = steps = self._steps_of(self._whole_step(), last_step, self._compiled_before)
                stack.enter_context(steps)
                return run_training(_Feed(self, steps, context), context=context, last_step=last_step, hooks=all_hooks)
            return self._run_replica(self._group, stack, context, last_step, all_hooks, given)

    def _run_replica(
        self,
        group: Group,
        stack: ExitStack,
        context: RunContext,
        last_step: int | None,
        hooks: Sequence[Hook],
        given: Sequence[Hook],
    ) -> TrainingResult:
        if self._is_sharded:
            # Whoever went before all have saved would have them lose what they are saving.
            return self._run_together(self._sharded_steps(group, given), stack, context, last_step, hooks)
        group.heed = _heeding(context)
        if self._checkpoint is None:
            group.broadcast([*self._model.variables().values(), *self._slots().values()])
        steps = ReplicaSteps(
            group,
            self._halves,
            lambda step, part, before: self._steps_of(step, last_step, before, part),
            place=Place(
                self._model,
                self._optimizers,
                self._schedules,
                self._numbers,
                position=lambda: self._replica_position(given),
                state=self._state,
                begun=self._checkpoint.state if self._checkpoint is not None else {},
                agree=self._agree,
                save=self._save_snapshot,
                evaluate=self._evaluate,
                last_step=last_step,
            ),
            before=self._compiled_before,
            positions=self._positions,
            global_step=context.global_step,
        )
        return self._run_together(steps, stack, context, last_step, hooks)

    def _run_together(
        self,
        steps: ReplicaSteps | ShardedSteps,
        stack: ExitStack,
        context: RunContext,
        last_step: int | None,
        hooks: Sequence[Hook],
    ) -> TrainingResult:
        self._steps = steps
        stack.push(steps.close)
        try:
            result = run_training(_ReplicaFeed(self, steps, context), context=context, last_step=last_step, hooks=hooks)
            steps.end(preempted=result.reason is StopReason.PREEMPTED)
        except (ClusterError, Preempted):
            raise
        except BaseException:
            with suppress(ClusterError):
                steps.fail()
            raise
        if steps.preempted:
            return replace(result, reason=StopReason.PREEMPTED)
        return replace(result, reason=StopReason.HOOK) if steps.stopped else result

    def _save_snapshot(self, snapshot: Snapshot) -> None:
        """For a chief that has to go while it waits for others."""
        if self._writer is None:
            return
        self._writer.wait()
        latest = latest_checkpoint(self._model_dir)
        if latest is None or checkpoint_step(files.basename(latest)) != snapshot.step:
            saved = snapshot.as_checkpoint(self._model_dir)
            try:
                check_finite({name: saved.variables[name] for name in self._trained()})
            except NotFinite as found:
                logger.error("Global step %d is not saved: %r is not finite.", saved.step, found.name)
                return
            logger.info("Saving checkpoints for %d into %s.", saved.step, self._model_dir)
            self._writer.save(saved.step, saved.variables, saved.slots, saved.state)
            self._writer.wait()

    def _sharded_steps(self, group: Group, hooks: Sequence[Hook]) -> ShardedSteps:
        if self._config.compile is True:
            logger.warning("With FullyShardedStrategy training runs in Python: compile=True has no effect.")
        file = ShardFile(group.rank, group.size)

        def write(directory: str) -> None:
            check_finite(self._trained())
            file.write(directory, self._model.variables(), self._slots())

        return ShardedSteps(
            group,
            ShardedStep(self._model.module, self._loss_fn, self._optimizers, schedules=self._schedules),
            averages=self._averages,
            position=lambda: {**self._state(), _HOOKS: hook_states(hooks)},
            write=write,
        )

    def _run_served(
        self, servers: Links, stack: ExitStack, context: RunContext, last_step: int | None, hooks: Sequence[Hook]
    ) -> TrainingResult:
        from torch_estimator.parameter_server.client import TrainingIsOver
        from torch_estimator.parameter_server.token import Token
        from torch_estimator.parameter_server.worker_steps import ServedSteps

        strategy, task = self._config.train_distribute, self._config._task
        token = Token(self._model_dir, servers.name, self._is_over)
        servers.is_preempted = lambda: context.preempted
        servers.stop_signal = lambda: stop_signal(context)
        if not self._is_chief:
            servers.is_over = lambda: token.is_gone() or is_reached(self._model_dir, last_step)
        self._steps = steps = ServedSteps(
            servers,
            self._pushed_step,
            lambda step, part, before: self._steps_of(step, last_step, before, part),
            schedules=self._schedules,
            token=token,
            description=self._description,
            strategy=strategy if isinstance(strategy, ParameterServerStrategy) else ParameterServerStrategy(),
            names=[task.name_of_rank(rank) for rank in range(task.num_workers)],
            restored=self._restored,
            global_step=context.global_step,
            last_step=last_step,
            before=self._compiled_before,
            positions=self._positions_of_others(),
        )
        stack.push(steps.close)
        try:
            steps.begin()
        except TrainingIsOver:
            reason = StopReason.LAST_STEP if is_reached(self._model_dir, last_step) else StopReason.OVER
            return TrainingResult(context.global_step, 0, reason)
        context.global_step = steps.global_step
        self._take_place(steps)
        result = run_training(_ServedFeed(self, steps, context), context=context, last_step=last_step, hooks=hooks)
        if result.reason is StopReason.END_OF_INPUT and context.preempted and not steps.over:
            # The chief, which was waiting for the others.
            result = replace(result, reason=StopReason.PREEMPTED)
        if result.reason is StopReason.PREEMPTED:
            steps.deposit(self.position, at_once=True)
            steps.leave()
            return result
        # Servers that have ended hold nothing to go on with.
        self.wait()
        steps.end(stops=result.reason is StopReason.HOOK)
        if not steps.over:
            return result
        # What came to the servers after the last step was not applied. Who was away at the end knows an earlier step.
        is_last = last_step is not None and steps.global_step >= last_step
        reason = StopReason.LAST_STEP if is_last else StopReason.OVER
        return replace(result, reason=reason, global_step=steps.global_step)

    def _positions_of_others(self) -> dict[str, Any]:
        return {
            str(rank): {**one, _OVER: self._over_when_ended}
            for rank, one in enumerate(self._saved_state.get(REPLICAS) or ())
            if rank and one is not None
        }

    def _take_place(self, steps: ServedSteps) -> None:
        """Goes on with the input where whoever was here before stood."""
        if steps.position is None:
            self._restore_position(self._saved_state, self._over_when_ended)
        else:
            self._restore_position(steps.position, steps.position[_OVER])
        if steps.repeated and self._config.resume_input:
            logger.info(
                "Going on with the input where it stood %s%d batches ago; these are trained on twice.",
                "at most " if steps.repeated_at_most else "",
                steps.repeated,
            )

    def position(self) -> dict[str, Any]:
        """Where the input stands, for who comes in the place of this process."""
        return {
            _INPUT: self._batches.state(),
            _INPUT_ENDED: self._input_ended,
            _RANDOM: random_state(),
            _OVER: False,
        }

    def _replica_position(self, hooks: Sequence[Hook]) -> dict[str, Any]:
        assert isinstance(self._steps, ReplicaSteps)
        return {
            _INPUT: self._batches.state(),
            _INPUT_ENDED: self._input_ended,
            _RANDOM: random_state(cpu=False),
            _GRADIENTS: self._steps.gradients_state(),
            _HOOKS: hook_states(hooks),
        }

    def _pushed_step(self, layout: Layout | None) -> PushedStep:
        from torch_estimator.parameter_server.pushed_step import PushedStep

        if layout is None:
            whole = self._whole_step()
            layout = Layout.of([None] * len(whole.dense), [None] * len(whole.tables))
        return PushedStep(self._model.module, self._loss_fn, self._optimizers, layout=layout)

    def _restored(self) -> int:
        """Puts the last checkpoint into the model and the optimizers."""
        self.settle()
        if latest_checkpoint(self._model_dir) is None:
            raise ClusterError(
                "A parameter server has lost what it held, and there is no checkpoint to restore it from; start all "
                "processes again, and have checkpoints saved."
            )
        checkpoint = load_checkpoint(self._model_dir)
        self._model.restore(checkpoint, self._optimizers)
        return checkpoint.step

    def _whole_step(self) -> TrainStep:
        return TrainStep(self._model.module, self._loss_fn, self._optimizers, schedules=self._schedules)

    def _halves(self, layout: Layout | None) -> tuple[SendingStep, ReceivingStep]:
        if layout is None:
            whole = self._whole_step()
            layout = Layout.of([None] * len(whole.dense), [None] * len(whole.tables))
        parts = (self._model.module, self._loss_fn, self._optimizers)
        receiving = ReceivingStep(*parts, schedules=self._schedules, layout=layout, averages=self._averages)
        return SendingStep(*parts, layout=layout), receiving

    @property
    def _averages(self) -> bool:
        """Whether the loss of several batches together is the average of theirs, not the sum."""
        head, loss = self._model.head, self._model.spec.loss
        # A loss of torch's says how it is made of those of rows; a plain function is taken for a mean.
        adds = LossReduction.of(head.loss_reduction) is LossReduction.SUM or getattr(loss, "reduction", "") == "sum"
        return not adds

    def _slots(self) -> dict[str, Tensor]:
        return named_slots(self._model.module, self._optimizers)

    def _trained(self) -> dict[str, Tensor]:
        return trained_variables(self._model.module, self._optimizers)

    def _steps_of(self, step: TrainStep, last_step: int | None, before: Any, part: str = "") -> AnySteps:
        return steps_for(step, self._model, self._config, before=before, last_step=last_step, part=part)

    @property
    def has_random_state(self) -> bool:
        """Whether the checkpoint says where this process was with its random numbers."""
        return _RANDOM in self._saved_state

    @property
    def _rank(self) -> int:
        together = self._group or self._servers
        return 0 if together is None else together.rank

    @property
    def _size(self) -> int:
        """How many train one model."""
        if self._servers is not None:
            return self._config._task.num_workers
        return 1 if self._group is None else self._group.size

    @property
    def _trains_with_others(self) -> bool:
        return self._group is not None or self._servers is not None

    @property
    def _saves(self) -> bool:
        return bool(self._config.save_checkpoints_steps or self._config.save_checkpoints_secs)

    @property
    def _is_chief(self) -> bool:
        return self._rank == 0

    def _own_part(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a checkpoint says of this process; where it was saved by more or fewer, not where its input stands."""
        if not state or (self._servers is not None and not self._is_chief):
            return {}
        saved = state.get(REPLICAS) or [None]
        own = dict(state) if self._is_chief else {key: value for key, value in state.items() if key not in _OF_RANK}
        if len(saved) != self._size:
            logger.warning(
                "The checkpoint was saved in a training of %d %s, and this one is of %d: reading the input from its "
                "beginning.",
                len(saved),
                "process" if len(saved) == 1 else "processes",
                self._size,
            )
            return {key: value for key, value in own.items() if key not in (*_INPUT_POSITION, _GRADIENTS, REPLICAS)}
        if self._group is None:
            return own
        own.update(saved[self._rank] or {})
        if _GRADIENTS in own:
            own[_COMPILED_PARTS] = {**(own.get(_COMPILED_PARTS) or {}), GRADIENTS: own[_GRADIENTS]}
        return own

    @property
    def _compiled_before(self) -> Any:
        return self._saved_state.get(self._compiled_key)

    @property
    def _compiled_key(self) -> str:
        """Under which state is what was compiled: those who share steps compile parts of them."""
        return _COMPILED_PARTS if self._trains_with_others else _COMPILED

    def wait(self) -> None:
        """Waits as `settle` does; raises what went wrong with it."""
        if self._writer is not None:
            self._writer.wait()

    def called_to_evaluation(self, what: str) -> Group | None:
        """For the chief, between two steps: those who now evaluate something with it, or None where nobody can."""
        steps = self._steps
        return steps.group if isinstance(steps, ReplicaSteps) and steps.call_to_evaluation(what) else None

    def settle(self) -> None:
        """Waits until the checkpoint that is being written, if any, can be read."""
        if self._writer is not None:
            self._writer.settle()

    def _saver(
        self, stack: ExitStack, hooks: Sequence[Hook], listeners: Sequence[CheckpointSaverListener]
    ) -> list[Hook]:
        config = self._config
        if not self._saves or not self._is_chief:
            return []
        self._writer = writer = stack.enter_context(
            CheckpointWriter(
                self._model_dir,
                keep_checkpoint_max=config.keep_checkpoint_max,
                keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
            )
        )

        own_part = partial(part_to_save, is_chief=True)

        def prepare() -> None:
            writer.prepare(own_part(self._model.variables()), own_part(self._slots()))

        def save(step: int, *, wait: bool) -> None:
            check_finite(self._trained())
            begun, self._saved_state = self._saved_state, {**self._state(), _HOOKS: hook_states(hooks)}
            shards = 1
            if isinstance(self._steps, ReplicaSteps):
                positions = self._steps.positions() or begun.get(REPLICAS)
                self._saved_state[REPLICAS] = positions or [None] * self._steps.group.size
            elif isinstance(self._steps, ShardedSteps):
                shards = self._steps.group.size
                self._saved_state[REPLICAS] = self._steps.gather_shards(writer.reserve(step))
            elif self._servers is not None:
                self._saved_state[REPLICAS] = self._served_positions()
            writer.save(
                step,
                own_part(self._model.variables()),
                own_part(self._slots()),
                self._saved_state,
                shards=shards,
            )
            if wait:
                writer.wait()

        def amend(step: int) -> None:
            states = hook_states(hooks)
            if states != self._saved_state.get(_HOOKS, {}):
                self._saved_state = {**self._saved_state, _HOOKS: states}
                writer.amend(step, self._saved_state)

        self.saver = CheckpointSaverHook(
            save,
            self._model_dir,
            every_n_steps=config.save_checkpoints_steps,  # type: ignore[arg-type]  # resolved in RunConfig
            every_secs=config.save_checkpoints_secs,  # type: ignore[arg-type]
            listeners=listeners,
            saved_step=self._saved_step,
            amend=amend,
            refresh=self._refresh,
        )
        return [self.saver, CheckpointMemoryHook(prepare)]

    def _served_positions(self) -> list[Any]:
        """Where the inputs of all stand; None for the chief's, which is elsewhere in the state."""
        from torch_estimator.parameter_server.worker_steps import ServedSteps

        assert isinstance(self._steps, ServedSteps)
        others = range(1, self._config._task.num_workers)
        return [None, *(self._steps.positions.get(str(rank)) for rank in others)]

    def _refresh(self, context: RunContext) -> None:
        if self._servers is not None:
            from torch_estimator.parameter_server.worker_steps import ServedSteps

            assert isinstance(self._steps, ServedSteps)
            self._steps.refresh(context)

    def _summaries(self) -> list[Hook]:
        if not self._config.save_summary_steps or not self._is_chief:
            return []
        summaries = [_loss_summary, _learning_rate_summary] if self._schedules else [_loss_summary]
        return [SummarySaverHook(self._config.save_summary_steps, summaries=summaries, of_model=True)]

    def _log_lines(self, bar: ProgressBar) -> list[Hook]:
        hooks: list[Hook] = []
        if self._config.log_step_count_steps:
            hooks.append(StepCounterHook(self._config.log_step_count_steps))
            # tf.estimator logs the step before the one taken: 0, k, 2k, … of a fresh run.
            hooks.append(LoggingTensorHook({"loss": "loss", "step": _step_before}, self._config.log_step_count_steps))
        if bar.visible:
            hooks.append(ProgressHook(bar))
        return hooks

    def _state(self) -> dict[str, Any]:
        return {
            _INPUT: self._batches.state(),
            _INPUT_ENDED: self._input_ended,
            _RANDOM: random_state(),
            self._compiled_key: self._steps.state() if self._steps is not None else None,
            NUMBERS: self._numbers.state(),
            **self._model.state(self._optimizers),
        }

    def _restore_position(self, state: Mapping[str, Any], input_over_when_ended: bool) -> None:
        starts_over = not self._config.resume_input or (state.get(_INPUT_ENDED) and input_over_when_ended)
        if not starts_over and _INPUT in state:
            try:
                self._batches.restore(state[_INPUT])
                self._may_start_over = input_over_when_ended
            except StateMismatch as mismatch:
                logger.warning("%s Reading the input from its beginning.", mismatch)
        # Last, since restoring an input may need the generators' state of its own start.
        set_random_state(state.get(_RANDOM, {}))

    def next_batches(self, most: int) -> Batches | None:
        """The next batches, as many as lie together; None where the input ends."""
        batches = self._read(most)
        if batches is None and self._may_start_over:
            # The last call took the very last batch without meeting the end: this one starts from the beginning.
            self._batches.close()
            self._batches = self._model.batches(self._dataset)
            batches = self._read(most)
        self._may_start_over = False
        if batches is None:
            self._input_ended = True
            return None
        self._model.meet(batches.whole)
        return batches

    def _read(self, most: int) -> Batches | None:
        # What a user's own code draws at random has to come between the very steps where it comes in Python.
        if most == 1 or self._dataset.runs_user_code:
            batch = next(self._batches, None)
            return None if batch is None else Batches(batch)
        batches = Batches(*self._batches.next_in_block(most))
        return None if batches.whole is None else batches


def _tell_of_whole_tables(module: nn.Module) -> None:
    for name, table in module.named_modules():
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


class _Told:
    """What follows when hooks were told of a step.

    Args:
        look_again: To be called after somebody else's code has run.
    """

    def __init__(self, look_again: Callable[[], None]) -> None:
        self._look_again = look_again
        self._foreign: dict[int, bool] = {}

    def told(self, hooks: Sequence[Hook]) -> None:
        if any(self._is_foreign(hook) for hook in hooks):
            self._look_again()

    def _is_foreign(self, hook: Hook) -> bool:
        # Found out once: a hook may hold a list that grows with every step.
        known = self._foreign.get(id(hook))
        if known is None:
            known = self._foreign[id(hook)] = _runs_foreign_code(hook)
        return known


class _Feed(_Told):
    """The steps of a run, each fed with its batch."""

    def __init__(self, run: TrainingRun, steps: AnySteps | ServedSteps, context: RunContext) -> None:
        super().__init__(steps.look_again)
        self._run = run
        self._steps = steps
        self._context = context

    @property
    def stroke(self) -> int:
        return self._steps.stroke

    def stops(self, context: RunContext) -> bool:
        return context.stop_requested

    def take(self, most: int) -> Sequence[Tensor | float]:
        batches = self._run.next_batches(most)
        return () if batches is None else self._steps.take(batches, self._context)


class _ReplicaFeed(_Told):
    """The steps of a replica, each fed with a batch of its own."""

    stroke = 1

    def __init__(self, run: TrainingRun, steps: ReplicaSteps | ShardedSteps, context: RunContext) -> None:
        super().__init__(steps.look_again)
        self._run = run
        self._steps = steps
        self._context = context

    def stops(self, context: RunContext) -> bool:
        return self._steps.stops(context)

    def take(self, most: int) -> Sequence[Tensor | float]:
        if isinstance(self._steps, ShardedSteps):
            self._steps.note_position()
        return self._steps.take(self._run.next_batches(1), self._context)


class _ServedFeed(_Feed):
    """The same where parameters are with servers, who are told of the end of the input."""

    def __init__(self, run: TrainingRun, steps: ServedSteps, context: RunContext) -> None:
        super().__init__(run, steps, context)
        self._served = steps

    def take(self, most: int) -> Sequence[Tensor | float]:
        if self._served.has_to_save() and self._run.saver is not None:
            self._run.saver.save(self._context)
            self._run.settle()
            self._served.let_go()
        self._served.deposit(self._run.position)
        losses = super().take(most)
        if not losses:
            self._served.meet_end()
        return losses


def _runs_foreign_code(hook: Hook) -> bool:
    """Whether a hook is the user's, or calls functions or listeners of theirs."""
    held: list[Any] = []
    for value in vars(hook).values():
        several = value.values() if isinstance(value, dict) else value
        held += several if isinstance(value, list | tuple | dict) else (value,)
    called = [one for one in held if callable(one) or isinstance(one, CheckpointSaverListener)]
    own = [type(hook), *(one if isinstance(one, FunctionType | MethodType | type) else type(one) for one in called)]
    return not all(one.__module__ == "builtins" or one.__module__.startswith("torch_estimator.") for one in own)


def _loss_summary(context: RunContext) -> dict[str, float]:
    return {"loss": context.loss}


def _learning_rate_summary(context: RunContext) -> dict[str, float]:
    rates = context.learning_rates
    if len(rates) == 1:
        return {"learning_rate": rates[0]}
    return {f"learning_rate_{index}": rate for index, rate in enumerate(rates)}


def _heeding(context: RunContext) -> Callable[[str, float, float], None]:
    """What a group calls while it waits."""
    noticed: list[float] = []

    def heed(whom: str, since: float, secs: float) -> None:
        if context.preempted:
            noticed.append(time.monotonic())
            if noticed[-1] >= max(noticed[0], since) + secs:
                name = stop_signal(context)
                logger.error("%s came while this process waited for %s; start again to go on.", name, whom)
                raise Preempted

    return heed


def _step_before(context: RunContext) -> int:
    return context.global_step - 1


def log_end(result: TrainingResult) -> None:
    """Says why training ended, and warns where it did nothing."""
    if result.steps_taken == 0 and result.reason is StopReason.END_OF_INPUT:
        logger.warning("Training took no step: the input is empty or at its end.")
    else:
        logger.info("Training ended at global step %d: %s.", result.global_step, result.reason.value)
