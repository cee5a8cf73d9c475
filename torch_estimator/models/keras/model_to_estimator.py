"""From a compiled Keras model to an Estimator."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.estimator import Estimator
from torch_estimator.files import reason
from torch_estimator.run_config import RunConfig

if TYPE_CHECKING:
    from torch_estimator.specs import EstimatorSpec

_OWN_LOOPS = ("train_step", "test_step", "predict_step")


def model_to_estimator(
    keras_model: Any = None,
    keras_model_path: str | os.PathLike[str] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    model_dir: str | None = None,
    config: RunConfig | None = None,
    *,
    metric_names_map: Mapping[str, str] | None = None,
) -> Estimator:
    """Returns an Estimator of a compiled Keras 3 model on the torch backend.

    Weights, loss, metrics and optimizer (its state, too) are taken over; the model itself is never changed, and
    `Estimator.trained_module` gives a trained copy. Features are a dict by the names of the model's inputs, a tensor or
    a tuple; ``{"features": …, "sample_weights": …}`` weighs the examples. Predictions are named by the model's outputs.
    As with ``train_on_batch``, weights are not replaced by their moving averages at the end (``use_ema``).

    Args:
        keras_model: The model; either this or a path.
        keras_model_path: A file ``.keras`` that ``model.save`` wrote, a path or URL. It is read in Keras' safe mode:
            code in it is not run.
        custom_objects: Classes and functions of the model by name, where Keras does not know them.
        model_dir: As for `Estimator`.
        config: As for `Estimator`; ``compile=True`` is for modules only.
        metric_names_map: What metrics are to be called instead of Keras' names.

    Raises:
        InvalidValueError: Keras runs on another backend; the model is not compiled or not built, or trains by a
            ``train_step`` of its own; there is no such file, or it holds code.
        InvalidTypeError: It is no Keras model.
    """
    _check_keras()
    from torch_estimator.models.keras.copying import KerasBlueprint
    from torch_estimator.models.keras.loading import load_keras_model

    if (keras_model is None) == (keras_model_path is None):
        raise InvalidValueError("Give keras_model or keras_model_path, one of them.")
    if keras_model_path is not None:
        keras_model = load_keras_model(keras_model_path, custom_objects)
    _check_model(keras_model)
    blueprint = KerasBlueprint(keras_model, custom_objects or {})
    return Estimator(_KerasModel(blueprint, dict(metric_names_map or {})), model_dir, config)


class _KerasModel:
    """The ``model_fn``: a copy of the model for each call."""

    holds_weights = True

    def __init__(self, blueprint: Any, metric_names: Mapping[str, str]) -> None:
        self._blueprint = blueprint
        self._metric_names = metric_names

    def __call__(self, mode: str) -> EstimatorSpec:
        from torch_estimator.models.keras.head import KerasHead
        from torch_estimator.models.keras.module import KerasModule
        from torch_estimator.models.keras.optimizer import KerasOptimizer
        from torch_estimator.specs import EstimatorSpec

        module = KerasModule(self._blueprint.build())
        head: Any = KerasHead(module, self._metric_names)
        return EstimatorSpec(
            mode=mode,
            module=module,
            head=head,
            optimizer=lambda named: KerasOptimizer(module.unwrapped),
        )


def _check_keras() -> None:
    if "keras" not in sys.modules:
        os.environ.setdefault("KERAS_BACKEND", "torch")
    try:
        import keras
    except ImportError as error:
        raise InvalidValueError(
            f"model_to_estimator needs Keras 3 on the torch backend, but importing it fails ({reason(error)}); "
            "pip install torch-estimator[keras], and set KERAS_BACKEND=torch."
        ) from error
    backend = keras.backend.backend()
    if backend != "torch":
        raise InvalidValueError(
            f"model_to_estimator needs Keras on the torch backend, but it runs on {backend!r}; set "
            "KERAS_BACKEND=torch before keras is imported."
        )


def _check_model(model: Any) -> None:
    import keras

    if not isinstance(model, keras.Model):
        raise InvalidTypeError(f"keras_model must be a keras.Model, but got {model!r}.")
    name = f"The Keras model {model.name!r}"
    if not model.compiled:
        raise InvalidValueError(f"{name} is not compiled; call its compile(optimizer=..., loss=...) first.")
    if not model.built or not model.variables:
        raise InvalidValueError(f"{name} has no weights yet; give it a keras.Input or call it on one batch first.")
    if model.optimizer is None:
        raise InvalidValueError(f"{name} is compiled without an optimizer; give compile one.")
    for step in _OWN_LOOPS:
        if getattr(type(model), step) is not getattr(keras.Model, step):
            raise InvalidValueError(
                f"{name} has a {step} of its own, which an Estimator does not call; put what differs into compute_loss."
            )
