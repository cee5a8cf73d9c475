"""Metrics of whole evaluations, accumulated in float64 batch by batch, as tf.estimator defines them.

`base` and `curves` hold the building blocks of heads' metrics; each head defines its metrics in its own file.
`named` and `functions` evaluate metrics that users give: functions and torchmetrics objects.
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

__all__ = [
    "AreaUnderCurves",
    "Buffered",
    "Features",
    "MeanMetrics",
    "MetricFunction",
    "MetricFunctions",
    "Metrics",
    "Summation",
    "ThresholdRates",
    "WeightedMeans",
    "align_weights",
    "metric_key",
]
