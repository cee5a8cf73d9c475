"""Checks of settings and of the cluster, shared by the strategies."""

from __future__ import annotations

from torch_estimator.cluster.task import Task
from torch_estimator.errors import InvalidTypeError, InvalidValueError


def check_silence(secs: object) -> None:
    """Raise an error if the argument ``silence_secs`` of a strategy is not a positive number."""
    if not isinstance(secs, int | float) or isinstance(secs, bool):
        raise InvalidTypeError(f"silence_secs must be a number, but got {secs!r}.")
    if not secs > 0:
        raise InvalidValueError(f"silence_secs must be positive, but got {secs}.")


def refuse_parameter_servers(strategy: object, task: Task) -> None:
    """Raise an error if the cluster has parameter servers, since `strategy` does not use any."""
    if task.num_ps:
        raise InvalidValueError(
            f"train_distribute is a {type(strategy).__name__}, but {task.source} names {task.num_ps} parameter "
            "servers, which it does not use; leave 'ps' out of the cluster, or train_distribute out of RunConfig."
        )
