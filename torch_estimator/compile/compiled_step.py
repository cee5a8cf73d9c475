"""Compiled training step, loaded from a shared library.

For a small model, one step of machine code takes a fraction of a millisecond. Calling it from Python would take about
as long again: a tensor object for each input, a call, and the GIL. So the step is called by a loop in C++
(``run_steps.h``). Python prepares the addresses of all inputs of many steps with a few operations of numpy, and calls
the loop once. The GIL is released during the call, so that the input thread can prepare the next batches.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_estimator.compile.batch_layout import TensorLayout, layouts_as_json, tensor_layouts
from torch_estimator.compile.building import DESCRIPTION, FORMAT, STEP_LIBRARY
from torch_estimator.json_text import parse_json

# PyTorch's C interface numbers dtypes like this (aoti_torch_dtype_*). The numbers are stable across versions.
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
    torch.uint16: 27,
    torch.uint32: 28,
    torch.uint64: 29,
}


# Inodes of the libraries that this process has loaded, by path.
_LOADED: dict[Path, list[int]] = {}


class StepMismatch(Exception):
    """Error: a folder contains no compiled step, or a step that was compiled for tensors of other layouts."""


class CompiledStep:
    """Training step as machine code. One call takes many steps, and other Python threads run during the call.

    The inputs of a step are, in this order: the state, whose tensors are the same in all steps and are changed in
    place; the settings that change from step to step, each a float32 scalar; the tensors of the step's batch.

    Args:
        folder: Folder that `build` has filled.
        state: The tensors that the step reads and writes, in the order of tracing. They are kept by reference.
        settings: Number of settings that change from step to step.
        batch: Layout of each tensor of a batch.

    Raises:
        StepMismatch: The folder holds no compiled step, or one for other layouts.
    """

    def __init__(self, folder: Path, state: Sequence[Tensor], settings: int, batch: Sequence[TensorLayout]) -> None:
        self._state = list(state)
        self._settings = settings
        scalar: TensorLayout = ((), (), torch.float32)
        wanted = (*tensor_layouts(self._state), *([scalar] * settings), *batch)
        if (
            _described_inputs(folder) != layouts_as_json(wanted)
            or not {dtype for _, _, dtype in wanted} <= _DTYPES.keys()
        ):
            raise StepMismatch(str(folder))
        self._layouts = (_LayoutInC * len(wanted))(*map(_layout_in_c, wanted))
        try:
            library = ctypes.CDLL(_spelled(folder / STEP_LIBRARY))
            self._container = ctypes.c_void_p()
            made = library.AOTInductorModelContainerCreateWithDevice(
                ctypes.byref(self._container), ctypes.c_size_t(1), b"cpu", None
            )
            self._delete = library.AOTInductorModelContainerDelete
            self._take_steps = library.take_steps
        except (OSError, AttributeError) as error:
            raise StepMismatch(str(folder)) from error
        if made != 0:
            raise StepMismatch(str(folder))
        self._take_steps.restype = ctypes.c_int64
        self._own_inputs = len(batch) + settings
        # Batches follow each other in memory without gaps, so the distance between two batches is the size of a batch.
        sizes = [shape[0] * strides[0] * dtype.itemsize if shape else 0 for shape, strides, dtype in batch]
        self._bytes_per_batch = np.array(sizes, np.int64)

    def __del__(self) -> None:
        if getattr(self, "_delete", None) is not None:
            self._delete(self._container)

    def take(self, addresses: np.ndarray, start: int, settings: np.ndarray) -> tuple[np.ndarray, bool]:
        """Train on consecutive batches, one step for each row of `settings`, and return the losses.

        Args:
            addresses: int64 ``[tensors]``, the memory addresses of a batch's tensors. The tensors have the layouts
                given to the constructor, and those of further batches lie behind them.
            start: Number of batches between that batch and the first one to use.
            settings: float32 ``[steps, settings]``, the settings of each step.

        Returns:
            The losses of the steps taken, float32 ``[steps]``, which end with the first that is not finite; and whether
            the step after them failed.
        """
        losses, run = self.bind(addresses, start, settings)
        taken = run(0, len(settings))
        return losses[: taken if taken >= 0 else -1 - taken], taken < 0

    def bind(
        self, addresses: np.ndarray, start: int, settings: np.ndarray
    ) -> tuple[np.ndarray, Callable[[int, int], int]]:
        """Prepare steps on consecutive batches, and return a function that takes these steps.

        The arguments are the same as for `take`.

        Returns:
            The memory for the loss of each step, and a function that takes steps as often as it is called. Its
            arguments are the number of the first step and how many to take. It returns how many were taken, or
            ``-1 - n`` if ``n`` were taken and the next one failed.
        """
        steps = len(settings)
        # Make one row of addresses per step: first the addresses of its settings, then the addresses of its batch.
        own = np.empty((steps, self._own_inputs), np.int64)
        if self._settings:
            own[:, : self._settings] = settings.ctypes.data + 4 * np.arange(settings.size).reshape(settings.shape)
        own[:, self._settings :] = addresses + np.arange(start, start + steps)[:, None] * self._bytes_per_batch
        state = np.array([tensor.data_ptr() for tensor in self._state], np.int64)
        losses = np.empty(steps, np.float32)
        state_address, own_address, losses_address = state.ctypes.data, own.ctypes.data, losses.ctypes.data

        def run(first: int, count: int) -> int:
            # The loop gets only addresses. The reference to these arrays here keeps their memory allocated.
            _ = state, own, settings
            return self._take_steps(  # type: ignore[no-any-return]
                self._container,
                self._layouts,
                ctypes.c_void_p(state_address),
                ctypes.c_int64(len(state)),
                ctypes.c_void_p(own_address + first * own.strides[0]),
                ctypes.c_int64(self._own_inputs),
                ctypes.c_int64(count),
                ctypes.c_void_p(losses_address + first * losses.itemsize),
            )

        return losses, run


class _LayoutInC(ctypes.Structure):
    """Shape, strides and dtype of a tensor, as ``struct layout`` of ``run_steps.h``."""

    _fields_ = (
        ("ndim", ctypes.c_int64),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("dtype", ctypes.c_int32),
    )


def _layout_in_c(layout: TensorLayout) -> _LayoutInC:
    shape, strides, dtype = layout
    numbers = ctypes.c_int64 * len(shape)
    return _LayoutInC(len(shape), numbers(*shape), numbers(*strides), _DTYPES[dtype])


def _spelled(library: Path) -> str:
    """Return a path of a library by which the dynamic linker does not take it for one that was there before.

    It compares paths before it opens a file, and a step of an earlier run that computes something else is replaced.
    """
    inodes, inode = _LOADED.setdefault(library, []), library.stat().st_ino
    if inode not in inodes:
        inodes.append(inode)
    return f"{library.parent}/{'./' * inodes.index(inode)}{library.name}"


def _described_inputs(folder: Path) -> list[Any]:
    """Return the layouts of the inputs that a compiled step was built for, from the description file in its folder."""
    try:
        description = parse_json((folder / DESCRIPTION).read_text())
        if description["format"] != FORMAT:
            raise StepMismatch(str(folder))
        return description["inputs"]  # type: ignore[no-any-return]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StepMismatch(str(folder)) from error
