"""Clusters described in JSON: ``TF_CONFIG``, and Vertex AI's ``CLUSTER_SPEC``."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Mapping
from typing import Any

from torch_estimator.cluster.addresses import checked_cluster
from torch_estimator.cluster.task import CHIEF, CHIEFS, EVALUATOR, PARAMETER_SERVER, WORKER, Task
from torch_estimator.errors import InvalidTypeError, InvalidValueError, UserError
from torch_estimator.json_text import json_object, shortened

logger = logging.getLogger("torch_estimator")

_PLACE = ("type", "index")

_TYPES = (*CHIEFS, WORKER, PARAMETER_SERVER, EVALUATOR)

# Vertex AI has one pool of replicas per role. The number in the name of a pool decides its role.
_TYPE_OF_POOL = {
    "workerpool0": CHIEF,
    "workerpool1": WORKER,
    "workerpool2": PARAMETER_SERVER,
    "workerpool3": EVALUATOR,
}


def tf_config_of(task: Task, launcher: str = "{}") -> str:
    """Return the value of ``TF_CONFIG`` for the process that runs `task`.

    What that of the launcher says of its own task beside type and index, such as ``trial``, is passed on.

    >>> tf_config_of(Task(type="chief", cluster={"chief": ("localhost:2222",)}))
    '{"cluster": {"chief": ["localhost:2222"]}, "task": {"type": "chief", "index": 0}}'
    >>> tf_config_of(Task())
    '{"cluster": {}, "task": {}}'
    """
    place: dict[str, Any] = {"type": task.type, "index": task.id} if task.is_of_cluster else {}
    try:
        own = json_object(launcher, "TF_CONFIG").get("task")
    except UserError:
        # The launcher itself is no task, so that its variable may be of somebody else.
        own = None
    passed_on = {key: value for key, value in own.items() if key not in _PLACE} if isinstance(own, dict) else {}
    return json.dumps({"cluster": task.cluster, "task": {**place, **passed_on}})


def task_from_tf_config(text: str) -> Task:
    """Return the task that the text of ``TF_CONFIG`` describes.

    >>> task = task_from_tf_config('{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}')
    >>> str(task), task.address, task.rendezvous
    ('worker 1', 'b:1', 'a:1')
    """
    config = json_object(text, "TF_CONFIG")
    alone = _task_without_cluster(config)
    cluster = checked_cluster(config.get("cluster"), "TF_CONFIG['cluster']", _TYPES)
    task = config.get("task", {})
    if not isinstance(task, dict):
        raise InvalidTypeError(f"TF_CONFIG['task'] must be a JSON object, but got {shortened(task)}.")
    if not cluster:
        _check_only_task(task)
        return alone
    _check_roles(cluster)
    type, index = _type_and_index(task, cluster)
    chiefs = [name for name in CHIEFS if name in cluster]
    trainers = cluster[chiefs[0] if chiefs else WORKER]
    return dataclasses.replace(
        alone,
        type=type,
        id=index,
        cluster=cluster,
        rendezvous=trainers[0],
        # A cluster with a chief has an evaluator, even if TF_CONFIG does not list it. A cluster without a
        # chief has an evaluator only if TF_CONFIG lists it; otherwise worker 0 evaluates.
        has_evaluator=bool(chiefs) or EVALUATOR in cluster,
    )


def task_from_cluster_spec(text: str) -> Task:
    """Return the task that the text of Vertex AI's ``CLUSTER_SPEC`` describes. A single replica is no cluster."""
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
    # Compare the types, because isinstance would accept True, which is an int in Python.
    if pool not in tuple(pools) or type(index) is not int or not 0 <= index < len(pools[pool]):
        raise InvalidValueError(
            f"CLUSTER_SPEC['task'] must name the type and the index of a replica in CLUSTER_SPEC['cluster'], which has "
            f"{', '.join(f'{len(addresses)} in {name}' for name, addresses in pools.items())}, but got "
            f"{shortened(task)}."
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


def _task_without_cluster(config: Mapping[str, Any]) -> Task:
    """Return a task without a cluster, made of the other entries of TF_CONFIG; warn about entries without effect."""
    service = config.get("service", {})
    if not isinstance(service, dict):
        raise InvalidTypeError(f"TF_CONFIG['service'] must be a JSON object, but got {shortened(service)}.")
    model_dir = config.get("model_dir")
    if model_dir is not None and (not isinstance(model_dir, str) or not model_dir):
        raise InvalidValueError(f"TF_CONFIG['model_dir'] must be a non-empty string, but got {shortened(model_dir)}.")
    if config.get("environment") == "google":
        logger.warning(
            "TF_CONFIG['environment'] is 'google', where tf.estimator started no servers; here nothing depends on it."
        )
    return Task(
        source="TF_CONFIG",
        model_dir=model_dir,
        service=service,
        session_master=_session_master(config, "session_master"),
        eval_session_master=_session_master(config, "eval_session_master"),
    )


def _session_master(config: Mapping[str, Any], name: str) -> str | None:
    value = config.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidTypeError(f"TF_CONFIG[{name!r}] must be an address, but got {shortened(value)}.")
    if value:
        logger.warning(
            "TF_CONFIG[%r] is %s, but nothing connects to it: there are no sessions.", name, shortened(value)
        )
    return value


def _check_only_task(task: Mapping[str, Any]) -> None:
    """Check the task in a TF_CONFIG without a cluster: it can only be worker 0."""
    if task.get("type", WORKER) != WORKER:
        raise InvalidValueError(
            f"TF_CONFIG['task']['type'] must be 'worker' where there is no cluster, but got {shortened(task['type'])}."
        )
    if _index(task.get("index", 0)) != 0:
        raise InvalidValueError(
            f"TF_CONFIG['task']['index'] must be 0 where there is no cluster, but got {shortened(task['index'])}."
        )


def _check_roles(cluster: Mapping[str, tuple[str, ...]]) -> None:
    """Check that the cluster has a task that trains, and at most one chief."""
    for name in CHIEFS:
        if len(cluster.get(name, ())) > 1:
            raise InvalidValueError(
                f"TF_CONFIG['cluster'][{name!r}] must be one address, but got {list(cluster[name])}; "
                "all others that train are workers."
            )
    if all(name in cluster for name in CHIEFS):
        raise InvalidValueError(
            "TF_CONFIG['cluster'] names a chief and a master, which are two names of the same; remove 'master'."
        )
    if not any(name in cluster for name in (*CHIEFS, WORKER)):
        raise InvalidValueError(
            f"TF_CONFIG['cluster'] has no task that trains, only {', '.join(cluster)}; add a 'chief'."
        )


def _type_and_index(task: Mapping[str, Any], cluster: Mapping[str, tuple[str, ...]]) -> tuple[str, int]:
    """Return the checked type and index of the task. An evaluator need not be listed in the cluster."""
    type = task.get("type")
    if type is None or type == "":
        raise InvalidValueError(
            f"TF_CONFIG['task']['type'] is missing; name one of {', '.join((*cluster, EVALUATOR))}, which of the "
            "cluster this process is."
        )
    if type not in (*cluster, EVALUATOR):
        raise InvalidValueError(
            f"TF_CONFIG['task']['type'] is {shortened(type)}, which is not in TF_CONFIG['cluster']; it names "
            f"{', '.join(cluster)}."
        )
    if "index" not in task:
        raise InvalidValueError(f"TF_CONFIG['task']['index'] is missing; say which {type} this process is, from 0.")
    index = _index(task["index"])
    if index < 0:
        raise InvalidValueError(f"TF_CONFIG['task']['index'] must not be negative, but got {shortened(index)}.")
    if type == EVALUATOR:
        if "master" in cluster:
            raise InvalidValueError(
                "TF_CONFIG['task']['type'] is 'evaluator', but a 'master' evaluates itself; rename it to 'chief'."
            )
        return type, index
    if index >= len(cluster[type]):
        raise InvalidValueError(
            f"TF_CONFIG['task']['index'] is {shortened(index)}, but TF_CONFIG['cluster'][{type!r}] has "
            f"{len(cluster[type])} {'address' if len(cluster[type]) == 1 else 'addresses'}; indices count from 0."
        )
    return type, index


def _index(value: object) -> int:
    """Return the index of a task as a number. Some launchers write the index as a string."""
    try:
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise ValueError
        return int(value)  # type: ignore[call-overload,no-any-return]  # anything else is the error below
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidValueError(
            f"TF_CONFIG['task']['index'] must be an integer, but got {shortened(value)}."
        ) from error
