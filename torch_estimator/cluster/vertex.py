"""``CLUSTER_SPEC`` of Vertex AI: pools of replicas instead of types of tasks."""

from __future__ import annotations

from torch_estimator.cluster.addresses import checked_cluster
from torch_estimator.cluster.json_text import json_object, shown
from torch_estimator.cluster.task import EVALUATOR, PARAMETER_SERVER, WORKER, Task
from torch_estimator.errors import InvalidValueError

_TYPE_OF_POOL = {
    "workerpool0": "chief",
    "workerpool1": WORKER,
    "workerpool2": PARAMETER_SERVER,
    "workerpool3": EVALUATOR,
}


def task_from_cluster_spec(text: str) -> Task:
    """Reads the text of ``CLUSTER_SPEC``; a job of one replica is one without a cluster.

    Raises:
        InvalidValueError: Where it is not JSON, or names a cluster or a task that cannot be.
        InvalidTypeError: Where an entry has the wrong type.
    """
    config = json_object(text, "CLUSTER_SPEC")
    pools = checked_cluster(config.get("cluster"), "CLUSTER_SPEC['cluster']", tuple(_TYPE_OF_POOL))
    if not pools:
        return Task(source="CLUSTER_SPEC")
    if len(pools.get("workerpool0", ())) != 1:
        raise InvalidValueError(
            "CLUSTER_SPEC['cluster']['workerpool0'] must be one address, that of the chief, but got "
            f"{list(pools.get('workerpool0', ()))}."
        )
    task = config.get("task")
    pool, index = (task.get("type"), task.get("index")) if isinstance(task, dict) else (None, None)
    # True is a whole number of Python's, too.
    if pool not in tuple(pools) or type(index) is not int or not 0 <= index < len(pools[pool]):
        raise InvalidValueError(
            f"CLUSTER_SPEC['task'] must name the type and the index of a replica in CLUSTER_SPEC['cluster'], which has "
            f"{', '.join(f'{len(addresses)} in {name}' for name, addresses in pools.items())}, but got {shown(task)}."
        )
    if len(pools) == 1:
        return Task(source="CLUSTER_SPEC")
    return Task(
        type=_TYPE_OF_POOL[pool],
        id=index,
        cluster={_TYPE_OF_POOL[name]: addresses for name, addresses in pools.items()},
        rendezvous=pools["workerpool0"][0],
        has_evaluator="workerpool3" in pools,
        source="CLUSTER_SPEC",
    )
