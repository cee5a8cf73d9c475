"""``TF_CONFIG``, as tf.estimator, Kubeflow's TFJob and Vertex AI have it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

from torch_estimator.cluster.addresses import checked_cluster
from torch_estimator.cluster.json_text import json_object, shown
from torch_estimator.cluster.task import CHIEFS, EVALUATOR, PARAMETER_SERVER, WORKER, Task
from torch_estimator.errors import InvalidTypeError, InvalidValueError

logger = logging.getLogger("torch_estimator")

_TYPES = (*CHIEFS, WORKER, PARAMETER_SERVER, EVALUATOR)


def task_from_tf_config(text: str) -> Task:
    """Reads the text of ``TF_CONFIG``.

    Raises:
        InvalidValueError: Where it is not JSON, or names a cluster or a task that cannot be.
        InvalidTypeError: Where an entry has the wrong type.
    """
    config = json_object(text, "TF_CONFIG")
    alone = _task_alone(config)
    cluster = checked_cluster(config.get("cluster"), "TF_CONFIG['cluster']", _TYPES)
    task = config.get("task", {})
    if not isinstance(task, dict):
        raise InvalidTypeError(f"TF_CONFIG['task'] must be a JSON object, but got {shown(task)}.")
    if not cluster:
        _check_only_task(task)
        return alone
    type, index = _task_of(task, cluster)
    chiefs = [name for name in CHIEFS if name in cluster]
    trainers = cluster[chiefs[0] if chiefs else WORKER]
    return dataclasses.replace(
        alone,
        type=type,
        id=index,
        cluster=cluster,
        rendezvous=trainers[0],
        # Which need not be listed. Where all are workers, as for a MultiWorkerMirroredStrategy, they evaluate.
        has_evaluator=bool(chiefs) or EVALUATOR in cluster,
    )


def _task_alone(config: Mapping[str, Any]) -> Task:
    """What has nothing to do with a cluster."""
    service = config.get("service", {})
    if not isinstance(service, dict):
        raise InvalidTypeError(f"TF_CONFIG['service'] must be a JSON object, but got {shown(service)}.")
    model_dir = config.get("model_dir")
    if model_dir is not None and (not isinstance(model_dir, str) or not model_dir):
        raise InvalidValueError(f"TF_CONFIG['model_dir'] must be a non-empty string, but got {shown(model_dir)}.")
    if config.get("environment") == "google":
        logger.warning(
            "TF_CONFIG['environment'] is 'google', where tf.estimator started no servers; here nothing depends on it."
        )
    return Task(
        source="TF_CONFIG",
        model_dir=model_dir,
        service=service,
        session_master=_master(config, "session_master"),
        eval_session_master=_master(config, "eval_session_master"),
    )


def _master(config: Mapping[str, Any], name: str) -> str | None:
    value = config.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidTypeError(f"TF_CONFIG[{name!r}] must be an address, but got {shown(value)}.")
    if value:
        logger.warning("TF_CONFIG[%r] is %s, but nothing connects to it: there are no sessions.", name, shown(value))
    return value


def _check_only_task(task: Mapping[str, Any]) -> None:
    if task.get("type", WORKER) != WORKER:
        raise InvalidValueError(
            f"TF_CONFIG['task']['type'] must be 'worker' where there is no cluster, but got {shown(task['type'])}."
        )
    if _index(task.get("index", 0)) != 0:
        raise InvalidValueError(
            f"TF_CONFIG['task']['index'] must be 0 where there is no cluster, but got {shown(task['index'])}."
        )


def _task_of(task: Mapping[str, Any], cluster: Mapping[str, tuple[str, ...]]) -> tuple[str, int]:
    for one in CHIEFS:
        if len(cluster.get(one, ())) > 1:
            raise InvalidValueError(
                f"TF_CONFIG['cluster'][{one!r}] must be one address, but got {list(cluster[one])}; "
                "all others that train are workers."
            )
    if all(one in cluster for one in CHIEFS):
        raise InvalidValueError(
            "TF_CONFIG['cluster'] names a chief and a master, which are two names of the same; remove 'master'."
        )
    if not any(one in cluster for one in (*CHIEFS, WORKER)):
        raise InvalidValueError(
            f"TF_CONFIG['cluster'] names nobody who trains, only {', '.join(cluster)}; add a 'chief'."
        )
    type = task.get("type")
    if type is None or type == "":
        raise InvalidValueError(
            f"TF_CONFIG['task']['type'] is missing; name one of {', '.join((*cluster, EVALUATOR))}, which of the "
            "cluster this process is."
        )
    if type not in (*cluster, EVALUATOR):
        raise InvalidValueError(
            f"TF_CONFIG['task']['type'] is {shown(type)}, which is not in TF_CONFIG['cluster']; it names "
            f"{', '.join(cluster)}."
        )
    if "index" not in task:
        raise InvalidValueError(f"TF_CONFIG['task']['index'] is missing; say which {type} this process is, from 0.")
    index = _index(task["index"])
    if index < 0:
        raise InvalidValueError(f"TF_CONFIG['task']['index'] must not be negative, but got {shown(index)}.")
    if type == EVALUATOR:
        if "master" in cluster:
            raise InvalidValueError(
                "TF_CONFIG['task']['type'] is 'evaluator', but a 'master' evaluates itself; rename it to 'chief'."
            )
        return type, index
    if index >= len(cluster[type]):
        raise InvalidValueError(
            f"TF_CONFIG['task']['index'] is {shown(index)}, but TF_CONFIG['cluster'][{type!r}] has "
            f"{len(cluster[type])} {'address' if len(cluster[type]) == 1 else 'addresses'}; indices count from 0."
        )
    return type, index


def _index(value: object) -> int:
    try:
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise ValueError
        return int(value)  # type: ignore[call-overload,no-any-return]  # anything else is the error below
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidValueError(f"TF_CONFIG['task']['index'] must be an integer, but got {shown(value)}.") from error
