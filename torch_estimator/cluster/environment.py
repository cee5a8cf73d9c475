"""Task of this process, read from environment variables: TF_CONFIG, CLUSTER_SPEC, RANK, or Slurm's variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from torch_estimator.cluster.addresses import bracketed, split_address
from torch_estimator.cluster.task import CHIEFS, WORKER, Task
from torch_estimator.cluster.tf_config import task_from_cluster_spec, task_from_tf_config
from torch_estimator.errors import InvalidValueError
from torch_estimator.json_text import shortened

SLURM = "SLURM_PROCID"
"""`Task.source` of a task that Slurm started."""

_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
_MOST_DIGITS = 18

# These ports are above those of system services, and below those that Linux gives to outgoing connections.
_FIRST_SLURM_PORT = 12_000
_SLURM_PORTS = 20_000


def task_from_environment(environ: Mapping[str, str] = os.environ) -> Task:
    """Return this process's task, that is, its role in the job, as the environment variables describe it.

    The first of these variables that is set decides:

    1. ``TF_CONFIG``: tf.estimator, Kubeflow's TFJob, ``estimator local train``.
    2. ``CLUSTER_SPEC``: Vertex AI.
    3. ``RANK`` and ``WORLD_SIZE``: torchrun, Ray Train, Kubeflow's PyTorchJob, wrappers of ``mpirun``.
    4. ``SLURM_PROCID`` and ``SLURM_STEP_NUM_TASKS``: a Slurm job step.

    Without any of them the process is the only one of its job.

    >>> str(task_from_environment({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "host", "MASTER_PORT": "29500"}))
    'worker 0'
    """
    if "TF_CONFIG" in environ:
        return task_from_tf_config(environ["TF_CONFIG"])
    if "CLUSTER_SPEC" in environ:
        return task_from_cluster_spec(environ["CLUSTER_SPEC"])
    return task_from_ranks(environ) or task_from_slurm(environ) or Task()


def task_from_ranks(environ: Mapping[str, str]) -> Task | None:
    """Return the task that torch.distributed's ``env://`` variables describe; None if RANK or WORLD_SIZE is not set."""
    if not (environ.get("RANK") and environ.get("WORLD_SIZE")):
        return None
    missing = [name for name in _RANK_VARIABLES if not environ.get(name)]
    ranks = _whole_number(environ, "WORLD_SIZE", at_least=1)
    rank = _whole_number(environ, "RANK", below=ranks)
    if ranks == 1:
        return Task(source="RANK and WORLD_SIZE")
    if missing:
        raise InvalidValueError(
            f"WORLD_SIZE is {ranks}, but {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set; name "
            "the host and a free port of rank 0, as torchrun does."
        )
    rendezvous = f"{bracketed(environ['MASTER_ADDR'])}:{environ['MASTER_PORT']}"
    split_address(rendezvous, "MASTER_ADDR:MASTER_PORT")
    return _task_of_rank(rank, ranks, rendezvous, "RANK and WORLD_SIZE")


def task_from_slurm(environ: Mapping[str, str]) -> Task | None:
    """Return the task that Slurm's variables describe; None if ``srun`` has not started this process.

    A batch script itself is therefore a job of one process. The ranks find each other at ``MASTER_ADDR`` and
    ``MASTER_PORT``. By default that is the first node of the step, and a port computed from the numbers of the job and
    the step, so that all ranks choose the same one.
    """
    if "SLURM_STEP_NUM_TASKS" not in environ or "SLURM_PROCID" not in environ:
        return None
    ranks = _whole_number(environ, "SLURM_STEP_NUM_TASKS", at_least=1)
    rank = _whole_number(environ, "SLURM_PROCID", below=ranks)
    if ranks == 1:
        return Task(source=SLURM)
    host = environ.get("MASTER_ADDR") or _first_slurm_host(environ)
    if "MASTER_PORT" in environ:
        port = _whole_number(environ, "MASTER_PORT", at_least=1, below=65_536)
    else:
        job, step = (
            _whole_number(environ, name) if name in environ else 0 for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")
        )
        port = _FIRST_SLURM_PORT + (job + 97 * step) % _SLURM_PORTS
    rendezvous = f"{bracketed(host)}:{port}"
    split_address(rendezvous, "MASTER_ADDR:MASTER_PORT")
    return _task_of_rank(rank, ranks, rendezvous, SLURM)


def check_trains_alone(environ: Mapping[str, str]) -> None:
    """Check that this process may train alone although only one of ``RANK`` and ``WORLD_SIZE`` is set.

    Some tools set ``RANK=0`` or ``WORLD_SIZE=1`` for every process, which is harmless. Other values, and ``RANK=0``
    with a ``MASTER_ADDR``, mean that the job has several processes, which do not know enough to find each other.
    """
    for name, other, alone in (("RANK", "WORLD_SIZE", "0"), ("WORLD_SIZE", "RANK", "1")):
        given = environ.get(name)
        if not given or environ.get(other):
            continue
        if given != alone or (name == "RANK" and environ.get("MASTER_ADDR")):
            raise InvalidValueError(
                f"{name} is {shortened(given)}, but {other} is not set, without which every process would train alone; "
                f"set both, as torchrun does, or unset {name} where this is the only process."
            )


def local_rank(task: Task, environ: Mapping[str, str] = os.environ) -> int:
    """Return the index of this process among the training processes of its host, by which it takes one of the GPUs.

    ``LOCAL_RANK`` gives it, or the variable of Slurm or Open MPI if the job has ranks. In a cluster of addresses it is
    the number of the training processes before this one with the same host.
    """
    for name in ("LOCAL_RANK", *(_LOCAL_RANKS if task.ranks else ())):
        if environ.get(name):
            return _whole_number(environ, name)
    if task.address is None or task.type not in (*CHIEFS, WORKER):
        return 0
    trains = [address for type in (*CHIEFS, WORKER) for address in task.cluster.get(type, ())]
    hosts = [split_address(address, "cluster")[0] for address in trains[: task.rank + 1]]
    return hosts.count(hosts[-1]) - 1


def _task_of_rank(rank: int, ranks: int, rendezvous: str, source: str) -> Task:
    """Return the task of a rank: the chief for rank 0, worker n - 1 for rank n. A job of ranks has no evaluator."""
    type, index = ("chief", 0) if rank == 0 else (WORKER, rank - 1)
    return Task(type=type, id=index, ranks=ranks, rendezvous=rendezvous, source=source)


def _whole_number(environ: Mapping[str, str], name: str, *, at_least: int = 0, below: int | None = None) -> int:
    text = environ[name]
    wanted = f"at least {at_least}" if below is None else f"from {at_least} to {below - 1}"
    number = int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else -1
    if number < at_least or (below is not None and number >= below):
        raise InvalidValueError(f"{name} must be a whole number {wanted}, but got {shortened(text)}.")
    return number


def _first_slurm_host(environ: Mapping[str, str]) -> str:
    """Return the first host of a node list such as ``rack[2,4-6]-ib,login``: here ``rack2-ib``."""
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
    found = re.match(r"([\w.-]+)(?:\[(\w+)[^\]]*\]([\w.-]*))?(?:,|$)", nodes)
    if found is None:
        raise InvalidValueError(
            f"SLURM_STEP_NODELIST is {nodes!r}, of which the first node is not clear; set MASTER_ADDR to its name."
        )
    return "".join(part or "" for part in found.groups())
