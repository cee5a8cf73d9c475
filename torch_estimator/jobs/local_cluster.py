"""A cluster of processes on this machine."""

from __future__ import annotations

import json
from dataclasses import dataclass

from torch_estimator.cluster.task import CHIEF, EVALUATOR, PARAMETER_SERVER, WORKER, Task
from torch_estimator.errors import InvalidValueError
from torch_estimator.jobs.ports import free_ports


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCluster:
    """A chief, and others beside it.

    Args:
        worker_count: How many workers there are beside the chief.
        parameter_server_count: How many processes serve parameters; without any, all that train do it in step.
        evaluator: Whether a process of its own evaluates.
        start_port: The first of consecutive ports; by default any free ones.

    Raises:
        InvalidValueError: A count is negative.
    """

    worker_count: int = 2
    parameter_server_count: int = 0
    evaluator: bool = False
    start_port: int | None = None

    def __post_init__(self) -> None:
        for name in ("worker_count", "parameter_server_count"):
            if getattr(self, name) < 0:
                raise InvalidValueError(f"{name} must be 0 or more, but got {getattr(self, name)}.")

    def tasks(self) -> list[Task]:
        """Returns all of them, the chief first.

        Raises:
            InvalidValueError: Ports cannot be used.
        """
        counts = {CHIEF: 1, WORKER: self.worker_count, PARAMETER_SERVER: self.parameter_server_count}
        ports = iter(free_ports(sum(counts.values()), self.start_port))
        cluster = {
            type: tuple(f"localhost:{next(ports)}" for _ in range(count)) for type, count in counts.items() if count
        }
        tasks = [
            Task(type=type, id=index, cluster=cluster)
            for type, addresses in cluster.items()
            for index in range(len(addresses))
        ]
        if self.evaluator:
            tasks.append(Task(type=EVALUATOR, cluster=cluster))
        return tasks


def tf_config(task: Task) -> str:
    """Returns what tells a process that it is `task`.

    >>> tf_config(Task(type="chief", cluster={"chief": ("localhost:2222",)}))
    '{"cluster": {"chief": ["localhost:2222"]}, "task": {"type": "chief", "index": 0}}'
    >>> tf_config(Task())
    '{"cluster": {}, "task": {}}'
    """
    place = {"type": task.type, "index": task.id} if task.is_of_cluster else {}
    return json.dumps({"cluster": task.cluster, "task": place})
