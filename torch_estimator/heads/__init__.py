"""Heads: what a model's logits mean, how wrong they are, and what is reported and served."""

from torch_estimator.heads.base import Head, Metrics
from torch_estimator.heads.binary_class import BinaryClassHead
from torch_estimator.heads.logistic_regression import LogisticRegressionHead
from torch_estimator.heads.loss_reduction import LossReduction
from torch_estimator.heads.multi_class import MultiClassHead
from torch_estimator.heads.multi_head import MultiHead
from torch_estimator.heads.multi_label import MultiLabelHead
from torch_estimator.heads.poisson_regression import PoissonRegressionHead
from torch_estimator.heads.regression import RegressionHead
from torch_estimator.heads.signature import Signature

__all__ = [
    "BinaryClassHead",
    "Head",
    "LogisticRegressionHead",
    "LossReduction",
    "Metrics",
    "MultiClassHead",
    "MultiHead",
    "MultiLabelHead",
    "PoissonRegressionHead",
    "RegressionHead",
    "Signature",
]
