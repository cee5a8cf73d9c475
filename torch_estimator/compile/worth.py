"""When compiling pays."""

from __future__ import annotations

from torch_estimator.compile.idle import IdleCores

# Compiling takes ten to twenty seconds of one core, and makes a step three to ten times as fast.
_WORTH_SECS = 20.0
_LOOK_AFTER_SECS = 1.0

# Where the training gives a core for it, compiling is to cost a tenth of what is left at most.
_MUCH_MORE = 10


def is_worth_compiling(eager_secs: float, eager_steps: int, steps_left: float | None) -> bool:
    """Return whether a training is to wait until its step is compiled.

    Args:
        eager_secs: How long the step has run in Python.
        eager_steps: How often that was.
        steps_left: How often it will run yet; None where that is not known.
    """
    return eager_secs >= _LOOK_AFTER_SECS and _secs_left(eager_secs, eager_steps, steps_left) >= _WORTH_SECS


def is_worth_compiling_beside(eager_secs: float, eager_steps: int, steps_left: float | None, idle: IdleCores) -> bool:
    """Return whether to compile a step beside the training; see `is_worth_compiling`.

    On an idle core it costs the training nothing, and where this training does not gain any more, the next one does.
    Where no core is idle, only long trainings do it, and a process that has one core never does.

    Args:
        eager_secs: How long the step has run in Python.
        eager_steps: How often that was.
        steps_left: How often it will run yet; None where that is not known.
        idle: Measures the cores that this process may use.
    """
    if eager_secs < _LOOK_AFTER_SECS or idle.cores < 2:
        return False
    return idle.is_one_idle() or _secs_left(eager_secs, eager_steps, steps_left) >= _MUCH_MORE * _WORTH_SECS


def lacks_core(eager_secs: float, idle: IdleCores) -> str:
    """Return why a step was not compiled beside the training, where `is_worth_compiling_beside` was False to the end.

    Args:
        eager_secs: How long the step has run in Python.
        idle: Measures the cores that this process may use.

    Returns:
        A clause for a log line; empty where the training was too short to tell.
    """
    if eager_secs < _LOOK_AFTER_SECS:
        return ""
    return "this process has one core" if idle.cores < 2 else "no core was idle beside the training"


def _secs_left(eager_secs: float, eager_steps: int, steps_left: float | None) -> float:
    """Return how long a training goes on in Python; where that is not known, for as long as it has gone on."""
    return eager_secs if steps_left is None else steps_left * eager_secs / eager_steps
