"""`FinalOpsHook`: values that are computed once, at the end of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch_estimator.errors import InvalidTypeError
from torch_estimator.hooks.hook import Hook, RunContext
from torch_estimator.hooks.observable import as_arrays

Op = Callable[[RunContext], Any]


class FinalOpsHook(Hook):
    """Hook that calls functions after the last step and keeps their results in `final_ops_values`.

    Args:
        final_ops: A function that takes the `RunContext`, or a dict or list of such functions.

    Raises:
        InvalidTypeError: The argument is something else.

    >>> hook = te.FinalOpsHook({"step": lambda context: context.global_step})
    >>> estimator = te.BaselineRegressor("memory://FinalOpsHook")
    >>> estimator = estimator.train(lambda: ({"x": [1.0]}, [2.0]), steps=3, hooks=[hook])
    >>> hook.final_ops_values
    {'step': 3}
    """

    every_n_steps = None

    def __init__(self, final_ops: Op | Mapping[str, Op] | Sequence[Op]) -> None:
        self._ops = final_ops
        self._values: Any = None
        for op in _each(final_ops):
            if not callable(op):
                raise InvalidTypeError(f"final_ops must be functions of the RunContext, but got {op!r}.")

    @property
    def final_ops_values(self) -> Any:
        """What the functions have returned, with tensors as numpy arrays; None before the end of the run.

        It is one result, or a dict or list of results, as ``final_ops`` is one function, or a dict or list of them.
        """
        return self._values

    def end(self, context: RunContext) -> None:
        if isinstance(self._ops, Mapping):
            self._values = {key: as_arrays(op(context)) for key, op in self._ops.items()}
        elif isinstance(self._ops, Sequence):
            self._values = [as_arrays(op(context)) for op in self._ops]
        else:
            self._values = as_arrays(self._ops(context))


def _each(ops: Any) -> Sequence[Any]:
    if isinstance(ops, Mapping):
        return list(ops.values())
    return list(ops) if isinstance(ops, Sequence) else [ops]
