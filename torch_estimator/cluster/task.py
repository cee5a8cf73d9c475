"""Task: the role of a process in its job, such as chief or worker 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch_estimator.errors import InvalidValueError

CHIEF = "chief"
MASTER = "master"
CHIEFS = (CHIEF, MASTER)
"""Types of the one task that saves checkpoints. A ``master``, the older name, evaluates them as well."""

PARAMETER_SERVER = "ps"
WORKER = "worker"
EVALUATOR = "evaluator"

WAIT_SECS = 7200.0
"""Default time that the tasks of a cluster wait for each other, as in tf.estimator."""

REPLICA = "replica"
"""Type of a process that `MirroredStrategy` starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Role and index of a process in its job, such as worker 1; by default the job's only process.

    Attributes:
        type: ``chief``, ``master``, ``worker``, ``ps`` or ``evaluator``. Without a cluster it is ``worker``, as in
            tf.estimator.
        id: Index among the tasks of the same type.
        cluster: Addresses, ``host:port``, by task type. Empty without a cluster, and if the launcher gives ranks
            only.
        ranks: Number of processes if the launcher gives ranks only, otherwise 0.
        rendezvous: Where the training processes find each other: an address, or ``file:`` and a path that they share.
            None for a single process.
        has_evaluator: Whether a separate process evaluates. Otherwise the training processes do.
        source: Variable that described the task, such as ``TF_CONFIG``, for messages.
        model_dir: Model directory given by the environment, or None.
        service: The ``service`` entry of TF_CONFIG, unchanged.
        session_master: The entry of this name in TF_CONFIG, which has no effect.
        eval_session_master: The entry of this name in TF_CONFIG, which has no effect.
        device: Device to compute on, as torch names it. None leaves the choice to ``RunConfig.device``.
        is_copy: Whether the process was forked from the process of this task. The original process saves for both.
    """

    type: str = WORKER
    id: int = 0
    cluster: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ranks: int = 0
    rendezvous: str | None = None
    has_evaluator: bool = False
    source: str | None = None
    model_dir: str | None = None
    service: Mapping[str, Any] = field(default_factory=dict)
    session_master: str | None = None
    eval_session_master: str | None = None
    device: str | None = None
    is_copy: bool = False

    @property
    def is_chief(self) -> bool:
        """Whether this task saves checkpoints and summaries: the chief, or worker 0 of a cluster without a chief."""
        if self.type in CHIEFS or self.is_copy:
            return not self.is_copy
        return self.type == WORKER and self.id == 0 and not self._has_chief

    @property
    def num_workers(self) -> int:
        """Number of training processes, the chief included; 0 for an evaluator, which is outside the cluster."""
        if self.type == EVALUATOR:
            return 0
        if self.ranks:
            return self.ranks
        return sum(len(self.cluster.get(type, ())) for type in (*CHIEFS, WORKER)) or 1

    @property
    def num_ps(self) -> int:
        """Number of parameter servers; 0 for an evaluator."""
        return 0 if self.type == EVALUATOR else len(self.cluster.get(PARAMETER_SERVER, ()))

    @property
    def global_id(self) -> int | None:
        """Index among all tasks, ordered as in tf.estimator; None for an evaluator.

        The chief comes first, then the other types by name, then the parameter servers.
        """
        if self.type == EVALUATOR:
            return None
        if self.ranks:
            return self.id + (self.type == WORKER)
        order = sorted(self.cluster, key=lambda type: (type not in CHIEFS, type == PARAMETER_SERVER, type))
        before = order[: order.index(self.type)] if self.type in order else ()
        return sum(len(self.cluster[type]) for type in before) + self.id

    @property
    def rank(self) -> int:
        """Index among the training processes, the chief first."""
        return self.id + (self.type == WORKER and self._has_chief)

    @property
    def address(self) -> str | None:
        """Address of this task, ``host:port``, or None if the environment does not give one."""
        addresses = self.cluster.get(self.type, ())
        return addresses[self.id] if self.id < len(addresses) else None

    @property
    def _has_chief(self) -> bool:
        return bool(self.ranks) or any(type in self.cluster for type in CHIEFS)

    def name_of_rank(self, rank: int) -> str:
        """Return the name of a training process, such as ``worker 0``, given its rank."""
        if not self._has_chief or self.type == REPLICA:
            return f"{REPLICA if self.type == REPLICA else WORKER} {rank}"
        chief = next((type for type in CHIEFS if type in self.cluster), CHIEF)
        return f"{chief} 0" if rank == 0 else f"{WORKER} {rank - 1}"

    @property
    def is_of_cluster(self) -> bool:
        """Whether the job has, or may have, other processes."""
        return bool(self.cluster or self.ranks)

    def __str__(self) -> str:
        return f"{self.type} {self.id}"


def role_of(task: Task) -> str:
    """Return how files and events of a job name a task; the only one of a job without a cluster is its chief.

    >>> role_of(Task(type="worker", id=1, cluster={"worker": ("a:1", "b:1")})), role_of(Task())
    ('worker-1', 'chief-0')
    """
    return f"{task.type if task.is_of_cluster else CHIEF}-{task.id}"


class ClusterSpec(dict[str, list[str]]):
    """Addresses, ``host:port``, by task type: a dict with the methods of ``tf.train.ClusterSpec``.

    >>> ClusterSpec(chief=["a:1"], worker=["b:1", "c:1"]).num_tasks("worker")
    2
    """

    @property
    def jobs(self) -> list[str]:
        """Task types that the cluster has, such as ``worker``."""
        return list(self)

    def as_dict(self) -> dict[str, list[str]]:
        """Return a copy of the addresses as a plain dict."""
        return {type: list(addresses) for type, addresses in self.items()}

    def num_tasks(self, job_name: str) -> int:
        """Return the number of tasks of a type."""
        return len(self[job_name])

    def job_tasks(self, job_name: str) -> list[str]:
        """Return the addresses of the tasks of a type."""
        return list(self[job_name])

    def task_address(self, job_name: str, task_index: int) -> str:
        """Return the address of the task with this type and index."""
        return self[job_name][task_index]


def check_trains(task: Task) -> None:
    """Check that `task` is a task that trains, that is, the chief or a worker."""
    if task.type in (PARAMETER_SERVER, EVALUATOR):
        raise InvalidValueError(
            f"{task.source} says that this process is {task}, which does not train; have all processes call "
            "train_and_evaluate."
        )


def check_has_chief(task: Task) -> None:
    """Check that the cluster, if there is one, names a chief, which saves the parameters of parameter servers."""
    if task.cluster and not any(type in task.cluster for type in CHIEFS):
        how = "" if PARAMETER_SERVER in task.cluster else ", or give a train_distribute"
        raise InvalidValueError(
            f"TF_CONFIG['cluster'] must name one 'chief', but names only {', '.join(task.cluster)}; make the first "
            f"worker the chief{how}."
        )
