"""Specifications: what to train (`TrainSpec`), what to evaluate (`EvalSpec`), and the model (`EstimatorSpec`).

They are frozen dataclasses, checked when they are made.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.hooks.hook import CheckpointSaverListener, Hook, checked_hooks, checked_listeners
from torch_estimator.mode_keys import ModeKeys

if TYPE_CHECKING:
    import torch
    from torch import nn

    from torch_estimator.exporters import Exporter
    from torch_estimator.feature_column.transform import FeatureTransform
    from torch_estimator.heads.base import Head
    from torch_estimator.heads.serving import Signature
    from torch_estimator.inner_layers import ForwardedLayers
    from torch_estimator.metrics import MetricFunction
    from torch_estimator.optim.factories import OptimizerFactory

InputFn = Callable[..., Any]


def check_input_fn(input_fn: object) -> None:
    if not callable(input_fn):
        from torch_estimator.data.dataset import Dataset

        if not isinstance(input_fn, Dataset):
            raise InvalidTypeError(f"input_fn must be callable, such as lambda: dataset, but got {input_fn!r}.")


def check_positive(name: str, value: float | None) -> None:
    if value is None:
        return
    _check_number(name, value)
    if not value > 0:
        raise InvalidValueError(f"{name} must be positive, but got {value}.")
    if not float(value).is_integer():
        raise InvalidValueError(f"{name} must be a whole number, but got {value}.")


def _check_number(name: str, value: object) -> None:
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise InvalidTypeError(f"{name} must be a number, but got {value!r}.")


@dataclass(frozen=True, slots=True)
class TrainSpec:
    """Settings for training in `train_and_evaluate`: the input, the last step, and hooks.

    Args:
        input_fn: Function that returns the training data (see `torch_estimator.data.to_dataset`). It may take any of
            ``mode``, ``params``, ``config`` and ``input_context`` (an `InputContext`).
        max_steps: Global step at which training ends, or None to train until the input ends. Global steps are counted
            from the first start of the job.
        hooks: Hooks that are called while training runs.
        saving_listeners: Listeners that are called before and after each checkpoint.

    Raises:
        InvalidTypeError: ``input_fn`` is not callable, or a hook or listener is of another type.
        InvalidValueError: ``max_steps`` is not a positive whole number.

    >>> def input_fn():
    ...     return te.data.Dataset.from_arrays({"x": [1.0, 2.0, 3.0]}, [2.0, 4.0, 6.0]).shuffle(3).repeat().batch(2)
    >>> spec = te.TrainSpec(input_fn, max_steps=1000, hooks=[te.LoggingTensorHook(["loss"], every_n_iter=100)])
    >>> spec.max_steps
    1000
    """

    input_fn: InputFn
    max_steps: int | None = None
    hooks: Sequence[Hook] | None = None
    saving_listeners: Sequence[CheckpointSaverListener] | None = None

    def __post_init__(self) -> None:
        check_input_fn(self.input_fn)
        check_positive("max_steps", self.max_steps)
        object.__setattr__(self, "hooks", checked_hooks(self.hooks))
        object.__setattr__(self, "saving_listeners", checked_listeners(self.saving_listeners))


@dataclass(frozen=True, slots=True)
class EvalSpec:
    """Settings for the evaluations of `train_and_evaluate`, and for the exports after each evaluation.

    Args:
        input_fn: Function that returns the evaluation data; see `TrainSpec`.
        steps: Number of batches to evaluate, or None for the whole input.
        name: Name that distinguishes several evaluations; summaries go to ``<model_dir>/eval_<name>``.
        hooks: Hooks that are called while the evaluation runs.
        exporters: One exporter, or any iterable of exporters with distinct names.
        start_delay_secs: Seconds that an evaluator process waits before it starts; has no effect in a local run.
        throttle_secs: Minimum time between two evaluations, in seconds; the last checkpoint is always evaluated.

    Raises:
        InvalidTypeError: An argument is of the wrong type.
        InvalidValueError: A number is out of range, or two exporters have one name.

    >>> x = fc.numeric_column("x")
    >>> spec = te.EvalSpec(
    ...     lambda: ({"x": [1.0]}, [2.0]),
    ...     steps=None,
    ...     exporters=te.FinalExporter("last", te.serving_input.raw_features([x])),
    ...     throttle_secs=60,
    ... )
    >>> [exporter.name for exporter in spec.exporters]
    ['last']
    """

    input_fn: InputFn
    steps: int | None = 100
    name: str | None = None
    hooks: Sequence[Hook] | None = None
    exporters: Exporter | Iterable[Exporter] | None = None
    start_delay_secs: float = 120
    throttle_secs: float = 600

    def __post_init__(self) -> None:
        check_input_fn(self.input_fn)
        check_positive("steps", self.steps)
        if self.name is not None and not isinstance(self.name, str):
            raise InvalidTypeError(f"name of an EvalSpec must be a string, but got {self.name!r}.")
        object.__setattr__(self, "hooks", checked_hooks(self.hooks))
        object.__setattr__(self, "exporters", _checked_exporters(self.exporters))
        for name in ("start_delay_secs", "throttle_secs"):
            _check_number(name, getattr(self, name))
            if getattr(self, name) < 0:
                raise InvalidValueError(f"{name} must not be negative, but got {getattr(self, name)}.")

    @property
    def all_exporters(self) -> tuple[Exporter, ...]:
        """The exporters, as a tuple."""
        return self.exporters  # type: ignore[return-value]  # __post_init__ made it a tuple


def _checked_exporters(exporters: Exporter | Iterable[Exporter] | None) -> tuple[Exporter, ...]:
    if exporters is None:
        return ()
    if _is_exporter(exporters):
        exporters = (exporters,)  # type: ignore[assignment]
    elif not isinstance(exporters, Iterable):
        raise InvalidTypeError(f"exporters must be an exporter or an iterable of them, but got {exporters!r}.")
    checked: tuple[Exporter, ...] = tuple(exporters)  # type: ignore[arg-type]
    names: set[str] = set()
    for exporter in checked:
        if not _is_exporter(exporter):
            raise InvalidTypeError(f"exporters must have a name and an export method, but got {exporter!r}.")
        name = exporter.name
        if not isinstance(name, str) or not name:
            raise InvalidValueError(
                f"An exporter's name must be a non-empty string, but got {name!r} from {exporter!r}."
            )
        if name in names:
            raise InvalidValueError(
                f"Exporters must have distinct names, but two are called {name!r}; rename one of them."
            )
        names.add(name)
    return checked


def _is_exporter(value: object) -> bool:
    return callable(getattr(value, "export", None)) and hasattr(value, "name")


_DROPPED = {
    "eval_metric_ops": "give metrics, functions of labels and predictions by name",
    "scaffold": "delete it; docs/migrate/tf1.md says what takes the place of its parts",
    "train_op": "give optimizer, a function of the module's named parameters",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorSpec:
    """Model that a ``model_fn`` returns: a module with its loss, predictions, metrics, optimizer and hooks.

    Args:
        mode: The ``mode`` that ``model_fn`` was called with.
        module: Maps the features of one batch to outputs (to logits if there is a head). The features are tensors of
            the arrays that ``transform`` returns, or the features of the input if there is no ``transform``.
        head: Turns outputs and labels into loss, predictions and metrics. Give either a head or ``loss`` and
            ``predictions``.
        loss: ``loss(outputs, labels)`` -> scalar tensor; needed for training and evaluation if there is no head. All
            parameters that the loss depends on must belong to the module or be frozen. For torch's own losses
            (``nn.MSELoss()``, ``functional.cross_entropy``), labels are converted to the shape and dtype that the loss
            takes, whether the input has them as ``[N]`` or ``[N, 1]``. Any other function is called with the labels of
            the input, as metrics are. If it broadcasts labels ``[N]`` and outputs ``[N, 1]`` to ``[N, N]``, that is an
            error. It may also name ``weights`` (``[N, 1]``, those of ``weight_column``), ``features`` (the columns of
            numbers of the input, by name) and ``module`` (the module that computed the outputs).
        predictions: ``predictions(outputs)`` -> dict of tensors ``[batch, ...]``. Without it and without a head, the
            outputs themselves are the predictions. Their key is then ``output``; for a tuple, ``output_0`` and so on;
            for a dataclass or a named tuple, the names of its fields.
        metrics: Name -> ``metric(labels, predictions)`` -> number or one of `te.metrics`, over the whole evaluation, or
            a torchmetrics object or a function that makes one; see `torch_estimator.metrics.named.NamedMetrics`. A
            function may also name ``weights`` and ``features``, as the loss does. If a function broadcasts
            labels ``[N]`` and predictions ``[N, 1]`` to ``[N, N]``, it is called with labels in the shape that one of
            torch's own losses was called with.
        optimizer: Function of the module's named parameters that returns one `torch.optim.Optimizer`, or several, or
            learning-rate schedules around them; needed for training.
        transform: The part of the model's feature columns that runs in the input thread; None if the module takes the
            features of the input, and where its layers are made of columns (`feature_column.DenseFeatures`).
        weight_column: Name of the feature that holds a weight for each row, for a loss or metrics that name
            ``weights``. A head has a ``weight_column`` of its own.
        training_hooks: Hooks of the model that are called while training runs, in every process that trains.
        training_chief_hooks: Hooks that are called in the chief only, before those of `training_hooks`. A process that
            trains alone is the chief.
        evaluation_hooks: Hooks of the model that are called while an evaluation runs.
        prediction_hooks: Hooks of the model that are called while predicting.
        extra_metrics: Metrics in addition to those of the head; see `add_metrics`.
        forward_features: Features to return with the predictions, or None for all; see `forward_features`.
        forward_layers: Inner layers whose outputs to return with the predictions; see `forward_layers`.
        export_outputs: Signatures of exports by name: `export.PredictOutput`, `export.ClassificationOutput` or
            `export.RegressionOutput`, which hold keys of predictions. They are added to those of the head, or replace
            them. Without a head and with several, one must be called ``serving_default``. The signature ``predict``
            has all outputs, unless it is among these.

    Raises:
        InvalidTypeError: An argument is of the wrong type.
        InvalidValueError: Something that ``mode`` needs is missing, both a head and a loss are given, or the loss
            has parameters of its own.

    >>> def model_fn(mode, params):
    ...     def absolute_error(labels, predictions):
    ...         return (predictions["price"] - labels).abs().mean()
    ...
    ...     return te.EstimatorSpec(
    ...         mode=mode,
    ...         module=torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)),
    ...         loss=torch.nn.MSELoss(),
    ...         predictions=lambda outputs: {"price": outputs},
    ...         metrics={"absolute_error": absolute_error},
    ...         optimizer=te.optim.Adam(lr=params["lr"]),
    ...     )
    >>> estimator = te.Estimator(model_fn, "memory://EstimatorSpec", params={"lr": 0.01})
    >>> data = np.ones((4, 3), np.float32), np.ones((4, 1), np.float32)
    >>> sorted(estimator.train(lambda: data, steps=2).evaluate(lambda: data))
    ['absolute_error', 'global_step', 'loss']
    """

    mode: str
    module: nn.Module
    head: Head | None = None
    loss: Callable[..., torch.Tensor] | None = None
    predictions: Callable[[Any], Mapping[str, torch.Tensor]] | None = None
    metrics: Mapping[str, Any] | None = None
    optimizer: OptimizerFactory | None = None
    transform: FeatureTransform | None = None
    training_hooks: Sequence[Hook] = ()
    evaluation_hooks: Sequence[Hook] = ()
    prediction_hooks: Sequence[Hook] = ()
    extra_metrics: Sequence[MetricFunction] = ()
    forward_features: Sequence[str] | None = ()
    forward_layers: Sequence[ForwardedLayers] = ()
    export_outputs: Mapping[str, Signature] | None = None
    weight_column: str | None = None
    training_chief_hooks: Sequence[Hook] = ()

    def __new__(cls, *args: Any, **given: Any) -> EstimatorSpec:
        if args:
            raise InvalidTypeError("An EstimatorSpec takes its arguments by name: EstimatorSpec(mode=mode, module=…).")
        for name in given:
            if name in _DROPPED:
                raise InvalidTypeError(f"EstimatorSpec has no argument {name}: {_DROPPED[name]}.")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        if self.mode not in tuple(ModeKeys):
            raise InvalidValueError(f"mode must be one of {[str(m) for m in ModeKeys]}, but got {self.mode!r}.")
        _check_module(self.module)
        for name in ("loss", "predictions"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise InvalidTypeError(f"{name} of an EstimatorSpec must be a function, but got {value!r}.")
        _check_loss(self.loss, self.module)
        _check_optimizer(self.optimizer)
        object.__setattr__(self, "transform", _transform(self.module, self.transform))
        if self.head is not None and (self.loss or self.predictions or self.metrics):
            raise InvalidValueError("An EstimatorSpec takes a head, or loss, predictions and metrics, not both.")
        if self.weight_column is not None and not isinstance(self.weight_column, str):
            raise InvalidTypeError(f"weight_column must be the name of a feature, but got {self.weight_column!r}.")
        if self.head is not None and self.weight_column is not None:
            raise InvalidValueError("weight_column is for a model without a head; give it to the head instead.")
        if self.mode != ModeKeys.PREDICT and self.head is None and self.loss is None:
            raise InvalidValueError(f"An EstimatorSpec for mode {self.mode!s} needs a head or a loss.")
        if self.mode == ModeKeys.TRAIN and self.optimizer is None:
            raise InvalidValueError("An EstimatorSpec for training needs an optimizer.")
        for name in ("training_hooks", "training_chief_hooks", "evaluation_hooks", "prediction_hooks"):
            object.__setattr__(self, name, checked_hooks(getattr(self, name)))
        if self.export_outputs is not None:
            _check_export_outputs(self.export_outputs, has_head=self.head is not None)


def _check_export_outputs(export_outputs: object, *, has_head: bool) -> None:
    from torch_estimator.heads.serving import SERVING_DEFAULT, Signature

    if not isinstance(export_outputs, Mapping):
        raise InvalidTypeError(f"export_outputs must be a dict of signatures by name, but got {export_outputs!r}.")
    for name, signature in export_outputs.items():
        if not isinstance(name, str) or not name:
            raise InvalidTypeError(f"export_outputs must have names of signatures as keys, but has {name!r}.")
        if not isinstance(signature, Signature):
            raise InvalidTypeError(
                f"export_outputs must hold signatures such as te.export.PredictOutput({{'score': 'scores'}}), but has "
                f"{signature!r} for {name!r}."
            )
    if len(export_outputs) > 1 and SERVING_DEFAULT not in export_outputs and not has_head:
        raise InvalidValueError(
            f"export_outputs has {', '.join(export_outputs)}, of which none is the default; call one of them "
            f"{SERVING_DEFAULT!r}, or give it under that name, too."
        )


def _check_module(module: object) -> None:
    from torch import nn

    if not isinstance(module, nn.Module):
        raise InvalidTypeError(f"module of an EstimatorSpec must be a torch.nn.Module, but got {module!r}.")


def _check_loss(loss: object, module: nn.Module) -> None:
    from torch import nn

    if not isinstance(loss, nn.Module):
        return
    # The loss may contain the module or a part of it, so parameters of the module are allowed in the loss.
    trained = set(module.parameters())
    if any(one.requires_grad and one not in trained for one in loss.parameters()):
        raise InvalidValueError(
            f"The loss {type(loss).__name__} has parameters, which would not be trained or saved; compute with them in "
            "the module and give a loss without."
        )


def _transform(module: nn.Module, given: FeatureTransform | None) -> FeatureTransform | None:
    from torch_estimator.feature_column.layers_transform import transform_of

    return transform_of(module, given)


def _check_optimizer(optimizer: object) -> None:
    from torch_estimator.optim.factories import check_factory

    if optimizer is not None:
        check_factory(optimizer)
