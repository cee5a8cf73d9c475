"""Functions that record numbers, histograms and images for TensorBoard from inside a model.

Call these functions in a module's ``forward`` or in a loss function. They record something only in the steps that are
summarized (every `RunConfig.save_summary_steps` steps of training, and the steps that a
`torch_estimator.SummarySaverHook` selects) and do nothing in all other steps. They never change what a step computes,
whether it is compiled or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.summary.recorder import RECORDER, Summary, record

if TYPE_CHECKING:
    import numpy as np

__all__ = ["histogram", "image", "scalar"]


def scalar(name: str, tensor: Any) -> None:
    """Record one number for TensorBoard, if the current step is summarized.

    Args:
        name: Tag in TensorBoard.
        tensor: Tensor or array of one element, or a number.

    Raises:
        InvalidValueError: The value is not a single number. Arguments are checked in summarized steps only.

    >>> class Net(torch.nn.Linear):
    ...     def forward(self, inputs):
    ...         outputs = super().forward(inputs)
    ...         te.summary.scalar("mean_output", outputs.mean())
    ...         return outputs
    >>> estimator = te.Estimator.from_module(
    ...     Net(4, 1), loss=torch.nn.MSELoss(), optimizer="SGD", model_dir="memory://summary.scalar"
    ... )
    >>> estimator = estimator.train(lambda: (np.ones((8, 4), np.float32), np.ones(8, np.float32)), steps=1)
    """
    if RECORDER.summaries is not None:
        value = _array(name, tensor)
        if value.size != 1:
            raise InvalidValueError(
                f"The scalar summary {name!r} must be one number, but got an array of shape {list(value.shape)}."
            )
        record(Summary("scalar", name, value.reshape(())))


def histogram(name: str, tensor: Any) -> None:
    """Record a histogram of numbers for TensorBoard, if the current step is summarized.

    Args:
        name: Tag in TensorBoard.
        tensor: Tensor or array of any shape; NaN and infinities are left out.

    >>> class Net(torch.nn.Linear):
    ...     def forward(self, inputs):
    ...         outputs = super().forward(inputs)
    ...         te.summary.histogram("outputs", outputs)
    ...         return outputs
    >>> estimator = te.Estimator.from_module(
    ...     Net(4, 1), loss=torch.nn.MSELoss(), optimizer="SGD", model_dir="memory://summary.histogram"
    ... )
    >>> estimator = estimator.train(lambda: (np.ones((8, 4), np.float32), np.ones(8, np.float32)), steps=1)
    """
    if RECORDER.summaries is not None:
        record(Summary("histogram", name, _array(name, tensor)))


def image(name: str, tensor: Any, max_outputs: int = 3, data_format: str = "NCHW") -> None:
    """Record images for TensorBoard, if the current step is summarized.

    Args:
        name: Tag in TensorBoard; several images get the tags ``<name>/0``, ``<name>/1`` and so on.
        tensor: Images ``[batch, channels, height, width]``, or a single image without the batch dimension, or
            ``[height, width]``. One channel is gray, three are RGB, four are RGB and opacity. Integers range from 0 to
            255, floating-point numbers from 0.0 to 1.0; values outside are clipped.
        max_outputs: Number of images of a batch to show.
        data_format: ``"NCHW"``, or ``"NHWC"`` if the channels are the last dimension.

    Raises:
        InvalidValueError: The shape is none of the above. Arguments are checked in summarized steps only.

    >>> class Net(torch.nn.Linear):
    ...     def forward(self, inputs):
    ...         outputs = super().forward(inputs)
    ...         te.summary.image("inputs", inputs.view(8, 1, 2, 2))
    ...         return outputs
    >>> estimator = te.Estimator.from_module(
    ...     Net(4, 1), loss=torch.nn.MSELoss(), optimizer="SGD", model_dir="memory://summary.image"
    ... )
    >>> estimator = estimator.train(lambda: (np.ones((8, 4), np.float32), np.ones(8, np.float32)), steps=1)
    """
    if RECORDER.summaries is not None:
        images = _images(name, _array(name, tensor), data_format)
        several = len(images) > 1
        for number, pixels in enumerate(images[:max_outputs]):
            record(Summary("image", f"{name}/{number}" if several else name, pixels))


def _array(name: str, value: Any) -> np.ndarray[Any, Any]:
    if not isinstance(name, str) or not name:
        raise InvalidTypeError(f"The name of a summary must be a string, but got {name!r}.")
    # Only here, so that readers of event files need neither.
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        # Copy the tensor, because later operations of the step may change it in place.
        value = value.detach().to("cpu", torch.float32 if value.dtype == torch.bfloat16 else value.dtype, copy=True)
        value = value.numpy()
    array = np.array(value)
    if array.dtype.kind not in "biuf":
        raise InvalidTypeError(f"The summary {name!r} must be numbers, but got {value!r}.")
    return array


def _images(name: str, array: np.ndarray[Any, Any], data_format: str) -> np.ndarray[Any, Any]:
    """Convert the images that a caller gives to uint8 ``[batch, height, width, channels]``."""
    if data_format not in ("NCHW", "NHWC"):
        raise InvalidValueError(f"data_format must be 'NCHW' or 'NHWC', but got {data_format!r}.")
    import numpy as np

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
