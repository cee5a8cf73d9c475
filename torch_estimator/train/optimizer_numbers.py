"""What optimizers keep as Python's numbers rather than as tensors, and training changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.optim import Optimizer

from torch_estimator.train.live_group import LiveGroup

_PLAIN = (bool, int, float, str)
_STATE, _GROUPS = "state", "groups"

NUMBERS = "optimizer_numbers"
"""Where a checkpoint's state holds them."""


class OptimizerNumbers:
    """Settings that hooks or optimizers change, and counts in an optimizer's state.

    A setting is put back where it began as it did in the run before: who has changed it in the program since wants the
    new one. What a schedule moves is left to it.

    Args:
        optimizers: Just made.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers
        self._begun = [[_settings(group) for group in one.param_groups] for one in optimizers]

    def state(self) -> list[dict[str, Any]]:
        """Returns what `restore` takes, as JSON."""
        return [
            {
                _STATE: {str(place): numbers for place, numbers in enumerate(map(_plain, _slots(one))) if numbers},
                _GROUPS: [
                    {key: [begun[key], now] for key, now in _settings(group).items() if begun.get(key, now) != now}
                    for group, begun in zip(one.param_groups, groups, strict=False)
                ],
            }
            for one, groups in zip(self._optimizers, self._begun, strict=True)
        ]

    def restore(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """Puts back what `state` returned, as far as the optimizers have places for it."""
        for one, begun, its in zip(self._optimizers, self._begun, saved, strict=False):
            for place, slots in enumerate(_slots(one)):
                slots.update(its[_STATE].get(str(place), {}))
            for group, settings, changed in zip(one.param_groups, begun, its[_GROUPS], strict=False):
                group.update({key: now for key, (before, now) in changed.items() if settings.get(key) == before})


def _slots(optimizer: Optimizer) -> list[dict[str, Any]]:
    # Looked up, a parameter without any would get some.
    return [optimizer.state.get(parameter, {}) for group in optimizer.param_groups for parameter in group["params"]]


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    # Schedules leave this mark.
    moved = LiveGroup.MOVING if "initial_lr" in group else ()
    return {key: value for key, value in _plain(group).items() if key not in moved}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if type(key) is str and type(value) in _PLAIN}
