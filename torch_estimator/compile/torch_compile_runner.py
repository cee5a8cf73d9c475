"""Step runner that compiles steps with `torch.compile`, for GPUs and for systems other than Linux.

There a forked process cannot compile: CUDA does not work in a fork, and only Linux has forks that are safe after
threads were started. So `torch.compile` compiles inside the training process, which pauses the training.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import FunctionType, MethodType
from typing import Any, Literal

import torch
from torch import Tensor

from torch_estimator import tree
from torch_estimator.compile.batch_layout import step_inputs
from torch_estimator.compile.policy import CHECK_EVERY_SECS, ShapePolicy, is_worth_waiting
from torch_estimator.compile.proof import Proof, prove
from torch_estimator.errors import InvalidValueError
from torch_estimator.hooks.hook import RunContext
from torch_estimator.optim.companions import companions_of, with_companions
from torch_estimator.train.batches import Batches, TensorBatch, batch_size, noting_batch
from torch_estimator.train.observation import Observer, observed
from torch_estimator.train.runner import Comparison, StepRunner
from torch_estimator.train.step import TrainStep
from torch_estimator.train.threads import sized_threads

logger = logging.getLogger("torch_estimator")

_RECOMPILE_LIMIT = 32

_Inputs = tuple[Any, Any, Any]
"""Arguments of a step: features, labels and weights."""


class TorchCompileRunner(StepRunner):
    """Step runner that compiles the training step with `torch.compile`; on a GPU it replays CUDA graphs.

    Batches that `ShapePolicy` does not admit run in Python. Optimizers of `torch.optim` run in Python after each
    compiled step, because `torch.compile` cannot trace the wrapper that torch puts around their ``step``.

    Args:
        step: The step to compile.
        when: True compiles at once. ``"auto"`` compiles once the rest of the training is worth the pause.
        before: The `state` in the run before a resume, or None.
        last_step: Global step at which training ends, or None if that is not known.
        watched: Objects of the user outside of the module that a step may change, such as the loss.

    Raises:
        InvalidValueError: ``when`` is True and this PyTorch is too old. With ``"auto"`` training stays in Python then.
    """

    def __init__(
        self,
        step: TrainStep,
        *,
        when: Literal["auto"] | bool,
        before: Mapping[str, Any] | None,
        last_step: int | None = None,
        watched: Sequence[object] = (),
    ) -> None:
        self._policy = ShapePolicy(before)
        self._step = step
        self._last_step = last_step
        self._compiles = when is True
        self._has_given_up = False
        self._eager_secs, self._eager_steps = 0.0, 0
        # Dynamo limits the recompilations of each code object in a process.
        # Each training gets a copy of the code object, and thus a separate limit.
        compute = TrainStep.compute
        copied = FunctionType(compute.__code__.replace(), compute.__globals__, closure=compute.__closure__)
        self._on_gpu = any(parameter.is_cuda for parameter in step.module.parameters())
        self._compiled = torch.compile(
            MethodType(copied, step), fullgraph=True, dynamic=False, mode="reduce-overhead" if self._on_gpu else None
        )
        self._observer = Observer(step.module, watched)
        self._logged_shapes: set[tuple[tuple[int, ...], ...]] = set()
        # The batch on which each shape was compared with Python, and when to compare them again.
        self._examples: dict[tuple[tuple[int, ...], ...], _Inputs] = {}
        self._check_at = 0.0
        # In versions of torch with this setting, `torch.autograd.grad` can be part of a compiled graph.
        self._is_supported = hasattr(torch._dynamo.config, "trace_autograd_ops")
        if self._compiles and not self._is_supported:
            raise InvalidValueError(
                f"RunConfig(compile=True) needs a newer PyTorch than {torch.__version__}; update it or leave it off."
            )

    def state(self) -> dict[str, Any]:
        """Return, in values that JSON can represent, the batch shapes that a resumed run has to compile as well."""
        return self._policy.state()

    def __enter__(self) -> TorchCompileRunner:
        self._patches = ExitStack()
        if not self._is_supported:
            return self
        self._patches.enter_context(torch._dynamo.config.patch(trace_autograd_ops=True))
        # `ShapePolicy` limits the number of compiled shapes. Dynamo's limit is lower and would end the training.
        self._patches.enter_context(torch._dynamo.config.patch(recompile_limit=_RECOMPILE_LIMIT))
        # With this setting, dropout draws the same random numbers as in Python.
        self._patches.enter_context(torch._inductor.config.patch(fallback_random=True))
        return self

    def __exit__(self, *exception: object) -> None:
        self._patches.close()

    def invalidate(self) -> None:
        """Warn about parameters that were unfrozen. The guards of `torch.compile` detect every other change."""
        self._step.warn_of_thawed()

    def take(self, batches: Batches, context: RunContext) -> list[Tensor]:
        """Train on batches one after the other; return the loss of each."""
        return [self._take(batch, context) for batch in batches]

    def _take(self, batch: TensorBatch, context: RunContext) -> Tensor:
        module, inputs = self._step.module, step_inputs(batch)
        with (
            sized_threads(module, batch_size(batch.features), with_input_thread=True),
            noting_batch(module, batch.features, batch.labels),
        ):
            shapes = tuple(tuple(one.shape) for one in tree.leaves(inputs) if isinstance(one, Tensor))
            if not self._is_compiled(inputs, shapes, context):
                return self._take_in_python(inputs, context)
            context.compiled = True
            if context.observe:
                context.summaries = self._observer.observe(lambda: self._step.loss(*inputs))
            with self._observer.unobserved():
                for group in self._step.groups:
                    group.refresh()
                if self._on_gpu:
                    torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
                try:
                    if shapes not in self._examples:
                        return self._prove(inputs, shapes, context)
                    loss, left = self._compiled(*inputs)
                except Exception as error:
                    if not _is_compiler_error(error):
                        raise
                    # The compiler failed before any part of the step ran, so the whole step can run in Python.
                    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
                    self._give_up(f"{type(error).__name__}: {line}")
                    return self._take_in_python(inputs, context)
                # Copy the loss, because the next replay of the CUDA graph overwrites the memory of its outputs.
                return self._step.finish(loss.clone() if self._on_gpu else loss, left)

    def _prove(self, inputs: _Inputs, shapes: tuple[tuple[int, ...], ...], context: RunContext) -> Tensor:
        """Take one step in Python and compiled; compiled steps are used from now on if both agree."""
        example = tree.map(Tensor.clone, inputs)
        proof = self._compare(inputs, keeps=True)
        self._step.end()
        if proof.difference is not None:
            context.compiled = False
            self._give_up(proof.difference)
        elif math.isfinite(proof.loss):
            self._examples[shapes] = example
        return torch.tensor(proof.loss, device=next(self._step.module.parameters()).device)

    def _compare(self, inputs: _Inputs, *, keeps: bool) -> Proof:
        def run() -> float:
            for group in self._step.groups:
                group.refresh()
            if self._on_gpu:
                torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            loss, left = self._compiled(*inputs)
            loss = float(loss)
            self._step.update_left(left)
            return loss

        module, optimizers = self._step.module, with_companions(self._step.optimizers)
        states = [value for one in optimizers for state in one.state.values() for value in state.items()]
        tensors = [*module.named_parameters(), *module.named_buffers(), *states]
        self._check_at = time.monotonic() + CHECK_EVERY_SECS
        return prove(self._step, [one for one in tensors if isinstance(one[1], Tensor)], inputs, run, keeps=keeps)

    def check(self, *, always: bool = False) -> Comparison:
        """Compare the compiled steps with Python again, each on the batch that it was compared on before."""
        if self._has_given_up or not self._examples:
            return Comparison()
        if not always and time.monotonic() < self._check_at:
            return Comparison(complete=False)
        differences = (self._compare(inputs, keeps=False).difference for inputs in self._examples.values())
        return Comparison(next(filter(None, differences), None))

    def _mark_static(self) -> None:
        """Tell torch that what a step writes to keeps its place in memory; otherwise it takes no CUDA graph."""
        states = [
            state
            for one in (*self._step.optimizers, *companions_of(self._step.optimizers))
            for state in one.state.values()
        ]
        tensors = [*(value for state in states for value in state.values()), *self._step.scratch()]
        for tensor in (*tensors, *(one for group in self._step.groups for one in group.tensors)):
            if isinstance(tensor, Tensor):
                torch._dynamo.mark_static_address(tensor, guard=False)

    def _give_up(self, reason: str) -> None:
        """Take all further steps in Python, and log why: `reason` is a text that fits after "because"."""
        self._has_given_up = True
        logger.warning("The training step is not compiled, because %s; training goes on without.", reason)

    def _take_in_python(self, inputs: _Inputs, context: RunContext) -> Tensor:
        context.compiled = False
        started = time.perf_counter()
        for group in self._step.groups:
            group.refresh()
        with observed(context):
            loss = self._step(*inputs)
        self._eager_secs += time.perf_counter() - started
        self._eager_steps += 1
        return loss

    def _is_compiled(self, inputs: _Inputs, shapes: tuple[tuple[int, ...], ...], context: RunContext) -> bool:
        """Return whether a batch runs as compiled code."""
        rows = batch_size(inputs[0])
        if self._has_given_up:
            return False
        if not self._compiles:
            steps_left = None if self._last_step is None else self._last_step - context.global_step
            self._compiles = is_worth_waiting(self._eager_secs, self._eager_steps, steps_left)
            if self._compiles and not self._is_supported:
                self._give_up(f"it needs a newer PyTorch than {torch.__version__}")
                return False
        if not self._compiles or not self._policy.admits(rows, shapes):
            return False
        if not self._logged_shapes:
            self._step.use_tensors(of_torch=False)
        if shapes not in self._logged_shapes:
            self._logged_shapes.add(shapes)
            self._mark_static()
            logger.info("Compiling the training step for batches of %d; this takes some seconds.", rows)
        return True


def _is_compiler_error(error: Exception) -> bool:
    """Return whether an error was raised by the compiler and not by the training step."""
    return any(kind.__module__.startswith(("torch._dynamo", "torch._inductor")) for kind in type(error).__mro__)
