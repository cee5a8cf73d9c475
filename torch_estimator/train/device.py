"""Choice of the device that a process computes on."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from torch_estimator.cluster.environment import local_rank
from torch_estimator.errors import InvalidValueError

if TYPE_CHECKING:
    from torch_estimator.run_config import RunConfig

logger = logging.getLogger("torch_estimator")


def device_of(config: RunConfig) -> str:
    """Return the device that this process computes on, as torch names it, by `RunConfig.device`.

    ``"auto"`` takes a GPU if there is one. The processes of a host take its GPUs in turn. The processes of a cluster
    with parameter servers take the CPU, because the servers send and receive arrays of the CPU's memory.
    """
    task, wanted = config.task, config.device
    if wanted == "cpu":
        return "cpu"
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted != "auto":
        if task.num_ps:
            raise InvalidValueError(
                f'RunConfig(device="{wanted}") is a GPU, but the processes of a cluster with parameter servers compute '
                'on the CPU; give "auto" or "cpu".'
            )
        if int(wanted.partition(":")[2] or 0) >= gpus:
            raise InvalidValueError(
                f'RunConfig(device="{wanted}") names a GPU that is not there: PyTorch {torch.__version__} sees {gpus} '
                f'GPU{"" if gpus == 1 else "s"} here; give "auto" or "cpu"{", or a GPU that is" if gpus else ""}.'
            )
        if wanted != "cuda":
            return wanted
    if task.num_ps and gpus:
        logger.info("Computing on the CPU, not on a GPU, because the cluster has parameter servers.")
    if task.num_ps or not gpus:
        return "cpu"
    return f"cuda:{local_rank(task) % gpus}" if task.is_of_cluster else "cuda"
