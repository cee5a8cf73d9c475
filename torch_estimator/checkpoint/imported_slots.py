"""State of optimizers from a checkpoint of TensorFlow, for the optimizers that a model has here.

A checkpoint that was imported from TensorFlow does not say which optimizers of torch go on with it: the momentum of
``tf.compat.v1.train.MomentumOptimizer`` is state of `torch.optim.SGD`. This is known when a training begins.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from torch_estimator.checkpoint.checkpoint import Checkpoint
from torch_estimator.checkpoint.tensorflow import IMPORTED, UNTRAINED
from torch_estimator.checkpoint.variables import named_slots, slot_owners
from torch_estimator.errors import CheckpointError
from torch_estimator.optim.base import Optimizer
from torch_estimator.optim.companions import AVERAGE, UPDATES, is_of_companion, with_companions

_logger = logging.getLogger("torch_estimator")

_STEP = "step"
_MOST_NAMES = 5

# Keys of torch's optimizers -> slots of TensorFlow's. The momentum of torch.optim.RMSprop is not here: TensorFlow's
# contains the learning rate.
_OF_TORCH: dict[type[torch.optim.Optimizer], dict[str, str]] = {
    torch.optim.SGD: {"momentum_buffer": "Momentum"},
    torch.optim.Adagrad: {"sum": "Adagrad"},
    torch.optim.Adam: {"exp_avg": "Adam", "exp_avg_sq": "Adam_1"},
    torch.optim.RMSprop: {"square_avg": "RMSProp"},
}


def with_slots_for(
    checkpoint: Checkpoint, module: nn.Module, optimizers: Sequence[torch.optim.Optimizer]
) -> Checkpoint:
    """Return an imported checkpoint with the optimizer state that these optimizers have, under their names.

    Its state must have the key ``IMPORTED``.
    """
    saved, untrained = checkpoint.slots, checkpoint.state[IMPORTED][UNTRAINED]
    slots: dict[str, Tensor] = {}
    used: set[str] = set()
    missing: list[str] = []
    for name, slot, initial in _wanted(module, with_companions(optimizers)):
        variable, _, key = name.rpartition("/")
        source = f"{variable}/{slot}"
        if source in saved:
            slots[name] = saved[source]
            used.add(source)
        elif is_of_companion(name):
            # Without averages in the checkpoint leave out this slot: averages then begin with the weights.
            if slot == UPDATES and f"{variable}/{AVERAGE}" in saved:
                slots[name] = torch.full_like(initial, checkpoint.step)
        elif variable in untrained:
            slots[name] = initial
        elif key == _STEP:
            slots[name] = torch.full_like(initial, checkpoint.step)
        elif slot == "RMSProp_1" and f"{variable}/RMSProp" in saved:
            # Keras has no momentum where the setting is 0.
            slots[name] = torch.zeros_like(saved[f"{variable}/RMSProp"])
        else:
            missing.append(repr(name))
    unused = [repr(name) for name in saved if name not in used and not is_of_companion(name)]
    differences = [
        _summary(missing, "only in the model"),
        _summary(unused, "only in the checkpoint"),
    ]
    if any(differences):
        raise CheckpointError(
            f"checkpoint {checkpoint.path} was trained in TensorFlow with another optimizer than the model's: "
            f"{'; '.join(filter(None, differences))}; give the model the optimizer that it had, or import the "
            "checkpoint with --weights-only, with which optimizers start anew."
        )
    if untrained:
        _logger.warning("TensorFlow has not trained %s: its optimizer starts anew.", ", ".join(untrained))
    return dataclasses.replace(checkpoint, slots=slots)


def _wanted(module: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> Iterator[tuple[str, str, Tensor]]:
    """Yield the name, the name of TensorFlow's slot and the initial value of each tensor of the optimizers' state."""
    for name, initial in named_slots(module, [one for one in optimizers if isinstance(one, Optimizer)]).items():
        yield name, name.rpartition("/")[2], initial
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            for group in optimizer.param_groups:
                keys = _keys_of_torch(optimizer, group)
                for parameter in group["params"]:
                    for variable, view in slot_owners(module, parameter):
                        for key, slot in keys.items():
                            initial = torch.zeros_like(view) if key != _STEP else torch.tensor(0.0)
                            yield f"{variable}/{key}", slot, initial


def _keys_of_torch(optimizer: torch.optim.Optimizer, group: Mapping[str, object]) -> dict[str, str]:
    """Return the keys of the state of one of torch's optimizers, with the names of TensorFlow's slots."""
    kind = type(optimizer)
    keys = dict(_OF_TORCH.get(kind, {}))
    extras = [name for name in ("amsgrad", "centered") if group.get(name)]
    extras += ["momentum"] if kind is torch.optim.RMSprop and group["momentum"] else []
    if not keys or extras:
        setting = f" with {extras[0]}" if extras else ""
        raise CheckpointError(
            f"torch.optim.{kind.__name__}{setting} cannot go on with the optimizer state of a TensorFlow checkpoint; "
            "use an optimizer of te.optim, or import the checkpoint with --weights-only."
        )
    if kind is torch.optim.SGD:
        return keys if group["momentum"] else {}
    return {**keys, _STEP: _STEP}


def _summary(names: Sequence[str], where: str) -> str:
    if not names:
        return ""
    plural = "" if len(names) == 1 else "s"
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{len(names)} optimizer variable{plural} {where}: {', '.join(names[:_MOST_NAMES])}{more}"
