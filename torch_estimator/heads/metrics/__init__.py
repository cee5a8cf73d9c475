"""Metrics of whole evaluations: accumulated in float64 batch by batch, as tf.estimator defines them."""

from torch_estimator.heads.metrics.binary import BinaryMetrics
from torch_estimator.heads.metrics.buffered import Buffered
from torch_estimator.heads.metrics.functions import MetricFunction, MetricFunctions
from torch_estimator.heads.metrics.multi_class import MultiClassMetrics
from torch_estimator.heads.metrics.multi_head import MultiHeadMetrics
from torch_estimator.heads.metrics.multi_label import MultiLabelMetrics
from torch_estimator.heads.metrics.regression import RegressionMetrics

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
