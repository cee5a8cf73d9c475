"""What hears of the evaluations in this process, beside the user's own listener."""

from __future__ import annotations


class EvaluationWatch:
    """Base class of what hears of each evaluation in this process, beside the user's listener; see `watch_with`.

    It may have a checkpoint evaluated before ``throttle_secs`` have passed.
    """

    def wants(self, step: int) -> bool:
        """Return whether the checkpoint of a step is to be evaluated, if it has not been."""
        return False

    def evaluated(self, step: int, *, final: bool) -> None:
        """Hear that a checkpoint was evaluated and exported; `final` says that it is the last of the training."""


_watch = EvaluationWatch()


def watch_with(watch: EvaluationWatch) -> None:
    """Have all evaluations in this process watched from now on, by this watch alone."""
    global _watch
    _watch = watch


def evaluation_watch() -> EvaluationWatch:
    """Return the watch of this process."""
    return _watch
