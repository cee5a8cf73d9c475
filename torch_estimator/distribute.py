"""Strategies for ``RunConfig(train_distribute=...)``, in a module with the name of ``tf.distribute``."""

from torch_estimator.strategies.data_parallel import MultiWorkerMirroredStrategy
from torch_estimator.strategies.fully_sharded import FullyShardedStrategy
from torch_estimator.strategies.mirrored import MirroredStrategy
from torch_estimator.strategies.parameter_server import ParameterServerStrategy
from torch_estimator.strategy import Strategy

__all__ = [
    "FullyShardedStrategy",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "Strategy",
]
