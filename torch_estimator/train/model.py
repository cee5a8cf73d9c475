"""A model as the engine handles it: the module, its head, its host half, on a device."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torch_estimator.checkpoint.checkpoint import Checkpoint, check_compatible
from torch_estimator.checkpoint.saved_tensors import leaving_out, shape_in
from torch_estimator.checkpoint.sharded_tensors import check_whole, copy_saved
from torch_estimator.checkpoint.warm_start import warm_start
from torch_estimator.data.dataset import Dataset
from torch_estimator.data.feature_structure import Structure, describe
from torch_estimator.data.iterator import Batch, DatasetIterator
from torch_estimator.errors import CheckpointError, InvalidTypeError, InvalidValueError
from torch_estimator.floating import floating_dtype
from torch_estimator.heads.function_head import FunctionHead
from torch_estimator.mode_keys import ModeKeys
from torch_estimator.optim.base import Optimizer
from torch_estimator.specs import EstimatorSpec
from torch_estimator.train.batches import HostTransform, TensorBatch, beside_labels, to_tensors
from torch_estimator.train.loss_buffers import LossBuffers
from torch_estimator.train.schedules import Schedules, optimizers_and_schedules
from torch_estimator.train.variables import named_slots, named_variables, passing_names, restore_slots
from torch_estimator.warm_start import WarmStartSettings

logger = logging.getLogger("torch_estimator")

_OPTIMIZERS = "optimizers"
_SEEN_STRINGS = "seen_strings"
_STRUCTURE = "features"
_PASSING = "passing_buffers"
_LOSS_BUFFERS = "loss_buffers"
_PREFETCHED_BATCHES = 8


class Model:
    """What a ``model_fn`` returned, ready to be run.

    Args:
        spec: What the ``model_fn`` returned.
        device: To be on; None for the GPU where there is one.
        moved: Whether the module goes to its device at once; one that does not fit it is spread first.

    Attributes:
        module: On its device, in training mode where the spec is for training.
        head: The spec's head, or its functions as one.
        spec: What the ``model_fn`` returned.
        structure: Of the features that the module was trained on, where it takes them as the input has them.
    """

    # `loss` reads the head.
    not_in_fingerprint = ("spec", "structure", "_host", "_floating", "_buffers")

    def __init__(self, spec: EstimatorSpec, device: str | None = None, *, moved: bool = True) -> None:
        self.spec = spec
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.module: nn.Module = spec.module.to(self.device) if moved else spec.module
        self.module.train(spec.mode == ModeKeys.TRAIN)
        if spec.transform is not None:
            spec.transform.recording = spec.mode == ModeKeys.TRAIN
        self._floating = floating_dtype(self.module)
        # One for all iterators: what a Dataset's cache holds was made with it.
        self._host = HostTransform(
            spec.transform,
            spec.head,
            with_labels=spec.mode != ModeKeys.PREDICT,
            raw=_raw_columns(spec),
            floating=self._floating,
        )
        self.head: Any = spec.head or FunctionHead(spec.loss, spec.predictions, spec.metrics)
        if isinstance(spec.loss, nn.Module):
            spec.loss.to(self.device)
        self._buffers = LossBuffers(spec.loss)
        self.structure: Structure | None = None

    def batches(self, dataset: Dataset) -> DatasetIterator:
        """Iterates over ``dataset``, the host half applied, in a thread of its own where that is safe."""
        # A user's own function may draw from torch's generator, as the training step does: in a thread beside it, what
        # each of them draws would be left to chance.
        ahead = 0 if dataset.runs_user_code else _PREFETCHED_BATCHES
        return dataset.prefetch(ahead).iterator(self._host, self._on_device)

    def meet(self, batch: TensorBatch) -> None:
        """Notes the structure of the first batch of `batches`, or of several as one."""
        if self.structure is None and self.spec.transform is None and self.spec.mode == ModeKeys.TRAIN:
            self.structure = describe(getattr(self.module, "inputs_of", _same)(batch.features))

    def _on_device(self, batch: Batch) -> TensorBatch:
        """Moves batches to the model's device, floating features in the dtype of its parameters."""
        features = batch.features if self.spec.transform is None else self.spec.transform.padded(batch.features)
        tensors = to_tensors(features, batch.labels, self.device, self._floating)
        return tensors if self._host.wants_raw else tensors._replace(raw=None)

    def loss(self, module: nn.Module, features: Any, labels: Any, weights: Any) -> Tensor:
        """The training loss of one batch."""
        return self.head.loss(module(features), labels, *beside_labels(weights))  # type: ignore[no-any-return]

    def make_optimizers(self) -> tuple[tuple[torch.optim.Optimizer, ...], Schedules]:
        """Calls the spec's optimizer factory.

        Raises:
            InvalidTypeError: Where it returns anything but optimizers and schedules around them, or cannot be called.
            InvalidValueError: Where the module has no parameters to train.
        """
        assert self.spec.optimizer is not None
        named = list(self.module.named_parameters())
        if not any(parameter.requires_grad for _, parameter in named):
            raise InvalidValueError(
                f"{type(self.module).__name__} has no parameters to train; evaluate or predict with it as it is."
            )
        return optimizers_and_schedules(_made(self.spec.optimizer, named))

    def variables(self) -> dict[str, Tensor]:
        """Parameters and buffers by name, as views."""
        return named_variables(self.module)

    def state(self, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Any]:
        """What a checkpoint says beside numbers: what the host half has learnt, and the optimizers' kinds."""
        state: dict[str, Any] = {_OPTIMIZERS: _kinds(optimizers)}
        if passing := passing_names(self.module):
            state[_PASSING] = sorted(passing)
        if self.spec.transform is not None:
            state[_SEEN_STRINGS] = self.spec.transform.seen_strings()
        if self.structure is not None:
            state[_STRUCTURE] = self.structure
        if buffers := self._buffers.state():
            state[_LOSS_BUFFERS] = buffers
        return state

    def restore(self, checkpoint: Checkpoint, optimizers: Sequence[torch.optim.Optimizer] | None = None) -> None:
        """Copies a checkpoint's numbers into the module and, if given, the optimizers.

        Raises:
            CheckpointError: Where they belong to another model.
        """
        variables, checkpoint = self._shared(checkpoint)
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
        self._buffers.restore(checkpoint.state.get(_LOSS_BUFFERS, {}))
        self.structure = checkpoint.state.get(_STRUCTURE)
        if self.spec.transform is not None:
            self.spec.transform.restore_seen_strings(checkpoint.state.get(_SEEN_STRINGS, {}))

    def restore_carried(self, checkpoint: Checkpoint) -> None:
        """Copies a checkpoint's state into the optimizer that the module carries with it, as a Keras model does.

        One of another kind than trained with is left as it is.

        Raises:
            CheckpointError: It has other settings than the one trained with.
        """
        optimizers, _ = self.make_optimizers()
        if checkpoint.state.get(_OPTIMIZERS) == _kinds(optimizers):
            restore_slots(self.module, optimizers, checkpoint.slots)

    def _shared(self, checkpoint: Checkpoint) -> tuple[dict[str, Tensor], Checkpoint]:
        """The model's variables and a checkpoint, without buffers of ``persistent=False`` that only one of them has."""
        saved, variables = checkpoint.variables, self.variables()
        left_out = {
            name
            for name in passing_names(self.module)
            if name not in saved or shape_in(saved, name) != list(variables[name].shape)
        }
        variables = {name: tensor for name, tensor in variables.items() if name not in left_out}
        left_out |= {name for name in checkpoint.state.get(_PASSING, []) if name not in variables}
        return variables, dataclasses.replace(checkpoint, variables=leaving_out(saved, left_out))

    def copy_variables(self, source: Mapping[str, Tensor]) -> None:
        """Copies variables by name into the module.

        Raises:
            CheckpointError: Where ``source`` lacks one of them, or has it in another shape.
        """
        for tensor in source.values():
            check_whole(tensor, "Evaluating what is in training")
        passing = sorted(set(source) - set(self.variables()))
        given = Checkpoint(path="in memory", step=0, variables=dict(source), state={_PASSING: passing})
        variables, given = self._shared(given)
        check_compatible(given, variables)
        with torch.no_grad():
            _copy(given.variables, variables)

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


