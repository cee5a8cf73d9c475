"""Something asked around each evaluation whether to go on."""

from __future__ import annotations


class ContinuousEvalListener:
    """Asked before and after each evaluation; override what you need."""

    def before_eval(self) -> bool:
        """Called before an evaluation; returning False ends training without it."""
        return True

    def after_eval(self) -> bool:
        """Called after an evaluation and its exports; returning False ends training."""
        return True
