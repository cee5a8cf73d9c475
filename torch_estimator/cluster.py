"""Which task of which job this process is, as the environment tells it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch_estimator.errors import InvalidTypeError, InvalidValueError


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """This process's place: the only one there is, on one machine.

    Attributes:
        type: ``worker``, as tf.estimator calls a process without a cluster.
        id: Index among the tasks of its type.
        model_dir: The job directory that the environment names, if it does.
        service: The ``service`` entry of TF_CONFIG, as it stands there.
    """

    type: str = "worker"
    id: int = 0
    model_dir: str | None = None
    service: Mapping[str, Any] = field(default_factory=dict)


def task_from_environment(environ: Mapping[str, str] = os.environ) -> Task:
    """Reads ``TF_CONFIG``.

    Raises:
        InvalidValueError: Where it is not JSON, or names what one process without a cluster cannot be.
        InvalidTypeError: Where an entry has the wrong type.
    """
    if "TF_CONFIG" not in environ:
        return Task()
    text = environ["TF_CONFIG"]
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidValueError(f"TF_CONFIG is not JSON ({error}): {text!r}.") from error
    if not isinstance(config, dict):
        raise InvalidTypeError(f"TF_CONFIG must be a JSON object, but got {text!r}.")
    if config.get("cluster"):
        raise InvalidValueError(
            "TF_CONFIG names a cluster, but this version of torch-estimator runs a job on one machine only; "
            "remove the key 'cluster' from TF_CONFIG."
        )
    task = config.get("task", {})
    if not isinstance(task, dict):
        raise InvalidTypeError(f"TF_CONFIG['task'] must be a JSON object, but got {task!r}.")
    if task.get("type", "worker") != "worker":
        raise InvalidValueError(
            f"TF_CONFIG['task']['type'] must be 'worker' where there is no cluster, but got {task['type']!r}."
        )
    if _as_int(task.get("index", 0)) != 0:
        raise InvalidValueError(
            f"TF_CONFIG['task']['index'] must be 0 where there is no cluster, but got {task['index']!r}."
        )
    service = config.get("service", {})
    if not isinstance(service, dict):
        raise InvalidTypeError(f"TF_CONFIG['service'] must be a JSON object, but got {service!r}.")
    model_dir = config.get("model_dir")
    if model_dir is not None and (not isinstance(model_dir, str) or not model_dir):
        raise InvalidValueError(f"TF_CONFIG['model_dir'] must be a non-empty string, but got {model_dir!r}.")
    return Task(model_dir=model_dir, service=service)


def _as_int(value: object) -> int:
    try:
        return int(value)  # type: ignore[call-overload,no-any-return]  # anything else is the error below
    except (TypeError, ValueError) as error:
        raise InvalidValueError(f"TF_CONFIG['task']['index'] must be an integer, but got {value!r}.") from error
