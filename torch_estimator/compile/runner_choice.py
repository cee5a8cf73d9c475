"""Choice of the step runner of a training: Python, compiled steps, or `torch.compile`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch_estimator.compile.compilation import SUPPORTED
from torch_estimator.compile.compiled_runner import CompiledRunner
from torch_estimator.compile.key import CacheKey, cache_key
from torch_estimator.compile.policy import auto_choice
from torch_estimator.compile.torch_compile_runner import TorchCompileRunner
from torch_estimator.optim.companions import with_companions
from torch_estimator.run_config import RunConfig
from torch_estimator.train.live_group import LiveGroup
from torch_estimator.train.model import Model
from torch_estimator.train.runner import GRADIENTS, UPDATE, EagerRunner, StepRunner
from torch_estimator.train.step import TrainStep

logger = logging.getLogger("torch_estimator")

# Names of the parts of a step in log lines. ``{}`` stands for the batch size or the number of replicas.
_LOG_NAMES = {
    GRADIENTS: "the gradients of batches of {}",
    UPDATE: "the update by the gradients of {} replicas",
}


def make_runner(
    step: TrainStep,
    model: Model,
    config: RunConfig,
    *,
    before: Mapping[str, Any] | None,
    last_step: int | None,
    part: str = "",
) -> StepRunner:
    """Return the step runner for `RunConfig.compile`, the device and the operating system.

    `CompiledRunner` needs a CPU and Linux: it compiles in a forked process, and a fork can use neither CUDA nor,
    reliably, the system libraries of macOS. Elsewhere `TorchCompileRunner` compiles inside the training process.

    Args:
        step: The step to take.
        model: The model that the step trains.
        config: Settings of the job.
        before: The runner's `state` in the run before a resume, or None.
        last_step: Global step at which training ends, or None if that is not known.
        part: `GRADIENTS` or `UPDATE` if the step is one of these parts; empty for a whole step. Parts have separate
            cache keys and log lines.
    """
    if not config.compile:
        return EagerRunner(step)
    if getattr(model.module, "varies_in_length", False):
        logger.info("Training uncompiled, because a compiled step takes sequences of one length only.")
        return EagerRunner(step)
    # The step also depends on these objects outside of the module, and hooks of the user may change them.
    watched = (model.head, model.spec.loss)
    if model.device.type != "cpu" or not SUPPORTED:
        if config.compile == "auto" and auto_choice() is not None:
            return EagerRunner(step)
        return TorchCompileRunner(step, when=config.compile, before=before, last_step=last_step, watched=watched)

    # The values of these settings are inputs of the compiled step, so they are not part of its cache key.
    # A step that only computes gradients never reads the state of optimizers.
    left_out = (*LiveGroup.MOVING, "state") if part == GRADIENTS else LiveGroup.MOVING

    def compute_key() -> CacheKey:
        # Optimizers that accumulate update in Python only; a compiled step adds to their sums, which companions hold.
        optimizers = [one for one in with_companions(step.optimizers) if one not in step.accumulation]
        roots = {
            "module": step.module,
            "head": model.head,
            "loss": model.spec.loss,
            "optimizers": optimizers,
            "settings": [group.fixed() for group in step.groups],
            "mixed_precision": config.mixed_precision,
            # A message of gradients, or a block of rows, may have another size than in an earlier run.
            "scratch": [tuple(one.shape) for one in step.scratch()],
            "part": part,
        }
        return cache_key(roots, leave_out=left_out)

    return CompiledRunner(
        step,
        compute_key,
        when=config.compile,
        before=before,
        last_step=last_step,
        log_name=_LOG_NAMES.get(part, "the training step for batches of {}"),
        watched=watched,
    )
