"""What several command lines take. The census trainer has it, as it is submitted without what is around it."""

from .census.trainer.options import COMPILE, at_least, leaves_evaluating, positive

__all__ = ["COMPILE", "at_least", "leaves_evaluating", "positive"]
