"""Encoding of summaries for TensorBoard's event files: histograms as counts per bin, images as PNG."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from torch_estimator.summary.recorder import Summary

_BINS = 64
_PNG_COLOURS = {1: 0, 3: 2, 4: 6}


def summary_values(summaries: Iterable[Summary]) -> list[dict[str, Any]]:
    """Return for each summary the arguments of TensorBoard's protocol buffer ``Summary.Value``.

    A histogram without finite numbers is left out.
    """
    values = []
    for summary in summaries:
        if summary.kind == "scalar":
            values.append({"tag": summary.tag, "simple_value": float(summary.value)})
        elif summary.kind == "image":
            values.append({"tag": summary.tag, "image": _image(summary.value)})
        elif (histogram := _histogram(summary.value)) is not None:
            values.append({"tag": summary.tag, "histo": histogram})
    return values


def _histogram(array: np.ndarray[Any, Any]) -> dict[str, Any] | None:
    numbers = array.astype(np.float64).reshape(-1)
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return None
    low, high = float(numbers.min()), float(numbers.max())
    # Compute the edges of the bins without the difference `high - low`, because the difference can overflow.
    # `maximum.accumulate` keeps the rounded edges in increasing order.
    part = np.linspace(0.0, 1.0, 2 if low == high else _BINS + 1)
    edges = np.maximum.accumulate(low * (1.0 - part) + high * part)
    counts = [len(numbers)] if low == high else np.histogram(numbers, edges)[0].tolist()
    with np.errstate(over="ignore"):
        total, squares = float(numbers.sum()), float((numbers * numbers).sum())
    return {
        "min": low,
        "max": high,
        "num": float(len(numbers)),
        "sum": total,
        "sum_squares": squares,
        "bucket_limit": edges[1:].tolist(),
        "bucket": [float(count) for count in counts],
    }


def _image(pixels: np.ndarray[Any, Any]) -> dict[str, Any]:
    height, width, channels = pixels.shape
    return {"height": height, "width": width, "colorspace": channels, "encoded_image_string": png(pixels)}


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    """Return a PNG file of uint8 ``[height, width, channels]`` with 1 (gray), 3 (RGB) or 4 channels (RGB, opacity)."""
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, _PNG_COLOURS[channels], 0, 0, 0)
    # In a PNG, each row of pixels starts with the number of its filter; 0 is no filter.
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_png_chunk(kind, data) for kind, data in chunks)


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
