"""Training steps as compiled functions, one for each shape of batch that is worth it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor

from torch_estimator.engine.batch_note import noting_batch
from torch_estimator.engine.batches import TensorBatch, batch_size
from torch_estimator.engine.observation import Observer
from torch_estimator.engine.step import TrainStep
from torch_estimator.engine.threads import sized_threads
from torch_estimator.errors import InvalidValueError
from torch_estimator.hooks.run_context import RunContext

logger = logging.getLogger("torch_estimator")

_ROWS = "rows"
_SHAPES = "shapes"

# Compiling takes seconds; input whose batches keep changing their shape would do nothing else.
_MOST_SHAPES = 8

Shapes = tuple[tuple[int, ...], ...]


class CompiledSteps:
    """Takes compiled steps; smaller batches than before, such as a partial last one, run eagerly.

    Batches of as many rows may differ in the length of their lists: each shape is compiled, up to a limit, and those
    met after that run eagerly.

    Args:
        step: What to compile.
        before: What `state` returned in the run before a resume, so that each batch runs as it would have run then;
            None where there is none.
    """

    def __init__(self, step: TrainStep, before: Mapping[str, Any] | None) -> None:
        self._rows: int = before[_ROWS] if before else 0
        self._shapes: list[Shapes] = [tuple(map(tuple, one)) for one in before[_SHAPES]] if before else []
        self._eager = step
        # Dynamo counts recompilations by code object and gives up after some: a run of its own needs one of its own.
        compute = TrainStep.compute
        own = FunctionType(compute.__code__.replace(), compute.__globals__, closure=compute.__closure__)
        self._compiled = torch.compile(MethodType(own, step), fullgraph=True, dynamic=False)
        self._observer = Observer(step.module)
        self._told: set[Shapes] = set()
        if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
            raise InvalidValueError(
                f"RunConfig(compile=True) needs a newer PyTorch than {torch.__version__}; update it or leave it off."
            )

    def state(self) -> dict[str, Any]:
        """Returns what was compiled, as JSON."""
        return {_ROWS: self._rows, _SHAPES: self._shapes}

    def __enter__(self) -> CompiledSteps:
        self._patches = ExitStack()
        # Lets autograd.grad be part of the compiled graph.
        self._patches.enter_context(torch._dynamo.config.patch(trace_autograd_ops=True))
        # Which shapes are compiled is decided here; dynamo's own limit would end the training.
        self._patches.enter_context(torch._dynamo.config.patch(recompile_limit=4 * _MOST_SHAPES))
        # Dropout draws what it draws eagerly.
        self._patches.enter_context(torch._inductor.config.patch(fallback_random=True))
        return self

    def __exit__(self, *exception: object) -> None:
        self._patches.close()

    def take_step(self, batch: TensorBatch, context: RunContext) -> Tensor:
        """Trains on a batch; returns the loss."""
        module, rows = self._eager.module, batch_size(batch.features)
        given = (batch.features, batch.labels, batch.weights)
        with sized_threads(module, rows), noting_batch(module, batch.features, batch.labels):
            if not context.observe:
                return self._take(rows, *given)
            context.summaries = self._observer.observe(lambda: self._eager.loss(*given))
            with self._observer.unobserved():
                return self._take(rows, *given)

    def _take(self, rows: int, *given: Any) -> Tensor:
        step = self._compiled if self._is_compiled(rows, tuple(_shapes(given))) else self._eager.compute
        self._eager.begin()
        return self._eager.finish(*step(*given))

    def _is_compiled(self, rows: int, shapes: Shapes) -> bool:
        """Whether a batch takes the compiled step, which may be compiled for it."""
        if rows < self._rows:
            return False
        if shapes not in self._shapes:
            if len(self._shapes) == _MOST_SHAPES:
                told = "Batches come in more than %d shapes; those that are not compiled yet run uncompiled."
                self._tell(shapes, told, _MOST_SHAPES)
                return False
            self._rows = rows
            self._shapes.append(shapes)
        self._tell(shapes, "Compiling the training step for batches of %d; this takes some seconds.", rows)
        return True

    def _tell(self, shapes: Shapes, message: str, number: int) -> None:
        """Logs once per shape, and once for all that are not compiled."""
        known = shapes if shapes in self._shapes else ()
        if known not in self._told:
            self._told.add(known)
            logger.info(message, number)


def _shapes(values: Any) -> Iterator[tuple[int, ...]]:
    if isinstance(values, Tensor):
        yield tuple(values.shape)
    elif isinstance(values, Mapping):
        for value in values.values():
            yield from _shapes(value)
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _shapes(value)
