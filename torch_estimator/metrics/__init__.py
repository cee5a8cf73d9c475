"""Metrics of whole evaluations, accumulated in float64 batch by batch, as tf.estimator defines them.

`base` and `curves` hold the building blocks of heads' metrics; each head defines its metrics in its own file.
`streaming` has the functions of `tf.compat.v1.metrics`, for models of one's own. `named` and `functions` evaluate
metrics that users give: functions, and objects such as those of `streaming` and torchmetrics.
"""

from torch_estimator.metrics.base import (
    Buffered,
    Features,
    MeanMetrics,
    Metrics,
    WeightedMeans,
    align_weights,
    metric_key,
)
from torch_estimator.metrics.curves import AreaUnderCurves, Summation, ThresholdRates
from torch_estimator.metrics.functions import MetricFunction, MetricFunctions
from torch_estimator.metrics.streaming import (
    StreamingMetric,
    accuracy,
    auc,
    f1_score,
    false_negatives,
    false_positives,
    mean,
    mean_absolute_error,
    mean_per_class_accuracy,
    mean_relative_error,
    mean_squared_error,
    pearson_correlation,
    precision,
    precision_at_k,
    recall,
    recall_at_k,
    root_mean_squared_error,
    true_negatives,
    true_positives,
)

__all__ = [
    "AreaUnderCurves",
    "Buffered",
    "Features",
    "MeanMetrics",
    "MetricFunction",
    "MetricFunctions",
    "Metrics",
    "StreamingMetric",
    "Summation",
    "ThresholdRates",
    "WeightedMeans",
    "accuracy",
    "align_weights",
    "auc",
    "f1_score",
    "false_negatives",
    "false_positives",
    "mean",
    "mean_absolute_error",
    "mean_per_class_accuracy",
    "mean_relative_error",
    "mean_squared_error",
    "metric_key",
    "pearson_correlation",
    "precision",
    "precision_at_k",
    "recall",
    "recall_at_k",
    "root_mean_squared_error",
    "true_negatives",
    "true_positives",
]
