"""When compiling pays."""

from __future__ import annotations

# Compiling takes ten to twenty seconds of one core, and makes a step three to ten times as fast.
_WORTH_SECS = 20.0
_LOOK_AFTER_SECS = 1.0


def is_worth_compiling(eager_secs: float, eager_steps: int, steps_left: float | None) -> bool:
    """Whether a step is to be compiled.

    Args:
        eager_secs: How long it has run in Python.
        eager_steps: How often that was.
        steps_left: How often it will run yet; None where nobody knows.
    """
    if eager_secs < _LOOK_AFTER_SECS:
        return False
    if steps_left is None:
        return eager_secs >= _WORTH_SECS
    return steps_left * eager_secs / eager_steps >= _WORTH_SECS
