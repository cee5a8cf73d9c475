"""`model_to_estimator`: an Estimator from a compiled Keras model."""

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
    """Return an Estimator of a compiled Keras 3 model on the torch backend.

    The Estimator starts with copies of the model's weights, loss, metrics and optimizer (including its state). The
    model itself never changes; `Estimator.trained_module` returns a trained copy. Features are a tensor, a tuple, or a
    dict by the names of the model's inputs; ``{"features": …, "sample_weights": …}`` adds a weight for each row.
    Predictions have the names of the model's outputs. As with ``train_on_batch``, weights are not replaced by their
    moving averages at the end of training (``use_ema``).

    Args:
        keras_model: The compiled model. Give either this or ``keras_model_path``.
        keras_model_path: Path or URL of a ``.keras`` file that ``model.save`` wrote. It is read in Keras' safe mode, so
            code in the file is not run.
        custom_objects: Classes and functions of the model that Keras does not know, by name.
        model_dir: Directory for checkpoints, summaries and exports, as for `Estimator`.
        config: Settings of the job, as for `Estimator`; ``compile=True`` works for torch modules only.
        metric_names_map: Maps Keras' names of metrics to the names that evaluations report instead.

    Raises:
        InvalidValueError: Keras runs on another backend; the model is not compiled, not built, or has a ``train_step``
            of its own; or the file does not exist or contains code.
        InvalidTypeError: The argument is not a Keras model.

    >>> import keras
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    >>> estimator = te.model_to_estimator(model, model_dir="memory://model_to_estimator")
    >>> data = np.array([[0, 1], [1, 0]], np.float32), np.array([[1], [2]], np.float32)
    >>> estimator.train(lambda: data, steps=2).evaluate(lambda: data)["global_step"]
    2
    """
    _check_keras()
    from torch_estimator.models.keras.copying import KerasBlueprint, load_keras_model

    if (keras_model is None) == (keras_model_path is None):
        raise InvalidValueError("Give keras_model or keras_model_path, one of them.")
    if keras_model_path is not None:
        keras_model = load_keras_model(keras_model_path, custom_objects)
    _check_model(keras_model)
    blueprint = KerasBlueprint(keras_model, custom_objects or {})
    return Estimator(_KerasModel(blueprint, dict(metric_names_map or {})), model_dir, config)


class _KerasModel:
    """Callable ``model_fn`` that builds a new copy of the Keras model for each call."""

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
