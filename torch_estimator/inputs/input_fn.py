"""`call_input_fn` calls a user's input function. `InputContext` describes the share of the input of one process."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch_estimator.data.arguments import check_count
from torch_estimator.data.dataset import Dataset
from torch_estimator.errors import InvalidValueError


@dataclass(frozen=True, slots=True)
class InputContext:
    """Argument ``input_context`` of an ``input_fn``: the number of processes that read input, and this process's index.

    The estimator passes it only if the ``input_fn`` has this parameter. In a job of one process, the index is 0.

    Args:
        num_input_pipelines: Number of processes that read input.
        input_pipeline_id: Number of this process among them, from 0.
        num_replicas_in_sync: Number of replicas that take a training step together.

    Raises:
        InvalidTypeError: An argument is not a whole number.
        InvalidValueError: A number is too small, or `input_pipeline_id` is too large.

    >>> def input_fn(input_context):
    ...     files = [f"part-{number}.csv" for number in range(8)]
    ...     return files[input_context.input_pipeline_id :: input_context.num_input_pipelines]
    >>> context = te.InputContext(num_input_pipelines=4, input_pipeline_id=1, num_replicas_in_sync=4)
    >>> input_fn(context)
    ['part-1.csv', 'part-5.csv']
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def __post_init__(self) -> None:
        check_count("num_input_pipelines", self.num_input_pipelines, at_least=1)
        check_count("input_pipeline_id", self.input_pipeline_id, at_least=0)
        check_count("num_replicas_in_sync", self.num_replicas_in_sync, at_least=1)
        if self.input_pipeline_id >= self.num_input_pipelines:
            raise InvalidValueError(
                f"input_pipeline_id must be less than num_input_pipelines {self.num_input_pipelines}, but got "
                f"{self.input_pipeline_id}."
            )

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Return the batch size of one replica: `global_batch_size` divided by the number of replicas.

        Args:
            global_batch_size: Rows of a step over all replicas.

        Raises:
            InvalidValueError: `global_batch_size` is not divisible by the number of replicas.

        >>> context = te.InputContext(num_input_pipelines=4, input_pipeline_id=1, num_replicas_in_sync=4)
        >>> context.get_per_replica_batch_size(256)
        64
        """
        check_count("global_batch_size", global_batch_size, at_least=1)
        if global_batch_size % self.num_replicas_in_sync:
            raise InvalidValueError(
                f"global_batch_size {global_batch_size} is not divisible by num_replicas_in_sync "
                f"{self.num_replicas_in_sync}; choose a multiple of it."
            )
        return global_batch_size // self.num_replicas_in_sync


def call_input_fn(input_fn: Callable[..., Any] | Dataset, given: Mapping[str, Any]) -> Any:
    """Call a user's ``input_fn`` with those arguments in `given` for which the function has a parameter.

    As in tf.estimator, ``*args`` and ``**kwargs`` get no arguments. Arguments that a `functools.partial` binds keep
    their values. A Dataset in place of the function is returned.
    """
    if isinstance(input_fn, Dataset):
        return input_fn
    try:
        parameters = inspect.signature(input_fn).parameters
    except (TypeError, ValueError):
        # Some functions written in C have no signature to inspect. Call such a function without arguments.
        return input_fn()
    bound = input_fn.keywords if isinstance(input_fn, functools.partial) else {}
    known = f"may take {', '.join(list(given)[:-1])} and {list(given)[-1]}"
    named: dict[str, Any] = {}
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or name in bound:
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY and parameter.default is parameter.empty:
            raise InvalidValueError(f"input_fn {known} by name, but takes {name!r} by position only.")
        if name in given and parameter.kind is not parameter.POSITIONAL_ONLY:
            named[name] = given[name]
        elif parameter.default is parameter.empty:
            raise InvalidValueError(
                f"input_fn {known}, but needs {name!r}; bind it with functools.partial(input_fn, {name}=...) or a "
                "lambda."
            )
    return input_fn(**named)
