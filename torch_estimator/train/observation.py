"""Seeing the forward pass of a compiled step: an extra pass in Python, of which nothing remains."""

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
    """Keeps what the model summarises in the body, where a hook asked for it; for what runs in Python anyway."""
    if context.observe:
        with recording() as context.summaries:
            yield
    else:
        yield


class Observer:
    """Runs extra forward passes of a module.

    Args:
        module: Its forward hooks of now are part of the model; those that come later belong to who observes.
        beside: Where there are modules among it, such as the loss, their buffers are put back, too.
    """

    def __init__(self, module: nn.Module, beside: Sequence[object] = ()) -> None:
        self._module = module
        self._modules = [module, *(one for one in beside if isinstance(one, nn.Module))]
        self._tables = {table.weight for table in module.modules() if isinstance(table, Table)}
        self._changing: list[Tensor] | None = None
        self._own = {id(hooks): set(hooks) for hooks in _hooks_of(module)}

    def observe(self, forward: Callable[[], object], others: Sequence[Tensor] = ()) -> list[Summary]:
        """Calls ``forward`` and puts back what it changes; returns what it summarised.

        Args:
            forward: The extra pass.
            others: Tensors that it may change beside parameters and buffers; only those of the first call count.
        """
        with isolated(None), _buffers_kept(self._modules), self._tensors_kept(others), recording() as summaries:
            forward()
        return summaries

    @contextmanager
    def _tensors_kept(self, others: Sequence[Tensor]) -> Iterator[None]:
        """Some models change parameters in their forward pass, such as those of a teacher that follows them.

        The first time tells which; copying all of them every time would take too long.
        """
        may_change = self._changing if self._changing is not None else self._all(others)
        copies = [(one, one.detach().clone()) for one in may_change]
        try:
            yield
        finally:
            # What is changed through `.data` keeps its version.
            changed = [(one, copied) for one, copied in copies if not torch.equal(one, copied)]
            if self._changing is None:
                self._changing = [one for one, _ in changed]
            with torch.no_grad():
                for one, copied in changed:
                    one.copy_(copied)

    def _all(self, others: Sequence[Tensor]) -> list[Tensor]:
        every = {id(one): one for one in (*self._module.parameters(), *others)}
        return [one for one in every.values() if one not in self._tables]

    @contextmanager
    def unobserved(self) -> Iterator[None]:
        """Runs the body without the forward hooks that were added since, for which a step would be compiled anew."""
        added: list[tuple[_Hooks, _Hooks]] = []
        for hooks in _hooks_of(self._module):
            own = self._own.get(id(hooks), set())
            if hooks.keys() - own:
                added.append((hooks, dict(hooks)))
                for key in hooks.keys() - own:
                    del hooks[key]
        try:
            yield
        finally:
            for hooks, all_of_them in added:
                hooks.clear()
                hooks.update(all_of_them)


def _hooks_of(module: nn.Module) -> Iterator[_Hooks]:
    for part in module.modules():
        yield part._forward_hooks
        yield part._forward_pre_hooks


@contextmanager
def _buffers_kept(modules: Sequence[nn.Module]) -> Iterator[None]:
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
