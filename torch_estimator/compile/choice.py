"""Who takes the steps of a training: Python, or a compiled form of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_estimator.compile.cache_key import Fingerprint, fingerprint
from torch_estimator.compile.compilation import SUPPORTED
from torch_estimator.compile.jit_steps import JitSteps
from torch_estimator.compile.observation import observed
from torch_estimator.compile.steps import CompiledSteps
from torch_estimator.hooks.hook import RunContext
from torch_estimator.run_config import RunConfig
from torch_estimator.train.batch_note import noting_batch
from torch_estimator.train.batches import Batches, TensorBatch, batch_size
from torch_estimator.train.live_group import LiveGroup
from torch_estimator.train.model import Model
from torch_estimator.train.step import TrainStep
from torch_estimator.train.threads import sized_threads


class EagerSteps:
    """Takes steps in Python."""

    stroke = 1

    def __init__(self, step: TrainStep) -> None:
        self._step = step

    def __enter__(self) -> EagerSteps:
        return self

    def __exit__(self, *exception: object) -> None:
        """There is nothing to end."""

    def state(self) -> None:
        """Nothing was compiled."""

    def look_again(self) -> None:
        """Python sees every change but one of what is trained."""
        self._step.look_again()

    def take(self, batches: Batches, context: RunContext) -> list[Tensor]:
        """Trains on batches one after the other; returns the loss of each."""
        return [self._take(batch, context) for batch in batches]

    def _take(self, batch: TensorBatch, context: RunContext) -> Tensor:
        module = self._step.module
        with (
            sized_threads(module, batch_size(batch.features), beside_input=True),
            noting_batch(module, batch.features, batch.labels),
            observed(context),
        ):
            return self._step(batch.features, batch.labels, batch.weights)


def _sort_slots(optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Restored from a checkpoint, an optimizer's state is in another order than made in the first step."""
    for optimizer in optimizers:
        for slots in optimizer.state.values():
            items = sorted(slots.items(), key=lambda item: str(item[0]))
            slots.clear()
            slots.update(items)


GRADIENTS = "gradients"
UPDATE = "update"
"""The parts of a step that replicas take together."""

_NAMES = {
    GRADIENTS: "the gradients of batches of {}",
    UPDATE: "the update by the gradients of {} replicas",
}

AnySteps = EagerSteps | CompiledSteps | JitSteps


def steps_for(
    step: TrainStep,
    model: Model,
    config: RunConfig,
    *,
    before: Mapping[str, Any] | None,
    last_step: int | None,
    part: str = "",
) -> AnySteps:
    """What `RunConfig.compile` asks for, in the way that this device and system have.

    Args:
        step: To be taken.
        model: Of which it is.
        config: Of the training.
        before: What the state of the steps was in the run before a resume.
        last_step: Global step at which training ends, if that is known.
        part: What distinguishes a part of a step from the whole and from other parts.
    """
    if not config.compile:
        return EagerSteps(step)
    beside = (model.head, model.spec.loss)
    left_out = (*LiveGroup.MOVING, "state") if part == GRADIENTS else LiveGroup.MOVING
    if model.device.type != "cpu" or not SUPPORTED:
        return JitSteps(step, when=config.compile, before=before, last_step=last_step, beside=beside)

    def of_step() -> Fingerprint:
        _sort_slots(step.optimizers)
        roots = {
            "module": step.module,
            "head": model.head,
            "loss": model.spec.loss,
            "optimizers": step.optimizers,
            "settings": [group.fixed() for group in step.groups],
            "mixed_precision": config.mixed_precision,
            "part": part,
        }
        return fingerprint(roots, leave_out=left_out)

    named = _NAMES.get(part, "the training step for batches of {}")
    return CompiledSteps(
        step,
        of_step,
        when=config.compile,
        before=before,
        last_step=last_step,
        named=named,
        beside=beside,
    )
