"""How a training is spread over several processes."""

from torch_estimator.distribute.mirrored_strategy import MirroredStrategy as MirroredStrategy
from torch_estimator.distribute.strategies import FullyShardedStrategy as FullyShardedStrategy
from torch_estimator.distribute.strategies import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
from torch_estimator.distribute.strategies import ParameterServerStrategy as ParameterServerStrategy
