"""What all extenders check."""

from __future__ import annotations

from torch_estimator.errors import InvalidTypeError
from torch_estimator.estimator import Estimator


def check_estimator(function: str, estimator: object) -> None:
    """Raises InvalidTypeError unless `estimator` is one."""
    if not isinstance(estimator, Estimator):
        raise InvalidTypeError(f"{function}: estimator must be an Estimator, but got {estimator!r}.")
