"""CRC-32C of TFRecord files, compared with tensorboard's implementation."""

from __future__ import annotations

import random

import pytest
from tensorboard.compat.tensorflow_stub import pywrap_tensorflow

from torch_estimator.tfrecord.records import crc32c, masked_crc32c


@pytest.mark.parametrize(
    ("data", "expected"),
    # RFC 3720, B.4
    [(bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43), (bytes(range(32)), 0x46DD794E), (b"", 0)],
)
def test_known_checksums(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected


def test_every_length_around_the_blocks() -> None:
    content = random.Random(1).randbytes(1100)
    for size in [*range(12), *range(250, 265), *range(508, 520), 1100]:
        assert masked_crc32c(content[:size]) == pywrap_tensorflow.masked_crc32c(content[:size]), size
