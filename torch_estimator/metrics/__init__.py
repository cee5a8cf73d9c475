"""Metrics of whole evaluations: accumulated in float64 batch by batch, as tf.estimator defines them."""

from torch_estimator.metrics.binary import BinaryMetrics
from torch_estimator.metrics.buffered import Buffered
from torch_estimator.metrics.functions import MetricFunction, MetricFunctions
from torch_estimator.metrics.multi_class import MultiClassMetrics
from torch_estimator.metrics.multi_head import MultiHeadMetrics
from torch_estimator.metrics.multi_label import MultiLabelMetrics
from torch_estimator.metrics.regression import RegressionMetrics

__all__ = [
    "BinaryMetrics",
    "Buffered",
    "MetricFunction",
    "MetricFunctions",
    "MultiClassMetrics",
    "MultiHeadMetrics",
    "MultiLabelMetrics",
    "RegressionMetrics",
]
