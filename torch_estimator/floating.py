"""Conversion of inputs to the floating-point type of a model.

numpy stores Python floats as float64, but models usually compute in float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from torch_estimator import tree
from torch_estimator.errors import RowError


def floating_dtype(module: nn.Module) -> torch.dtype | None:
    """Return the floating dtype of a module's parameters (of its buffers if no parameter is floating).

    None means that the module has no floating tensor, or has several dtypes.

    >>> floating_dtype(nn.Linear(2, 1).double())
    torch.float64
    """
    for tensors in (module.parameters(), module.buffers()):
        dtypes = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
        if dtypes:
            return dtypes.pop() if len(dtypes) == 1 else None
    return None


def cast(value: Any, dtype: torch.dtype, only: torch.dtype | None = None) -> Any:
    """Return features or labels (tensors, or dicts and tuples of these) with floating tensors converted to `dtype`.

    Only tensors of the dtype `only` are converted, if it is given. Anything but tensors stays as it is.
    """

    def cast_one(leaf: Any) -> Any:
        floating = isinstance(leaf, Tensor) and leaf.is_floating_point() and only in (None, leaf.dtype)
        return leaf.to(dtype) if floating else leaf

    return tree.map(cast_one, value)


def as_float32(values: npt.NDArray[Any], what: str, column: str | None = None) -> npt.NDArray[np.float32]:
    """Return an array as float32; do not copy an array that is float32 already.

    Raise a RowError for the row, along the first axis, of a finite number that would become infinite; NaN and
    infinities are kept. `what` is the name of a value in the message, for instance ``"label"``.
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
    """Raise RowError if a finite number of an array would become infinite in a narrower dtype.

    The rows are along the first axis. Only floating numbers wider than `dtype` are checked. `what` is the name of a
    value in the message, for instance ``"label"``; `label` is given only if there are several labels.
    """
    largest = torch.finfo(dtype).max
    if values.dtype.kind != "f" or not values.size or float(np.finfo(values.dtype).max) <= largest:
        return
    # For data in range, computing the maximum and the minimum is the only cost.
    # The comparison is False for an array that contains NaN, so the slower check below handles this array.
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
