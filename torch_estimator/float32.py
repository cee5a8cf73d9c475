"""Numbers of an input as float32, which is what models compute with."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from torch_estimator.errors import RowError


def as_float32(values: npt.NDArray[Any], what: str, column: str | None = None) -> npt.NDArray[np.float32]:
    """Return an array as float32, in its own memory where it is float32 already.

    Args:
        values: Numbers, one row per row of the batch; NaN and infinities stay what they are.
        what: Names a value in the error, for instance ``"label"``.
        column: Of the values, or None where they have no name.

    Raises:
        RowError: A finite number is beyond float32, where it would be infinite.
    """
    try:
        with np.errstate(over="raise"):
            return values.astype(np.float32, copy=False)
    except FloatingPointError:
        with np.errstate(over="ignore"):
            lost = np.isinf(values.astype(np.float32)) & np.isfinite(values.astype(np.float64))
        row = tuple(int(index) for index in np.argwhere(lost)[0])
        raise RowError(
            f"{what} {values[row]:g} is beyond float32, whose largest number is {np.finfo(np.float32).max:.4g}; "
            "scale the values",
            row=row[0],
            column=column,
        ) from None
