"""A Slurm job step: ``srun`` starts a task for every rank."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch_estimator.cluster.addresses import bracketed, split_address
from torch_estimator.cluster.ranks import task_of_rank, whole_number
from torch_estimator.cluster.task import Task
from torch_estimator.errors import InvalidValueError

SLURM = "SLURM_PROCID"
"""The source of such tasks."""

# Above those of system services, below those that the kernel hands out itself.
_FIRST_PORT = 12_000
_PORTS = 20_000


def task_from_slurm(environ: Mapping[str, str]) -> Task | None:
    """Reads what ``srun`` sets; None outside of a job step, so that a batch script itself is a job of one process.

    The ranks find each other on the step's first node, at a port that follows from the number of the job and of the
    step, or at ``MASTER_ADDR`` and ``MASTER_PORT`` where these are set.

    Raises:
        InvalidValueError: A variable is missing or cannot be understood.
    """
    if "SLURM_STEP_NUM_TASKS" not in environ or "SLURM_PROCID" not in environ:
        return None
    ranks = whole_number(environ, "SLURM_STEP_NUM_TASKS", at_least=1)
    rank = whole_number(environ, "SLURM_PROCID", below=ranks)
    if ranks == 1:
        return Task(source=SLURM)
    host = environ.get("MASTER_ADDR") or _first_host(environ)
    if "MASTER_PORT" in environ:
        port = whole_number(environ, "MASTER_PORT", at_least=1, below=65_536)
    else:
        job, step = (
            whole_number(environ, name) if name in environ else 0 for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")
        )
        port = _FIRST_PORT + (job + 97 * step) % _PORTS
    rendezvous = f"{bracketed(host)}:{port}"
    split_address(rendezvous, "MASTER_ADDR:MASTER_PORT")
    return task_of_rank(rank, ranks, rendezvous, SLURM)


def _first_host(environ: Mapping[str, str]) -> str:
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
    found = re.match(r"([\w.-]+)(?:\[(\w+)[^\]]*\]([\w.-]*))?(?:,|$)", nodes)
    if found is None:
        raise InvalidValueError(
            f"SLURM_STEP_NODELIST is {nodes!r}, of which the first node is not clear; set MASTER_ADDR to its name."
        )
    return "".join(part or "" for part in found.groups())
