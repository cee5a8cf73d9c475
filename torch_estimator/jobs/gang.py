"""Processes that are started again together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch_estimator.cluster.task import EVALUATOR, Task


@dataclass(slots=True)
class Gang:
    """Tasks none of which can go on without the others.

    Attributes:
        tasks: These.
        restarts: How often they have been started again.
        failures: Which of them have ended badly since then, by themselves, and with which exit status.
    """

    tasks: Sequence[Task]
    restarts: int = 0
    failures: list[tuple[str, int]] = field(default_factory=list)


def gangs_of(tasks: Sequence[Task]) -> list[Gang]:
    """Splits a job: where there are parameter servers each is alone, otherwise all that train belong together.

    >>> cluster = {"chief": ("a:1",), "worker": ("b:1",)}
    >>> tasks = [Task(type=type, cluster=cluster) for type in ("chief", "worker", "evaluator")]
    >>> [[str(task) for task in gang.tasks] for gang in gangs_of(tasks)]
    [['chief 0', 'worker 0'], ['evaluator 0']]
    """
    if any(task.num_ps for task in tasks):
        return [Gang([task]) for task in tasks]
    training = [task for task in tasks if task.type != EVALUATOR]
    return [Gang(training), *(Gang([task]) for task in tasks if task.type == EVALUATOR)]
