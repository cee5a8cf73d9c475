"""Part of the cache key computation: writes tensors, modules, optimizers and their hooks.

Everything about a tensor is written except its numbers. For settings of optimizers that the compiled step reads anew in
every step, the key contains only that they are numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.nn.parameter import is_lazy
from torch.optim import optimizer as torch_optimizer
from torch.utils.hooks import RemovableHandle

from torch_estimator.compile.cache_key.python_objects import instance_attributes
from torch_estimator.compile.cache_key.walk import Walk, writes_inline, writes_section
from torch_estimator.optim.clipping import clippings_of

_Hooks = Mapping[int, Any]

# Maps each table of a module's hooks to the tables of flags for these hooks.
# The numbers of hooks are not part of the key, because torch counts all hooks of a process.
_MODULE_HOOKS: dict[str, tuple[str, ...]] = {
    "_forward_hooks": ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    "_forward_pre_hooks": ("_forward_pre_hooks_with_kwargs",),
    "_backward_hooks": (),
    "_backward_pre_hooks": (),
}
_MODULE_PARTS = ("_parameters", "_buffers", "_modules")
# These attributes influence only how state dicts are saved and loaded, which is not part of a step.
_STATE_DICT_ATTRIBUTES = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
    "_non_persistent_buffers_set",
)
MODULE_INTERNALS = frozenset(
    {*_MODULE_HOOKS, *sum(_MODULE_HOOKS.values(), ()), *_MODULE_PARTS, *_STATE_DICT_ATTRIBUTES}
)
"""Attributes of torch's own in every module, which are written otherwise or do not count."""

_OPTIMIZER_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
OPTIMIZER_INTERNALS = frozenset(
    {
        *_OPTIMIZER_HOOKS,
        "_optimizer_state_dict_pre_hooks",
        "_optimizer_state_dict_post_hooks",
        "_optimizer_load_state_dict_pre_hooks",
        "_optimizer_load_state_dict_post_hooks",
        "_zero_grad_profile_name",
        "defaults",
        "param_groups",
        "state",
        # torch uses these flags only to decide whether to warn about the order of calls.
        "_opt_called",
        "_warned_capturable_if_run_uncaptured",
    }
)
"""Attributes of torch's own in every optimizer, which are written otherwise or do not count."""


def global_hooks() -> Iterator[Any]:
    """Yield the hooks that torch calls for every module and every optimizer."""
    of_modules = vars(nn.modules.module)
    for name in ("forward_pre_hooks", "forward_hooks", "backward_pre_hooks", "backward_hooks"):
        yield from of_modules[f"_global_{name}"].values()
    yield from torch_optimizer._global_optimizer_pre_hooks.values()
    yield from torch_optimizer._global_optimizer_post_hooks.values()


@writes_section(Tensor)
def _tensor(walk: Walk, value: Tensor) -> None:
    walk.tensors.append((walk.current, value))
    walk.visit_class(type(value))
    if is_lazy(value):
        walk.write(f"tensor without a shape {value.dtype} {value.device}")
        return
    place = (value.stride(), value.storage_offset()) if value.layout is torch.strided else value.layout
    flags = (value.requires_grad, value.is_leaf, value.is_conj(), value.is_neg(), value.is_inference())
    kind = (value.dtype, value.shape, place, value.device, flags)
    tokens: dict[Any, str] = walk.memo.setdefault("tensors", {})
    # Many tensors of a model have equal shapes and flags, so make the text of each combination only once.
    walk.write(tokens.get(kind) or tokens.setdefault(kind, f"tensor {kind}"))
    walk.write(f"in {_storage(walk, value)}")
    if value.__dict__:
        walk.visit_attributes(value.__dict__)
    for hooks in (value._backward_hooks, getattr(value, "_post_accumulate_grad_hooks", None)):
        if hooks:
            _hooks(walk, hooks)


def _storage(walk: Walk, value: Tensor) -> int:
    """Return a number that identifies the memory of a tensor. Views of the same memory have the same number."""
    try:
        address = value.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return -1
    storages: dict[int, int] = walk.memo.setdefault("storages", {})
    return storages.setdefault(address, len(storages))


