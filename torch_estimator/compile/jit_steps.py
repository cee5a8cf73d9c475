"""Compiled steps where they cannot be compiled beside the training: on a GPU, and on other systems than Linux."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import FunctionType, MethodType
from typing import Any, Literal

import torch
from torch import Tensor

from torch_estimator.compile.shape_policy import ShapeBook
from torch_estimator.compile.worth import is_worth_compiling
from torch_estimator.errors import InvalidValueError
from torch_estimator.hooks.hook import RunContext
from torch_estimator.train.batches import Batches, TensorBatch, batch_size, noting_batch
from torch_estimator.train.observation import Observer, observed
from torch_estimator.train.runner import StepRunner
from torch_estimator.train.step import TrainStep
from torch_estimator.train.threads import sized_threads

logger = logging.getLogger("torch_estimator")

_MOST_RECOMPILATIONS = 32


class JitSteps(StepRunner):
    """Takes training steps, compiled by `torch.compile` in this very process, on a GPU as CUDA graphs.

    Batches that the `ShapeBook` does not admit run in Python. Optimizers of `torch.optim` stay outside of the graph.

    Args:
        step: What to compile.
        when: True compiles at once, ``"auto"`` when it has turned out to be worth the wait.
        before: What `state` returned in the run before a resume; see `ShapeBook`.
        last_step: Global step at which training ends, if that is known.
        beside: What else than the module a step may change, such as the loss.

    Raises:
        InvalidValueError: ``when`` is True, and this PyTorch is too old; ``"auto"`` then stays in Python.
    """

    def __init__(
        self,
        step: TrainStep,
        *,
        when: Literal["auto"] | bool,
        before: Mapping[str, Any] | None,
        last_step: int | None = None,
        beside: Sequence[object] = (),
    ) -> None:
        self._book = ShapeBook(before)
        self._eager = step
        self._last_step = last_step
        self._compiles = when is True
        self._has_given_up = False
        self._eager_secs, self._eager_steps = 0.0, 0
        # Dynamo counts recompilations by code object and gives up after some: a run of its own needs one of its own.
        compute = TrainStep.compute
        own = FunctionType(compute.__code__.replace(), compute.__globals__, closure=compute.__closure__)
        self._on_gpu = any(parameter.is_cuda for parameter in step.module.parameters())
        self._compiled = torch.compile(
            MethodType(own, step), fullgraph=True, dynamic=False, mode="reduce-overhead" if self._on_gpu else None
        )
        self._observer = Observer(step.module, beside)
        self._told: set[tuple[tuple[int, ...], ...]] = set()
        # Lets autograd.grad be part of the compiled graph.
        self._is_supported = hasattr(torch._dynamo.config, "trace_autograd_ops")
        if self._compiles and not self._is_supported:
            raise InvalidValueError(
                f"RunConfig(compile=True) needs a newer PyTorch than {torch.__version__}; update it or leave it off."
            )

    def state(self) -> dict[str, Any]:
        """Returns what was compiled, as JSON."""
        return self._book.state()

    def __enter__(self) -> JitSteps:
        self._patches = ExitStack()
        if not self._is_supported:
            return self
        self._patches.enter_context(torch._dynamo.config.patch(trace_autograd_ops=True))
        # Which shapes are compiled is decided here; dynamo's own limit would end the training.
        self._patches.enter_context(torch._dynamo.config.patch(recompile_limit=_MOST_RECOMPILATIONS))
        # Dropout draws what it draws eagerly.
        self._patches.enter_context(torch._inductor.config.patch(fallback_random=True))
        return self

    def __exit__(self, *exception: object) -> None:
        self._patches.close()

    def invalidate(self) -> None:
        """torch's own guards see what somebody else's code has changed."""
        self._eager.warn_of_thawed()

    def take(self, batches: Batches, context: RunContext) -> list[Tensor]:
        """Trains on batches one after the other; returns the loss of each."""
        return [self._take(batch, context) for batch in batches]

    def _take(self, batch: TensorBatch, context: RunContext) -> Tensor:
        module, rows = self._eager.module, batch_size(batch.features)
        given = (batch.features, batch.labels, batch.weights)
        with sized_threads(module, rows, beside_input=True), noting_batch(module, batch.features, batch.labels):
            if not self._is_compiled(given, context):
                return self._take_in_python(given, context)
            context.compiled = True
            if context.observe:
                context.summaries = self._observer.observe(lambda: self._eager.loss(*given))
            with self._observer.unobserved():
                for group in self._eager.groups:
                    group.refresh()
                if self._on_gpu:
                    torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
                try:
                    loss, left = self._compiled(*given)
                except Exception as error:
                    if not _is_compilers(error):
                        raise
                    # It has failed before anything of the step was done.
                    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
                    self._give_up(f"{type(error).__name__}: {line}")
                    return self._take_in_python(given, context)
                # The next replay of a CUDA graph writes over what this one has returned.
                return self._eager.finish(loss.clone() if self._on_gpu else loss, left)

    def _give_up(self, why: str) -> None:
        self._has_given_up = True
        logger.warning("The training step is not compiled, because %s; training goes on without.", why)

    def _take_in_python(self, given: tuple[Any, Any, Any], context: RunContext) -> Tensor:
        context.compiled = False
        started = time.perf_counter()
        for group in self._eager.groups:
            group.refresh()
        with observed(context):
            loss = self._eager(*given)
        self._eager_secs += time.perf_counter() - started
        self._eager_steps += 1
        return loss

    def _is_compiled(self, given: tuple[Any, Any, Any], context: RunContext) -> bool:
        """Whether a batch takes the compiled step, which may be compiled for it."""
        rows, shapes = batch_size(given[0]), tuple(_shapes(given))
        if self._has_given_up:
            return False
        if not self._compiles:
            left = None if self._last_step is None else self._last_step - context.global_step
            self._compiles = is_worth_compiling(self._eager_secs, self._eager_steps, left)
            if self._compiles and not self._is_supported:
                self._give_up(f"it needs a newer PyTorch than {torch.__version__}")
                return False
        if not self._compiles or not self._book.admits(rows, shapes):
            return False
        if not self._told:
            self._eager.use_tensors(of_torch=False)
        if shapes not in self._told:
            self._told.add(shapes)
            # What is compiled is without the checks of losses that run in Python.
            self._observer.observe(lambda: self._eager.check_loss(self._eager.loss(*given)))
            logger.info("Compiling the training step for batches of %d; this takes some seconds.", rows)
        return True


def _is_compilers(error: Exception) -> bool:
    return any(kind.__module__.startswith(("torch._dynamo", "torch._inductor")) for kind in type(error).__mro__)


def _shapes(values: Any) -> Iterator[tuple[int, ...]]:
    if isinstance(values, Tensor):
        yield tuple(values.shape)
    elif isinstance(values, Mapping):
        for value in values.values():
            yield from _shapes(value)
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _shapes(value)
