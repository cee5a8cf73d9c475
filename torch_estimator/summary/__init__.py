"""Numbers, histograms and images said from inside a model, to be seen in TensorBoard.

The functions may be called in a module's ``forward`` and in a loss function. They do nothing but in the steps that are
summarised: every `RunConfig.save_summary_steps` of training, and those that a `torch_estimator.SummarySaverHook` asks
for. They never change what a step computes, compiled or not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.summary.recorder import RECORDER, Summary, record

__all__ = ["histogram", "image", "scalar"]


def scalar(name: str, tensor: Any) -> None:
    """Summarises one number.

    Args:
        name: The tag in TensorBoard.
        tensor: A tensor or array of one element, or a number.

    Raises:
        InvalidValueError: Where it is not one number; only in a step that is summarised, as with the others.
    """
    if RECORDER.summaries is not None:
        value = _array(name, tensor)
        if value.size != 1:
            raise InvalidValueError(
                f"The scalar summary {name!r} must be one number, but got an array of shape {list(value.shape)}."
            )
        record(Summary("scalar", name, value.reshape(())))


def histogram(name: str, tensor: Any) -> None:
    """Summarises how numbers are distributed.

    Args:
        name: The tag in TensorBoard.
        tensor: A tensor or array of any shape; what is not finite is left out.
    """
    if RECORDER.summaries is not None:
        record(Summary("histogram", name, _array(name, tensor)))


def image(name: str, tensor: Any, max_outputs: int = 3, data_format: str = "NCHW") -> None:
    """Summarises images.

    Args:
        name: The tag in TensorBoard; of several images ``<name>/0``, ``<name>/1``, ….
        tensor: Images ``[batch, channels, height, width]``, one without the batch, or ``[height, width]``; one channel
            is gray, three are RGB, four RGB and opacity. Whole numbers are 0 to 255, others 0.0 to 1.0; what lies
            outside is cut off.
        max_outputs: How many of a batch to show.
        data_format: ``"NCHW"``, or ``"NHWC"`` where the channels come last.

    Raises:
        InvalidValueError: Where the shape is not one of these.
    """
    if RECORDER.summaries is not None:
        images = _images(name, _array(name, tensor), data_format)
        several = len(images) > 1
        for number, pixels in enumerate(images[:max_outputs]):
            record(Summary("image", f"{name}/{number}" if several else name, pixels))


def _array(name: str, value: Any) -> np.ndarray[Any, Any]:
    if not isinstance(name, str) or not name:
        raise InvalidTypeError(f"The name of a summary must be a string, but got {name!r}.")
    if isinstance(value, torch.Tensor):
        # A copy: the step goes on and may change it in place.
        value = value.detach().to("cpu", torch.float32 if value.dtype == torch.bfloat16 else value.dtype, copy=True)
        value = value.numpy()
    array = np.array(value)
    if array.dtype.kind not in "biuf":
        raise InvalidTypeError(f"The summary {name!r} must be numbers, but got {value!r}.")
    return array


def _images(name: str, array: np.ndarray[Any, Any], data_format: str) -> np.ndarray[Any, Any]:
    """uint8 ``[batch, height, width, channels]``."""
    if data_format not in ("NCHW", "NHWC"):
        raise InvalidValueError(f"data_format must be 'NCHW' or 'NHWC', but got {data_format!r}.")
    axis = 0 if data_format == "NCHW" else 2
    batch = np.expand_dims(array, axis) if array.ndim == 2 else array
    batch = batch[np.newaxis] if batch.ndim == 3 else batch
    if batch.ndim == 4 and data_format == "NCHW":
        batch = batch.transpose(0, 2, 3, 1)
    if batch.ndim != 4 or batch.shape[3] not in (1, 3, 4) or 0 in batch.shape[1:]:
        raise InvalidValueError(
            f"The image summary {name!r} must be [batch, channels, height, width] with 1, 3 or 4 channels "
            f"({data_format}), but got an array of shape {list(array.shape)}."
        )
    scaled = np.nan_to_num(batch * 255.0, nan=0.0, posinf=255.0, neginf=0.0) if batch.dtype.kind in "bf" else batch
    pixels: np.ndarray[Any, Any] = np.clip(np.rint(scaled), 0, 255).astype(np.uint8)
    return pixels
