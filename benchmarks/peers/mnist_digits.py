"""The digits of MNIST's IDX files for peers; needs numpy alone."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

IMAGES, LABELS = "images-idx3-ubyte.gz", "labels-idx1-ubyte.gz"
HELD_OUT = 1000
# What examples/mnist/task.py trains with.
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.1, 0.9, 5e-4


@dataclass(frozen=True, slots=True)
class Digits:
    """Images, float32 ``[N, 28, 28]`` within 0 and 1, and what they show, int64 ``[N]``."""

    images: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]


def read(folder: Path) -> tuple[Digits, Digits]:
    """The digits to train on and those to evaluate on, converted ahead of time."""
    images, labels = _read_idx(folder / IMAGES), _read_idx(folder / LABELS)
    whole = Digits(images.astype(np.float32) / 255.0, labels.astype(np.int64))
    held_out = min(HELD_OUT, len(labels) // 5)
    return (
        Digits(whole.images[:-held_out], whole.labels[:-held_out]),
        Digits(whole.images[-held_out:], whole.labels[-held_out:]),
    )


def _read_idx(file: Path) -> npt.NDArray[np.uint8]:
    data = gzip.decompress(file.read_bytes())
    start = 4 + 4 * data[3]
    shape = tuple(int(size) for size in np.frombuffer(data[4:start], ">u4"))
    return np.frombuffer(data[start:], np.uint8).reshape(shape)
