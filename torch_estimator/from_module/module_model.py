"""The ``model_fn`` of `Estimator.from_module`, which trains and evaluates copies of a user's torch module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.dense_features import InputLayer
from torch_estimator.feature_column.layouts import InputLayout
from torch_estimator.feature_column.table import tables_of_checkpoint
from torch_estimator.feature_column.transform import FeatureTransform
from torch_estimator.from_module.closures import check_holds_no_part
from torch_estimator.from_module.optimizers import (
    ModuleOptimizer,
    bound_factory,
    check_bound,
    copy_together,
    factory_of,
    is_bound,
)
from torch_estimator.heads.base import Head
from torch_estimator.heads.serving import Signature
from torch_estimator.mode_keys import ModeKeys
from torch_estimator.specs import EstimatorSpec


class ColumnsThenModule(nn.Module):
    """An `InputLayer` of feature columns, followed by a module that takes its output, float32 ``[N, width]``.

    Both are trained together. `layer_prefix` is the prefix of the paths of the module's layers in this model; see
    `find_layer`.
    """

    layer_prefix = "module."

    def __init__(self, layout: InputLayout, module: nn.Module) -> None:
        super().__init__()
        self.input_layer = InputLayer(layout)
        self.module = module

    def forward(self, features: Mapping[str, Tensor]) -> Any:
        """Apply the input layer to the features, then the module to the result."""
        return self.module(self.input_layer(features))


class ModuleModel:
    """The ``model_fn`` of `Estimator.from_module`. Each call returns an `EstimatorSpec` with a new copy of the module.

    The arguments are those of `Estimator.from_module`. `holds_weights` is True, because the module has weights, with
    which it can predict and be exported before training.
    """

    holds_weights = True

    def __init__(
        self,
        module: nn.Module,
        *,
        head: Head | None,
        loss: Callable[..., Tensor] | None,
        predictions: Callable[[Any], Mapping[str, Tensor]] | None,
        metrics: Mapping[str, Any] | None,
        optimizer: ModuleOptimizer | None,
        columns: Iterable[Any] | None,
        transform: FeatureTransform | None,
        weight_column: str | None = None,
        export_outputs: Mapping[str, Signature] | None = None,
    ) -> None:
        _check_module(module)
        for what, function in {"The loss": loss, "The head": head, "The function of predictions": predictions}.items():
            check_holds_no_part(what, function, module)
        for name, metric in dict(metrics or {}).items():
            check_holds_no_part(f"The metric {name!r}", metric, module)
        for name, parameter in module.named_parameters():
            for hooks in (parameter._backward_hooks, parameter._post_accumulate_grad_hooks):
                for hook in (hooks or {}).values():
                    if not isinstance(hook, MethodType):
                        check_holds_no_part(f"The hook of the parameter {name!r}", hook, module)
        if columns is not None and transform is not None:
            raise InvalidValueError(
                "Give columns, or a module with its own InputLayer and the transform of its columns, not both."
            )
        if columns is not None:
            transform = FeatureTransform(dnn_columns=columns)
            if transform.dnn is None:
                raise InvalidValueError("columns must hold at least one feature column, but is empty.")
        bound = optimizer is not None and is_bound(optimizer)
        if bound:
            check_bound(optimizer, module)
            if columns is not None and transform is not None and transform.dnn is not None and transform.dnn.tables:
                raise InvalidTypeError(
                    "optimizer must be a name or a function where columns hold embeddings, which it would not train "
                    f"otherwise, but got {optimizer!r}."
                )
        self._factory = None if optimizer is None or bound else factory_of(optimizer)
        # Copy the module, so that the caller's later changes to the original do not affect training.
        self._module, self._bound = copy_together(module, optimizer if bound else None)
        if isinstance(loss, nn.Module):
            (loss,) = copy_together(loss)
        self._transform = transform
        self._columns_first = columns is not None
        self._given: dict[str, Any] = {"head": head, "loss": loss, "predictions": predictions, "metrics": metrics}
        self._given |= {"weight_column": weight_column, "export_outputs": export_outputs}
        with tables_of_checkpoint(restored=True):
            # Leave the embedding tables without initial values, since only their shapes matter here.
            probe = self(ModeKeys.PREDICT).module
        if isinstance(probe, ColumnsThenModule):
            _check_width(probe.module, probe.input_layer.layout.width)

    def __call__(self, mode: str) -> EstimatorSpec:
        """Return the `EstimatorSpec` for a mode (train, eval or predict), with a new copy of the module."""
        train = mode == ModeKeys.TRAIN
        if train and self._factory is None and self._bound is None:
            raise InvalidValueError('Estimator.from_module needs an optimizer to train, such as optimizer="Adam".')
        module, transform, bound = copy_together(self._module, self._transform, self._bound if train else None)
        if self._columns_first:
            module = ColumnsThenModule(transform.dnn, module)
        return EstimatorSpec(
            mode=mode,
            module=module,
            optimizer=bound_factory(bound) if bound is not None else self._factory,
            transform=transform,
            **self._given,
        )


def _check_module(module: object) -> None:
    if not isinstance(module, nn.Module):
        raise InvalidTypeError(f"module must be a torch.nn.Module, but got {module!r}.")
    if any(kind.__module__.partition(".")[0] == "keras" for kind in type(module).__mro__):
        raise InvalidTypeError(
            f"{type(module).__name__} is a Keras model; use te.model_to_estimator, which takes over its loss and "
            "optimizer, too."
        )
    lazy = [name for name, tensor in (*module.named_parameters(), *module.named_buffers()) if is_lazy(tensor)]
    if lazy:
        raise InvalidValueError(
            f"The parameter {lazy[0]!r} of {type(module).__name__} has no shape yet; call the module on a batch first."
        )


def _check_width(module: nn.Module, width: int) -> None:
    """Check that a module accepts rows of ``width`` numbers. Calls the module on zeros, so its buffers may change."""
    parameter = next((one for one in module.parameters() if one.is_floating_point()), torch.zeros(0))
    try:
        with torch.random.fork_rng(), torch.no_grad():
            module.train(False)(torch.zeros(2, width, dtype=parameter.dtype, device=parameter.device))
    except RuntimeError as error:
        raise InvalidValueError(
            f"{type(module).__name__} does not take the {width} numbers per row that the columns make: {error}."
        ) from error
