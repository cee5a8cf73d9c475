"""What modules, losses and heads are made of, setting by setting."""

from __future__ import annotations

import functools
from types import BuiltinFunctionType, CellType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from torch_estimator.compile.cache_key.python_objects import instance_attributes
from torch_estimator.compile.cache_key.torch_objects import MODULE_INTERNALS
from torch_estimator.compile.cache_key.walk import Walk
from torch_estimator.distributed.description.code import Code, library_of
from torch_estimator.distributed.description.plain import is_own, plain
from torch_estimator.optim.clipping import Clipping
from torch_estimator.run_config import RunConfig

# Layers of others, such as Keras', count up their names in each process.
_KNOWN = (None, "torch", "torch_estimator")
_MOST_ITEMS = 256
_MODULE_APART = MODULE_INTERNALS | {"training"}


class Account:
    """Goes through what belongs to a model and notes what has to be alike in all processes, by its path.

    Classes, numbers, words, functions and the shapes of tensors are; other objects are not looked into, and None counts
    as absent: one process may have a writer of summaries where others have none. Neither are attributes that their
    class or function names in ``not_in_fingerprint``, or that are called as what is a process' own (see `plain`).

    Args:
        code: Where to note the user's functions and classes that are met.

    Attributes:
        settings: What was noted, as JSON.
    """

    def __init__(self, code: Code) -> None:
        self.settings: dict[str, Any] = {}
        self._code = code
        self._walk = Walk()
        self._met: set[int] = set()

    def note_part(self, path: str, value: Any) -> None:
        """Notes a loss or a head, which may be an object of the user's own."""
        self.note(path, value)
        if path not in self.settings and library_of(type(value)) in _KNOWN:
            self.enter(path, value)

    def note(self, path: str, value: Any) -> None:
        """Notes a value and what it holds."""
        if value is None:
            return
        if (found := plain(value)) is not None:
            self.settings[path] = found
        elif isinstance(value, Tensor):
            if not is_lazy(value):
                self.settings[path] = [list(value.shape), str(value.dtype)]
        elif isinstance(value, list | tuple | dict):
            self._items(path, value)
        elif isinstance(value, functools.partial):
            for part, one in (("", value.func), (".args", value.args), (".keywords", value.keywords)):
                self.note(path + part, one)
        elif isinstance(value, type):
            self._kind(path, value)
        elif isinstance(value, FunctionType | MethodType | BuiltinFunctionType):
            self._function(path, value)
        elif isinstance(value, nn.Module):
            self._module(path, value)
        elif _is_known(value):
            self.enter(path, value)

    def enter(self, path: str, value: object, skipped: frozenset[str] = frozenset()) -> None:
        """Notes the class of an object and all attributes but those skipped."""
        if id(value) in self._met:
            return
        self._met.add(id(value))
        self._kind(path, type(value))
        for name, one in sorted(instance_attributes(self._walk, value).items()):
            if name not in skipped and not is_own(name):
                self.note(f"{path}.{name}", one)

    def _kind(self, path: str, kind: type) -> None:
        self.settings[path] = kind.__qualname__
        self._code.note_class(kind)

    def _items(self, path: str, value: Any) -> None:
        if len(value) > _MOST_ITEMS or id(value) in self._met:
            return
        self._met.add(id(value))
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for place, (key, one) in enumerate(pairs):
            if not (isinstance(key, str) and is_own(key)):
                name = key if isinstance(key, str | int) else place
                self.note(f"{path}[{name!r}]", one)

    def _function(self, path: str, value: Any) -> None:
        function = value.__func__ if isinstance(value, MethodType) else value
        # What is made in C is called as the class that it belongs to there.
        self.settings[path] = function.__qualname__ if isinstance(function, FunctionType) else function.__name__
        if not isinstance(function, FunctionType) or id(function) in self._met:
            return
        self._met.add(id(function))
        self._code.note_function(function)
        names, defaults = function.__code__.co_varnames[: function.__code__.co_argcount], function.__defaults__ or ()
        held = {
            **dict(zip(names[len(names) - len(defaults) :], defaults, strict=False)),
            **(function.__kwdefaults__ or {}),
            **dict(zip(function.__code__.co_freevars, map(_content, function.__closure__ or ()), strict=True)),
        }
        excepted = getattr(function, "not_in_fingerprint", ())
        for name, one in held.items():
            if not is_own(name) and name not in excepted:
                self.note(f"{path}.{name}", one)

    def _module(self, path: str, module: nn.Module) -> None:
        if id(module) in self._met:
            return
        if library_of(type(module)) in _KNOWN:
            self.enter(path, module, _MODULE_APART)
            if not module.training:
                self.settings[f"{path}.training"] = False
        else:
            self._kind(path, type(module))
            self._met.add(id(module))
        for name, parameter in module._parameters.items():
            if parameter is not None and not parameter.requires_grad:
                self.settings[f"{path}.{name}.requires_grad"] = False
        for name, part in module._modules.items():
            self.note(f"{path}.{name}", part)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _is_known(value: object) -> bool:
    """Whether an object is made of settings."""
    if isinstance(value, LRScheduler | Clipping):
        return True
    return library_of(type(value)) == "torch_estimator" and not isinstance(value, RunConfig | Optimizer)