@writes_section(nn.Module)
def _module(walk: Walk, value: nn.Module) -> None:
    attributes = instance_attributes(walk, value)
    walk.visit_class(type(value))
    walk.visit_attributes(attributes, MODULE_INTERNALS)
    for name in _MODULE_PARTS:
        parts: Mapping[str, Any] = attributes.get(name, {})
        if parts:
            walk.write(name)
            for part, one in parts.items():
                walk.write(repr(part))
                walk.visit(one, ".", part)
    for name, flags in _MODULE_HOOKS.items():
        hooks: _Hooks = attributes.get(name, {})
        if hooks:
            walk.write(name)
            _hooks(walk, hooks, *(attributes.get(flag, {}) for flag in flags))


def _hooks(walk: Walk, hooks: _Hooks, *flags: _Hooks) -> None:
    """Write hooks in their order, each with booleans that say which of the tables `flags` contain the hook's number."""
    walk.write(f"of {len(hooks)}")
    for place, (number, hook) in enumerate(hooks.items()):
        walk.write(str([number in flagged for flagged in flags]))
        walk.visit(hook, "'s hook ", str(place))


@writes_section(torch.optim.Optimizer)
def _optimizer(walk: Walk, value: torch.optim.Optimizer) -> None:
    attributes = instance_attributes(walk, value)
    walk.visit_class(type(value))
    walk.visit_attributes(attributes, OPTIMIZER_INTERNALS)
    for name in _OPTIMIZER_HOOKS:
        _hooks(walk, attributes.get(name, {}))
    walk.write("defaults")
    _settings(walk, value.defaults, ".defaults")
    for place, group in enumerate(value.param_groups):
        walk.write("group")
        _settings(walk, group, f".param_groups[{place}]")
    if "state" not in walk.leave_out:
        walk.write("state")
        _state(walk, value)
    walk.write("clippings")
    for clipping in clippings_of([value]):
        walk.visit(clipping, "'s clipping")


def _settings(walk: Walk, settings: Mapping[str, Any], path: str) -> None:
    """Write the settings of a parameter group. Leave out the numbers of the settings in `walk.leave_out`."""
    for name in sorted(settings):
        if name != "param_names":
            walk.write(name)
            value = settings[name]
            if name in walk.leave_out:
                value = _without_number(value)
            walk.visit(value, f"{path}[", repr(name), "]")


def _without_number(value: Any) -> Any:
    """Replace the number in a setting by a fixed text. Of a tuple, replace only the first number."""
    if isinstance(value, tuple) and value:
        return (_without_number(value[0]), *value[1:])
    return "a number" if isinstance(value, int | float | np.number) and not isinstance(value, bool) else value


def _state(walk: Walk, optimizer: torch.optim.Optimizer) -> None:
    """Write the state of an optimizer, parameter by parameter.

    The order of each parameter's slots does not count: state restored from a checkpoint has another one than new state.
    """
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    known = set(map(id, held))
    # Write the state in the order of the parameter groups.
    # The order of the dict `state` depends on which parameter got a gradient first.
    keys = [*(one for one in held if one in optimizer.state), *(k for k in optimizer.state if id(k) not in known)]
    for place, key in enumerate(keys):
        walk.visit(key, "'s key ", str(place))
        slots = optimizer.state[key]
        for name in sorted(slots, key=str):
            walk.write(repr(name))
            walk.visit(slots[name], f".state[{place}][", repr(name), "]")


@writes_inline(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, torch.finfo, torch.iinfo)
def _torch_constant(walk: Walk, value: Any) -> str:
    return f"torch {value!r}"


@writes_inline(OpOverload, OpOverloadPacket, HigherOrderOperator)
def _operator(walk: Walk, value: Any) -> str:
    return f"operator {value}"


@writes_inline(RemovableHandle)
def _removable_handle(walk: Walk, value: RemovableHandle) -> str:
    return "handle"


@writes_inline(torch.Generator)
def _generator(walk: Walk, value: torch.Generator) -> str:
    state = value.get_state().numpy().tobytes()
    return f"generator {value.device} {sha256(state).hexdigest()}"
