"""Handwritten digits in MNIST's IDX files, or made-up ones where there are no files."""

from __future__ import annotations

import gzip
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torch_estimator import errors, files

SIZE = 28
CLASSES = 10
_UNSIGNED_BYTES = 0x08

# Which segments of a pocket calculator's digits are lit: top, the upper two, middle, the lower two, bottom.
_SEGMENTS = (
    "1110111",
    "0010010",
    "1011101",
    "1011011",
    "0111010",
    "1101011",
    "1101111",
    "1010010",
    "1111111",
    "1111011",
)
_PLACES = (
    (slice(4, 6), slice(9, 19)),
    (slice(5, 14), slice(8, 10)),
    (slice(5, 14), slice(18, 20)),
    (slice(13, 15), slice(9, 19)),
    (slice(14, 23), slice(8, 10)),
    (slice(14, 23), slice(18, 20)),
    (slice(22, 24), slice(9, 19)),
)


@dataclass(frozen=True, slots=True)
class Digits:
    """Images, uint8 ``[N, 28, 28]``, and what they show, int64 ``[N]``."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]

    def split(self, held_out: int) -> tuple[Digits, Digits]:
        """All but the last `held_out` digits, and these."""
        if not 0 < held_out < len(self.labels):
            raise errors.InvalidValueError(
                f"{held_out} digits cannot be held out of {len(self.labels)}; hold out fewer, and at least one."
            )
        return (
            Digits(self.images[:-held_out], self.labels[:-held_out]),
            Digits(self.images[-held_out:], self.labels[-held_out:]),
        )


def read(images_file: str, labels_file: str) -> Digits:
    """Reads two IDX files, gzipped or not.

    Raises:
        DataError: A file is missing, is no IDX file of bytes, is cut off, or the two do not belong together.
    """
    images, labels = _read_idx(images_file), _read_idx(labels_file)
    if images.shape[1:] != (SIZE, SIZE):
        raise errors.DataError(f"{images_file}: expected images of {SIZE} x {SIZE}, but the shape is {images.shape}.")
    if labels.shape != (len(images),):
        raise errors.DataError(
            f"{labels_file} has the shape {labels.shape} for the {len(images)} images of {images_file}."
        )
    return Digits(images, labels.astype(np.int64))


def _read_idx(name: str) -> npt.NDArray[np.uint8]:
    try:
        data = files.read_bytes(name)
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError) as error:
        raise errors.DataError(f"{name} cannot be read: {files.reason(error)}.") from error
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != _UNSIGNED_BYTES or len(data) < 4 + 4 * data[3]:
        raise errors.DataError(f"{name} is not an IDX file of unsigned bytes: it starts with {data[:4]!r}.")
    start = 4 + 4 * data[3]
    shape = tuple(int(size) for size in np.frombuffer(data[4:start], ">u4"))
    if len(data) - start != math.prod(shape):
        raise errors.DataError(f"{name} has {len(data) - start} bytes for values of shape {shape}; is it cut off?")
    return np.frombuffer(data[start:], np.uint8).reshape(shape)


def generate(rows: int, *, seed: int) -> Digits:
    """Digits as a pocket calculator shows them, moved by up to three pixels, dimmed and with noise."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, CLASSES, rows)
    shapes = np.zeros((CLASSES, SIZE, SIZE), np.float32)
    for digit, lit in enumerate(_SEGMENTS):
        for segment, place in zip(lit, _PLACES, strict=True):
            if segment == "1":
                shapes[digit][place] = 1.0
    moves = draw.integers(-3, 4, (rows, 2))
    images = np.stack(
        [np.roll(shapes[label], tuple(move), axis=(0, 1)) for label, move in zip(labels, moves, strict=True)]
    )
    images *= draw.uniform(0.4, 1.0, (rows, 1, 1)).astype(np.float32)
    noisy = images + draw.normal(0.0, 0.15, images.shape)
    return Digits((np.clip(noisy, 0.0, 1.0) * 255).astype(np.uint8), labels.astype(np.int64))
