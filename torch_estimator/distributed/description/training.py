"""A training in sections of settings by name."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torch_estimator.compile.cache_key.torch_objects import OPTIMIZER_INTERNALS
from torch_estimator.distributed.description.account import Account
from torch_estimator.distributed.description.code import Code
from torch_estimator.distributed.description.difference import bounded
from torch_estimator.distributed.description.plain import is_own
from torch_estimator.optim.clipping import clippings_of
from torch_estimator.train.model import Model
from torch_estimator.train.optimizers import Schedules

Description = dict[str, dict[str, Any]]
Trainers = tuple[Sequence[torch.optim.Optimizer], Schedules]

OPTIMIZERS = "the optimizers"

# How torch computes the same, which it may choose by the device.
_NOT_SETTINGS = frozenset({"params", "param_names", "foreach", "fused", "capturable"})
# A schedule puts a function of its own around the step; the others follow from what is no setting.
_OPTIMIZER_APART = OPTIMIZER_INTERNALS | {
    "step",
    "_step_supports_amp_scaling",
    "_need_device_dtype_check_for_fused",
}


def describe_training(model: Model, trainers: Trainers | None) -> Description:
    """Returns what all who train a model together must have alike.

    Args:
        model: Built for training.
        trainers: As just made, before a checkpoint or a schedule has changed them; None where there are none yet.
    """
    from torch_estimator import __version__

    code = Code()
    account = Account(code)
    account.note("module", model.module)
    account.note_part("head", model.spec.head)
    account.note_part("loss", model.spec.loss)
    if model.spec.transform is not None:
        account.note("linear columns", model.spec.transform.linear)
        account.note("columns", model.spec.transform.dnn)
    optimizers = {} if trainers is None else _optimizers(code, model.module, *trainers)
    return bounded(
        {
            "the versions": {"torch": torch.__version__, "torch-estimator": __version__},
            "the variables": {name: [list(one.shape), str(one.dtype)] for name, one in model.variables().items()},
            "the model": account.settings,
            OPTIMIZERS: optimizers,
            # Another Python has other code for the same lines.
            f"the code under Python {'.'.join(platform.python_version_tuple()[:2])}": code.described(),
        }
    )


def describe_optimizers(module: nn.Module, trainers: Trainers) -> Description:
    """Returns the part of `describe_training` that is about optimizers."""
    return bounded({OPTIMIZERS: _optimizers(Code(), module, *trainers)})


def _optimizers(
    code: Code, module: nn.Module, optimizers: Sequence[torch.optim.Optimizer], schedules: Schedules
) -> dict[str, Any]:
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    found: dict[str, Any] = {}
    for optimizer in optimizers:
        kind = type(optimizer).__qualname__
        for group in optimizer.param_groups:
            own = [names.get(id(one), "?") for one in group["params"]]
            of = _some(own)
            found[f"the optimizer of {of}"] = kind
            found[f"what is trained by {kind} of {of}"] = own
            for setting, value in sorted(group.items()):
                if setting not in _NOT_SETTINGS:
                    _note(found, code, f"{setting} of {kind} of {of}", value)
        account = Account(code)
        account.enter("", optimizer, _OPTIMIZER_APART)
        # Keras' has it there.
        account.note(".learning_rate", getattr(optimizer, "learning_rate", None))
        for place, clipping in enumerate(clippings_of([optimizer])):
            account.note(f".gradient clipping {place}", clipping)
        of = _some([names.get(id(one), "?") for group in optimizer.param_groups for one in group["params"]])
        found |= {f"{path[1:]} of {kind} of {of}": value for path, value in account.settings.items() if path}
    account = Account(code)
    for place, schedule in enumerate(schedules):
        account.enter(f"schedule {place}", schedule)
    return found | account.settings


def _some(names: Sequence[str]) -> str:
    if not names:
        return "nothing"
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _note(found: dict[str, Any], code: Code, path: str, value: Any) -> None:
    if is_own(path.partition(" ")[0]):
        return
    account = Account(code)
    account.note(path, value.item() if isinstance(value, Tensor) and value.numel() == 1 else value)
    found |= account.settings
