"""Decides, batch by batch, whether a step runs in Python or as machine code, and when it is worth compiling."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn

import numpy as np
import torch

from torch_estimator.compile.cache import StepCache
from torch_estimator.compile.cache_key import Fingerprint
from torch_estimator.compile.change_detector import Glance
from torch_estimator.compile.compilation import Compilation
from torch_estimator.compile.idle import IdleCores
from torch_estimator.compile.leaves import Shapes, leaves, shapes
from torch_estimator.compile.maker import StepMaker
from torch_estimator.compile.observation import Observer, observed
from torch_estimator.compile.program import StepProgram
from torch_estimator.compile.shape_policy import ShapeBook
from torch_estimator.compile.worth import is_worth_compiling_beside, lacks_core
from torch_estimator.hooks.run_context import RunContext
from torch_estimator.train.batch_note import noting_batch
from torch_estimator.train.batches import Batches, TensorBatch, batch_size
from torch_estimator.train.step import TrainStep
from torch_estimator.train.threads import sized_threads, threads_for

logger = logging.getLogger("torch_estimator")

# Of machine code between two looks at Ctrl-C, at hooks that go by the clock, and at other threads.
_STROKE_SECS = 0.05
_MOST_STEPS = 128

# After which the next is expected, too.
_MOST_CHANGES = 4

# For what another process has compiled meanwhile.
_LOOK_UP_EVERY_SECS = 1.0

# Seconds between two close looks at what hooks may have changed, by those that a look takes.
_LOOKS_APART = 20


@dataclasses.dataclass(slots=True)
class _Shape:
    """What is known of batches of one shape."""

    threads: int
    looks_at: float = 0.0
    is_made_elsewhere: bool = False
    eager_secs: float = 0.0
    eager_steps: int = 0
    compilation: Compilation | None = None
    program: StepProgram | None = None
    failed: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class _Block:
    """What is known of batches that lie in one piece of memory.

    Attributes:
        whole: That piece.
        rows: Of a batch.
        shapes: Of a batch; None where there is anything else in it than tensors.
        places: int64, the addresses of the first batch's tensors.
    """

    whole: TensorBatch
    rows: int
    shapes: Shapes | None
    places: np.ndarray


class CompiledSteps:
    """Takes training steps.

    Batches that the `ShapeBook` does not admit run in Python.

    Args:
        step: What to compile.
        fingerprint: Of all that the step depends on, computed anew at every call.
        when: ``"auto"`` trains in Python until the compiled step is ready, and compiles only where that is worth it
            (`is_worth_compiling_beside`); True waits for it.
        before: What `state` returned in the run before a resume; see `ShapeBook`.
        last_step: Global step at which training ends, if that is known.
        cache: Where compiled steps are kept.
        named: What to call a step in the log, with the size of a batch in it.
        beside: What else than the module and its optimizers a step depends on and somebody may change, such as the
            loss.

    Attributes:
        in_python: Whether steps are taken in Python for now, also where they are compiled.
    """

    def __init__(
        self,
        step: TrainStep,
        fingerprint: Callable[[], Fingerprint],
        *,
        when: Literal["auto"] | bool,
        before: Mapping[str, Any] | None,
        last_step: int | None = None,
        cache: StepCache | None = None,
        named: str = "the training step for batches of {}",
        beside: Sequence[Any] = (),
    ) -> None:
        self._step = step
        self._beside = tuple(beside)
        self._fingerprint = fingerprint
        self._maker: StepMaker | None = None
        self._fixed: list[Any] = []
        self._has_given_up = False
        self._changes = 0
        self._was_touched = False
        self._may_have_other_settings = False
        self._is_to_be_looked_at = False
        self._seen: Glance | None = None
        self._looks_at = 0.0
        self._waits = when is True
        self._last_step = last_step
        self._cache = cache or StepCache()
        self._named = named
        self._book = ShapeBook(before)
        self._shapes: dict[Shapes | None, _Shape] = {}
        self._block: _Block | None = None
        self._observer = Observer(step.module, self._beside)
        self._idle = IdleCores()
        # What is not compiled for the lack of a core, in words, and why.
        self._skipped: tuple[str, str] | None = None
        self._context: RunContext | None = None
        self.in_python = False
        self._secs_per_step = _STROKE_SECS

    def state(self) -> dict[str, Any]:
        """Returns what was compiled, as JSON."""
        return self._book.state()

    def __enter__(self) -> CompiledSteps:
        return self

    def __exit__(self, kind: object = None, *exception: object) -> None:
        # A job that fails, or is asked to go, leaves no compiler running.
        is_cut_short = kind is not None or (self._context is not None and self._context.preempted)
        tried = any(one.program or one.compilation or one.failed for one in self._shapes.values())
        if self._skipped is not None and not tried and not is_cut_short:
            logger.info(
                "Did not compile %s, because %s; RunConfig(compile=True) compiles it all the same.", *self._skipped
            )
        self._skipped = None
        for shape in self._shapes.values():
            if shape.compilation is not None:
                shape.compilation.stop() if is_cut_short else shape.compilation.leave()

    @property
    def stroke(self) -> int:
        """How many steps are best taken at once."""
        if all(shape.program is None for shape in self._shapes.values()):
            return 1
        return max(1, min(_MOST_STEPS, int(_STROKE_SECS / self._secs_per_step)))

    def look_again(self) -> None:
        """After somebody else's code has run: the next step sees to what that has changed."""
        self._was_touched = self._may_have_other_settings = True
        self._step.look_again()

    def look_at_settings(self) -> None:
        """After a schedule that this step does not have itself has moved on."""
        self._may_have_other_settings = True

    def take(self, batches: Batches, context: RunContext) -> list[float]:
        """Trains on batches one after the other; returns the loss of each, up to the first not finite."""
        losses: list[float] = []
        block = self._prepared(batches)
        while len(losses) < batches.count:
            shape = self._shape(block, batches, len(losses), context)
            if shape is None or shape.program is None or self.in_python:
                losses.append(self._take_in_python(batches.batch(len(losses)), shape, context))
            else:
                more, failed = self._take_compiled(shape.program, block, batches, len(losses), context)
                losses += more
                if failed:
                    self._explain(batches.batch(len(losses)), context.global_step + len(losses))
            if not math.isfinite(losses[-1]):
                break
        if batches.start + batches.count == batches.of and not batches.lasting:
            # Its memory is free while the next one is waited for.
            self._block = None
        return losses

    def is_ready_for(self, batches: Batches, context: RunContext) -> bool:
        """Whether the first of these batches would be taken as machine code, which True for ``when`` waits for."""
        shape = self._shape(self._prepared(batches), batches, 0, context)
        return shape is not None and shape.program is not None

    def one_by_one(self, batches: Batches, context: RunContext) -> Callable[[int], float] | None:
        """For who has something to do between steps: what takes one of these batches and returns its loss.

        None where the first of them would not be taken as machine code.
        """
        block = self._prepared(batches)
        shape = self._shape(block, batches, 0, context)
        if shape is None or shape.program is None or self.in_python or context.observe or self._step.schedules:
            return None
        losses, program = shape.program.bound(block.places, batches.start, self._numbers(batches.count))
        context.compiled = True

        def take(number: int) -> float:
            if program(number, 1) < 0:
                self._explain(batches.batch(number), context.global_step)
            return float(losses[number])

        return take

    def _prepared(self, batches: Batches) -> _Block:
        if self._is_outdated():
            self._begin_anew()
        if self._block is None or self._block.whole is not batches.whole:
            self._block = _block(batches)
        return self._block

    def _is_outdated(self) -> bool:
        """Whether what was compiled computes something else than the step would now.

        After somebody else's code has run it looks at once, but closely only where a glance sees a change, or once
        enough time has passed for the look not to matter.
        """
        touched, self._was_touched = self._was_touched, False
        if self._maker is None:
            return False
        if touched and not all(group.is_of(optimizer) for optimizer, group in self._step.owned_groups):
            self._give_up("a hook has given an optimizer other groups")
            return False
        self._is_to_be_looked_at |= touched
        same_settings = not self._may_have_other_settings or self._settings() == self._fixed
        self._may_have_other_settings = not same_settings
        started = time.perf_counter()
        is_due = self._is_to_be_looked_at and started >= self._looks_at
        if same_settings and not touched and not is_due:
            return False
        with self._observer.unobserved():
            seen = self._glance()
            if same_settings and seen == self._seen and not is_due:
                return False
            self._seen, self._is_to_be_looked_at = seen, False
            outdated = self._maker.is_outdated()
        ended = time.perf_counter()
        self._looks_at = ended + _LOOKS_APART * (ended - started)
        return outdated

    def _begin_anew(self) -> None:
        logger.info("The model or its optimizer was changed, so that the compiled step is of no use any more.")
        self._drop()
        self._changes += 1
        if self._changes == _MOST_CHANGES:
            self._give_up("the model or its optimizer is changed again and again")

    def _drop(self) -> None:
        self._skipped = None
        self.__exit__()
        self._shapes, self._maker = {}, None

    def _glance(self) -> Glance:
        return Glance(self._step.module, *self._step.optimizers, *self._beside)

    def _give_up(self, why: str) -> None:
        if not self._has_given_up:
            self._has_given_up = True
            self._drop()
            logger.warning("The training step is not compiled, because %s; training goes on without.", why)

    def _take_in_python(self, batch: TensorBatch, shape: _Shape | None, context: RunContext) -> float:
        module, started = self._step.module, time.perf_counter()
        context.compiled, self._may_have_other_settings = False, True
        with (
            sized_threads(module, batch_size(batch.features), beside_input=True),
            noting_batch(module, batch.features, batch.labels),
            observed(context),
        ):
            loss = float(self._step(*_given(batch)))
        if shape is not None:
            shape.eager_secs += time.perf_counter() - started
            shape.eager_steps += 1
        return loss

    def _take_compiled(
        self, program: StepProgram, block: _Block, batches: Batches, start: int, context: RunContext
    ) -> tuple[list[float], bool]:
        """Takes steps from one of the batches on, until the settings ask for another program.

        Returns their losses, and whether the one after them failed.
        """
        context.compiled = True
        with sized_threads(self._step.module, block.rows, beside_input=True):
            if context.observe:
                first = batches.batch(start)
                with noting_batch(self._step.module, first.features, first.labels):
                    others = self._maker.tensors if self._maker is not None else ()
                    context.summaries = self._observer.observe(lambda: self._step.loss(*_given(first)), others)
            numbers = self._numbers(batches.count - start)
            started = time.perf_counter()
            losses, failed = program.take(block.places, batches.start + start, numbers)
        if len(losses) > 1 or (len(losses) and self._secs_per_step == _STROKE_SECS):
            # A single step is slower than one among others.
            self._secs_per_step = (time.perf_counter() - started) / len(losses)
        return losses.tolist(), failed

    def _numbers(self, steps: int) -> np.ndarray:
        """The settings of the coming steps, as schedules move them; of fewer steps where one changes the program."""
        groups, schedules = self._step.groups, self._step.schedules
        rows = [[number for group in groups for number in group.numbers()]]
        if not schedules:
            return np.repeat(np.array(rows, np.float32), steps, axis=0)
        fixed = self._settings()
        self._may_have_other_settings = True
        schedules.advance()
        while len(rows) < steps and self._settings() == fixed:
            rows.append([number for group in groups for number in group.numbers()])
            schedules.advance()
        return np.array(rows, np.float32)

    def _settings(self) -> list[Any]:
        """What a compiled step has in it of the optimizers' settings."""
        return [group.fixed() for group in self._step.groups]

    def _explain(self, batch: TensorBatch, global_step: int) -> NoReturn:
        """Meets in Python what a compiled step failed of."""
        module = self._step.module
        with noting_batch(module, batch.features, batch.labels), torch.no_grad():
            self._step.loss(*_given(batch))
        raise RuntimeError(
            f"The compiled training step failed after global step {global_step}; run with RunConfig(compile=False)."
        )

    def _shape(self, block: _Block, batches: Batches, number: int, context: RunContext) -> _Shape | None:
        """What to do with batches of a block's shape; None where they are not to be compiled."""
        rows, wanted = block.rows, block.shapes
        if self._has_given_up:
            return None
        if wanted is None:
            return self._shape_of_strings(rows, context)
        shape = self._shapes.get(wanted)
        if (shape is None or rows < self._book.rows) and not self._book.admits(rows, wanted.as_json()):
            return None
        if shape is None:
            shape = self._shapes[wanted] = _Shape(threads_for(self._step.module, rows, beside_input=True))
        # Optimizers of `torch.optim` make their state in their first step, which is always taken in Python.
        if shape.program is None and not shape.failed and (context.global_step or not self._step.other_optimizers):
            self._see_to(shape, wanted, batches.batch(number), context)
        return shape

    def _shape_of_strings(self, rows: int, context: RunContext) -> _Shape | None:
        """Says why such batches are not compiled, once compiling would be worth it."""
        shape = self._shapes.get(None)
        if shape is None:
            shape = self._shapes[None] = _Shape(threads_for(self._step.module, rows, beside_input=True))
        if self._waits or self._is_worth_it(shape, context):
            self._give_up("a batch holds something other than tensors, such as strings")
            return None
        return shape

    def _see_to(self, shape: _Shape, wanted: Shapes, batch: TensorBatch, context: RunContext) -> None:
        """Loads the compiled step where it is there, and compiles it where that is worth it."""
        if self._step.schedules and any(group.holds_tensors() for group in self._step.groups):
            # It would be moved on for all steps of a stroke before the first of them reads it.
            self._give_up("a schedule moves a setting of an optimizer that is a tensor instead of a number")
            return
        if self._maker is None:
            with self._observer.unobserved():
                self._maker = StepMaker(self._step, self._fingerprint, self._cache)
                self._seen, self._looks_at, self._is_to_be_looked_at = self._glance(), 0.0, False
            self._fixed = self._settings()
        while shape.compilation is None:
            look = time.monotonic() >= shape.looks_at
            if look:
                shape.looks_at = time.monotonic() + _LOOK_UP_EVERY_SECS
                shape.program = self._maker.load(wanted, shape.threads)
            if shape.program is not None:
                return
            if not (self._waits or self._is_worth_it(shape, context)):
                if self._skipped is None and (why := lacks_core(shape.eager_secs, self._idle)):
                    self._skipped = self._what(batch), why
                return
            if shape.is_made_elsewhere and not look:
                # What another process compiles comes by itself.
                if not self._waits:
                    return
                time.sleep(_LOOK_UP_EVERY_SECS)
                continue
            with self._observer.unobserved():
                shape.compilation = self._maker.start(batch, wanted, shape.threads, is_background=not self._waits)
            self._context = context
            told = "this takes some seconds" if self._waits else "training goes on beside it"
            if shape.compilation is not None:
                logger.info("Compiling %s; %s.", self._what(batch), told)
            elif not shape.is_made_elsewhere:
                shape.is_made_elsewhere = True
                logger.info("Another process is compiling %s; %s.", self._what(batch), told)
        if self._waits:
            shape.compilation.wait()
        if shape.compilation.is_over():
            made = self._maker.finish(shape.compilation, wanted)
            shape.compilation = None
            if isinstance(made, StepProgram):
                shape.program = made
                logger.info("Compiled %s.", self._what(batch))
            else:
                shape.failed = True
                logger.warning("The training step is not compiled, because %s; training goes on without.", made)

    def _what(self, batch: TensorBatch) -> str:
        return self._named.format(batch_size(batch.features))

    def _is_worth_it(self, shape: _Shape, context: RunContext) -> bool:
        if any(one.compilation for one in self._shapes.values()):
            return False
        left = None
        if self._last_step is not None:
            share = shape.eager_steps / max(1, sum(one.eager_steps for one in self._shapes.values()))
            left = share * (self._last_step - context.global_step)
        return is_worth_compiling_beside(shape.eager_secs, shape.eager_steps, left, self._idle)


def _block(batches: Batches) -> _Block:
    first = dataclasses.replace(batches, start=0, count=1).batch(0)
    given = _given(first)
    tensors = leaves(given)
    places = np.array([tensor.data_ptr() for tensor in tensors or ()], np.int64)
    return _Block(
        batches.whole, batch_size(first.features), None if tensors is None else shapes(given, tensors), places
    )


def _given(batch: TensorBatch) -> tuple[Any, Any, Any]:
    return batch.features, batch.labels, batch.weights
