"""One answer from whatever has started this process."""

from __future__ import annotations

import os
from collections.abc import Mapping

from torch_estimator.cluster.ranks import task_from_ranks
from torch_estimator.cluster.slurm import task_from_slurm
from torch_estimator.cluster.task import Task
from torch_estimator.cluster.tf_config import task_from_tf_config
from torch_estimator.cluster.vertex import task_from_cluster_spec


def task_from_environment(environ: Mapping[str, str] = os.environ) -> Task:
    """Tells which task of which job this process is.

    Asked in this order, and the first that is there decides: ``TF_CONFIG``; Vertex AI's ``CLUSTER_SPEC``; ``RANK`` and
    ``WORLD_SIZE``, which torchrun, Ray Train and Kubeflow's PyTorchJob set; a Slurm job step.

    Raises:
        InvalidValueError: Where what is there cannot be understood.
        InvalidTypeError: Where an entry of JSON has the wrong type.
    """
    if "TF_CONFIG" in environ:
        return task_from_tf_config(environ["TF_CONFIG"])
    if "CLUSTER_SPEC" in environ:
        return task_from_cluster_spec(environ["CLUSTER_SPEC"])
    return task_from_ranks(environ) or task_from_slurm(environ) or Task()
