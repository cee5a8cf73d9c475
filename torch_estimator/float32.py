"""Numbers of an input as float32, which is what models compute with."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

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
        raise _beyond(values, lost, what, torch.float32, column=column) from None


def check_fits(
    values: npt.NDArray[Any], dtype: torch.dtype, what: str, *, column: str | None = None, label: str | None = None
) -> None:
    """Raise where a number of an array would be infinite in a narrower dtype; NaN and infinities stay what they are.

    Args:
        values: One row per row of the batch; anything but floating numbers that are wider than `dtype` is left alone.
        dtype: A floating dtype of torch.
        what: Names a value in the error, for instance ``"label"``.
        column: Of the values, or None where they have no name.
        label: The name of the label that the values are, where there are several.

    Raises:
        RowError: A finite number is beyond the dtype.
    """
    largest = torch.finfo(dtype).max
    if values.dtype.kind != "f" or not values.size or np.finfo(values.dtype).max <= largest:
        return
    # One pass for each is all that data in range costs; NaN is in no range.
    if values.max() <= largest and values.min() >= -largest:
        return
    lost = torch.from_numpy(values.astype(np.float64)).to(dtype).isinf().numpy() & np.isfinite(values)
    if lost.any():
        raise _beyond(values, lost, what, dtype, column=column, label=label)


def _beyond(
    values: npt.NDArray[Any],
    lost: npt.NDArray[np.bool_],
    what: str,
    dtype: torch.dtype,
    *,
    column: str | None = None,
    label: str | None = None,
) -> RowError:
    row = tuple(int(index) for index in np.argwhere(lost)[0])
    return RowError(
        f"{what} {values[row]:g} is beyond {str(dtype).removeprefix('torch.')}, whose largest number is "
        f"{torch.finfo(dtype).max:.4g}; scale the values",
        row=row[0],
        column=column,
        label=label,
    )
