"""The ``model_fn`` of all linear, deep, and wide and deep models, with their heads, checks and documentation."""

from __future__ import annotations

import inspect
import math
import numbers
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeVar, get_args

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.estimator import Estimator
from torch_estimator.feature_column.embedding import Combiner
from torch_estimator.feature_column.transform import FeatureTransform
from torch_estimator.heads import BinaryClassHead, LossReduction, MultiClassHead, RegressionHead
from torch_estimator.heads.base import Head
from torch_estimator.models.generations import Generation, OptimizerArgument
from torch_estimator.networks import DNN, Activation, Linear, WideAndDeep
from torch_estimator.optim.factories import NamedParameters, Trainer
from torch_estimator.specs import EstimatorSpec

_EstimatorClass = TypeVar("_EstimatorClass", bound=type[Estimator])

ANOTHER_OPTIMIZER = "or the name of another optimizer, or a function from named parameters to an optimizer."
_COMBINER = '``"sum"``, ``"mean"`` or ``"sqrtn"``; makes no difference for columns with one value per row.'
_ARGUMENTS = {
    "head": "Head that turns logits into losses, predictions and metrics; see `torch_estimator.heads`.",
    "hidden_units": "Number of outputs of each hidden layer.",
    "feature_columns": "Columns that the model reads; see `torch_estimator.feature_column`.",
    "linear_feature_columns": "Columns of any kind for the linear part.",
    "linear_optimizer": f"Ftrl with learning rate ``min(0.005, 1 / sqrt(number of columns))``; {ANOTHER_OPTIMIZER}",
    "linear_sparse_combiner": f"How the linear part combines several values of a categorical column: {_COMBINER}",
    "dnn_feature_columns": "Numeric, bucketized, indicator and embedding columns for the deep part.",
    "dnn_optimizer": f"Adagrad with learning rate 0.001; {ANOTHER_OPTIMIZER}",
    "dnn_hidden_units": "Number of outputs of each hidden layer; required with ``dnn_feature_columns``.",
    "dnn_activation_fn": "Activation after each hidden layer, a function of a tensor.",
    "dnn_dropout": "Probability of dropping a hidden unit in training, or None.",
    "model_dir": "Directory for checkpoints, summaries and exports; see `RunConfig`.",
    "n_classes": (
        "Number of classes, at least 2. Labels are ids from 0 to ``n_classes - 1``, or strings with "
        "``label_vocabulary``."
    ),
    "label_dimension": "Number of regression targets per row. Labels are ``[N]`` or ``[N, label_dimension]``.",
    "weight_column": (
        "Name of a feature with a weight for each row, ``[N]`` or ``[N, 1]``, or its numeric column; None for ones."
    ),
    "label_vocabulary": "Labels as strings, in the order of their class ids.",
    "activation_fn": "Activation after each hidden layer, a function of a tensor.",
    "dropout": "Probability of dropping a hidden unit in training, or None.",
    "config": "Settings of the job; None for the defaults of `RunConfig`.",
    "warm_start_from": "Checkpoint whose weights the model starts with; see `Estimator`.",
    "loss_reduction": "How the losses of a batch are reduced to the training loss; the default {generation.loss}.",
    "batch_norm": "Whether the output of each hidden layer is normalized (batch normalization).",
    "sparse_combiner": f"How several values of a categorical column are combined: {_COMBINER}",
}


