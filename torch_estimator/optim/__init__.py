"""TensorFlow's optimizers, with the formulas and defaults of `tf.compat.v1.train`, as torch optimizers.

Each optimizer exists twice. Its class here updates tensors, in Python and in compiled steps. A function in
`torch_estimator.parameter_server.rules` updates numpy arrays: parameter servers apply optimizers themselves, and they
start in a fraction of a second because they do not import torch. `tests/parameter_server/test_rules.py` compares the
two on the same gradients.

To add an optimizer to this package:

1. Write a subclass of `Optimizer` in a file here, with `gradient_descent.py` or `adagrad.py` as a template, and import
   it below. Training in one process, in replicas and in shards then works, and so do checkpoints.
2. Write the same rule in `parameter_server/rules.py` and add it to ``RULES`` under the name of the class. The rule gets
   the parameter, the gradient, the state under the keys of ``init_state``, and the settings of the group. It changes
   the parameter and the state in place. All arrays may be rows of a table. The only 0-dimensional state that a rule may
   use is the step counter, under the key ``step``: the rule reads the counter, and the server increments it.
3. Add the optimizer to the lists in `tests/optim/test_optimizer_base.py` and `tests/parameter_server/test_rules.py`,
   and to `by_name` if users should be able to give its name.

A user's own subclass needs no registration, but does not work with parameter servers, which support only the optimizers
in ``RULES`` and those of `torch.optim`.
"""

from torch_estimator.optim.adagrad import Adagrad
from torch_estimator.optim.adam import Adam, AdamW
from torch_estimator.optim.base import Optimizer
from torch_estimator.optim.clipping import clip_gradients_by_norm, clip_gradients_by_value
from torch_estimator.optim.factories import NamedParameters, OptimizerFactory, by_name
from torch_estimator.optim.ftrl import Ftrl
from torch_estimator.optim.gradient_accumulation import accumulate
from torch_estimator.optim.gradient_descent import GradientDescent
from torch_estimator.optim.moving_averages import moving_average
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
    "accumulate",
    "by_name",
    "clip_gradients_by_norm",
    "clip_gradients_by_value",
    "moving_average",
]