def _raw_columns(spec: EstimatorSpec) -> Sequence[str] | None:
    """Names of the raw columns wanted beside what the module takes; None for all."""
    if spec.mode == ModeKeys.PREDICT:
        return spec.forward_features
    wanted = spec.mode == ModeKeys.EVAL and any("features" in one.arguments for one in spec.extra_metrics)
    return None if wanted else ()


def _same(features: Any) -> Any:
    return features


def _made(optimizer: Any, named: list[tuple[str, nn.Parameter]]) -> Any:
    try:
        return optimizer(iter(named))
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise
        # Its very call failed: an argument that it does not have, or one that is missing.
        raise InvalidTypeError(f"optimizer cannot be called with the module's parameters: {error}.") from error


def _check_kinds(checkpoint: Checkpoint, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    before = checkpoint.state.get(_OPTIMIZERS, _kinds(optimizers))
    if before != _kinds(optimizers):
        raise CheckpointError(
            f"checkpoint {checkpoint.path} was trained with {' and '.join(before)}, but the model's optimizer is "
            f"{' and '.join(_kinds(optimizers))}; use the same or another model_dir."
        )


def _kinds(optimizers: Sequence[torch.optim.Optimizer]) -> list[str]:
    return [
        str(getattr(one, "kind", f"{type(one).__module__.partition('.')[0]}.{type(one).__qualname__}"))
        for one in optimizers
    ]


def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, tensor in target.items():
        copy_saved(tensor, source, name)