def premade(**special: str) -> Callable[[_EstimatorClass], _EstimatorClass]:
    """Return a decorator that completes a premade model by its ``_generation``: defaults of arguments, and docstring.

    Most arguments occur in several models, so each is described only once, at the top of this module; `special`
    describes those that differ from model to model, also for subclasses. The decorator adds ``Args:`` and ``Raises:``
    before the example in the docstring. A class of `torch_estimator.v2` has the ``__init__`` of its base class, with
    the defaults of the generation.
    """

    def complete(model: _EstimatorClass) -> _EstimatorClass:
        made: Any = model
        generation: Generation = made._generation
        made._descriptions = {**getattr(made, "_descriptions", _ARGUMENTS), **special}
        made.__init__ = _init(made)
        if model.__doc__ is not None:  # Python removes docstrings under -OO.
            arguments = [
                textwrap.fill(
                    f"{name}: {made._descriptions[name].format(generation=generation)}",
                    width=116,
                    initial_indent=" " * 4,
                    subsequent_indent=" " * 8,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
                for name in inspect.signature(model).parameters
            ]
            raises = [
                "    InvalidValueError: An argument is out of range, or the columns do not fit the model.",
                "    InvalidTypeError: An argument is of the wrong type.",
            ]
            text, mark, example = inspect.cleandoc(model.__doc__).partition(">>> ")
            model.__doc__ = "\n".join(
                [text.rstrip(), "", "Args:", *arguments, "", "Raises:", *raises, "", mark + example]
            )
        return model

    return complete


def _init(model: Any) -> FunctionType:
    """Return a copy of ``__init__`` with the defaults of the model's generation."""
    function = model.__init__
    optional = [one for one in inspect.signature(function).parameters.values() if one.default is not one.empty]
    defaults = tuple(model._generation.defaults.get(one.name, one.default) for one in optional)
    # A wrapper would be one more frame in every traceback.
    copy = FunctionType(function.__code__, function.__globals__, "__init__", defaults, function.__closure__)
    copy.__annotations__ = function.__annotations__
    copy.__module__, copy.__qualname__ = model.__module__, f"{model.__qualname__}.__init__"
    return copy


def canned_model_fn(
    head: Head,
    generation: Generation,
    loss_reduction: LossReduction | str | None,
    *,
    wide: Wide | None = None,
    deep: Deep | None = None,
) -> Callable[..., EstimatorSpec]:
    """Return the ``model_fn`` of a model with a linear part, a deep part, or both.

    `loss_reduction` is that of a premade model's own head; None if the user gave the head. Raise an InvalidValueError
    or InvalidTypeError if a column does not fit its part, or an optimizer is unknown.
    """
    if wide is None and deep is None:
        raise InvalidValueError("Give linear_feature_columns, dnn_feature_columns or both; both are empty.")
    # Build the transform once and discard it, so that wrong columns are reported now instead of at the first training.
    _transform(wide, deep)
    parts = {prefix: part for prefix, part in (("linear.", wide), ("dnn.", deep)) if part is not None}
    factories = {prefix: generation.factory(part.optimizer, part.learning_rate) for prefix, part in parts.items()}
    generation.log_defaults([(part.optimizer, part.learning_rate) for part in parts.values()], loss_reduction)

    def make_optimizers(named: NamedParameters) -> list[Trainer]:
        trainable = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        made: list[Trainer] = []
        for prefix, factory in factories.items():
            of_part = factory([(name, parameter) for name, parameter in trainable if name.startswith(prefix)])
            made += of_part if isinstance(of_part, Sequence) else [of_part]
        return made

    def model_fn(mode: str) -> EstimatorSpec:
        transform = _transform(wide, deep)
        linear = dnn = None
        if wide is not None and transform.linear is not None:
            linear = Linear(transform.linear, head.logits_dimension, wide.sparse_combiner)
        if deep is not None and transform.dnn is not None:
            dnn = DNN(
                transform.dnn,
                deep.hidden_units,
                head.logits_dimension,
                activation_fn=deep.activation_fn,
                dropout=deep.dropout,
                batch_norm=deep.batch_norm,
            )
        module = WideAndDeep(linear=linear, dnn=dnn)
        return EstimatorSpec(mode=mode, module=module, head=head, optimizer=make_optimizers, transform=transform)

    return model_fn


def _transform(wide: Wide | None, deep: Deep | None) -> FeatureTransform:
    return FeatureTransform(wide.columns if wide is not None else (), deep.columns if deep is not None else ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Wide:
    """Settings of a model's linear part.

    The optimizer is a function from named parameters to an optimizer, or a name, which is used with the learning rate.
    """

    columns: Sequence[Any]
    optimizer: OptimizerArgument
    learning_rate: float
    sparse_combiner: Combiner = "sum"

    def __post_init__(self) -> None:
        _check_not_empty(self.columns)
        if self.sparse_combiner not in get_args(Combiner):
            raise InvalidValueError(
                f"sparse_combiner must be one of {', '.join(get_args(Combiner))}, but got {self.sparse_combiner!r}."
            )


@dataclass(frozen=True, slots=True)
class Deep:
    """Settings of a model's deep part: hidden layers on feature columns.

    The optimizer is a function from named parameters to an optimizer, or a name, which is used with the learning rate
    (None: the generation's own).
    """

    hidden_units: Sequence[int]
    columns: Sequence[Any]
    optimizer: OptimizerArgument
    activation_fn: Activation
    dropout: float | None
    batch_norm: bool
    learning_rate: float | None = None

    def __post_init__(self) -> None:
        _check_not_empty(self.columns)
        if isinstance(self.hidden_units, str) or not isinstance(self.hidden_units, Sequence):
            raise InvalidTypeError(f"hidden_units must be a list of positive integers, but got {self.hidden_units!r}.")
        # Command lines give text, as in "128 32".split(); tf.estimator took it, too.
        as_numbers = tuple(int(one) if isinstance(one, str) and one.isdecimal() else one for one in self.hidden_units)
        object.__setattr__(self, "hidden_units", as_numbers)
        for units in self.hidden_units:
            if not isinstance(units, numbers.Integral) or units <= 0:
                raise InvalidValueError(f"hidden_units must be positive integers, but got {list(self.hidden_units)}.")
        if not isinstance(self.dropout, int | float | None):
            raise InvalidTypeError(f"dropout must be a number, but got {self.dropout!r}.")
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise InvalidValueError(f"dropout must be at least 0 and less than 1, but got {self.dropout}.")
        if isinstance(self.activation_fn, type):
            raise InvalidTypeError(
                f"activation_fn must be a function of a tensor, but got the class {self.activation_fn.__name__}; give "
                f"an object of it, {self.activation_fn.__name__}()."
            )
        if not isinstance(self.batch_norm, bool):
            raise InvalidTypeError(f"batch_norm must be True or False, but got {self.batch_norm!r}.")
        if not callable(self.activation_fn):
            raise InvalidTypeError(f"activation_fn must be a function of a tensor, but got {self.activation_fn!r}.")


def _check_not_empty(columns: Sequence[Any]) -> None:
    if not columns:
        raise InvalidValueError("A model needs feature columns, but feature_columns is empty.")


def as_columns(columns: Iterable[Any] | None) -> tuple[Any, ...]:
    """Convert an iterable of feature columns to a tuple; None becomes the empty tuple, a single column is an error."""
    if columns is not None and not isinstance(columns, Iterable):
        raise InvalidTypeError(f"Feature columns must be given as a list, but got {columns!r}.")
    return tuple(columns or ())


def one_over_root(columns: Sequence[Any]) -> float:
    """Return ``1 / sqrt(number of columns)``, tf.estimator's limit for a linear model's default learning rate."""
    return 1 / math.sqrt(max(1, len(columns)))


def classifier_head(
    n_classes: int,
    weight_column: Any,
    label_vocabulary: Sequence[str] | None,
    loss_reduction: LossReduction | str,
    generation: Generation,
) -> Head:
    """Return the head of a premade classifier: a binary head for two classes, otherwise a multi-class head."""
    settings: dict[str, Any] = {
        "weight_column": weight_column,
        "label_vocabulary": label_vocabulary,
        "loss_reduction": LossReduction.of(loss_reduction),
    }
    if n_classes == 2:
        return BinaryClassHead(pr_summation=generation.pr_summation, **settings)
    return MultiClassHead(n_classes, **settings)


def regressor_head(label_dimension: int, weight_column: Any, loss_reduction: LossReduction | str) -> Head:
    """Return the head of a premade regression model, whose predictions are the logits themselves."""
    return RegressionHead(
        label_dimension=label_dimension, weight_column=weight_column, loss_reduction=LossReduction.of(loss_reduction)
    )
