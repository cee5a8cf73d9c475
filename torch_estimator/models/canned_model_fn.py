"""The one ``model_fn`` behind all canned models of feature columns."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.embedding import Combiner
from torch_estimator.feature_column.transform import FeatureTransform
from torch_estimator.heads.base import Head
from torch_estimator.models.networks import DNN, Activation, Linear, WideAndDeep
from torch_estimator.optim.factories import NamedParameters, OptimizerFactory, Trainer, by_name, check_factory
from torch_estimator.specs import EstimatorSpec

OptimizerArgument = str | OptimizerFactory

LINEAR_LEARNING_RATE = 0.2
_WIDE_RATE = 0.005
DNN_LEARNING_RATE = 0.05
DEEP_LEARNING_RATE = 0.001


def as_columns(columns: Iterable[Any] | None) -> tuple[Any, ...]:
    """Feature columns as a tuple, whatever holds them (``columns.values()``, for instance).

    Raises:
        InvalidTypeError: Where it is one column, or something else that holds none.
    """
    if columns is not None and not isinstance(columns, Iterable):
        raise InvalidTypeError(f"Feature columns must be given as a list, but got {columns!r}.")
    return tuple(columns or ())


def _check_not_empty(columns: Sequence[Any]) -> None:
    if not columns:
        raise InvalidValueError("A model needs feature columns, but feature_columns is empty.")


def linear_part(columns: Iterable[Any], optimizer: OptimizerArgument | None, sparse_combiner: Combiner) -> Wide:
    """The one part of a linear model; without an optimizer Ftrl's rate shrinks with the number of columns."""
    given = as_columns(columns)
    rate = LINEAR_LEARNING_RATE if optimizer is not None else min(LINEAR_LEARNING_RATE, _one_over_root(given))
    return Wide(columns=given, optimizer=optimizer or "Ftrl", learning_rate=rate, sparse_combiner=sparse_combiner)


def _one_over_root(columns: Sequence[Any]) -> float:
    return 1 / math.sqrt(max(1, len(columns)))


def wide_learning_rate(columns: Sequence[Any]) -> float:
    """tf.estimator's default for the linear part of a wide and deep model."""
    return min(_WIDE_RATE, _one_over_root(columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wide:
    """The linear part: its columns, and what trains it (a name, or a function from named parameters)."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Deep:
    """The deep part: its columns and layers, and what trains it (a name, or a function from named parameters)."""

    columns: Sequence[Any]
    hidden_units: Sequence[int]
    optimizer: OptimizerArgument
    learning_rate: float
    activation_fn: Activation = torch.relu
    dropout: float | None = None
    batch_norm: bool = False

    def __post_init__(self) -> None:
        _check_not_empty(self.columns)
        if not isinstance(self.hidden_units, Sequence):
            raise InvalidTypeError(f"hidden_units must be a list of positive integers, but got {self.hidden_units!r}.")
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


def canned_model_fn(head: Head, *, wide: Wide | None = None, deep: Deep | None = None) -> Callable[..., EstimatorSpec]:
    """Returns the ``model_fn`` of a model with a linear part, a deep part, or both.

    Raises:
        InvalidValueError, InvalidTypeError: Where columns do not fit their part, or an optimizer is unknown.
    """
    # Made once here only for its checks: a mistake is told when the estimator is made, not when it is trained.
    _transform(wide, deep)
    factories = {
        prefix: optimizer_factory(part.optimizer, part.learning_rate)
        for prefix, part in (("linear.", wide), ("dnn.", deep))
        if part is not None
    }

    def make_optimizers(named: NamedParameters) -> list[Trainer]:
        trainable = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        made: list[Trainer] = []
        for prefix, factory in factories.items():
            of_part = factory([(name, parameter) for name, parameter in trainable if name.startswith(prefix)])
            made += of_part if isinstance(of_part, Sequence) else [of_part]
        return made

    def model_fn(mode: str) -> EstimatorSpec:
        transform = _transform(wide, deep)
        module = WideAndDeep(
            linear=Linear(transform.linear, head.logits_dimension, wide.sparse_combiner)
            if wide is not None and transform.linear is not None
            else None,
            dnn=DNN(
                transform.dnn,
                deep.hidden_units,
                head.logits_dimension,
                activation_fn=deep.activation_fn,
                dropout=deep.dropout,
                batch_norm=deep.batch_norm,
            )
            if deep is not None and transform.dnn is not None
            else None,
        )
        return EstimatorSpec(mode=mode, module=module, head=head, optimizer=make_optimizers, transform=transform)

    return model_fn


def _transform(wide: Wide | None, deep: Deep | None) -> FeatureTransform:
    return FeatureTransform(wide.columns if wide is not None else (), deep.columns if deep is not None else ())


def optimizer_factory(optimizer: OptimizerArgument, learning_rate: float) -> OptimizerFactory:
    """The factory that a constructor's argument means; a name takes the learning rate.

    Raises:
        InvalidValueError, InvalidTypeError: Where there is no such name, or it is no factory.
    """
    if isinstance(optimizer, str):
        return by_name(optimizer, learning_rate)
    check_factory(optimizer, or_name=True)
    return optimizer


def wide_and_deep(
    *,
    linear_feature_columns: Iterable[Any] | None,
    linear_optimizer: OptimizerArgument,
    dnn_feature_columns: Iterable[Any] | None,
    dnn_optimizer: OptimizerArgument,
    dnn_hidden_units: Sequence[int] | None,
    dnn_activation_fn: Activation,
    dnn_dropout: float | None,
    batch_norm: bool,
    linear_sparse_combiner: Combiner,
) -> tuple[Wide | None, Deep | None]:
    """The parts of a combined model, from tf.estimator's constructor arguments.

    Raises:
        InvalidValueError: Where there are no columns at all, or deep ones without ``dnn_hidden_units``.
    """
    linear_feature_columns, dnn_feature_columns = as_columns(linear_feature_columns), as_columns(dnn_feature_columns)
    if not linear_feature_columns and not dnn_feature_columns:
        raise InvalidValueError("Give linear_feature_columns, dnn_feature_columns or both; both are empty.")
    if dnn_feature_columns and not dnn_hidden_units:
        raise InvalidValueError("dnn_feature_columns need dnn_hidden_units, the outputs of each hidden layer.")
    wide = deep = None
    if linear_feature_columns:
        wide = Wide(
            columns=linear_feature_columns,
            optimizer=linear_optimizer,
            learning_rate=wide_learning_rate(linear_feature_columns),
            sparse_combiner=linear_sparse_combiner,
        )
    if dnn_feature_columns and dnn_hidden_units:
        deep = Deep(
            columns=dnn_feature_columns,
            hidden_units=dnn_hidden_units,
            optimizer=dnn_optimizer,
            learning_rate=DEEP_LEARNING_RATE,
            activation_fn=dnn_activation_fn,
            dropout=dnn_dropout,
            batch_norm=batch_norm,
        )
    return wide, deep
