"""Observation of a model's forward pass, even if its steps are compiled.

Hooks may observe the forward pass of a step in two ways: by forward hooks on modules, and by the summaries that the
model records with `torch_estimator.summary`. Neither works in compiled code. So `Observer` runs an extra forward pass
in Python, and undoes all changes that this pass makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from torch_estimator.feature_column.table import tables_of
from torch_estimator.hooks.hook import RunContext
from torch_estimator.summary.recorder import Summary, recording
from torch_estimator.train.random_state import isolated

_Hooks = dict[int, Any]


@contextmanager
def observed(context: RunContext) -> Iterator[None]:
    """While the body runs, record the model's summaries in ``context.summaries`` if a hook has set ``context.observe``.

    This is for steps that run in Python; compiled steps need an `Observer`.
    """
    if context.observe:
        with recording() as context.summaries:
            yield
    else:
        yield


class Observer:
    """Extra forward passes of a module in Python, for hooks that observe a compiled model.

    Forward hooks that are registered on the module now count as a part of the model, later ones as observers. `watched`
    are objects of the user that the forward pass also uses, such as the loss. If they are modules, their buffers are
    restored as well.
    """

    def __init__(self, module: nn.Module, watched: Sequence[object] = ()) -> None:
        self._module = module
        self._modules = [module, *(one for one in watched if isinstance(one, nn.Module))]
        self._tables = {table.weight for table in tables_of(module)}
        # The parameters that a forward pass changes; None until the first observed pass has shown which these are.
        self._changing: list[Tensor] | None = None
        self._own_hooks = {id(hooks): set(hooks) for hooks in _hooks_of(module)}

    def observe(self, forward: Callable[[], object], others: Sequence[Tensor] = ()) -> list[Summary]:
        """Run an extra forward pass, undo what it changes, and return the summaries that it made.

        `others` are tensors outside of the module that the pass may change. Only those given in the first call are
        examined.
        """
        with isolated(None), _buffers_restored(self._modules), self._tensors_restored(others), recording() as summaries:
            forward()
        return summaries

    @contextmanager
    def unobserved(self) -> Iterator[None]:
        """While the body runs, remove forward hooks that were registered after this object was made.

        A compiled step would otherwise depend on these hooks, and be compiled again for each of them.
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
        """Undo the changes that the body makes to parameters and to the tensors in `others`.

        Some models change parameters in their forward pass, such as a teacher that follows a student. Copying all
        parameters for each pass would take too long, so only those that the first pass changes are copied later.
        """
        may_change = self._changing if self._changing is not None else self._all_tensors(others)
        copies = [(one, one.detach().clone()) for one in may_change]
        try:
            yield
        finally:
            # Compare the numbers, because a change through ``.data`` does not increase a tensor's version counter.
            changed = [(one, copied) for one, copied in copies if not torch.equal(one, copied)]
            if self._changing is None:
                self._changing = [one for one, _ in changed]
            with torch.no_grad():
                for one, copied in changed:
                    one.copy_(copied)

    def _all_tensors(self, others: Sequence[Tensor]) -> list[Tensor]:
        """Return all parameters and `others`, except embedding tables. A forward pass never changes these tables."""
        every = {id(one): one for one in (*self._module.parameters(), *others)}
        return [one for one in every.values() if one not in self._tables]


def _hooks_of(module: nn.Module) -> Iterator[_Hooks]:
    """Yield the dicts in which torch keeps the forward hooks of a module and of all modules in it."""
    for part in module.modules():
        yield part._forward_hooks
        yield part._forward_pre_hooks


@contextmanager
def _buffers_restored(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Replace the buffers of modules by copies while the body runs, and put the original buffers back afterwards."""
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
