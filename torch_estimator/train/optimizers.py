"""Optimizers and learning-rate schedules that the user's factory makes, and saving and restoring of their state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.optim.factories import check_evaluates_once
from torch_estimator.optim.gradient_accumulation import COUNT
from torch_estimator.train.live_group import LiveGroup


class Schedules:
    """The learning-rate schedules of one training, advanced after every step.

    Checkpoints contain no state of schedules. A schedule depends only on the number of steps, so a resumed run makes a
    new schedule and advances it to the global step of the checkpoint. If the user has changed the schedule before
    resuming, training continues as if the new schedule had been used from the start.
    """

    def __init__(self, schedulers: Sequence[LRScheduler]) -> None:
        for scheduler in schedulers:
            _check_needs_no_metric(scheduler)
        self._schedulers = tuple(schedulers)

    def __bool__(self) -> bool:
        return bool(self._schedulers)

    def __iter__(self) -> Iterator[LRScheduler]:
        return iter(self._schedulers)

    def go_to(self, global_step: int) -> None:
        """Advance new schedules from their first step to a global step."""
        for _ in range(global_step):
            self.advance()

    def advance(self) -> None:
        """Advance every schedule by one training step; raise if one has come to its end."""
        for scheduler in self._schedulers:
            # Keep torch from warning that `optimizer.step` was not called: `TrainStep` updates parameters without it.
            scheduler.optimizer._opt_called = True  # type: ignore[attr-defined]
            try:
                scheduler.step()
            except ValueError as error:
                raise InvalidValueError(
                    f"The schedule {type(scheduler).__name__} has no further step, but training goes on ({error}); "
                    "give it as many steps as max_steps."
                ) from error


def optimizers_and_schedules(made: object) -> tuple[tuple[torch.optim.Optimizer, ...], Schedules]:
    """Return the optimizers, and the schedules around them, that a factory made: one of either, or a list."""
    flat = list(made) if isinstance(made, list | tuple) and made else [made]
    # Take each optimizer once, because the list may contain both an optimizer and a schedule around it.
    optimizers = {id(one): one for one in map(_optimizer_of, flat)}
    return tuple(optimizers.values()), Schedules([one for one in flat if isinstance(one, LRScheduler)])


def _optimizer_of(made: object) -> torch.optim.Optimizer:
    if isinstance(made, LRScheduler):
        return made.optimizer
    if not isinstance(made, torch.optim.Optimizer):
        raise InvalidTypeError(
            "optimizer must make a torch.optim.Optimizer, an LRScheduler of one, or a list of these, but made "
            f"{made!r}."
        )
    check_evaluates_once(made)
    return made


def _check_needs_no_metric(scheduler: LRScheduler) -> None:
    if isinstance(scheduler, ReduceLROnPlateau):
        raise InvalidTypeError(
            "ReduceLROnPlateau cannot be stepped after every training step, since it wants a metric; use a schedule of "
            "the steps, such as CosineAnnealingLR or OneCycleLR."
        )


_PLAIN = (bool, int, float, str)
_STATE, _GROUPS = "state", "groups"

NUMBERS = "optimizer_numbers"
"""Key in a checkpoint's state of the result of `OptimizerNumbers.state`."""


class OptimizerNumbers:
    """Saving and restoring of optimizers' numbers and strings: settings of parameter groups, and state such as counts.

    `restore` sets a changed setting only if its initial value in this run equals the one in the saved run. Otherwise
    the user has edited the program and wants the new value. A setting that an optimizer adds while it trains, such as a
    number of steps, begins as None. Settings that a schedule changes are neither saved nor restored, because the
    schedule computes them from the global step. The number of batches in sums of gradients is always saved: where a
    process takes over the state of another one, it may have to become 0 again.

    Make this object before the optimizers' first step.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers
        self._initial = [[_settings(group) for group in one.param_groups] for one in optimizers]

    def state(self) -> list[dict[str, Any]]:
        """Return the optimizers' non-tensor state and changed settings, as values that JSON can represent."""
        return [
            {
                _STATE: {str(place): numbers for place, numbers in enumerate(map(_plain, _slots(one))) if numbers},
                _GROUPS: [
                    {
                        key: [begun.get(key), now]
                        for key, now in _settings(group).items()
                        if begun.get(key) != now or key == COUNT
                    }
                    for group, begun in zip(one.param_groups, groups, strict=False)
                ],
            }
            for one, groups in zip(self._optimizers, self._initial, strict=True)
        ]

    def restore(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """Restore a result of `state` into the optimizers; ignore parameters and settings that no longer exist."""
        for one, begun, its in zip(self._optimizers, self._initial, saved, strict=False):
            for place, slots in enumerate(_slots(one)):
                slots.update(its[_STATE].get(str(place), {}))
            for group, settings, changed in zip(one.param_groups, begun, its[_GROUPS], strict=False):
                group.update({key: now for key, (before, now) in changed.items() if settings.get(key) == before})


def _slots(optimizer: Optimizer) -> list[dict[str, Any]]:
    # Use `get`, because `optimizer.state` is a defaultdict: brackets would add an empty state for the parameter.
    return [optimizer.state.get(parameter, {}) for group in optimizer.param_groups for parameter in group["params"]]


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    # A schedule adds the key "initial_lr" to each group whose settings it changes.
    moved = LiveGroup.MOVING if "initial_lr" in group else ()
    return {key: value for key, value in _plain(group).items() if key not in moved}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if type(key) is str and type(value) in _PLAIN}
