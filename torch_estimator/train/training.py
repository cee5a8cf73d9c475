"""One training: build the model, the optimizers and the input, restore a checkpoint, and train to the last step."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torch_estimator import activity, files
from torch_estimator.checkpoint.checkpoint import Checkpoint, load_checkpoint
from torch_estimator.checkpoint.variables import named_slots, trained_variables
from torch_estimator.checkpoint.writer import CheckpointWriter
from torch_estimator.cluster.task import Task
from torch_estimator.data.stream import StateMismatch
from torch_estimator.errors import CompiledStepError, InvalidValueError
from torch_estimator.heads.loss_reduction import LossReduction
from torch_estimator.hooks.checkpoint_saver import CheckpointMemoryHook, CheckpointSaverHook, hook_states, restore_hooks
from torch_estimator.hooks.hook import CheckpointSaverListener, Hook, RunContext
from torch_estimator.hooks.logging_tensor import LoggingTensorHook
from torch_estimator.hooks.step_counter import StepCounterHook
from torch_estimator.hooks.summary_saver import SummarySaverHook, learning_rate_summary, loss_summary
from torch_estimator.mode_keys import ModeKeys
from torch_estimator.optim.companions import companions_of, with_companions
from torch_estimator.optim.gradient_accumulation import GradientSums
from torch_estimator.run_config import RunConfig
from torch_estimator.specs import InputFn
from torch_estimator.strategy import Session, SharedEvaluator
from torch_estimator.summary.event_writer import EventWriters
from torch_estimator.train.accumulation import mask_rows
from torch_estimator.train.batches import Batches
from torch_estimator.train.loop import StopReason, TrainingResult, run_training
from torch_estimator.train.mixed_precision import in_bfloat16
from torch_estimator.train.model import Model, SizedByInput
from torch_estimator.train.model_builder import ModelBuilder, ModelFn
from torch_estimator.train.not_finite import not_finite_in
from torch_estimator.train.optimizers import NUMBERS, OptimizerNumbers, Schedules
from torch_estimator.train.preemption import ending_on_signals, stop_signal
from torch_estimator.train.progress import ProgressBar, ProgressHook
from torch_estimator.train.random_state import random_state, set_random_state
from torch_estimator.train.runner import Comparison, MakeRunner, StepRunner
from torch_estimator.train.saving import TrainingSaver
from torch_estimator.train.step import TrainStep

logger = logging.getLogger("torch_estimator")

# Keys of a checkpoint's state.
INPUT = "input"
INPUT_ENDED = "input_ended"
RANDOM = "random"
HOOKS = "hooks"
REPLICAS = "replicas"
"""Key of a list with the state of each process, by rank. The entry of the chief is None: its state is outside."""

INPUT_POSITION = (INPUT, INPUT_ENDED, RANDOM)


class Training:
    """One training in this process: its model, optimizers and input, and the state to save.

    The constructor only stores its arguments. The calls that follow are, in this order: `build_model`; `Session.begin`,
    which calls `warm_start`, `make_optimizers` and `restore`; `open_input`; `run`.

    Args:
        builder: Calls the ``model_fn`` and the ``input_fn``.
        task: Rank of this process, and the number of processes that train.
        config: Settings of the job, such as when to save, log and write summaries.
        model_dir: Directory of the job.
        checkpoint: The checkpoint to start from; None for the initial weights.
        last_step: Global step to end at, or None.
        max_steps: Argument ``max_steps`` of the call, or None. ``last_step`` may follow from it.
        starts_input_over: What to do if the input had already ended when the checkpoint was saved. True (for a new call
            of ``train``) starts the input over. False (for an interrupted call that is resumed) takes no further step.
        make_runner: Function that makes a runner: the object that takes the steps, in Python or compiled.
        evaluator: Runs this process's part of evaluations that the chief asks for.
        is_over: Function that returns whether the chief has announced the end of the training. It is called while
            parameter servers do not answer.

    Attributes:
        model: The model; set by `build_model`.
        saved_step: Global step of the newest checkpoint when the training was started, or None.
        saved_state: This process's part of the state of the last checkpoint, as values that JSON can represent.
        optimizers: The optimizers; set by `make_optimizers`.
        schedules: The schedules around the optimizers.
        hooks: The hooks of the user; set by `run`.
        context: The context that hooks are called with; set by `run`.
        saver: Saves checkpoints; None if this process does not save any.
    """

    model: Model

    def __init__(
        self,
        builder: ModelBuilder,
        *,
        task: Task,
        config: RunConfig,
        model_dir: str,
        checkpoint: Checkpoint | None,
        last_step: int | None,
        max_steps: int | None,
        starts_input_over: bool,
        make_runner: MakeRunner,
        evaluator: SharedEvaluator,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.task = task
        self.config = config
        self.model_dir = model_dir
        self.checkpoint = checkpoint
        self.saved_step = None if checkpoint is None else checkpoint.step
        self.last_step = last_step
        self.max_steps = max_steps
        self.starts_input_over = starts_input_over
        self.evaluator = evaluator
        self.is_over = is_over
        self.saved_state: Mapping[str, Any] = {}
        self.optimizers: tuple[Any, ...] = ()
        self.schedules = Schedules(())
        self.hooks: Sequence[Hook] = ()
        self.context: RunContext | None = None
        self.saver: TrainingSaver | None = None
        self._builder = builder
        self._make_runner = make_runner
        self._last_batches: Batches | None = None
        self._runners: weakref.WeakSet[StepRunner] = weakref.WeakSet()
        self._numbers = OptimizerNumbers(())
        self._input_ended = self._input_failed = self._may_start_over = False

    # The next methods prepare the training. They are called in this order.

    def build_model(self, *, moved: bool, on_servers: bool = False) -> None:
        """Call the ``model_fn`` and build the model; if ``moved``, move the module to its device now.

        `on_servers` says that parameter servers hold large tables.
        """
        self.model = self._builder.build(
            ModeKeys.TRAIN,
            self.config,
            self.task.device,
            restored=self.checkpoint is not None,
            moved=moved,
            on_servers=on_servers,
        )
        model = self.model
        logger.info("Training on %s.", model.device)
        self._loss_fn = in_bfloat16(model.loss, model.device) if self.config.mixed_precision else model.loss

    def warm_start(self) -> None:
        """If there is no checkpoint, copy the weights that the Estimator's ``warm_start_from`` names into the model."""
        settings = self._builder.warm_start
        if self.checkpoint is None and settings is not None:
            self.model.warm_start(load_checkpoint(settings.ckpt_to_initialize_from), settings)

    def make_optimizers(self) -> None:
        """Call the user's factory to make the optimizers and learning-rate schedules.

        The weights must be in place by then, except those of a checkpoint: some optimizers keep a copy of the weights
        that they were made with.
        """
        self.optimizers, self.schedules = self.model.make_optimizers()
        check_companions(self.optimizers, self.task)
        mask_rows(self.model.module, self.optimizers)
        self._numbers = OptimizerNumbers(with_companions(self.optimizers))

    def restore(self, own_state: Mapping[str, Any]) -> None:
        """Restore the model, the optimizers and the schedules from the checkpoint, if there is one.

        `own_state` is this process's part of the checkpoint's state.
        """
        if self.checkpoint is None:
            return
        logger.info("Restoring parameters from %s", self.checkpoint.path)
        self.model.restore(self.checkpoint, self.optimizers)
        self.restore_numbers(self.checkpoint.state.get(NUMBERS, ()))
        self.schedules.go_to(self.checkpoint.step)
        self.saved_state = own_state

    def restore_numbers(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """Restore numbers of the optimizers, such as counts, and settings that were changed in the saved run.

        See `OptimizerNumbers`.
        """
        self._numbers.restore(saved)

    def open_input(self, input_fn: InputFn) -> None:
        """Call the ``input_fn`` and open its data at the beginning; `restore_input` moves to a saved position."""
        self._dataset = self._builder.dataset(input_fn, ModeKeys.TRAIN, self.config, self.task)
        self._batches = self.model.batches(self._dataset)

    def restore_input(self, position: Mapping[str, Any], *, starts_over: bool | None = None) -> None:
        """Restore the position in the input, and the state of the random generators, from a result of `input_position`.

        An empty one stands for the beginning of the input. `starts_over` says whether an input that had ended starts
        over; None stands for the constructor's argument.
        """
        starts_over = self.starts_input_over if starts_over is None else starts_over
        if self.config.resume_input and INPUT in position and not (position.get(INPUT_ENDED) and starts_over):
            try:
                self._batches.restore(position[INPUT])
                self._may_start_over = starts_over
            except StateMismatch as mismatch:
                logger.warning("%s Reading the input from its beginning.", mismatch)
        # Set the generators' state last, because restoring the input may run user code that draws random numbers.
        set_random_state(position.get(RANDOM, {}))

    def run(
        self, session: Session, hooks: Sequence[Hook], listeners: Sequence[CheckpointSaverListener]
    ) -> TrainingResult:
        """Train to the last step or the end of the input, or until a hook or a signal asks to stop.

        `Session.begin` of the session was called for this training. See `run_training`.
        """
        resumed_at = None if self.checkpoint is None else self.checkpoint.step
        if self.checkpoint is None and isinstance(self.model.module, SizedByInput):
            with closing(self.model.batches(self._dataset)) as batches:
                self.model.module.initialize_from(batch.features for batch in batches)
        with ExitStack() as stack:
            stack.callback(lambda: self._batches.close())
            writers = stack.enter_context(EventWriters(resumed_at))
            self.context = context = RunContext(
                global_step=resumed_at or 0,
                module=self.model.module,
                model_dir=self.model_dir,
                output_dir=None if self.is_chief else files.join(self.model_dir, f"replica_{self.task.rank}"),
                optimizers=self.optimizers,
                writers=writers,
            )
            if resumed_at is not None and self.is_chief:
                context.summary_writer()
            stack.enter_context(ending_on_signals(context, saves=self.saves_checkpoints))
            stack.enter_context(
                activity.doing("training", lambda: context.global_step, step=lambda: context.global_step)
            )
            bar = stack.enter_context(
                ProgressBar("Training", total=self.last_step, initial=context.global_step, hidden=not self.is_chief)
            )
            spec = self.model.spec
            chief_hooks = spec.training_chief_hooks if self.is_chief else ()
            self.hooks = [*chief_hooks, *spec.training_hooks, *hooks]
            restore_hooks(self.hooks, self.saved_state.get(HOOKS, {}))
            all_hooks = [
                *self._summary_hooks(),
                *(hook for hook in self.hooks if not hook.after_saving),
                *self._saver_hooks(stack, session, listeners),
                *self._log_hooks(bar),
                *(hook for hook in self.hooks if hook.after_saving),
            ]
            with session.steps(self, context) as steps, self._going_back():
                result = run_training(
                    steps, context=context, last_step=self.last_step, hooks=all_hooks, look=self._look_for_not_finite
                )
                if self._input_failed and result.reason is StopReason.END_OF_INPUT:
                    result = replace(result, reason=StopReason.PREEMPTED)
                result = session.end(result)
        return replace(result, reason=StopReason.INTERRUPTED) if context.interrupted else result

    # Sessions use the following methods and properties.

    @property
    def model_fn(self) -> ModelFn:
        """The user's function that builds the model."""
        return self._builder.model_fn

    @property
    def is_chief(self) -> bool:
        """Whether this process is the chief: the process that saves checkpoints, logs and writes summaries."""
        return self.task.rank == 0

    @property
    def saves_checkpoints(self) -> bool:
        """Whether the job's settings ask for checkpoints."""
        return bool(self.config.save_checkpoints_steps or self.config.save_checkpoints_secs)

    @property
    def step_arguments(self) -> tuple[Any, ...]:
        """First arguments of every `TrainStep` of this training: the module, the loss function and the optimizers."""
        return self.model.module, self._loss_fn, self.optimizers

    def whole_step(self) -> TrainStep:
        """Return the training step for a process that trains alone."""
        return TrainStep(*self.step_arguments, schedules=self.schedules, averages=self.averages_losses)

    def runner(self, step: TrainStep, before: Any, part: str = "") -> StepRunner:
        """Return an object that takes ``step`` in Python or compiled, as ``RunConfig(compile=...)`` says.

        See `MakeRunner` for `before` and `part`.
        """
        runner = self._make_runner(step, self.model, self.config, before=before, last_step=self.last_step, part=part)
        self._runners.add(runner)
        return runner

    def compare_compiled_steps(self, *, always: bool) -> Comparison:
        """Compare the compiled steps of this process with Python; see `StepRunner.check`."""
        made = [runner.check(always=always) for runner in self._runners]
        differences = filter(None, (one.difference for one in made))
        return Comparison(next(differences, None), all(one.complete for one in made))

    @property
    def averages_losses(self) -> bool:
        """Whether the loss of several batches is the average of their losses, not the sum."""
        head, loss = self.model.head, self.model.spec.loss
        # torch's losses have an attribute `reduction`. A plain function has none, and is assumed to return a mean.
        adds = LossReduction.of(head.loss_reduction) is LossReduction.SUM or getattr(loss, "reduction", "") == "sum"
        return not adds

    def next_batches(self, most: int) -> Batches | None:
        """Return the next batches, or None at the end of the input.

        There are fewer than `most` if the next ones are not in one block of memory.
        """
        # Free the memory of the batches before the next ones are read.
        self._last_batches = None
        try:
            batches = self._read(most)
        except Exception as error:
            # After a stop signal, treat an error of the input as its end. A terminal sends Ctrl-C to every process of
            # the group, so processes that the input has started were interrupted as well.
            if self.context is None or not self.context.preempted:
                raise
            name = stop_signal(self.context)
            logger.warning("The input has failed after %s: %s: %s", name, type(error).__name__, error)
            self._input_failed = True
            return None
        if batches is None and self._may_start_over:
            # The saved run had read the very last batch, but had not seen the end of the input yet, so the checkpoint
            # does not say that the input has ended. Start the input over here.
            self._batches.close()
            self._batches = self.model.batches(self._dataset)
            batches = self._read(most)
        self._may_start_over = False
        if batches is None:
            self._input_ended = True
            return None
        self.model.note_structure(batches.whole)
        self._last_batches = batches
        return batches

    def _look_for_not_finite(self, taken: int, back: int) -> str | None:
        """Return what is not finite in a batch, or None if it is gone; see `run_training`.

        `taken` steps were taken with the last batches; `back` counts backwards from the last one of them that was used.
        """
        number = taken - 1 - back
        if self._last_batches is None or not 0 <= number < self._last_batches.count:
            return None
        return not_finite_in(self._last_batches.batch(number), self.model.spec.transform)

    def slots(self) -> dict[str, Tensor]:
        """Return the optimizers' state tensors by their names in checkpoints."""
        return named_slots(self.model.module, with_companions(self.optimizers))

    def trained_variables(self) -> dict[str, Tensor]:
        """Return the parameters that an optimizer updates, by their names in checkpoints."""
        return trained_variables(self.model.module, self.optimizers)

    def input_position(self, *, cpu_generator: bool = True) -> dict[str, Any]:
        """Return the position in the input and the random states, as values that JSON can represent.

        `cpu_generator` includes the state of torch's random generator on the CPU, which is 5 kB.
        """
        return {
            INPUT: self._batches.state(),
            INPUT_ENDED: self._input_ended,
            RANDOM: random_state(cpu=cpu_generator),
        }

    def state(self) -> dict[str, Any]:
        """Return a checkpoint's content without tensors and hooks' states, as values that JSON can represent."""
        return {**self.input_position(), NUMBERS: self._numbers.state(), **self.model.state(self.optimizers)}

    def hook_states(self) -> dict[str, Any]:
        """Return the states of the user's hooks, as values that JSON can represent."""
        return hook_states(self.hooks)

    # The next methods wait for a checkpoint that is being written in the background.

    def settle(self) -> None:
        """Wait until no checkpoint is being written. Raise no error if writing fails."""
        if self.saver is not None:
            self.saver.writer.settle()

    def wait(self) -> None:
        """Wait until no checkpoint is being written, and raise an error if the last one could not be written."""
        if self.saver is not None:
            self.saver.writer.wait()

    @contextmanager
    def _going_back(self) -> Iterator[None]:
        """If a compiled step has computed something wrong, make the last checkpoint that is right the latest one."""
        try:
            yield
        except CompiledStepError as error:
            if self.saver is not None:
                raise self.saver.gone_back(error) from None
            raise

    def _read(self, most: int) -> Batches | None:
        # Read a single batch at a time if the input runs code of the user. That code may draw random numbers, and it
        # must draw them between the same steps as in a training that takes one step after the other.
        if most == 1 or self._dataset.runs_user_code:
            batch = next(self._batches, None)
            return None if batch is None else Batches(batch)
        batches = Batches(*self._batches.next_in_block(most))
        return None if batches.whole is None else batches

    def _saver_hooks(
        self, stack: ExitStack, session: Session, listeners: Sequence[CheckpointSaverListener]
    ) -> list[Hook]:
        if not self.saves_checkpoints or not self.is_chief:
            return []
        config = self.config
        stack.callback(self._forget_saver)
        writer = stack.enter_context(
            CheckpointWriter(
                self.model_dir,
                keep_checkpoint_max=config.keep_checkpoint_max,
                keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
            )
        )
        self.saver = TrainingSaver(self, session, writer)
        hook = CheckpointSaverHook(
            self.saver,
            self.model_dir,
            every_n_steps=config.save_checkpoints_steps,  # type: ignore[arg-type]  # resolved in RunConfig
            every_secs=config.save_checkpoints_secs,  # type: ignore[arg-type]
            listeners=listeners,
            saved_step=self.saved_step,
        )
        self.saver.hook = hook
        return [hook, CheckpointMemoryHook(self.saver.prepare)]

    def _forget_saver(self) -> None:
        """Break the cycles of this training, its saver and its hook, which only the garbage collector would free."""
        if self.saver is not None:
            del self.saver.hook
        self.saver = None

    def _summary_hooks(self) -> list[Hook]:
        if not self.config.save_summary_steps or not self.is_chief:
            return []
        summaries = [loss_summary, learning_rate_summary] if self.schedules else [loss_summary]
        return [SummarySaverHook(self.config.save_summary_steps, summaries=summaries, of_model=True)]

    def _log_hooks(self, bar: ProgressBar) -> list[Hook]:
        hooks: list[Hook] = []
        steps: Any = self.config.log_step_count_steps
        if steps:
            min_secs = self.config._min_log_secs or 0.0
            hooks.append(StepCounterHook(steps, min_log_secs=min_secs))
            # Log the global step before the one just taken, as tf.estimator does: 0, k, 2k, ... in a new training.
            figures: dict[str, Any] = {"loss": "loss", "step": _step_before}
            hooks.append(LoggingTensorHook(figures, steps, min_log_secs=min_secs))
        if bar.visible:
            hooks.append(ProgressHook(bar))
        return hooks


def own_state(state: Mapping[str, Any], rank: int, size: int, own_keys: Sequence[str] = ()) -> dict[str, Any]:
    """Return the part of a checkpoint's state that the process with rank ``rank`` restores.

    If the checkpoint was saved by more or fewer processes than train now (`size`), the batches are divided in another
    way now. So the position of the input is left out, and a warning is logged. `own_keys` are keys whose values each
    process has separately, in addition to those of its input and its hooks.
    """
    if not state:
        return {}
    saved = state.get(REPLICAS) or [None]
    apart = () if rank == 0 else (*INPUT_POSITION, HOOKS, *own_keys)
    own = {key: value for key, value in state.items() if key not in apart}
    if len(saved) != size:
        logger.warning(
            "The checkpoint was saved in a training of %d %s, and this one is of %d: reading the input from its "
            "beginning.",
            len(saved),
            "process" if len(saved) == 1 else "processes",
            size,
        )
        return {key: value for key, value in own.items() if key not in (*INPUT_POSITION, *own_keys, REPLICAS)}
    return {**own, **(saved[rank] or {})}


def check_companions(optimizers: Sequence[torch.optim.Optimizer], task: Task) -> None:
    """Raise InvalidValueError if optimizers have companions and the task is one of a cluster with parameter servers."""
    for companion in companions_of(optimizers) if task.num_ps else ():
        name = "accumulate" if isinstance(companion, GradientSums) else "moving_average"
        raise InvalidValueError(
            f"te.optim.{name} does not work with parameter servers, which update their parts of the weights with the "
            "gradients of every batch at once; leave it out, or train without parameter servers."
        )


def log_end(result: TrainingResult) -> None:
    """Log why training ended, or warn if it took no step because there was no input."""
    if result.steps_taken == 0 and result.reason is StopReason.END_OF_INPUT:
        logger.warning("Training took no step: the input is empty or at its end.")
    else:
        logger.info("Training ended at global step %d: %s.", result.global_step, result.reason.value)
    activity.note_end(result.reason.value)


def _step_before(context: RunContext) -> int:
    return context.global_step - 1
