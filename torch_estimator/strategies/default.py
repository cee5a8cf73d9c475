"""Default strategy of a job, used if its `RunConfig` has no ``train_distribute``."""

from __future__ import annotations

from torch_estimator.run_config import RunConfig
from torch_estimator.strategies.data_parallel import MultiWorkerMirroredStrategy
from torch_estimator.strategies.parameter_server import ParameterServerStrategy
from torch_estimator.strategy import Strategy


def strategy_of(config: RunConfig) -> Strategy:
    """Return the strategy to train with: ``train_distribute`` of `config`, or else the default for the cluster."""
    if config.train_distribute is not None:
        return config.train_distribute
    return ParameterServerStrategy() if config.task.num_ps else MultiWorkerMirroredStrategy()
