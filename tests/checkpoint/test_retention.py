"""RetentionPolicy keeps the checkpoints that tf.train.Saver keeps."""

from __future__ import annotations

import pytest

from torch_estimator.checkpoint.retention import RetentionPolicy, SavedCheckpoint
from torch_estimator.errors import InvalidValueError

HOUR = 3600.0


def _run(policy: RetentionPolicy, hours: list[float]) -> tuple[list[float], list[float]]:
    """Save at the given hours; return the hours of the unpinned and of the pinned checkpoints that are kept."""
    kept: tuple[SavedCheckpoint, ...] = ()
    last = hours[0] * HOUR
    for hour in hours:
        saved = SavedCheckpoint(name=f"model.ckpt-{len(kept)}", timestamp=hour * HOUR)
        retained = policy.apply([*kept, saved], last_preserved_timestamp=last)
        assert set(retained.kept).isdisjoint(retained.dropped)
        kept, last = retained.kept, retained.last_preserved_timestamp
    by_pin = {pin: [c.timestamp / HOUR for c in kept if c.pinned is pin] for pin in (False, True)}
    return by_pin[False], by_pin[True]


def test_the_newest_are_kept() -> None:
    recent, pinned = _run(RetentionPolicy(keep_checkpoint_max=2), [0, 1, 2, 3])
    assert (recent, pinned) == ([2, 3], [])


@pytest.mark.parametrize("keep", [None, 0])
def test_none_and_zero_keep_all(keep: int | None) -> None:
    recent, _ = _run(RetentionPolicy(keep_checkpoint_max=keep), [0, 1, 2, 3])
    assert recent == [0, 1, 2, 3]


def test_one_checkpoint_is_pinned_for_every_interval() -> None:
    policy = RetentionPolicy(keep_checkpoint_max=1, keep_checkpoint_every_n_hours=1)
    recent, pinned = _run(policy, [0, 0.4, 0.8, 1.2, 1.6, 2.0, 2.4, 2.8, 3.2])
    assert recent == [3.2]
    assert pinned == [1.2, 2.4]


def test_after_a_gap_only_one_checkpoint_is_pinned() -> None:
    policy = RetentionPolicy(keep_checkpoint_max=1, keep_checkpoint_every_n_hours=1)
    recent, pinned = _run(policy, [0, 10.1, 10.2, 10.3, 10.4, 11.2, 11.3])
    assert recent == [11.3]
    assert pinned == [10.1, 11.2]


def test_no_hours_pin_nothing() -> None:
    policy = RetentionPolicy(keep_checkpoint_max=1, keep_checkpoint_every_n_hours=None)
    assert _run(policy, [0, 1e6, 2e6]) == ([2e6], [])


def test_bad_settings_are_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"keep_checkpoint_max must be 0 .* got -1"):
        RetentionPolicy(keep_checkpoint_max=-1)
    with pytest.raises(InvalidValueError, match="keep_checkpoint_every_n_hours must be positive, but got 0"):
        RetentionPolicy(keep_checkpoint_every_n_hours=0)
