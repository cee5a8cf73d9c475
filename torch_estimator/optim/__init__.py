"""TensorFlow's optimizers, with the formulas and defaults of `tf.compat.v1.train`, as torch optimizers."""

from torch_estimator.optim.adagrad import Adagrad
from torch_estimator.optim.adam import Adam
from torch_estimator.optim.adamw import AdamW
from torch_estimator.optim.base import Optimizer
from torch_estimator.optim.by_name import by_name
from torch_estimator.optim.clipping import clip_gradients_by_norm, clip_gradients_by_value
from torch_estimator.optim.factories import NamedParameters, OptimizerFactory
from torch_estimator.optim.ftrl import Ftrl
from torch_estimator.optim.gradient_descent import GradientDescent
from torch_estimator.optim.rmsprop import RMSProp

SGD = GradientDescent

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Ftrl",
    "GradientDescent",
    "NamedParameters",
    "Optimizer",
    "OptimizerFactory",
    "RMSProp",
    "by_name",
    "clip_gradients_by_norm",
    "clip_gradients_by_value",
]
