"""Detection of changes to the model or the optimizers that make a compiled step wrong.

A compiled step holds everything that Python decided while it was traced: the code of the module and the loss, the
values of their attributes, the hooks, and the settings of optimizers. A hook of the user may change any of these
between two steps. Only the following are read anew in every step: the numbers inside tensors, and the settings that
schedules change (`LiveGroup.MOVING`).

`ChangeDetector` combines two checks:

- Settings of optimizers are compared whenever anything may have changed them. This takes microseconds.
- After code of the user has run, a `ModelSnapshot` is compared, which takes a fraction of a millisecond. It sees
  attributes, hooks and parameters, so their change takes effect in the next step.

What neither sees, such as a global, is noticed when the compiled step is compared with Python again (`proof`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from torch_estimator.train.observation import Observer
from torch_estimator.train.step import TrainStep

_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})
_CONTAINERS = frozenset({list, tuple, set})
_OPAQUE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)
_MAX_DEPTH = 4
# Beyond so many values, further ones of containers and objects are not looked at.
_MOST_VALUES = 20_000
_MOST_BYTES = 2**20


class ChangeDetector:
    """Detector of changes to what a training step computes.

    `watched` are objects of the user outside of the module on which the step depends, such as the loss. Forward hooks
    that were added to the module later only observe; `observer` hides them.
    """

    def __init__(self, step: TrainStep, watched: Sequence[Any], observer: Observer) -> None:
        self._step = step
        self._watched = watched
        self._observer = observer
        self._fixed = fixed_settings(step)
        with observer.unobserved():
            self._snapshot = self._take_snapshot()
        self._code_ran = False
        self.settings_may_differ = False

    def note_foreign_code(self) -> None:
        """Make the next call of `has_changed` search for changes. Called after code of the user has run."""
        self._code_ran = self.settings_may_differ = True

    def has_lost_groups(self) -> bool:
        """Return whether a hook has replaced the parameter groups of an optimizer, as ``load_state_dict`` does.

        The step holds the old groups, so it would never see later changes of a learning rate.
        """
        return self._code_ran and not all(group.is_of(optimizer) for optimizer, group in self._step.owned_groups)

    def has_changed(self) -> bool:
        """Return whether anything differs from the last look, so that the cache key or the proof has to decide."""
        code_ran, self._code_ran = self._code_ran, False
        before = self._fixed, self._snapshot
        if self.settings_may_differ:
            self._fixed, self.settings_may_differ = fixed_settings(self._step), False
        if code_ran:
            with self._observer.unobserved():
                self._snapshot = self._take_snapshot()
        return (self._fixed, self._snapshot) != before

    def _take_snapshot(self) -> ModelSnapshot:
        return ModelSnapshot(self._step.module, *self._step.optimizers, *self._watched)


def fixed_settings(step: TrainStep) -> list[Any]:
    """Return, for each parameter group, the optimizer settings that are constants in a compiled step."""
    return [group.fixed() for group in step.groups]


class ModelSnapshot:
    """Record of the attributes, parameters, buffers and hooks of some objects, to detect later changes at little cost.

    Two snapshots of the same objects differ if, between them, an attribute, a parameter, a buffer or a hook was set or
    removed, in these objects or in the containers and objects that their attributes hold, a few levels deep. Numbers in
    tensors, globals, classes and code are not compared.
    """

    def __init__(self, *things: Any) -> None:
        self._seen: list[Any] = []
        # Objects are compared by id. Keep a reference to each object, so that no new object can get its id.
        self._held: list[Any] = []
        self._visited: set[int] = set()
        for thing in things:
            self._visit(thing, 0)
            for value in _bound_values(thing):
                self._visit(value, 0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModelSnapshot) and self._seen == other._seen

    __hash__ = None  # type: ignore[assignment]  # Snapshots are compared, never used as keys.

    def _visit(self, value: Any, depth: int) -> None:
        kind = type(value)
        if kind in _PLAIN:
            self._seen.append(value)
            return
        identity = id(value)
        self._seen.append(identity)
        if identity in self._visited:
            return
        self._visited.add(identity)
        self._held.append(value)
        if isinstance(value, Tensor):
            # The type and the shape change where code of the user sets `.data`, as `module.double()` does.
            layout = value.stride() if not value.is_sparse else None
            self._seen += (value.requires_grad, value.dtype, value.shape, value.device, layout)
            return
        if isinstance(value, Optimizer):
            # Skip the settings in parameter groups, because schedules change them. `ChangeDetector` compares settings.
            self._seen += map(id, value.param_groups)
            self._held += value.param_groups
            self._visit(value.state, depth)
            if not kind.__module__.startswith(("torch.", "torch_estimator.")):
                self._seen += (one for name, one in vars(value).items() if type(one) in _PLAIN)
            return
        if isinstance(value, np.ndarray):
            if value.nbytes <= _MOST_BYTES and value.dtype != object:
                self._seen += (value.shape, value.dtype.str, zlib.crc32(value.tobytes()))
            return
        if isinstance(value, FunctionType):
            for one in _bound_values(value):
                self._visit(one, depth + 1)
            return
        # Count the depth from the nearest module, because modules may be nested to any depth.
        depth = 0 if isinstance(value, nn.Module) else depth + 1
        if depth > _MAX_DEPTH or len(self._seen) > _MOST_VALUES or isinstance(value, _OPAQUE):
            return
        if isinstance(value, dict):
            for key, one in value.items():
                self._visit(key, depth)
                self._visit(one, depth)
        elif kind in _CONTAINERS:
            for one in value:
                self._visit(one, depth)
        elif isinstance(value, partial):
            for one in (value.func, value.args, value.keywords, *_bound_values(value.func)):
                self._visit(one, depth)
        else:
            slots = (name for one in kind.__mro__ for name in vars(one).get("__slots__", ()) if name[:2] != "__")
            own = {name: getattr(value, name) for name in slots if hasattr(value, name)}
            for name, one in (own | getattr(value, "__dict__", {})).items():
                self._seen.append(name)
                self._visit(one, depth)


def _bound_values(function: Any) -> Iterator[Any]:
    """Yield the object that a method is bound to, and the variables that a function closes over."""
    if isinstance(function, MethodType):
        yield function.__self__
    for cell in getattr(function, "__closure__", None) or ():
        # Skip an empty cell: its variable has not been assigned yet.
        with suppress(ValueError):
            yield cell.cell_contents
