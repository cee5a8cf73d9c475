"""Values that hooks can log: by name, such as the loss or a layer's output, or computed by a function."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from torch_estimator.checkpoint.sharded_tensors import check_whole
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.hooks.hook import RunContext
from torch_estimator.inner_layers import Layer, find_layer, inner_modules
from torch_estimator.mode_keys import ModeKeys

What = str | Callable[[RunContext], Any]

_MOST_NAMES = 5


class ModuleOutputs:
    """Outputs of layers, captured by forward hooks in steps that a hook of the run observes.

    `paths` are names of layers, as `torch_estimator.inner_layers.find_layer` accepts them.
    """

    def __init__(self, paths: Sequence[str] = ()) -> None:
        self._paths = paths
        self._handles: list[RemovableHandle] = []
        self._outputs: dict[str, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._paths)

    def watch(self, context: RunContext) -> None:
        """Register forward hooks that capture the outputs of the layers in the next step."""
        if self._paths:
            assert context.module is not None
            context.observe = True
            modules = inner_modules(context.module)
            layers = {path: find_layer(context.module, path) for path in self._paths}
            self._handles = [
                modules[layer.path].register_forward_hook(self._keep(path, layer)) for path, layer in layers.items()
            ]

    def ignore(self) -> None:
        """Remove the forward hooks that `watch` has registered."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __getitem__(self, path: str) -> Any:
        """Return the last captured output of a layer, or None if the layer was not called."""
        return self._outputs.get(path)

    def _keep(self, path: str, layer: Layer) -> Callable[[Any, Any, Any], None]:
        def keep(module: Any, inputs: Any, output: Any) -> None:
            # The output is copied now, because later operations of the step may change the tensor in place.
            self._outputs[path] = as_arrays(output if layer.columns is None else layer.part_of(output))

        return keep


def check_what(what: What, context: RunContext) -> str | None:
    """Check that a run has the value to log, and return its name if it is the output of a layer, else None."""
    if not isinstance(what, str) or what == "global_step":
        return None
    if what == "loss" and context.mode != ModeKeys.PREDICT:
        return None
    if what == "learning_rate" and context.mode == ModeKeys.TRAIN:
        return None
    variables = context.variables()
    if what in variables:
        return None
    if context.module is not None and _is_layer(context.module, what):
        return what
    modules = [path for path, _ in context.module.named_modules() if path] if context.module is not None else []
    raise InvalidValueError(
        f"There is nothing called {what!r} to log while the mode is {context.mode!s}; give 'global_step', 'loss' (not "
        "when predicting), 'learning_rate' (training), a function of the RunContext, "
        f"a variable ({_some(what, list(variables))}) or a module ({_some(what, modules)})."
    )


def value_of(what: What, context: RunContext, *, outputs: ModuleOutputs, rates: list[float]) -> Any:
    """Return the current value to log, for a name or function (of the context) that `check_what` has accepted."""
    if not isinstance(what, str):
        return what(context)
    if what == "global_step":
        return context.global_step
    if what == "loss" and context.mode != ModeKeys.PREDICT:
        return context.loss
    if what == "learning_rate" and context.mode == ModeKeys.TRAIN:
        return rates[0] if len(set(rates)) == 1 else rates
    variables = context.variables()
    return variables[what] if what in variables else outputs[what]


def as_arrays(value: Any) -> Any:
    """Return a value with all tensors in it, also in dicts and lists, copied to numpy arrays."""

    if isinstance(value, torch.Tensor):
        check_whole(value, "Logging")
        copied = value.detach().to("cpu", copy=True)
        return (copied.float() if copied.dtype == torch.bfloat16 else copied).numpy()
    if isinstance(value, Mapping):
        return {key: as_arrays(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [as_arrays(one) for one in value]
    return value


def by_tag(tensors: Mapping[str, What] | Sequence[What]) -> dict[str, What]:
    """Return a dict from tags to the values to log. In a list, the tag of a value is its name."""
    if isinstance(tensors, Mapping):
        named = dict(tensors)
    elif isinstance(tensors, Sequence) and not isinstance(tensors, str):
        named = {what if isinstance(what, str) else getattr(what, "__name__", repr(what)): what for what in tensors}
    else:
        raise InvalidTypeError(f"tensors must be a dict from tag to what to log, or a list, but got {tensors!r}.")
    for what in named.values():
        if not isinstance(what, str) and not callable(what):
            raise InvalidTypeError(
                "What is to be logged must be a name or a function of the RunContext, because a tensor at hand now is "
                f"not the one of a later step, but got {type(what).__name__}."
            )
    return named


def _is_layer(module: nn.Module, name: str) -> bool:
    try:
        find_layer(module, name)
    except InvalidValueError:
        return False
    return True


def _some(wanted: str, names: list[str]) -> str:
    close = difflib.get_close_matches(wanted, names, _MOST_NAMES, 0.4) or names[:_MOST_NAMES]
    return ", ".join(close) + (", …" if len(names) > len(close) else "") if names else "none"
