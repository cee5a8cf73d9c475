"""tf.estimator's train-and-evaluate system on PyTorch.

``__init__.pyi`` lists the public names. Each is imported when it is first used, so that the command line and a
parameter server start without PyTorch.
"""

from __future__ import annotations

import lazy_loader

from torch_estimator.log import set_up_logging
from torch_estimator.torch_import import without_collections

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = without_collections(__getattr__)

set_up_logging()
