"""Metrics with the names, arguments and formulas of `tf.compat.v1.metrics`, for models of one's own.

Each function returns a `StreamingMetric`: sums in float64 over the rows of a batch. Evaluations call it for each batch
and merge the sums, so metrics are those of all rows, whatever the batches are, and memory does not grow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.metrics.curves import AreaUnderCurves, Summation

Compute = Callable[[Tensor], float]
"""Function from the sums of all batches to the value of the metric."""

Merge = Callable[[Tensor, Tensor], Tensor]
"""Function from the sums of two sets of batches to the sums of both."""


class StreamingMetric:
    """Metric of a whole evaluation: sums over batches, and the number that is computed from them at the end.

    Evaluations take it where they take an object of torchmetrics. It can be updated by hand, too.

    Args:
        function: Function that returns the metric of one batch, from the arguments of `update`.
        sums: The sums of the first batch, float64.
        compute: Computes the value from the sums.
        merge: Merges the sums of two sets of batches; by default it adds them.

    >>> metric = te.metrics.accuracy(torch.tensor([0, 1]), torch.tensor([0, 0]))
    >>> metric.update(torch.tensor([1, 1]), torch.tensor([1, 1]))
    >>> metric.compute()
    0.75
    """

    def __init__(
        self, function: Callable[..., StreamingMetric], sums: Tensor, compute: Compute, merge: Merge = torch.add
    ) -> None:
        self._function = function
        self._sums: Tensor | None = sums
        self._compute = compute
        self._merge = merge

    def update(self, *batch: Any, **arguments: Any) -> None:
        """Add a batch.

        Args:
            batch: Labels, predictions and weights, as for the function that made the metric.
            arguments: The same by name.
        """
        self.merge_state(self._function(*batch, **arguments))

    def merge_state(self, other: StreamingMetric) -> None:
        """Add all batches of another metric of the same kind.

        Args:
            other: The other metric, which does not change.

        >>> metric = te.metrics.mean([1.0, 2.0])
        >>> metric.merge_state(te.metrics.mean([6.0]))
        >>> metric.compute()
        3.0
        """
        if other._sums is not None:
            self._sums = other._sums.clone() if self._sums is None else self._merge(self._sums, other._sums)

    def compute(self) -> float:
        """Return the value over all batches; 0 if there are none."""
        return 0.0 if self._sums is None else float(self._compute(self._sums))

    def reset(self) -> None:
        """Forget all batches.

        >>> metric = te.metrics.mean([1.0])
        >>> metric.reset()
        >>> metric.compute()
        0.0
        """
        self._sums = None


def mean(values: Any, weights: Any = None) -> StreamingMetric:
    """Return the weighted mean of values, as `tf.compat.v1.metrics.mean`.

    Args:
        values: Numbers ``[N, ...]``.
        weights: Weights ``[N]``, ``[N, 1]`` or of the shape of the values; None for ones.

    >>> te.metrics.mean(torch.tensor([1.0, 5.0]), weights=torch.tensor([3.0, 1.0])).compute()
    2.0
    """
    return _mean(mean, _numbers("values", values), weights)


def accuracy(labels: Any, predictions: Any, weights: Any = None) -> StreamingMetric:
    """Return the share of rows whose prediction equals the label, as `tf.compat.v1.metrics.accuracy`.

    Args:
        labels: Class ids, or strings, ``[N]`` or ``[N, 1]``.
        predictions: Predicted classes of the same kind, not probabilities.
        weights: Weights ``[N]`` or ``[N, 1]``; None for ones.

    >>> te.metrics.accuracy(torch.tensor([0, 1, 1]), torch.tensor([[0], [1], [0]])).compute()  # doctest: +ELLIPSIS
    0.66666...
    """
    labels, predictions = _pair(labels, predictions)
    return _mean(accuracy, torch.as_tensor(labels == predictions), weights)


def mean_squared_error(labels: Any, predictions: Any, weights: Any = None) -> StreamingMetric:
    """Return the weighted mean of squared errors, as `tf.compat.v1.metrics.mean_squared_error`.

    Args:
        labels: Numbers ``[N, ...]``.
        predictions: Numbers of the same shape; one of the two may have a further dimension of size 1.
        weights: Weights ``[N]``, ``[N, 1]`` or of the shape of the labels; None for ones.

    >>> te.metrics.mean_squared_error(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 5.0])).compute()
    4.5
    """
    return _mean(mean_squared_error, _errors(labels, predictions).square(), weights)


def root_mean_squared_error(labels: Any, predictions: Any, weights: Any = None) -> StreamingMetric:
    """Return the root of the weighted mean of squared errors; the arguments are those of `mean_squared_error`.

    Args:
        labels: Numbers ``[N, ...]``.
        predictions: Numbers of the same shape.
        weights: Weights, or None for ones.

    >>> te.metrics.root_mean_squared_error(torch.tensor([0.0, 0.0]), torch.tensor([3.0, 3.0])).compute()
    3.0
    """
    squares = _errors(labels, predictions).square()
    return _mean(root_mean_squared_error, squares, weights, lambda sums: _ratio(sums) ** 0.5)


def mean_absolute_error(labels: Any, predictions: Any, weights: Any = None) -> StreamingMetric:
    """Return the weighted mean of absolute errors; the arguments are those of `mean_squared_error`.

    Args:
        labels: Numbers ``[N, ...]``.
        predictions: Numbers of the same shape.
        weights: Weights, or None for ones.

    >>> te.metrics.mean_absolute_error(torch.tensor([1.0, 2.0]), torch.tensor([[1.0], [5.0]])).compute()
    1.5
    """
    return _mean(mean_absolute_error, _errors(labels, predictions).abs(), weights)


def mean_relative_error(labels: Any, predictions: Any, normalizer: Any, weights: Any = None) -> StreamingMetric:
    """Return the weighted mean of ``|label - prediction| / normalizer``, which counts 0 where the normalizer is 0.

    Args:
        labels: Numbers ``[N, ...]``.
        predictions: Numbers of the same shape.
        normalizer: Numbers of the same shape, often the labels.
        weights: Weights, or None for ones.

    >>> labels = torch.tensor([2.0, 4.0])
    >>> te.metrics.mean_relative_error(labels, torch.tensor([1.0, 4.0]), normalizer=labels).compute()
    0.25
    """
    errors = _errors(labels, predictions).abs()
    scale = _numbers("normalizer", normalizer).reshape(errors.shape)
    return _mean(
        mean_relative_error, torch.where(scale == 0, 0.0, errors / torch.where(scale == 0, 1.0, scale)), weights
    )


def true_positives(labels: Any, predictions: Any, weights: Any = None) -> StreamingMetric:
    """Return the number of rows with label 1 and prediction 1, or the sum of their weights.

    Args:
        labels: Labels 0 and 1, or booleans, ``[N]`` or ``[N, 1]``.
        predictions: Predicted labels 0 and 1, or booleans.
        weights: Weights ``[N]`` or ``[N, 1]``; None for ones.

    >>> te.metrics.true_positives(torch.tensor([0, 1, 1]), torch.tensor([1, 1, 0])).compute()
    1.0
    """
    return _confusion(true_positives, labels, predictions, weights, lambda tp, fp, tn, fn: tp)


def false_positives(labels: Any, predictions: Any, weights: Any = None) -> StreamingMetric:
    """Return the number of rows with label 0 and prediction 1, or the sum of their weights.

    Args:
        labels: Labels 0 and 1, or booleans, ``[N]`` or ``[N, 1]``.
        predictions: Predicted labels 0 and 1, or booleans.
        weights: Weights ``[N]`` or ``[N, 1]``; None for ones.

    >>> te.metrics.false_positives(torch.tensor([0, 1, 1]), torch.tensor([1, 1, 0])).compute()
    1.0
    """
    return _confusion(false_positives, labels, predictions, weights, lambda tp, fp, tn, fn: fp)


def true_negatives(labels: Any, predictions: Any, weights: Any = None) -> StreamingMetric:
    """Return the number of rows with label 0 and prediction 0, or the sum of their weights.

    Args:
        labels: Labels 0 and 1, or booleans, ``[N]`` or ``[N, 1]``.
        predictions: Predicted labels 0 and 1, or booleans.
        weights: Weights ``[N]`` or ``[N, 1]``; None for ones.

    >>> te.metrics.true_negatives(torch.tensor([0, 1, 1]), torch.tensor([1, 1, 0])).compute()
    0.0
    """
    return _confusion(true_negatives, labels, predictions, weights, lambda tp, fp, tn, fn: tn)


def false_negatives(labels: Any, predictions: Any, weights: Any = None) -> StreamingMetric:
    """Return the number of rows with label 1 and prediction 0, or the sum of their weights.

    Args:
        labels: Labels 0 and 1, or booleans, ``[N]`` or ``[N, 1]``.
        predictions: Predicted labels 0 and 1, or booleans.
        weights: Weights ``[N]`` or ``[N, 1]``; None for ones.

    >>> te.metrics.false_negatives(torch.tensor([0, 1, 1]), torch.tensor([1, 1, 0])).compute()
    1.0
    """
    return _confusion(false_negatives, labels, predictions, weights, lambda tp, fp, tn, fn: fn)


def precision(labels: Any, predictions: Any, weights: Any = None) -> StreamingMetric:
    """Return the share of rows with label 1 among those with prediction 1, or 0 if there are none.

    Args:
        labels: Labels 0 and 1, or booleans, ``[N]`` or ``[N, 1]``.
        predictions: Predicted labels 0 and 1, or booleans, such as ``probabilities > 0.5``.
        weights: Weights ``[N]`` or ``[N, 1]``; None for ones.

    >>> te.metrics.precision(torch.tensor([0, 1, 1, 1]), torch.tensor([1, 1, 0, 0])).compute()
    0.5
    """
    return _confusion(precision, labels, predictions, weights, lambda tp, fp, tn, fn: _quotient(tp, tp + fp))


def recall(labels: Any, predictions: Any, weights: Any = None) -> StreamingMetric:
    """Return the share of rows with prediction 1 among those with label 1, or 0 if there are none.

    Args:
        labels: Labels 0 and 1, or booleans, ``[N]`` or ``[N, 1]``.
        predictions: Predicted labels 0 and 1, or booleans, such as ``probabilities > 0.5``.
        weights: Weights ``[N]`` or ``[N, 1]``; None for ones.

    >>> te.metrics.recall(torch.tensor([0, 1, 1, 1]), torch.tensor([1, 1, 0, 1])).compute()  # doctest: +ELLIPSIS
    0.66666...
    """
    return _confusion(recall, labels, predictions, weights, lambda tp, fp, tn, fn: _quotient(tp, tp + fn))


def f1_score(labels: Any, predictions: Any, weights: Any = None) -> StreamingMetric:
    """Return the harmonic mean of `precision` and `recall`, or 0 if there is no true positive.

    `tf.contrib.metrics.f1_score` takes probabilities, and the best of 200 thresholds; this takes predicted labels.

    Args:
        labels: Labels 0 and 1, or booleans, ``[N]`` or ``[N, 1]``.
        predictions: Predicted labels 0 and 1, or booleans, such as ``probabilities > 0.5``.
        weights: Weights ``[N]`` or ``[N, 1]``; None for ones.

    >>> te.metrics.f1_score(torch.tensor([0, 1, 1, 1]), torch.tensor([1, 1, 0, 0])).compute()
    0.4
    """
    return _confusion(
        f1_score, labels, predictions, weights, lambda tp, fp, tn, fn: _quotient(2 * tp, 2 * tp + fp + fn)
    )


def auc(
    labels: Any,
    predictions: Any,
    weights: Any = None,
    num_thresholds: int = 200,
    curve: str = "ROC",
    summation_method: str = "trapezoidal",
) -> StreamingMetric:
    """Return the area under the ROC curve or the precision-recall curve, as `tf.compat.v1.metrics.auc`.

    Args:
        labels: Labels 0 and 1, or booleans, ``[N]`` or ``[N, 1]``.
        predictions: Probabilities from 0 to 1.
        weights: Weights ``[N]`` or ``[N, 1]``; None for ones.
        num_thresholds: Number of thresholds at which the curve is computed, which must be 200.
        curve: ``"ROC"`` or ``"PR"``.
        summation_method: ``"trapezoidal"``, or ``"careful_interpolation"`` for the precision-recall curve, which
            `te.BinaryClassHead` has, too.

    Raises:
        InvalidValueError: An argument is none of these, or a prediction is not from 0 to 1.

    >>> round(te.metrics.auc(torch.tensor([0, 0, 1, 1]), torch.tensor([0.1, 0.4, 0.35, 0.8])).compute(), 6)
    0.75
    """
    if num_thresholds != 200:
        raise InvalidValueError(f"num_thresholds must be 200, but got {num_thresholds!r}; leave it out.")
    if curve not in ("ROC", "PR"):
        raise InvalidValueError(f'curve must be "ROC" or "PR", but got {curve!r}.')
    methods: dict[str, Summation] = {"trapezoidal": "trapezoidal", "careful_interpolation": "interpolation"}
    if summation_method not in methods:
        raise InvalidValueError(
            f'summation_method must be "trapezoidal" or "careful_interpolation", but got {summation_method!r}.'
        )
    labels, predictions = _pair(labels, predictions)
    truth, scores = _binary("labels", labels), _numbers("predictions", predictions)
    outside = scores[~((scores >= 0) & (scores <= 1))]
    if len(outside):
        raise InvalidValueError(
            f"predictions of auc must be probabilities from 0 to 1, but one is {float(outside[0])}."
        )
    areas = AreaUnderCurves(methods[summation_method])
    areas.update(scores.float(), truth.float(), None if weights is None else _weights(weights, truth))

    def compute(sums: Tensor) -> float:
        whole = AreaUnderCurves(methods[summation_method])
        whole.histogram.weights = sums
        return whole.precision_recall() if curve == "PR" else whole.roc()

    again = partial(auc, curve=curve, summation_method=summation_method)
    return StreamingMetric(again, areas.histogram.weights, compute)


def pearson_correlation(labels: Any, predictions: Any, weights: Any = None) -> StreamingMetric:
    """Return Pearson's correlation, as `tf.contrib.metrics.streaming_pearson_correlation`; NaN if one is constant.

    Args:
        labels: Numbers ``[N]`` or ``[N, 1]``.
        predictions: Numbers of as many rows.
        weights: Weights ``[N]`` or ``[N, 1]``; None for ones.

    >>> te.metrics.pearson_correlation(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 4.0, 6.0])).compute()
    1.0
    """
    one, other = (_numbers(what, part) for what, part in zip(_NAMES, _pair(labels, predictions), strict=True))
    weight = torch.ones_like(one) if weights is None else _weights(weights, one)
    total = weight.sum()
    means = [(weight * part).sum() / total if total else torch.zeros((), dtype=torch.float64) for part in (one, other)]
    left, right = one - means[0], other - means[1]
    moments = [(weight * product).sum() for product in (left * left, right * right, left * right)]
    return StreamingMetric(pearson_correlation, torch.stack([total, *means, *moments]), _correlation, _merged_moments)


def mean_per_class_accuracy(labels: Any, predictions: Any, num_classes: int, weights: Any = None) -> StreamingMetric:
    """Return the mean over the classes of the share of a class's rows that are predicted right.

    A class without rows counts 0, as in `tf.compat.v1.metrics.mean_per_class_accuracy`.

    Args:
        labels: Class ids from 0 to ``num_classes - 1``, ``[N]`` or ``[N, 1]``.
        predictions: Predicted class ids.
        num_classes: Number of classes.
        weights: Weights ``[N]`` or ``[N, 1]``; None for ones.

    Raises:
        InvalidValueError: A label is not from 0 to ``num_classes - 1``.

    >>> labels, predictions = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 1, 1])
    >>> te.metrics.mean_per_class_accuracy(labels, predictions, num_classes=2).compute()  # doctest: +ELLIPSIS
    0.83333...
    """
    labels, predictions = _pair(labels, predictions)
    classes = torch.as_tensor(labels).long()
    _check_classes(classes, num_classes)
    weight = torch.ones(len(classes), dtype=torch.float64) if weights is None else _weights(weights, classes)
    right = weight * torch.as_tensor(labels == predictions)
    sums = torch.stack([torch.bincount(classes, part, minlength=num_classes) for part in (right, weight)])
    return StreamingMetric(
        partial(mean_per_class_accuracy, num_classes=num_classes),
        sums,
        lambda sums: float(torch.where(sums[1] > 0, sums[0] / torch.where(sums[1] > 0, sums[1], 1.0), 0.0).mean()),
    )


def precision_at_k(labels: Any, predictions: Any, k: int, weights: Any = None) -> StreamingMetric:
    """Return the share of the `k` best classes of each row that are labels of the row, over all rows.

    Args:
        labels: Class ids, integers ``[N]`` or ``[N, labels]``. An id that is repeated counts once, and negative ids
            pad rows with fewer labels.
        predictions: Scores, ``[N, classes]``.
        k: Number of classes to take of each row.
        weights: Weights ``[N]`` or ``[N, 1]``; None for ones.

    Raises:
        InvalidValueError: There are fewer than `k` classes, or the rows differ in number.

    >>> scores = torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]])
    >>> te.metrics.precision_at_k(torch.tensor([2, 1]), scores, k=2).compute()
    0.25
    """
    found, _ = _hits(labels, predictions, k)
    weight = torch.ones(len(found), dtype=torch.float64) if weights is None else _weights(weights, found)
    sums = torch.stack([(weight * found).sum(), k * weight.sum()])
    return StreamingMetric(partial(precision_at_k, k=k), sums, _ratio)


def recall_at_k(labels: Any, predictions: Any, k: int, weights: Any = None) -> StreamingMetric:
    """Return the share of the labels that are among the `k` best classes of their row, over all rows.

    Args:
        labels: Class ids, integers ``[N]`` or ``[N, labels]``. An id that is repeated counts once, and negative ids
            pad rows with fewer labels.
        predictions: Scores, ``[N, classes]``.
        k: Number of classes to take of each row.
        weights: Weights ``[N]`` or ``[N, 1]``; None for ones.

    Raises:
        InvalidValueError: There are fewer than `k` classes, or the rows differ in number.

    >>> scores = torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.2, 0.3]])
    >>> te.metrics.recall_at_k(torch.tensor([2, 1]), scores, k=2).compute()
    0.5
    """
    found, counts = _hits(labels, predictions, k)
    weight = torch.ones(len(found), dtype=torch.float64) if weights is None else _weights(weights, found)
    sums = torch.stack([(weight * found).sum(), (weight * counts).sum()])
    return StreamingMetric(partial(recall_at_k, k=k), sums, _ratio)


_NAMES = ("labels", "predictions")


def _mean(function: Any, values: Tensor, weights: Any, compute: Compute | None = None) -> StreamingMetric:
    values = values.double()
    weight = torch.ones_like(values) if weights is None else _weights(weights, values)
    sums = torch.stack([(values * weight).sum(), weight.sum()])
    return StreamingMetric(function, sums, compute or _ratio)


def _confusion(
    function: Any, labels: Any, predictions: Any, weights: Any, compute: Callable[..., float]
) -> StreamingMetric:
    """Return a metric of the numbers of true positives, false positives, true negatives and false negatives."""
    truth, guess = (_binary(what, part) for what, part in zip(_NAMES, _pair(labels, predictions), strict=True))
    weight = torch.ones(truth.shape, dtype=torch.float64) if weights is None else _weights(weights, truth)
    cells = (truth & guess, ~truth & guess, ~truth & ~guess, truth & ~guess)
    sums = torch.stack([(weight * cell).sum() for cell in cells])
    return StreamingMetric(function, sums, lambda sums: compute(*sums.tolist()))


def _hits(labels: Any, predictions: Any, k: int) -> tuple[Tensor, Tensor]:
    """Return for each row how many of its labels are among its `k` best classes, and how many labels it has."""
    scores = _numbers("predictions", _only(predictions))
    classes = torch.as_tensor(labels)
    if scores.dim() != 2 or not 1 <= k <= scores.shape[1]:
        raise InvalidValueError(
            f"predictions must be scores [N, classes] of at least k = {k} classes, but have shape {list(scores.shape)}."
        )
    if classes.is_floating_point() or classes.dim() not in (1, 2) or len(classes) != len(scores):
        raise InvalidValueError(
            f"labels must be class ids, integers [N] or [N, labels] for {len(scores)} rows, but are "
            f"{str(classes.dtype).removeprefix('torch.')} {list(classes.shape)}."
        )
    classes = classes.reshape(len(classes), -1).sort(1).values
    # Count an id that a row has several times only once.
    repeated = torch.zeros_like(classes, dtype=torch.bool)
    repeated[:, 1:] = classes[:, 1:] == classes[:, :-1]
    counted = (classes >= 0) & ~repeated
    best = scores.topk(k, dim=1).indices
    among = (classes.unsqueeze(2) == best.unsqueeze(1)).any(2) & counted
    return among.sum(1).double(), counted.sum(1).double()


def _pair(labels: Any, predictions: Any) -> tuple[Any, Any]:
    """Return labels and predictions as flat tensors, or as flat arrays of strings, of one length."""
    flat = [_flat(part) for part in (labels, _only(predictions))]
    shapes = [list(np.shape(part)) for part in (labels, _only(predictions))]
    ones = [[size for size in shape[1:] if size != 1] for shape in shapes]
    if shapes[0][:1] != shapes[1][:1] or ones[0] != ones[1]:
        raise InvalidValueError(
            f"labels and predictions must have one shape, but labels have {shapes[0]} and predictions {shapes[1]}."
        )
    if isinstance(flat[0], Tensor) != isinstance(flat[1], Tensor):
        raise InvalidTypeError("labels and predictions must both be numbers, or both strings, but one is strings.")
    return flat[0], flat[1]


def _only(predictions: Any) -> Any:
    """Return the only prediction of a dict; return anything else unchanged."""
    if not isinstance(predictions, Mapping):
        return predictions
    if len(predictions) != 1:
        raise InvalidValueError(
            f"This metric takes one prediction, but the model gives {', '.join(map(str, predictions))}; choose one: "
            "lambda labels, predictions: te.metrics.accuracy(labels, predictions[name])."
        )
    return next(predictions[key] for key in predictions)


def _flat(values: Any) -> Any:
    if isinstance(values, Tensor):
        return values.detach().reshape(-1)
    array = np.asarray(values)
    return array.reshape(-1) if array.dtype.kind in "OUS" else torch.as_tensor(array).reshape(-1)


def _numbers(what: str, values: Any) -> Tensor:
    try:
        return torch.as_tensor(values).detach().double()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidTypeError(f"{what} of a metric must be numbers ({error}).") from None


def _errors(labels: Any, predictions: Any) -> Tensor:
    shape = np.shape(labels)
    one, other = (_numbers(what, part) for what, part in zip(_NAMES, _pair(labels, predictions), strict=True))
    return (one - other).reshape(shape)


def _binary(what: str, values: Any) -> Tensor:
    numbers = _numbers(what, values)
    bad = numbers[(numbers != 0) & (numbers != 1)]
    if len(bad):
        raise InvalidValueError(
            f"{what} of this metric must be 0 or 1, but one is {float(bad[0]):g}; compare probabilities with a "
            "threshold, as in probabilities > 0.5."
        )
    return numbers == 1


def _weights(weights: Any, values: Tensor) -> Tensor:
    """Return weights in the shape of the values, float64."""
    given = _numbers("weights", weights)
    shape = list(given.shape)
    if given.numel() == values.numel():
        return given.reshape(values.shape)
    if given.dim() == 0 or (values.dim() > 1 and given.numel() == len(values) == given.shape[0]):
        return given.reshape(-1, *[1] * (values.dim() - 1)).expand(values.shape)
    raise InvalidValueError(
        f"weights must be one for each row, or of the shape {list(values.shape)} of the values, but have {shape}."
    )


def _check_classes(classes: Tensor, num_classes: int) -> None:
    outside = classes[(classes < 0) | (classes >= num_classes)]
    if len(outside):
        raise InvalidValueError(
            f"a label must be a class id from 0 to {num_classes - 1}, but one is {int(outside[0])}."
        )


def _ratio(sums: Tensor) -> float:
    return _quotient(float(sums[0]), float(sums[1]))


def _quotient(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _merged_moments(one: Tensor, other: Tensor) -> Tensor:
    """Merge weights, means and second moments around the means (Chan et al., 1979), which does not cancel digits."""
    total = one[0] + other[0]
    if not total:
        return one
    step = other[1:3] - one[1:3]
    means = one[1:3] + step * other[0] / total
    products = torch.stack([step[0] * step[0], step[1] * step[1], step[0] * step[1]])
    return torch.cat([total.reshape(1), means, one[3:] + other[3:] + products * one[0] * other[0] / total])


def _correlation(moments: Tensor) -> float:
    spread = float(moments[3] * moments[4]) ** 0.5
    return float(moments[5]) / spread if spread else float("nan")
