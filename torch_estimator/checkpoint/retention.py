"""Retention policy: which checkpoints to keep when a new one is saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch_estimator.errors import InvalidValueError

_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCheckpoint:
    """Entry of one checkpoint in the index of a model directory; a pinned one is never removed.

    `name` is its directory, relative to the model directory; `timestamp` is in seconds since 1970.
    """

    name: str
    timestamp: float
    pinned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Retained:
    """Decision of a `RetentionPolicy`: the checkpoints to keep and to remove.

    The pinned ones of `kept` come first, then the others in the order of saving. `last_preserved_timestamp` is the
    argument for the next call of `RetentionPolicy.apply`.
    """

    kept: tuple[SavedCheckpoint, ...]
    dropped: tuple[SavedCheckpoint, ...]
    last_preserved_timestamp: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """Policy of tf.train.Saver: keep the newest checkpoints, and one older checkpoint per N hours of training.

    Args:
        keep_checkpoint_max: Number of newest checkpoints to keep; None or 0 keeps all.
        keep_checkpoint_every_n_hours: A checkpoint that would be removed is pinned instead if it was saved more than
            this many hours after the last pinned one (at first: after the first save). None never pins.

    >>> saved = [SavedCheckpoint(name=f"model.ckpt-{step}", timestamp=0.0) for step in (1, 2, 3)]
    >>> retained = RetentionPolicy(keep_checkpoint_max=2).apply(saved, last_preserved_timestamp=0.0)
    >>> [checkpoint.name for checkpoint in retained.dropped]
    ['model.ckpt-1']
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
        """Decide which of the checkpoints, in the order of saving, to keep and which to remove.

        The last one is always kept. `last_preserved_timestamp` is the time up to which checkpoints were pinned, in
        seconds since 1970.
        """
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
        # Return the whole intervals that have passed. `apply` pins one checkpoint for all of them, even after a pause.
        exact = (timestamp - last) / (self.keep_checkpoint_every_n_hours * _SECONDS_PER_HOUR)
        return int(exact) if exact > 1.0 else 0
