"""Which processes a job has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from torch_estimator.cluster.task import CHIEF, EVALUATOR, PARAMETER_SERVER, WORKER, Task
from torch_estimator.errors import InvalidValueError


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A chief, and others beside it.

    Args:
        worker_count: How many workers there are beside the chief.
        parameter_server_count: How many processes serve parameters; without any, all that train do it in step.
        evaluator: Whether a process of its own evaluates.

    Raises:
        InvalidValueError: A count is negative.
    """

    worker_count: int = 2
    parameter_server_count: int = 0
    evaluator: bool = False

    def __post_init__(self) -> None:
        for name in ("worker_count", "parameter_server_count"):
            if getattr(self, name) < 0:
                raise InvalidValueError(f"{name} must be 0 or more, but got {getattr(self, name)}.")

    @property
    def addressed(self) -> list[str]:
        """The type of each task that has an address, which is all but the evaluator; the chief first."""
        return [CHIEF] + [WORKER] * self.worker_count + [PARAMETER_SERVER] * self.parameter_server_count

    def tasks(self, addresses: Sequence[str]) -> list[Task]:
        """Returns all of them, where those of `addressed` have `addresses`, ``host:port``; the evaluator last."""
        by_type: dict[str, list[str]] = {}
        for type, address in zip(self.addressed, addresses, strict=True):
            by_type.setdefault(type, []).append(address)
        cluster = {type: tuple(each) for type, each in by_type.items()}
        tasks = [Task(type=type, id=id, cluster=cluster) for type, each in cluster.items() for id in range(len(each))]
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
