"""Head of a Keras model: the loss and the metrics that the model was compiled with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torch_estimator.errors import InvalidValueError
from torch_estimator.files import reason
from torch_estimator.heads.function_head import FunctionHead
from torch_estimator.models.keras.module import KerasModule, KerasOutputs
from torch_estimator.train.batches import described


class KerasHead(FunctionHead):
    """Head that computes loss, predictions and metrics with a compiled Keras model.

    `metric_names` maps Keras' names of metrics to the names that evaluations report instead.
    """

    def __init__(self, module: KerasModule, metric_names: Mapping[str, str]) -> None:
        super().__init__(None, None, None)
        self._module = module
        self._metric_names = metric_names

    def loss(
        self, logits: Any, labels: Any, weights: Tensor | None = None, features: Any = None, module: Any = None
    ) -> Tensor:
        """Return the loss that the Keras model was compiled with, plus regularizers and losses added by layers.

        Raise an InvalidValueError if the compiled loss does not accept the labels.
        """
        outputs: KerasOutputs = logits
        model = self._module.unwrapped
        try:
            loss: Tensor = model._compute_loss(
                x=outputs.inputs,
                y=labels,
                y_pred=outputs.values,
                sample_weight=outputs.sample_weights,
                training=self._module.training,
            )
        except ValueError as error:
            raise InvalidValueError(
                f"The Keras model {model.name!r} gives {described(outputs.values)}, which its loss cannot compare with "
                f"labels {described(labels)} ({reason(error)}); give labels of the shape that the loss takes."
            ) from error
        return loss.reshape(())

    def predictions(self, logits: Any) -> dict[str, Tensor]:
        values = logits.values
        if isinstance(values, Mapping):
            return dict(values)
        several = list(values) if isinstance(values, tuple | list) else [values]
        return dict(zip(self._names(len(several)), several, strict=True))

    def metrics(self) -> Any:
        return _KerasMetrics(self._module.unwrapped, self._metric_names)

    def _names(self, count: int) -> list[str]:
        model = self._module.unwrapped
        functional = getattr(model, "_functional", None) or model
        names = list(getattr(functional, "output_names", None) or ())
        if len(names) == count:
            return names
        return ["output"] if count == 1 else [f"output_{place}" for place in range(count)]


class _KerasMetrics:
    """Metrics that a Keras model was compiled with, accumulated over one evaluation."""

    def __init__(self, model: Any, names: Mapping[str, str]) -> None:
        self._model = model
        self._names = names
        self._results: dict[str, Any] = {}
        # Reset in inference mode, because evaluations create the metrics' variables in inference mode.
        # Outside inference mode, torch forbids in-place changes of such tensors.
        with torch.inference_mode():
            model.reset_metrics()

    def update(self, outputs: KerasOutputs, labels: Any, weights: Tensor | None = None) -> None:
        self._results = self._model.compute_metrics(
            outputs.inputs, labels, outputs.values, sample_weight=outputs.sample_weights
        )

    def compute(self) -> dict[str, float]:
        # Leave out the metric "loss", because only Keras' own training loop updates it.
        return {self._names.get(name, name): float(value) for name, value in self._results.items() if name != "loss"}
