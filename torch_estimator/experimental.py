"""Models, hooks and functions of ``tf.estimator.experimental``, under the same names."""

from torch_estimator.hooks.early_stopping import (
    make_early_stopping_hook,
    read_eval_metrics,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)
from torch_estimator.hooks.in_memory_evaluator import InMemoryEvaluatorHook
from torch_estimator.hooks.stop_at_step import make_stop_at_checkpoint_step_hook
from torch_estimator.models.kmeans import KMeans
from torch_estimator.models.rnn import RNNClassifier, RNNEstimator

__all__ = [
    "InMemoryEvaluatorHook",
    "KMeans",
    "RNNClassifier",
    "RNNEstimator",
    "make_early_stopping_hook",
    "make_stop_at_checkpoint_step_hook",
    "read_eval_metrics",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
]
