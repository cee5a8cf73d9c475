"""Learning-rate schedules of `torch.optim.lr_scheduler`, moved on after every training step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.optim.factories import check_evaluates_once


class Schedules:
    """The schedules of one training.

    A schedule is a function of the steps taken, so the global step of a checkpoint is all there is to save: a schedule
    just made is moved on by as many steps, through the very same numbers. One that was changed in between, or given
    more steps, goes on as it would have gone had it been so from the start.

    Args:
        schedulers: Just made.

    Raises:
        InvalidTypeError: One of them wants a metric at every step.
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
        """Moves schedules just made on to where they stand after so many steps."""
        for _ in range(global_step):
            self.advance()

    def advance(self) -> None:
        """Moves on by one step.

        Raises:
            InvalidValueError: A schedule is over.
        """
        for scheduler in self._schedulers:
            # torch warns where its own optimizer.step was not called before; the engine's step took its place.
            scheduler.optimizer._opt_called = True  # type: ignore[attr-defined]
            try:
                scheduler.step()
            except ValueError as error:
                raise InvalidValueError(
                    f"The schedule {type(scheduler).__name__} has no further step, but training goes on ({error}); "
                    "give it as many steps as max_steps."
                ) from error


def optimizers_and_schedules(made: object) -> tuple[tuple[torch.optim.Optimizer, ...], Schedules]:
    """Takes apart what an optimizer factory made: an optimizer, a schedule around one, or several of these.

    Raises:
        InvalidTypeError: It made something else, or a schedule that wants a metric.
    """
    flat = list(made) if isinstance(made, list | tuple) and made else [made]
    # Each once: a schedule may be listed beside its optimizer.
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
