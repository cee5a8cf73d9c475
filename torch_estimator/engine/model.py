"""A model as the engine handles it: the module, its head, its host half, on a device."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torch_estimator.data.dataset import Dataset
from torch_estimator.data.iterator import DatasetIterator
from torch_estimator.engine.batches import HostTransform, TensorBatch, to_tensors
from torch_estimator.engine.checkpoint import Checkpoint, check_compatible
from torch_estimator.engine.variables import named_slots, named_variables, restore_slots
from torch_estimator.engine.warm_start import warm_start
from torch_estimator.errors import CheckpointError, InvalidTypeError
from torch_estimator.heads.function_head import FunctionHead
from torch_estimator.mode_keys import ModeKeys
from torch_estimator.optim.base import Optimizer
from torch_estimator.specs import EstimatorSpec
from torch_estimator.warm_start import WarmStartSettings

logger = logging.getLogger("torch_estimator")

_OPTIMIZERS = "optimizers"
_SEEN_STRINGS = "seen_strings"
_PREFETCHED_BATCHES = 8


class Model:
    """What a ``model_fn`` returned, ready to be run.

    Attributes:
        module: On its device, in training mode where the spec is for training.
        head: The spec's head, or its functions as one.
        spec: What the ``model_fn`` returned.
    """

    def __init__(self, spec: EstimatorSpec) -> None:
        self.spec = spec
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.module: nn.Module = spec.module.to(self.device)
        self.module.train(spec.mode == ModeKeys.TRAIN)
        if spec.transform is not None:
            spec.transform.recording = spec.mode == ModeKeys.TRAIN
        self.head: Any = spec.head or FunctionHead(spec.loss, spec.predictions, spec.metrics)

    def batches(self, dataset: Dataset) -> DatasetIterator:
        """Iterates over ``dataset``, the host half applied, in a thread of its own where that is safe."""
        transform = HostTransform(self.spec.transform, self.spec.head, with_labels=self.spec.mode != ModeKeys.PREDICT)
        # A user's own function may draw from torch's generator, as the training step does: in a thread beside it, what
        # each of them draws would be left to chance.
        ahead = 0 if dataset.runs_user_code else _PREFETCHED_BATCHES
        return dataset.prefetch(ahead).iterator(transform)

    def to_tensors(self, batch: Any) -> TensorBatch:
        """Moves one batch to the model's device."""
        return to_tensors(batch.features, batch.labels, self.device)

    def loss(self, module: nn.Module, features: Any, labels: Any, weights: Tensor | None) -> Tensor:
        """The training loss of one batch."""
        return self.head.loss(module(features), labels, weights)  # type: ignore[no-any-return]

    def make_optimizers(self) -> tuple[torch.optim.Optimizer, ...]:
        """Calls the spec's optimizer factory.

        Raises:
            InvalidTypeError: Where it returns anything but optimizers.
        """
        assert self.spec.optimizer is not None
        made = self.spec.optimizer(self.module.named_parameters())
        optimizers = tuple(made) if isinstance(made, Sequence) else (made,)
        for optimizer in optimizers:
            if not isinstance(optimizer, torch.optim.Optimizer):
                raise InvalidTypeError(
                    f"optimizer must make instances of torch.optim.Optimizer, but made {optimizer!r}."
                )
        return optimizers

    def variables(self) -> dict[str, Tensor]:
        """Parameters and buffers by name, as views."""
        return named_variables(self.module)

    def state(self, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Any]:
        """What a checkpoint says beside numbers: what the host half has learnt, and the optimizers' kinds."""
        state: dict[str, Any] = {_OPTIMIZERS: _kinds(optimizers)}
        if self.spec.transform is not None:
            state[_SEEN_STRINGS] = self.spec.transform.seen_strings()
        return state

    def restore(self, checkpoint: Checkpoint, optimizers: Sequence[torch.optim.Optimizer] | None = None) -> None:
        """Copies a checkpoint's numbers into the module and, if given, the optimizers.

        Raises:
            CheckpointError: Where they belong to another model.
        """
        variables = self.variables()
        slots = None
        if optimizers is not None and all(isinstance(optimizer, Optimizer) for optimizer in optimizers):
            slots = named_slots(self.module, optimizers)
        check_compatible(checkpoint, variables)
        if optimizers is not None:
            _check_kinds(checkpoint, optimizers)
            check_compatible(checkpoint, variables, slots)
        with torch.no_grad():
            _copy(checkpoint.variables, variables)
            if optimizers is not None:
                restore_slots(self.module, optimizers, checkpoint.slots)
        if self.spec.transform is not None:
            self.spec.transform.restore_seen_strings(checkpoint.state.get(_SEEN_STRINGS, {}))

    def copy_variables(self, source: Mapping[str, Tensor]) -> None:
        """Copies variables by name into the module.

        Raises:
            CheckpointError: Where ``source`` lacks one of them, or has it in another shape.
        """
        check_compatible(Checkpoint(path="in memory", step=0, variables=dict(source)), self.variables())
        with torch.no_grad():
            _copy(source, self.variables())

    def warm_start(self, checkpoint: Checkpoint, settings: WarmStartSettings) -> None:
        """Takes over another job's weights; its step and optimizer state stay behind.

        Raises:
            CheckpointError: Where it lacks one of them, or has it in another shape.
            InvalidValueError: Where ``settings`` do not fit the model.
        """
        names = warm_start(self.module, checkpoint, settings)
        logger.info("Warm-starting %d variables from %s", len(names), checkpoint.path)
        if self.spec.transform is not None:
            self.spec.transform.restore_seen_strings(checkpoint.state.get(_SEEN_STRINGS, {}))


def _check_kinds(checkpoint: Checkpoint, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    before = checkpoint.state.get(_OPTIMIZERS, _kinds(optimizers))
    if before != _kinds(optimizers):
        raise CheckpointError(
            f"checkpoint {checkpoint.path} was trained with {' and '.join(before)}, but the model's optimizer is "
            f"{' and '.join(_kinds(optimizers))}; use the same or another model_dir."
        )


def _kinds(optimizers: Sequence[torch.optim.Optimizer]) -> list[str]:
    return [f"{type(one).__module__.partition('.')[0]}.{type(one).__qualname__}" for one in optimizers]


def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])
