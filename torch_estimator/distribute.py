"""How a training is spread over several processes."""

from torch_estimator.strategies.mirrored import MirroredStrategy as MirroredStrategy
from torch_estimator.strategies.strategies import FullyShardedStrategy as FullyShardedStrategy
from torch_estimator.strategies.strategies import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
from torch_estimator.strategies.strategies import ParameterServerStrategy as ParameterServerStrategy
