"""Buffers of a loss that training changes, as a running mean of it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


class LossBuffers:
    """Those buffers of a loss that are not as they were in the beginning.

    All others, such as the weights of classes, are left to the program.

    Args:
        loss: Of an `EstimatorSpec`; one that is no module has no buffers.
    """

    def __init__(self, loss: object) -> None:
        self._loss = loss if isinstance(loss, nn.Module) else nn.Identity()
        self._begun = {name: buffer.detach().clone() for name, buffer in self._loss.named_buffers()}

    def state(self) -> dict[str, Any]:
        """Returns what `restore` takes, as JSON."""
        return {
            name: [str(buffer.dtype), list(buffer.shape), _text(buffer)]
            for name, buffer in self._loss.named_buffers()
            if name not in self._begun or not _are_same(buffer, self._begun[name])
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Copies what `state` returned into buffers of that name, dtype and shape."""
        for name, buffer in self._loss.named_buffers():
            dtype, shape, text = saved.get(name, ("", [], ""))
            if (dtype, shape) == (str(buffer.dtype), list(buffer.shape)):
                # From now on it counts as changed, wherever in the same process it began.
                self._begun.pop(name, None)
                with torch.no_grad():
                    buffer.copy_(_tensor(text, buffer))


def _are_same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def _text(tensor: Tensor) -> str:
    whole = tensor.detach().cpu().contiguous().reshape(-1)
    return base64.b64encode(whole.view(torch.uint8).numpy().tobytes()).decode()


def _tensor(text: str, like: Tensor) -> Tensor:
    content = np.frombuffer(bytearray(base64.b64decode(text)), np.uint8)
    return torch.from_numpy(content).view(like.dtype).reshape(like.shape)
