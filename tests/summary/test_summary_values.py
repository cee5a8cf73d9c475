"""Histograms and images in TensorBoard's format."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

from torch_estimator.summary.recorder import Summary
from torch_estimator.summary.summary_values import png, summary_values


@pytest.mark.parametrize(
    "numbers",
    [
        np.random.default_rng(0).normal(size=(10, 7)),
        np.array([3.0]),
        np.array([5, 5, 5]),
        np.array([True, False]),
        np.array([1.0, np.nan, np.inf, -2.0]),
        np.array([-1.7e308, 1.7e308]),
        np.array([1.0, np.nextafter(1.0, 2.0)]),
    ],
)
def test_a_histogram_counts_every_finite_number(numbers: np.ndarray) -> None:
    ((histogram,),) = [[value["histo"] for value in summary_values([Summary("histogram", "x", numbers)])]]
    finite = numbers[np.isfinite(numbers)].astype(float)
    assert sum(histogram["bucket"]) == histogram["num"] == len(finite.reshape(-1))
    assert (histogram["min"], histogram["max"]) == (finite.min(), finite.max())
    assert len(histogram["bucket"]) == len(histogram["bucket_limit"])
    assert histogram["bucket_limit"] == sorted(histogram["bucket_limit"])
    assert histogram["bucket_limit"][-1] == finite.max()


def test_a_histogram_of_nothing_is_left_out() -> None:
    assert summary_values([Summary("histogram", "x", np.array([np.nan])), Summary("histogram", "y", np.ones(0))]) == []


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_an_image_is_a_png(channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, channels), dtype=np.uint8)
    encoded = png(pixels)
    assert encoded.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, position = {}, 8
    while position < len(encoded):
        (length,) = struct.unpack_from(">I", encoded, position)
        kind, data = encoded[position + 4 : position + 8], encoded[position + 8 : position + 8 + length]
        assert struct.unpack_from(">I", encoded, position + 8 + length)[0] == zlib.crc32(kind + data)
        chunks[kind] = data
        position += 12 + length
    assert struct.unpack(">IIBB", chunks[b"IHDR"][:10]) == (3, 5, 8, {1: 0, 3: 2, 4: 6}[channels])
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(5, -1)
    assert (rows[:, 0] == 0).all()
    assert np.array_equal(rows[:, 1:].reshape(pixels.shape), pixels)
