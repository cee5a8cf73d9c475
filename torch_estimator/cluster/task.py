"""The place of a process among those of its job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch_estimator.errors import InvalidValueError

CHIEF = "chief"
MASTER = "master"
CHIEFS = (CHIEF, MASTER)
"""The types of the one task that saves checkpoints; a ``master``, which is older, evaluates them too."""

PARAMETER_SERVER = "ps"
WORKER = "worker"
EVALUATOR = "evaluator"

WAIT_SECS = 7200.0
"""How long the tasks of a cluster wait for each other where nobody says, as in tf.estimator."""

REPLICA = "replica"
"""Of a `MirroredStrategy`: the processes that one task is while it trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """This process's place: by default the only one there is, on one machine.

    Attributes:
        type: ``chief``, ``master``, ``worker``, ``ps`` or ``evaluator``; ``worker``, as tf.estimator calls it, where
            there is no cluster.
        id: Index among the tasks of its type.
        cluster: Addresses, ``host:port``, by task type; empty on one machine, and where a launcher tells ranks only.
        ranks: How many processes a launcher has started that tells ranks only; else 0.
        rendezvous: Address at which processes that train find each other, or ``file:`` and a path that they share; None
            where there is one.
        has_evaluator: Whether a process of its own evaluates; otherwise those that train do.
        source: What told so, such as ``TF_CONFIG``, for messages.
        model_dir: The job directory that the environment names, if it does.
        service: The ``service`` entry of TF_CONFIG, as it stands there.
        session_master: What TF_CONFIG calls so, which is shown only.
        eval_session_master: The same.
        device: What it computes on, as torch calls it; None for the first GPU, or else the CPU.
        is_copy: Whether it is forked from the process that is this task, which saves for both.
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
        """Whether it saves checkpoints and summaries: the chief, or the first worker where none is named."""
        if self.type in CHIEFS or self.is_copy:
            return not self.is_copy
        return self.type == WORKER and self.id == 0 and not self._has_chief

    @property
    def num_workers(self) -> int:
        """Processes that train, the chief among them; 0 for an evaluator, which is in no cluster."""
        if self.type == EVALUATOR:
            return 0
        if self.ranks:
            return self.ranks
        return sum(len(self.cluster.get(type, ())) for type in (*CHIEFS, WORKER)) or 1

    @property
    def num_ps(self) -> int:
        """Processes that serve parameters; 0 for an evaluator."""
        return 0 if self.type == EVALUATOR else len(self.cluster.get(PARAMETER_SERVER, ()))

    @property
    def global_id(self) -> int | None:
        """Index among all tasks: the chief, other types by the alphabet, ps last; None for an evaluator."""
        if self.type == EVALUATOR:
            return None
        if self.ranks:
            return self.id + (self.type == WORKER)
        order = sorted(self.cluster, key=lambda type: (type not in CHIEFS, type == PARAMETER_SERVER, type))
        before = order[: order.index(self.type)] if self.type in order else ()
        return sum(len(self.cluster[type]) for type in before) + self.id

    @property
    def rank(self) -> int:
        """Index among the processes that train, the chief first."""
        return self.id + (self.type == WORKER and self._has_chief)

    @property
    def address(self) -> str | None:
        """``host:port`` of this task, where the environment tells it."""
        addresses = self.cluster.get(self.type, ())
        return addresses[self.id] if self.id < len(addresses) else None

    @property
    def _has_chief(self) -> bool:
        return bool(self.ranks) or any(type in self.cluster for type in CHIEFS)

    def name_of_rank(self, rank: int) -> str:
        """What the cluster calls the process of a `rank`."""
        if not self._has_chief or self.type == REPLICA:
            return f"{REPLICA if self.type == REPLICA else WORKER} {rank}"
        chief = next((type for type in CHIEFS if type in self.cluster), CHIEF)
        return f"{chief} 0" if rank == 0 else f"{WORKER} {rank - 1}"

    @property
    def is_of_cluster(self) -> bool:
        """Whether there are, or may be, other processes of the same job."""
        return bool(self.cluster or self.ranks)

    def __str__(self) -> str:
        return f"{self.type} {self.id}"


def check_trains(task: Task) -> None:
    """Raises where this process should not train, or cannot do so.

    Raises:
        InvalidValueError: It is such a task.
    """
    if task.type in (PARAMETER_SERVER, EVALUATOR):
        raise InvalidValueError(
            f"{task.source} says that this process is {task}, which does not train; have all processes call "
            "train_and_evaluate."
        )


def check_has_chief(task: Task) -> None:
    """Raise where the cluster names no chief, which saves what parameter servers hold.

    Raises:
        InvalidValueError: It does not.
    """
    if task.cluster and not any(type in task.cluster for type in CHIEFS):
        how = "" if PARAMETER_SERVER in task.cluster else ", or give a train_distribute"
        raise InvalidValueError(
            f"TF_CONFIG['cluster'] must name one 'chief', but names only {', '.join(task.cluster)}; make the first "
            f"worker the chief{how}."
        )
