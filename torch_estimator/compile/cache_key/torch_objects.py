"""Fingerprints of torch's own objects: tensors, modules, optimizers."""

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

from torch_estimator.compile.cache_key.objects import instance_attributes
from torch_estimator.compile.cache_key.walk import Walk, describes, says
from torch_estimator.optim.clipping import clippings_of

_Hooks = Mapping[int, Any]

# Hooks have numbers that a process counts up; what else is said of a hook is in tables by number.
_MODULE_HOOKS: dict[str, tuple[str, ...]] = {
    "_forward_hooks": ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    "_forward_pre_hooks": ("_forward_pre_hooks_with_kwargs",),
    "_backward_hooks": (),
    "_backward_pre_hooks": (),
}
_MODULE_PARTS = ("_parameters", "_buffers", "_modules")
_OF_STATE_DICTS = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
    "_non_persistent_buffers_set",
)
MODULE_APART = frozenset({*_MODULE_HOOKS, *sum(_MODULE_HOOKS.values(), ()), *_MODULE_PARTS, *_OF_STATE_DICTS})

_OPTIMIZER_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
OPTIMIZER_APART = frozenset(
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
        # Whether torch has warned, or is to warn, of the order of calls.
        "_opt_called",
        "_warned_capturable_if_run_uncaptured",
    }
)


def global_hooks() -> Iterator[Any]:
    """Hooks of all modules and all optimizers."""
    of_modules = vars(nn.modules.module)
    for name in ("forward_pre_hooks", "forward_hooks", "backward_pre_hooks", "backward_hooks"):
        yield from of_modules[f"_global_{name}"].values()
    yield from torch_optimizer._global_optimizer_pre_hooks.values()
    yield from torch_optimizer._global_optimizer_post_hooks.values()


@describes(Tensor)
def _tensor(walk: Walk, value: Tensor) -> None:
    walk.tensors.append((walk.current, value))
    walk.kind(type(value))
    if is_lazy(value):
        walk.write(f"tensor without a shape {value.dtype} {value.device}")
        return
    place = (value.stride(), value.storage_offset()) if value.layout is torch.strided else value.layout
    flags = (value.requires_grad, value.is_leaf, value.is_conj(), value.is_neg(), value.is_inference())
    kind = (value.dtype, value.shape, place, value.device, flags)
    words: dict[Any, str] = walk.notes.setdefault("tensors", {})
    # Many are of one kind.
    walk.write(words.get(kind) or words.setdefault(kind, f"tensor {kind}"))
    walk.write(f"in {_storage(walk, value)}")
    if value.__dict__:
        walk.attributes(value.__dict__)
    for hooks in (value._backward_hooks, getattr(value, "_post_accumulate_grad_hooks", None)):
        if hooks:
            _hooks(walk, hooks)


def _storage(walk: Walk, value: Tensor) -> int:
    """The number of the memory that a tensor lies in, which others may share."""
    try:
        address = value.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return -1
    storages: dict[int, int] = walk.notes.setdefault("storages", {})
    return storages.setdefault(address, len(storages))


@describes(nn.Module)
def _module(walk: Walk, value: nn.Module) -> None:
    attributes = instance_attributes(walk, value)
    walk.kind(type(value))
    walk.attributes(attributes, MODULE_APART)
    for name in _MODULE_PARTS:
        parts: Mapping[str, Any] = attributes.get(name, {})
        if parts:
            walk.write(name)
            for part, one in parts.items():
                walk.write(repr(part))
                walk.part(one, ".", part)
    for name, flags in _MODULE_HOOKS.items():
        hooks: _Hooks = attributes.get(name, {})
        if hooks:
            walk.write(name)
            _hooks(walk, hooks, *(attributes.get(flag, {}) for flag in flags))


def _hooks(walk: Walk, hooks: _Hooks, *flags: _Hooks) -> None:
    walk.write(f"of {len(hooks)}")
    for place, (number, hook) in enumerate(hooks.items()):
        walk.write(str([number in flagged for flagged in flags]))
        walk.part(hook, "'s hook ", str(place))


@describes(torch.optim.Optimizer)
def _optimizer(walk: Walk, value: torch.optim.Optimizer) -> None:
    attributes = instance_attributes(walk, value)
    walk.kind(type(value))
    walk.attributes(attributes, OPTIMIZER_APART)
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
        walk.part(clipping, "'s clipping")


def _settings(walk: Walk, settings: Mapping[str, Any], path: str) -> None:
    for name in sorted(settings):
        if name != "param_names":
            walk.write(name)
            value = settings[name]
            if name in walk.leave_out:
                value = _without_number(value)
            walk.part(value, f"{path}[", repr(name), "]")


def _without_number(value: Any) -> Any:
    if isinstance(value, tuple) and value:
        return (_without_number(value[0]), *value[1:])
    return "a number" if isinstance(value, int | float | np.number) and not isinstance(value, bool) else value


def _state(walk: Walk, optimizer: torch.optim.Optimizer) -> None:
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    known = set(map(id, held))
    # In an order that does not depend on which gradients came first.
    keys = [*(one for one in held if one in optimizer.state), *(k for k in optimizer.state if id(k) not in known)]
    for place, key in enumerate(keys):
        walk.part(key, "'s key ", str(place))
        walk.part(optimizer.state[key], f".state[{place}]")


@says(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, torch.finfo, torch.iinfo)
def _constant(walk: Walk, value: Any) -> str:
    return f"torch {value!r}"


@says(OpOverload, OpOverloadPacket, HigherOrderOperator)
def _operator(walk: Walk, value: Any) -> str:
    return f"operator {value}"


@says(RemovableHandle)
def _handle(walk: Walk, value: RemovableHandle) -> str:
    return "handle"


@says(torch.Generator)
def _generator(walk: Walk, value: torch.Generator) -> str:
    state = value.get_state().numpy().tobytes()
    return f"generator {value.device} {sha256(state).hexdigest()}"
