"""Observation of a model's forward pass, also if its steps are compiled.

Hooks may look into the forward pass of a step: with forward hooks on modules, or at what the model summarises with
`torch_estimator.summary`. Compiled code cannot be looked into. So `Observer` runs an extra forward pass in Python, and
undoes everything that it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from torch_estimator.feature_column.table import Table
from torch_estimator.hooks.hook import RunContext
from torch_estimator.summary.recorder import Summary, recording
from torch_estimator.train.random_state import isolated

_Hooks = dict[int, Any]


@contextmanager
def observed(context: RunContext) -> Iterator[None]:
    """Record the summaries that the model makes in the body, if a hook has asked for them.

    This is for steps that run in Python; compiled steps need an `Observer`.
    """
    if context.observe:
        with recording() as context.summaries:
            yield
    else:
        yield


class Observer:
    """Runs extra forward passes of a module.

    Args:
        module: The module. The forward hooks that it has now are part of the model. Hooks that are added later only
            observe it.
        watched: Objects of the user that the forward pass uses as well, such as the loss. Buffers of modules among
            them are restored, too.
    """

    def __init__(self, module: nn.Module, watched: Sequence[object] = ()) -> None:
        self._module = module
        self._modules = [module, *(one for one in watched if isinstance(one, nn.Module))]
        self._tables = {table.weight for table in module.modules() if isinstance(table, Table)}
        # The parameters that a forward pass changes; None until the first pass has shown which.
        self._changing: list[Tensor] | None = None
        self._own_hooks = {id(hooks): set(hooks) for hooks in _hooks_of(module)}

    def observe(self, forward: Callable[[], object], others: Sequence[Tensor] = ()) -> list[Summary]:
        """Run an extra forward pass, undo what it changes, and return the summaries that it made.

        Args:
            forward: Runs the pass.
            others: Tensors outside of the module that the pass may change. Only those of the first call count.
        """
        with isolated(None), _buffers_restored(self._modules), self._tensors_restored(others), recording() as summaries:
            forward()
        return summaries

    @contextmanager
    def unobserved(self) -> Iterator[None]:
        """Remove the forward hooks that were added to the module later, for the time of the body.

        A compiled step would otherwise depend on them, and be compiled again for each.
        """
        added: list[tuple[_Hooks, _Hooks]] = []
        for hooks in _hooks_of(self._module):
            own = self._own_hooks.get(id(hooks), set())
            if hooks.keys() - own:
                added.append((hooks, dict(hooks)))
                for key in hooks.keys() - own:
                    del hooks[key]
        try:
            yield
        finally:
            for hooks, all_hooks in added:
                hooks.clear()
                hooks.update(all_hooks)

    @contextmanager
    def _tensors_restored(self, others: Sequence[Tensor]) -> Iterator[None]:
        """Restore the parameters and other tensors that the body changes.

        Some models change parameters in their forward pass, such as a teacher that follows a student. Copying all
        parameters for each pass would take too long, so only those that the first pass changes are copied later.
        """
        may_change = self._changing if self._changing is not None else self._all_tensors(others)
        copies = [(one, one.detach().clone()) for one in may_change]
        try:
            yield
        finally:
            # Numbers are compared, because a change through ``.data`` leaves the version counter of a tensor as it is.
            changed = [(one, copied) for one, copied in copies if not torch.equal(one, copied)]
            if self._changing is None:
                self._changing = [one for one, _ in changed]
            with torch.no_grad():
                for one, copied in changed:
                    one.copy_(copied)

    def _all_tensors(self, others: Sequence[Tensor]) -> list[Tensor]:
        """Return parameters and other tensors, without the large tables, which only the update of a step changes."""
        every = {id(one): one for one in (*self._module.parameters(), *others)}
        return [one for one in every.values() if one not in self._tables]


def _hooks_of(module: nn.Module) -> Iterator[_Hooks]:
    """Yield the tables of forward hooks of all modules in a module."""
    for part in module.modules():
        yield part._forward_hooks
        yield part._forward_pre_hooks


@contextmanager
def _buffers_restored(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Give modules copies of their buffers for the time of the body, then the buffers that they had."""
    kept: list[tuple[nn.Module, dict[str, Tensor | None]]] = []
    for part in (part for module in modules for part in module.modules()):
        if part._buffers:
            kept.append((part, dict(part._buffers)))
            for name, buffer in part._buffers.items():
                part._buffers[name] = None if buffer is None else buffer.clone()
    try:
        yield
    finally:
        for part, buffers in kept:
            for name in part._buffers.keys() - buffers.keys():
                del part._buffers[name]
            part._buffers.update(buffers)
