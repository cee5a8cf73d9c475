"""What wraps an Estimator: further metrics, and features and inner layers given back with the predictions.

Every function here returns a new Estimator of the same job: the same ``model_dir``, config and params. The one it is
given stays as it is.
"""

from torch_estimator.estimator_wrappers.features import forward_features
from torch_estimator.estimator_wrappers.layers import forward_layers
from torch_estimator.estimator_wrappers.metrics import add_metrics

__all__ = ["add_metrics", "forward_features", "forward_layers"]
