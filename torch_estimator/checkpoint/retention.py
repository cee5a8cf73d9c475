"""Which checkpoints are kept when a new one has been saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch_estimator.errors import InvalidValueError

_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """A checkpoint in a model directory.

    Args:
        name: Its directory, relative to the model directory.
        timestamp: When it was saved, in seconds since 1970.
        pinned: Whether it is kept for good.
    """

    name: str
    timestamp: float
    pinned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained:
    """What a `RetentionPolicy` decided.

    Args:
        kept: The checkpoints to keep, in the order of saving but for the pinned ones, which come first.
        dropped: The checkpoints to remove.
        last_preserved_timestamp: What `RetentionPolicy.apply` is to be given next time.
    """

    kept: tuple[SavedCheckpoint, ...]
    dropped: tuple[SavedCheckpoint, ...]
    last_preserved_timestamp: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """Keeps the newest checkpoints and, of those that grow too old, one for every so many hours of training.

    Args:
        keep_checkpoint_max: How many of the newest to keep; None or 0 keeps all.
        keep_checkpoint_every_n_hours: A checkpoint about to be removed is pinned instead if it was saved more
            than this many hours after the last one pinned (at first: after the first save), as in
            tf.train.Saver; None never pins.
    """

    keep_checkpoint_max: int | None = 5
    keep_checkpoint_every_n_hours: float | None = 10_000.0

    def __post_init__(self) -> None:
        if self.keep_checkpoint_max is not None and self.keep_checkpoint_max < 0:
            raise InvalidValueError(
                f"keep_checkpoint_max must be 0 (keep all) or positive, but got {self.keep_checkpoint_max}."
            )
        hours = self.keep_checkpoint_every_n_hours
        if hours is not None and not hours > 0:
            raise InvalidValueError(f"keep_checkpoint_every_n_hours must be positive, but got {hours}.")

    def apply(self, saved: Sequence[SavedCheckpoint], *, last_preserved_timestamp: float) -> Retained:
        """Decides what stays of `saved`, which is in the order of saving; the last of it always stays."""
        pinned = [checkpoint for checkpoint in saved if checkpoint.pinned]
        recent = [checkpoint for checkpoint in saved if not checkpoint.pinned]
        surplus = len(recent) - self.keep_checkpoint_max if self.keep_checkpoint_max else 0
        dropped = []
        last = last_preserved_timestamp
        for checkpoint in recent[: max(surplus, 0)]:
            intervals = self._intervals_since(last, checkpoint.timestamp)
            if intervals:
                pinned.append(replace(checkpoint, pinned=True))
                last += intervals * _SECONDS_PER_HOUR * (self.keep_checkpoint_every_n_hours or 0.0)
            else:
                dropped.append(checkpoint)
        kept = (*pinned, *recent[max(surplus, 0) :])
        return Retained(kept=kept, dropped=tuple(dropped), last_preserved_timestamp=last)

    def _intervals_since(self, last: float, timestamp: float) -> int:
        if self.keep_checkpoint_every_n_hours is None:
            return 0
        # Whole intervals: a job that was down for a day must not pin every checkpoint until it has caught up.
        exact = (timestamp - last) / (self.keep_checkpoint_every_n_hours * _SECONDS_PER_HOUR)
        return int(exact) if exact > 1.0 else 0
