"""The thresholds at which classifying heads report accuracy, precision and recall."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from torch_estimator.errors import InvalidTypeError, InvalidValueError


def check_thresholds(thresholds: Sequence[float] | None) -> tuple[float, ...]:
    """Returns `thresholds` as a tuple of floats.

    Raises:
        InvalidTypeError: They are no list, or one is not a number.
        InvalidValueError: One is not between 0 and 1.
    """
    if thresholds is not None and not isinstance(thresholds, Iterable):
        raise InvalidTypeError(f"thresholds must be a list of numbers between 0 and 1, but got {thresholds!r}.")
    checked = []
    for threshold in () if thresholds is None else thresholds:
        if isinstance(threshold, bool) or not isinstance(threshold, (int, float, np.number)):
            raise InvalidTypeError(f"thresholds must be numbers between 0 and 1, but got {threshold!r}.")
        if not 0.0 < threshold < 1.0:
            raise InvalidValueError(f"thresholds must be in (0, 1), but got {threshold:g}.")
        checked.append(float(threshold))
    return tuple(checked)
