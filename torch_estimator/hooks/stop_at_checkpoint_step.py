"""Stopping once a checkpoint says so: on one machine, stopping."""

from __future__ import annotations

from typing import Any

from torch_estimator.hooks.hook import Hook
from torch_estimator.hooks.stop_at_step import StopAtStepHook


def make_stop_at_checkpoint_step_hook(estimator: Any, last_step: int, wait_after_file_check_secs: float = 30) -> Hook:
    """A hook that ends training at ``last_step``.

    In tf.estimator workers that were not the chief waited, looking every ``wait_after_file_check_secs`` seconds, until
    the chief's checkpoint reached that step. The one process here is the chief.
    """
    return StopAtStepHook(last_step=last_step)
