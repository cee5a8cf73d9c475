"""Step runner for CPUs: takes training steps as machine code once a compiled step exists, and in Python before."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from torch import Tensor

from torch_estimator import activity, tree
from torch_estimator.code_cache import CodeCache
from torch_estimator.compile.batch_layout import BatchBlock, BatchLayout, block_of, step_inputs
from torch_estimator.compile.change_detector import ChangeDetector, fixed_settings
from torch_estimator.compile.compilation import Compilation
from torch_estimator.compile.compiled_step import CompiledStep
from torch_estimator.compile.key import CacheKey
from torch_estimator.compile.policy import (
    CHECK_EVERY_SECS,
    ShapePolicy,
    auto_choice,
    is_worth_compiling_in_background,
    missing_core,
)
from torch_estimator.compile.proof import Proof, prove
from torch_estimator.compile.step_compiler import StepCompiler
from torch_estimator.compile.trace_checks import reason_of
from torch_estimator.errors import CompiledStepError
from torch_estimator.hooks.hook import RunContext
from torch_estimator.train.batches import Batches, TensorBatch, batch_size, noting_batch
from torch_estimator.train.observation import Observer, observed
from torch_estimator.train.runner import Comparison, StepRunner
from torch_estimator.train.step import TrainStep
from torch_estimator.train.threads import sized_threads, threads_for

logger = logging.getLogger("torch_estimator")

# Each call of machine code should take this long.
# Between two calls, Python handles Ctrl-C, SIGTERM and hooks that run at time intervals.
_SECS_PER_CALL = 0.05
_MAX_STEPS_PER_CALL = 128

# After this many changes of the model, training stays in Python.
# Further changes are likely, and compiling after each change would never save time.
_MOST_CHANGES = 4

# Seconds between two searches of the cache for a step that another process may have compiled.
_LOOK_UP_EVERY_SECS = 1.0

# While there is no compiled step and none is worth compiling, steps in Python are taken for this time before the layout
# of a batch is looked at again. Looking takes a tenth of the time of a small step in Python.
_REST_SECS = 0.1

# So many steps are taken both ways at first. With the weights of the very first step, which are often zeros, a
# difference may not show. Further ones follow after 10, 100, 1,000 … compiled steps, on other batches and weights.
_PROOFS_AT_FIRST = 3

# Seconds until a later batch is copied for the comparisons before checkpoints.
_COPY_EVERY_SECS = 1.0

# Comparisons before checkpoints take at most this part of the time.
_SHARE_OF_CHECKS = 0.05


@dataclasses.dataclass(slots=True)
class _LayoutState:
    """State of compilation for batches of one layout, that is, with equal names, shapes and dtypes of tensors.

    Attributes:
        threads: Number of threads that the step is compiled for.
        next_look_up: Time before which the cache is not searched again, of `time.monotonic`.
        is_compiled_elsewhere: Whether another process is compiling the same step.
        eager_secs: Seconds that such batches have taken in Python.
        eager_steps: Number of such batches that ran in Python.
        compilation: The process that compiles the step, while it runs.
        compiled: The compiled step, once there is one.
        is_proven: Whether the compiled step computes what Python computes; it is used only then.
        proofs_left: How many of the next steps are taken both ways.
        steps: Number of steps that the compiled step alone has taken.
        prove_at: The value of `steps` from which on one more step is taken both ways.
        is_of_other_run: Whether the compiled step was found in the cache.
        example: A copy of a late batch, on which both are compared before a checkpoint.
        copy_at: Time from which on a later batch is copied, of `time.monotonic`.
        check_at: Time from which on both are compared again before a checkpoint, of `time.monotonic`.
        failed: Whether compiling has failed, and such batches stay in Python.
        is_second_try: Whether the first compiling process was stuck.
    """

    threads: int
    next_look_up: float = 0.0
    is_compiled_elsewhere: bool = False
    eager_secs: float = 0.0
    eager_steps: int = 0
    compilation: Compilation | None = None
    compiled: CompiledStep | None = None
    is_proven: bool = False
    proofs_left: int = _PROOFS_AT_FIRST
    steps: int = 0
    prove_at: int = 10
    is_of_other_run: bool = False
    example: tuple[BatchBlock, Batches] | None = None
    copy_at: float = 0.0
    check_at: float = 0.0
    failed: bool = False
    is_second_try: bool = False


class CompiledRunner(StepRunner):
    """Step runner that takes a step as machine code if a compiled step exists for the batch, and in Python otherwise.

    Batches that `ShapePolicy` does not admit run in Python.

    Args:
        step: The step to compile.
        compute_key: Returns the cache key of everything that the step depends on at the time of the call.
        when: ``"auto"`` trains in Python until the compiled step is ready, and compiles only if that is worth it
            (`is_worth_compiling_in_background`). True stops training until the step is compiled.
        before: The `state` in the run before a resume, or None.
        last_step: Global step at which training ends, or None if that is not known.
        cache: Where compiled steps are kept.
        log_name: Name of a step in log lines, with ``{}`` for the number of rows in a batch.
        watched: Objects of the user outside of the module on which the step depends, such as the loss.

    Attributes:
        in_python: Set this to True to take steps in Python even if there is a compiled step.
    """

    def __init__(
        self,
        step: TrainStep,
        compute_key: Callable[[], CacheKey],
        *,
        when: Literal["auto"] | bool,
        before: Mapping[str, Any] | None,
        last_step: int | None = None,
        cache: CodeCache | None = None,
        log_name: str = "the training step for batches of {}",
        watched: Sequence[Any] = (),
    ) -> None:
        self._step = step
        self._compute_key = compute_key
        self._waits = when is True
        # Whether "auto" was found to mean False, so that nothing is looked up.
        self._stays_in_python = False
        self._last_step = last_step
        self._cache = cache or CodeCache()
        self._log_name = log_name
        self._watched = tuple(watched)
        self._observer = Observer(step.module, self._watched)
        self._policy = ShapePolicy(before)
        self._cores = len(os.sched_getaffinity(0))
        # The name of a step that was not compiled because this process has one core, and the reason to log.
        self._skipped: tuple[str, str] | None = None
        # The state to which steps count that are taken in Python without a look, and the end of this time.
        self._resting: _LayoutState | None = None
        self._rest_until = 0.0
        self.in_python = False
        # The compiler and the detector are made together for the first layout, and dropped after a change of the model.
        self._compiler: StepCompiler | None = None
        self._detector: ChangeDetector | None = None
        # The key None stands for batches that contain strings, which cannot be compiled.
        self._layouts: dict[BatchLayout | None, _LayoutState] = {}
        self._block: BatchBlock | None = None
        self._changes = 0
        # Whether this run has taken a step in Python.
        self._has_stepped = False
        self._has_given_up = False
        self._context: RunContext | None = None
        self._secs_per_step = _SECS_PER_CALL

    def state(self) -> dict[str, Any]:
        """Return, in values that JSON can represent, the batch shapes that a resumed run has to compile as well."""
        return self._policy.state()

    def __enter__(self) -> CompiledRunner:
        return self

    def __exit__(self, kind: object = None, *exception: object) -> None:
        # If the training failed or was asked to stop, kill the compiler.
        # After any other end, the compilation goes on, so that the next run finds the compiled step.
        is_cut_short = kind is not None or (self._context is not None and self._context.preempted)
        tried = any(state.compiled or state.compilation or state.failed for state in self._layouts.values())
        if self._skipped is not None and not tried and not is_cut_short:
            logger.info(
                "Did not compile %s, because %s; RunConfig(compile=True) compiles it all the same.", *self._skipped
            )
        self._skipped = None
        if (choice := auto_choice()) is not None:
            choice.trained(sum(state.eager_secs for state in self._layouts.values()))
        for state in self._layouts.values():
            if state.compilation is not None:
                state.compilation.stop() if is_cut_short else state.compilation.leave()

    @property
    def steps_per_call(self) -> int:
        """Number of steps to take per call of `take`: as many compiled steps as run in 0.05 seconds; 1 in Python."""
        if all(state.compiled is None for state in self._layouts.values()):
            return 1
        return max(1, min(_MAX_STEPS_PER_CALL, int(_SECS_PER_CALL / self._secs_per_step)))

    def invalidate(self) -> None:
        """Make the next step check the model and the optimizers for changes. Called after code of the user has run."""
        if self._detector is not None:
            self._detector.note_foreign_code()
        self._step.warn_of_thawed()

    def refresh_settings(self) -> None:
        """Make the next step check the settings of the optimizers for changes. Called after a schedule has run."""
        if self._detector is not None:
            self._detector.settings_may_differ = True

    def take(self, batches: Batches, context: RunContext) -> list[float]:
        """Train on batches one after the other and return the loss of each; stop after a loss that is not finite."""
        losses: list[float] = []
        block = None if self._is_resting() else self._prepare(batches)
        while len(losses) < batches.count:
            state = self._resting if block is None else self._layout_state(block, batches, len(losses), context)
            if block is None or state is None or state.compiled is None or self.in_python:
                losses.append(self._take_in_python(batches.batch(len(losses)), state, context))
            elif not state.is_proven or state.proofs_left:
                losses.append(self._take_proving(state, block, batches, len(losses), context))
            else:
                more, failed = self._take_compiled(state.compiled, block, batches, len(losses), context)
                self._count(state, block, batches, len(losses), len(more))
                losses += more
                if failed:
                    self._raise_error_of(batches.batch(len(losses)), context.global_step + len(losses))
            if not math.isfinite(losses[-1]):
                break
        if batches.start + batches.count == batches.of and not batches.lasting:
            # Release the block after its last batches, so that its memory can be freed while the next block is read.
            self._block = None
        return losses

    def _is_resting(self) -> bool:
        """Return whether to take steps in Python without looking for a compiled step or a reason to compile one."""
        return self._resting is not None and time.monotonic() < self._rest_until

    def is_ready_for(self, batches: Batches, context: RunContext, fill: Callable[[], object] | None = None) -> bool:
        """Return whether a compiled step is ready for the first of these batches.

        If the runner was made with ``when=True``, this waits until the step is compiled.
        """
        block = self._prepare(batches)
        state = self._layout_state(block, batches, 0, context)
        if state is None or state.compiled is None:
            return False
        if not state.is_proven:
            if fill is not None:
                fill()
            self._copy_example(state, block, batches.batch(0))
            self._judge(self._prove(state, block, batches, 0, keeps=False), state, block)
        return state.is_proven

    def one_by_one(self, batches: Batches, context: RunContext) -> Callable[[int], float] | None:
        """Return a function that runs the compiled step on the batch of a given number, and returns the loss.

        A strategy that exchanges gradients after every step uses the function in place of `take`: the addresses of all
        batches are prepared once, and each step is a single call of C. None means that no compiled step can be used for
        the first batch.
        """
        block = self._prepare(batches)
        state = self._layout_state(block, batches, 0, context)
        if state is None or state.compiled is None or not state.is_proven or self.in_python or context.observe:
            return None
        if self._step.schedules or self._step.accumulation:
            return None
        settings, _ = self._settings_by_step(batches.count)
        losses, run = state.compiled.bind(block.addresses, batches.start, settings)
        context.compiled = True

        def take(number: int) -> float:
            if run(number, 1) < 0:
                self._raise_error_of(batches.batch(number), context.global_step)
            return float(losses[number])

        return take

    def _prepare(self, batches: Batches) -> BatchBlock:
        """Drop the compiled steps if the model has changed, and return the memory block that contains the batches."""
        detector = self._detector
        if detector is not None:
            if detector.has_lost_groups():
                self._give_up("a hook has given an optimizer other groups")
            elif detector.has_changed():
                self._check_anew()
        if self._block is None or self._block.whole is not batches.whole:
            self._block = block_of(batches)
        return self._block

    def _check_anew(self) -> None:
        """After a change of the model, compile anew if the cache key differs, and compare with Python again if not."""
        assert self._compiler is not None
        with self._observer.unobserved():
            is_outdated = self._compiler.is_outdated()
        if is_outdated:
            self._begin_anew()
            return
        for state in self._layouts.values():
            state.is_proven = False

    def _begin_anew(self) -> None:
        states = self._layouts.values()
        if any(state.failed for state in states) and not any(state.compiled for state in states):
            # The log says already why the step cannot be compiled. A step that counts its calls changes every time.
            self._give_up(None)
            return
        logger.info("The model or its optimizer has changed, so the compiled step is dropped.")
        self._drop()
        self._changes += 1
        if self._changes == _MOST_CHANGES:
            self._give_up(
                "the step or a hook changes something in the model or its optimizer again and again, such as a count "
                "or a flag (a buffer may change)"
            )

    def _drop(self) -> None:
        """Drop all compiled steps, and stop waiting for compilations that are running."""
        self._skipped = self._resting = None
        self.__exit__()
        self._layouts, self._compiler, self._detector = {}, None, None

    def _give_up(self, reason: str | None) -> None:
        """Take all further steps in Python; log the reason, if any, in words that fit after "because"."""
        if self._has_given_up:
            return
        self._has_given_up = True
        self._drop()
        if reason is not None:
            logger.warning("The training step is not compiled, because %s; training goes on without.", reason)

    def _take_in_python(self, batch: TensorBatch, state: _LayoutState | None, context: RunContext) -> float:
        module, started = self._step.module, time.perf_counter()
        context.compiled = False
        # Compare the settings before the next compiled step, because this step in Python advances schedules.
        # A schedule can change a setting that is a constant in the compiled step.
        self.refresh_settings()
        with (
            sized_threads(module, batch_size(batch.features), with_input_thread=True),
            noting_batch(module, batch.features, batch.labels),
            observed(context),
        ):
            loss = float(self._step(*step_inputs(batch)))
        self._has_stepped = True
        if state is not None:
            state.eager_secs += time.perf_counter() - started
            state.eager_steps += 1
        return loss

    def _prove(
        self, state: _LayoutState, block: BatchBlock, batches: Batches, number: int, *, keeps: bool = True
    ) -> Proof:
        """Train on one batch in Python and compiled; the compiled step is used from now on if both agree.

        Unless the step counts (`keeps`), everything is as before afterwards.
        """
        compiled, compiler = state.compiled, self._compiler
        assert compiled is not None and compiler is not None and block.layout is not None
        batch, module = batches.batch(number), self._step.module
        settings = np.array([[one for group in self._step.groups for one in group.numbers()]], np.float32)

        def run() -> float | None:
            losses, failed = compiled.take(block.addresses, batches.start + number, settings)
            return None if failed else float(losses[0])

        began = time.monotonic()
        with (
            self._observer.unobserved(),
            sized_threads(module, block.rows, with_input_thread=True),
            noting_batch(module, batch.features, batch.labels),
        ):
            proof = prove(self._step, compiler.changing, step_inputs(batch), run, keeps=keeps)
        state.is_proven = proof.difference is None and math.isfinite(proof.loss)
        now = time.monotonic()
        state.check_at = now + min(CHECK_EVERY_SECS, (now - began) / _SHARE_OF_CHECKS)
        return proof

    def _count(self, state: _LayoutState, block: BatchBlock, batches: Batches, start: int, steps: int) -> None:
        """Count steps that the compiled step has taken; take one both ways again after ten times as many."""
        state.steps += steps
        if state.steps >= state.prove_at:
            state.proofs_left, state.prove_at = max(1, state.proofs_left), 10 * state.prove_at
        if time.monotonic() >= state.copy_at:
            self._copy_example(state, block, batches.batch(start))

    def _copy_example(self, state: _LayoutState, block: BatchBlock, batch: TensorBatch) -> None:
        """Copy a batch, because both are compared on it again when its memory holds other batches."""
        example = Batches(tree.map(Tensor.clone, batch))
        if (like := block_of(example)).layout == block.layout:
            state.example = like, example
        state.copy_at = time.monotonic() + _COPY_EVERY_SECS

    def _take_proving(
        self, state: _LayoutState, block: BatchBlock, batches: Batches, number: int, context: RunContext
    ) -> float:
        """Take one step in Python and compiled; return its loss."""
        if context.observe:
            self._observe(batches.batch(number), context)
        # The schedules, which this step advances, can change a setting that is a constant in the compiled step.
        self.refresh_settings()
        # Copy the batch first, because a step may change its inputs in place.
        self._copy_example(state, block, batches.batch(number))
        proof = self._prove(state, block, batches, number)
        context.compiled = state.is_proven
        self._step.end()
        self._has_stepped = True
        state.proofs_left = max(0, state.proofs_left - 1)
        self._judge(proof, state, block)
        return proof.loss

    def _judge(self, proof: Proof, state: _LayoutState, block: BatchBlock) -> None:
        """Act on a difference: compile a step of an earlier run anew, end after unproven steps, or go on in Python."""
        compiler, layout = self._compiler, block.layout
        if proof.difference is None or compiler is None or layout is None:
            return
        if state.is_of_other_run and not state.steps:
            # Something that the cache key does not see is not as it was then, such as a file that the step reads.
            message = "The compiled step of an earlier run for %s is dropped, because %s."
            logger.info(message, self._log_name.format(block.rows), proof.difference)
            compiler.remove(layout, state.threads)
            state.compiled, state.is_of_other_run, state.next_look_up = None, False, math.inf
            return
        compiler.refuse(layout, state.threads)
        if state.steps:
            raise CompiledStepError(
                f"The compiled training step does not compute what Python computes (any more): {proof.difference}."
            )
        self._give_up(proof.difference)

    def check(self, *, always: bool = False) -> Comparison:
        """Compare the compiled steps with Python again, each on a late batch."""
        complete = True
        for state in list(self._layouts.values()):
            if not state.is_proven or state.example is None:
                continue
            if not always and time.monotonic() < state.check_at:
                complete = False
                continue
            block, batches = state.example
            difference = self._prove(state, block, batches, 0, keeps=False).difference
            if difference is not None:
                if self._compiler is not None and block.layout is not None:
                    self._compiler.refuse(block.layout, state.threads)
                return Comparison(difference)
        return Comparison(complete=complete)

    def _take_compiled(
        self, compiled: CompiledStep, block: BatchBlock, batches: Batches, start: int, context: RunContext
    ) -> tuple[list[float], bool]:
        """Run compiled steps on batches; return the losses, and whether the step after them failed.

        Stop if a step fails, a loss is not finite, a compiled-in setting changes, or accumulated gradients are due.
        """
        context.compiled = True
        with sized_threads(self._step.module, block.rows, with_input_thread=True):
            if context.observe:
                self._observe(batches.batch(start), context)
            settings, is_advanced = self._settings_by_step(batches.count - start)
            started = time.perf_counter()
            losses, failed = compiled.take(block.addresses, batches.start + start, settings)
            self._step.end(len(losses), advances=not is_advanced)
        if len(losses) > 1 or (len(losses) and self._secs_per_step == _SECS_PER_CALL):
            # Ignore the time of a call with a single step, which is slower per step, unless it is the first time.
            self._secs_per_step = (time.perf_counter() - started) / len(losses)
        return losses.tolist(), failed

    def _observe(self, batch: TensorBatch, context: RunContext) -> None:
        """Record the model's summaries in an extra forward pass in Python, because compiled code records none."""
        with noting_batch(self._step.module, batch.features, batch.labels):
            others = self._compiler.tensors if self._compiler is not None else ()
            # The step has to get the batch as it was, even if the forward pass changes its inputs in place.
            inputs = tree.map(Tensor.clone, step_inputs(batch))
            context.summaries = self._observer.observe(lambda: self._step.loss(*inputs), others)

    def _settings_by_step(self, steps: int) -> tuple[np.ndarray, bool]:
        """Return the values of changing settings, such as learning rates, for each next step; advance the schedules.

        Returns:
            The settings, float32 ``[steps, settings]``, and whether the schedules are advanced past the last step. If
            not, they have its settings, with which accumulated gradients may be due. There are fewer steps than asked
            for if these are due before, or if a schedule changes a setting that is a constant in the compiled step.
            The next call then detects the change.
        """
        groups, schedules = self._step.groups, self._step.schedules
        if self._step.accumulation:
            steps = min(steps, self._step.accumulation.batches_left())
        rows = [[number for group in groups for number in group.numbers()]]
        if not schedules:
            return np.repeat(np.array(rows, np.float32), steps, axis=0), False
        fixed = fixed_settings(self._step)
        self.refresh_settings()
        while len(rows) < steps:
            schedules.advance()
            if fixed_settings(self._step) != fixed:
                return np.array(rows, np.float32), True
            rows.append([number for group in groups for number in group.numbers()])
        return np.array(rows, np.float32), False

    def _raise_error_of(self, batch: TensorBatch, global_step: int) -> NoReturn:
        """Repeat the forward pass of a failed compiled step in Python, so that Python raises the error of the step."""
        module = self._step.module
        with noting_batch(module, batch.features, batch.labels), torch.no_grad():
            self._step.loss(*step_inputs(batch))
        raise RuntimeError(
            f"The compiled training step failed after global step {global_step}; run with RunConfig(compile=False)."
        )

    def _layout_state(
        self, block: BatchBlock, batches: Batches, number: int, context: RunContext
    ) -> _LayoutState | None:
        """Return the compilation state for the layout of these batches, or None if they are not compiled.

        If the layout has no compiled step yet, first try to load the step from the cache or start to compile it.
        """
        rows, layout = block.rows, block.layout
        if self._has_given_up:
            return None
        if layout is None:
            return self._state_of_strings(rows, context)
        state = self._layouts.get(layout)
        if (state is None or rows < self._policy.rows) and not self._policy.admits(rows, layout.as_json()):
            return None
        if state is None:
            state = self._layouts[layout] = self._new_state(rows)
        if state.compiled is None and not state.failed and self._has_all_state(context):
            self._load_or_compile(state, layout, batches.batch(number), context)
        return state

    def _has_all_state(self, context: RunContext) -> bool:
        """Return whether the tensors and objects that the step changes are there, which tracing and the key need.

        Optimizers of `torch.optim` create their state in the very first step, and Keras models in the first step of a
        process. Such steps are taken in Python.
        """
        optimizers = self._step.other_optimizers
        is_of_checkpoint = context.global_step and not any(getattr(one, "builds_lazily", False) for one in optimizers)
        return bool(not optimizers or is_of_checkpoint or self._has_stepped)

    def _state_of_strings(self, rows: int, context: RunContext) -> _LayoutState | None:
        """Return the state for batches with strings, which run in Python. Warn when compiling would have saved time."""
        state = self._layouts.get(None)
        if state is None:
            state = self._layouts[None] = self._new_state(rows)
        if self._waits or self._is_worth_it(state, context):
            self._give_up("a batch holds something other than tensors, such as strings")
            return None
        return state

    def _new_state(self, rows: int) -> _LayoutState:
        return _LayoutState(threads_for(self._step.module, rows, with_input_thread=True))

    def _load_or_compile(
        self, state: _LayoutState, layout: BatchLayout, batch: TensorBatch, context: RunContext
    ) -> None:
        """Load the compiled step of a layout from the cache, or start to compile the step if that saves time.

        If a compilation has ended since the last call, load its result.
        """
        if self._step.schedules and any(group.holds_tensors() for group in self._step.groups):
            # One call runs several compiled steps and reads their settings before the first step.
            # A schedule changes a tensor in place, so all of these steps would get the value of the last one.
            self._give_up("a schedule moves a setting of an optimizer that is a tensor instead of a number")
            return
        if self._compiler is None:
            try:
                with self._observer.unobserved():
                    self._compiler = StepCompiler(self._step, self._compute_key, self._cache)
            except Exception as error:
                # Training needs no cache key. A private name that it reads may be missing in another PyTorch.
                logger.debug("The cache key cannot be computed.", exc_info=True)
                self._give_up(reason_of(error))
                return
            self._detector = ChangeDetector(self._step, self._watched, self._observer)
            if not self._waits and (choice := auto_choice()) is not None:
                key, is_cached = self._compiler.identity(layout, state.threads)
                self._waits = choice.is_compiled(key, is_cached=is_cached)
                self._stays_in_python = not self._waits
        if self._stays_in_python:
            state.failed = True
            return
        if self._compiler.is_refused(layout, state.threads):
            self._give_up("an earlier run has found that its compiled step does not compute what Python computes")
            return
        while state.compilation is None:
            is_look_up_due = time.monotonic() >= state.next_look_up
            if is_look_up_due:
                state.next_look_up = time.monotonic() + _LOOK_UP_EVERY_SECS
                state.compiled = self._compiler.load(layout, state.threads)
            if state.compiled is not None:
                state.is_of_other_run = True
                return
            if not (self._waits or self._is_worth_it(state, context)):
                if self._skipped is None and (why := missing_core(state.eager_secs, self._cores)):
                    self._skipped = self._name_of(batch), why
                self._resting, self._rest_until = state, time.monotonic() + _REST_SECS
                return
            if state.is_compiled_elsewhere and not is_look_up_due:
                # Wait until the step of the other process appears in the cache.
                if not self._waits:
                    return
                with activity.doing("compiling"):
                    time.sleep(_LOOK_UP_EVERY_SECS)
                continue
            with self._observer.unobserved():
                started = self._compiler.start(batch, layout, state.threads, is_background=not self._waits)
            if isinstance(started, CompiledStep):
                state.compiled, state.is_of_other_run = started, True
                return
            state.compilation, self._context = started, context
            effect = "this takes some seconds" if self._waits else "training goes on in Python"
            if state.compilation is not None:
                logger.info("Compiling %s; %s.", self._name_of(batch), effect)
            elif not state.is_compiled_elsewhere:
                state.is_compiled_elsewhere = True
                logger.info("Another process is compiling %s; %s.", self._name_of(batch), effect)
        if self._waits:
            with activity.doing("compiling"):
                state.compilation.wait()
        if state.compilation.is_over():
            ended, state.compilation = state.compilation, None
            result = self._compiler.finish(ended, layout)
            if isinstance(result, CompiledStep):
                state.compiled = result
                logger.info("Compiled %s.", self._name_of(batch))
            elif ended.is_stuck and not state.is_second_try:
                state.is_second_try = True
                logger.warning("Compiling starts again, because %s.", result)
                self._load_or_compile(state, layout, batch, context)
            else:
                state.failed = True
                logger.warning("The training step is not compiled, because %s; training goes on without.", result)

    def _name_of(self, batch: TensorBatch) -> str:
        return self._log_name.format(batch_size(batch.features))

    def _is_worth_it(self, state: _LayoutState, context: RunContext) -> bool:
        """Return whether to start compiling the step of a layout in the background; only one compilation may run."""
        if any(other.compilation for other in self._layouts.values()):
            return False
        steps_left = None
        if self._last_step is not None:
            # Assume that the share of this layout in all batches stays the same.
            share = state.eager_steps / max(1, sum(other.eager_steps for other in self._layouts.values()))
            steps_left = share * (self._last_step - context.global_step)
        return is_worth_compiling_in_background(state.eager_secs, state.eager_steps, steps_left, self._cores)
