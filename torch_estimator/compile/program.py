"""A compiled training step, loaded and ready to be taken."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_estimator.compile.building import DESCRIPTION, FORMAT, LOOP_LIBRARY, STEP_LIBRARY
from torch_estimator.compile.leaves import Layout, as_json, layouts
from torch_estimator.json_text import parse_json


class NotThisStep(Exception):
    """What lies in a folder is no step for these tensors."""


class _LayoutInC(ctypes.Structure):
    _fields_ = (
        ("ndim", ctypes.c_int64),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("dtype", ctypes.c_int32),
    )


class StepProgram:
    """Takes steps in machine code, several at a stroke, while other Python threads run.

    Args:
        folder: Where `build` left it.
        state: The tensors that the step reads and writes, as they were when it was traced; kept by reference.
        numbers: How many settings move from step to step.
        batch: Layouts of the tensors of a batch.

    Raises:
        NotThisStep: It was built for other tensors, or is no such folder.
    """

    def __init__(self, folder: Path, state: Sequence[Tensor], numbers: int, batch: Sequence[Layout]) -> None:
        self._state = list(state)
        self._numbers = numbers
        number: Layout = ((), (), torch.float32)
        wanted = (*layouts(self._state), *([number] * numbers), *batch)
        if _described(folder) != as_json(wanted) or not {dtype for _, _, dtype in wanted} <= _DTYPES.keys():
            raise NotThisStep(str(folder))
        self._layouts = (_LayoutInC * len(wanted))(*map(_layout_in_c, wanted))
        try:
            library = ctypes.CDLL(str(folder / STEP_LIBRARY))
            loop = ctypes.CDLL(str(folder / LOOP_LIBRARY))
            self._run = ctypes.cast(library.AOTInductorModelContainerRun, ctypes.c_void_p)
            self._container = ctypes.c_void_p()
            made = library.AOTInductorModelContainerCreateWithDevice(
                ctypes.byref(self._container), ctypes.c_size_t(1), b"cpu", None
            )
            self._delete = library.AOTInductorModelContainerDelete
            self._take_steps = loop.take_steps
        except (OSError, AttributeError) as error:
            raise NotThisStep(str(folder)) from error
        if made != 0:
            raise NotThisStep(str(folder))
        self._take_steps.restype = ctypes.c_int64
        self._own = len(batch) + numbers
        steps = [shape[0] * strides[0] * dtype.itemsize if shape else 0 for shape, strides, dtype in batch]
        self._bytes_to_next = np.array(steps, np.int64)

    def __del__(self) -> None:
        if getattr(self, "_delete", None) is not None:
            self._delete(self._container)

    def take(self, places: np.ndarray, start: int, numbers: np.ndarray) -> tuple[np.ndarray, bool]:
        """Takes some steps.

        Args:
            places: int64, the addresses of a batch's tensors, of the layouts promised; those of others lie behind them.
            start: How many batches behind it the first of these is.
            numbers: float32 ``[steps, numbers]``: the settings of each step.

        Returns:
            The loss of every step taken, float32: of all, or up to and with the first that is not finite; and
            whether the one after the last of these failed.
        """
        losses, take = self.bound(places, start, numbers)
        taken = take(0, len(numbers))
        return losses[: taken if taken >= 0 else -1 - taken], taken < 0

    def bound(
        self, places: np.ndarray, start: int, numbers: np.ndarray
    ) -> tuple[np.ndarray, Callable[[int, int], int]]:
        """What takes steps of these batches, as often as it is called; see `take`.

        Returns:
            The memory for the loss of every step, and a function of the first step and how many: it returns how many
            were taken, or -1 minus that where the next one failed.
        """
        steps = len(numbers)
        own = np.empty((steps, self._own), np.int64)
        if self._numbers:
            own[:, : self._numbers] = numbers.ctypes.data + 4 * np.arange(numbers.size).reshape(numbers.shape)
        own[:, self._numbers :] = places + np.arange(start, start + steps)[:, None] * self._bytes_to_next
        state = np.array([tensor.data_ptr() for tensor in self._state], np.int64)
        losses = np.empty(steps, np.float32)
        of_state, of_own, of_losses = state.ctypes.data, own.ctypes.data, losses.ctypes.data

        def take(first: int, count: int) -> int:
            # Named here, since these arrays have to live as long as they are pointed to.
            _ = state, own, numbers
            return self._take_steps(  # type: ignore[no-any-return]
                self._run,
                self._container,
                self._layouts,
                ctypes.c_void_p(of_state),
                ctypes.c_int64(len(state)),
                ctypes.c_void_p(of_own + first * own.strides[0]),
                ctypes.c_int64(self._own),
                ctypes.c_int64(count),
                ctypes.c_void_p(of_losses + first * losses.itemsize),
            )

        return losses, take


def _described(folder: Path) -> list[Any]:
    try:
        described = parse_json((folder / DESCRIPTION).read_text())
        if described["format"] != FORMAT:
            raise NotThisStep(str(folder))
        return described["inputs"]  # type: ignore[no-any-return]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotThisStep(str(folder)) from error


def _layout_in_c(layout: Layout) -> _LayoutInC:
    shape, strides, dtype = layout
    numbers = ctypes.c_int64 * len(shape)
    return _LayoutInC(len(shape), numbers(*shape), numbers(*strides), _DTYPES[dtype])


# The numbers of PyTorch's C interface (aoti_torch_dtype_*), which never change.
_DTYPES = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.float32: 6,
    torch.float64: 7,
    torch.complex64: 9,
    torch.complex128: 10,
    torch.bool: 11,
    torch.bfloat16: 15,
}
