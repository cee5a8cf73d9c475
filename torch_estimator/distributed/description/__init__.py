"""What a training is, as text: processes that train together compare it before they begin."""

from torch_estimator.distributed.description.difference import CLUSTER, difference, digest_of
from torch_estimator.distributed.description.training import (
    Description,
    Trainers,
    describe_optimizers,
    describe_training,
)

__all__ = ["CLUSTER", "Description", "Trainers", "describe_optimizers", "describe_training", "difference", "digest_of"]
