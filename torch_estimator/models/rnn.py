"""Recurrent models: an estimator for any head, and a classifier."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.estimator import Estimator
from torch_estimator.feature_column.transform import FeatureTransform
from torch_estimator.heads import LossReduction, SequentialHeadWrapper
from torch_estimator.heads.base import Head, check_head, weight_key
from torch_estimator.models.canned_model_fn import as_columns, classifier_head, premade
from torch_estimator.models.generations import V2, OptimizerArgument
from torch_estimator.optim.clipping import clip_gradients_by_norm
from torch_estimator.recurrent_network import GATES, RecurrentNetwork, RnnCellFn
from torch_estimator.run_config import RunConfig
from torch_estimator.specs import EstimatorSpec

_LEARNING_RATE = 0.05
_CLIP_NORM = 5.0

_ARGUMENTS = {
    "sequence_feature_columns": (
        "Columns of the steps: `sequence_numeric_column`, and `embedding_column` and `indicator_column` of "
        "``sequence_categorical_column_with_…``."
    ),
    "context_feature_columns": (
        "Numeric, bucketized, indicator and embedding columns, whose numbers are repeated at each step; or None."
    ),
    "units": "Number of outputs of each recurrent layer, in a list; a number for one layer.",
    "cell_type": "``'simple_rnn'`` (the default), ``'lstm'`` or ``'gru'``, with Keras's formulas.",
    "rnn_cell_fn": (
        "Instead of ``units`` and ``cell_type`` a function from the numbers in each step to a module such as "
        "``lambda width: nn.LSTM(width, 32, num_layers=2, batch_first=True)``. The module maps float32 [N, T, width] "
        "to [N, T, units], or to a tuple that begins with it. What it gives for a step must not depend on later steps."
    ),
    "return_sequences": "Whether to predict at each step, not only at the last one.",
    "optimizer": (
        "Name of an optimizer, which gets learning rate 0.05 and clips the norm of each gradient at 5; or a function "
        "from named parameters to an optimizer, which is used as it is."
    ),
    "loss_reduction": "How the losses of a batch are reduced to the training loss; the default is their mean.",
    "sequence_mask": "With ``return_sequences`` the key of the predictions that says which steps exist.",
}


@premade(
    **_ARGUMENTS,
    head="Head that turns logits into losses, predictions and metrics; with ``return_sequences`` a "
    "`te.heads.SequentialHeadWrapper`.",
)
class RNNEstimator(Estimator):
    """Recurrent network on sequence columns, for any head.

    Its methods are those of `Estimator`. It trains uncompiled, since batches differ in length.

    >>> speed = fc.sequence_numeric_column("speed")
    >>> data = {"speed": np.array([[1.0, 2.0, np.nan], [3.0, 2.0, 1.0]])}, [0.0, 1.0]
    >>> estimator = te.experimental.RNNEstimator(
    ...     te.RegressionHead(), [speed], units=[8, 4], cell_type="lstm", model_dir="memory://RNNEstimator"
    ... )
    >>> sorted(estimator.train(lambda: data, steps=5).evaluate(lambda: data))
    ['average_loss', 'global_step', 'label/mean', 'loss', 'prediction/mean']
    """

    _generation = V2

    def __init__(
        self,
        head: Head,
        sequence_feature_columns: Iterable[Any],
        context_feature_columns: Iterable[Any] | None = None,
        units: int | Sequence[int] | None = None,
        cell_type: str | None = None,
        rnn_cell_fn: RnnCellFn | None = None,
        return_sequences: bool = False,
        model_dir: str | None = None,
        optimizer: OptimizerArgument = "Adagrad",
        config: RunConfig | None = None,
    ) -> None:
        model_fn = _model_fn(
            check_head(head),
            as_columns(sequence_feature_columns),
            as_columns(context_feature_columns),
            units,
            cell_type,
            rnn_cell_fn,
            return_sequences,
            optimizer,
        )
        super().__init__(model_fn, model_dir, config)


@premade(**_ARGUMENTS)
class RNNClassifier(RNNEstimator):
    """Recurrent network on sequence columns that classifies sequences, or each of their steps.

    Its methods are those of `Estimator`. Predictions and metrics are those of `BinaryClassHead` for two classes, and of
    `MultiClassHead` for more; with ``return_sequences`` those of `te.heads.SequentialHeadWrapper`. Labels and weights
    then are lists, with a value for each step. It trains uncompiled, since batches differ in length.

    >>> words = fc.sequence_categorical_column_with_vocabulary_list("words", ["good", "bad", "not"])
    >>> data = {"words": np.array([["not", "bad"], ["not", "good"], ["bad", ""], ["good", ""]])}, [1, 0, 0, 1]
    >>> estimator = te.experimental.RNNClassifier(
    ...     [fc.embedding_column(words, 4)],
    ...     units=[8],
    ...     cell_type="gru",
    ...     model_dir="memory://RNNClassifier",
    ...     optimizer=te.optim.Adam(lr=0.05),
    ...     config=te.RunConfig(random_seed=1),
    ... )
    >>> estimator.train(lambda: data, steps=60).evaluate(lambda: data)["accuracy"]
    1.0
    """

    _generation = V2

    def __init__(
        self,
        sequence_feature_columns: Iterable[Any],
        context_feature_columns: Iterable[Any] | None = None,
        units: int | Sequence[int] | None = None,
        cell_type: str | None = None,
        rnn_cell_fn: RnnCellFn | None = None,
        return_sequences: bool = False,
        model_dir: str | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: OptimizerArgument = "Adagrad",
        loss_reduction: LossReduction | str = LossReduction.SUM_OVER_BATCH_SIZE,
        sequence_mask: str = "sequence_mask",
        config: RunConfig | None = None,
    ) -> None:
        head = classifier_head(n_classes, weight_column, label_vocabulary, loss_reduction, self._generation)
        if return_sequences:
            head = SequentialHeadWrapper(head, sequence_mask, weight_key(weight_column))
        super().__init__(
            head,
            sequence_feature_columns,
            context_feature_columns,
            units,
            cell_type,
            rnn_cell_fn,
            return_sequences,
            model_dir,
            optimizer,
            config,
        )


def _model_fn(
    head: Head,
    sequence_columns: Sequence[Any],
    context_columns: Sequence[Any],
    units: int | Sequence[int] | None,
    cell_type: str | None,
    rnn_cell_fn: RnnCellFn | None,
    return_sequences: bool,
    optimizer: OptimizerArgument,
) -> Callable[..., EstimatorSpec]:
    """Return the ``model_fn`` of a recurrent model."""
    if not sequence_columns:
        raise InvalidValueError("A recurrent model needs sequence columns, but sequence_feature_columns is empty.")
    sizes = _checked_units(units, cell_type, rnn_cell_fn)
    if return_sequences != isinstance(head, SequentialHeadWrapper):
        raise InvalidValueError(
            f"return_sequences is {return_sequences}, but the head is a {type(head).__name__}; give both "
            "return_sequences=True and te.heads.SequentialHeadWrapper(head), or neither."
        )
    factory = V2.factory(optimizer, _LEARNING_RATE)
    if isinstance(optimizer, str):
        factory = clip_gradients_by_norm(factory, _CLIP_NORM, each=True)

    def model_fn(mode: str) -> EstimatorSpec:
        transform = FeatureTransform(dnn_columns=context_columns, sequence_columns=sequence_columns)
        assert transform.sequence is not None
        module = RecurrentNetwork(
            transform.sequence,
            transform.dnn,
            head.logits_dimension,
            units=sizes,
            cell_type=cell_type or "simple_rnn",
            rnn_cell_fn=rnn_cell_fn,
            return_sequences=return_sequences,
        )
        return EstimatorSpec(mode=mode, module=module, head=head, optimizer=factory, transform=transform)

    # Report wrong columns now instead of at the first training.
    FeatureTransform(dnn_columns=context_columns, sequence_columns=sequence_columns)
    return model_fn


def _checked_units(
    units: int | Sequence[int] | None, cell_type: str | None, rnn_cell_fn: RnnCellFn | None
) -> int | list[int] | None:
    """Return the units; raise an error unless there are some, or else a function that makes the layers."""
    if rnn_cell_fn is not None:
        if units is not None or cell_type is not None:
            raise InvalidValueError("Give units and cell_type, or rnn_cell_fn, not both.")
        if not callable(rnn_cell_fn):
            raise InvalidTypeError(f"rnn_cell_fn must be a function from a width to a module, but got {rnn_cell_fn!r}.")
        with torch.random.fork_rng(devices=[]):
            _check_made(rnn_cell_fn(1))
        return None
    if units is None:
        raise InvalidValueError("A recurrent model needs units, such as units=[32], or rnn_cell_fn.")
    sizes = units if isinstance(units, Sequence) else [units]
    if not sizes or not all(isinstance(one, numbers.Integral) and one > 0 for one in sizes):
        raise InvalidValueError(f"units must be positive integers, but got {units!r}.")
    if cell_type is not None and cell_type not in GATES:
        raise InvalidValueError(
            f"cell_type must be one of {', '.join(map(repr, GATES))}, but got {cell_type!r}; for another layer give "
            "rnn_cell_fn."
        )
    return list(map(int, units)) if isinstance(units, Sequence) else int(units)


def _check_made(layer: object) -> None:
    """Raise an error unless `layer` is a module that can take a batch of sequences step by step."""
    if not isinstance(layer, nn.Module) or isinstance(layer, nn.RNNCellBase):
        raise InvalidTypeError(
            "rnn_cell_fn must return a module that takes whole sequences, such as nn.LSTM(width, 32, "
            f"batch_first=True), but returned {layer!r}."
        )
    if isinstance(layer, nn.RNNBase) and (layer.bidirectional or not layer.batch_first):
        raise InvalidValueError(
            f"rnn_cell_fn must return a module with batch_first=True and bidirectional=False, but returned {layer!r}."
        )
