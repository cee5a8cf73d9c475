"""Messages that are split into pieces arrive unchanged."""

from __future__ import annotations

import numpy as np
import pytest

from torch_estimator.errors import ClusterError
from torch_estimator.parameter_server.protocol import (
    MOST_FRAME_BYTES,
    Header,
    Kind,
    join_frames,
    pack_arrays,
    split_frames,
    unpack_arrays,
)

MOST = MOST_FRAME_BYTES


@pytest.mark.parametrize(
    ("sizes", "pieces"),
    [
        ([48], [48]),
        ([48, 0, 7], [48, 0, 7]),
        ([MOST - 1, 3], [MOST - 1, 3]),
        ([MOST, 3], [MOST, 0, 3]),
        ([3, MOST + 1], [3, MOST, 1]),
        ([2 * MOST, 2 * MOST + 5], [MOST, MOST, 0, MOST, MOST, 5]),
    ],
)
def test_large_frames_are_split_and_joined(sizes: list[int], pieces: list[int]) -> None:
    frames = [bytes([index + 1]) * size for index, size in enumerate(sizes)]
    cut = split_frames(frames)
    assert [len(piece) for piece in cut] == pieces
    assert join_frames([bytes(piece) for piece in cut]) == frames


def test_arrays_are_split_without_a_copy() -> None:
    arrays = {"large": np.arange(MOST / 4, dtype=np.float32), "empty": np.empty((0, 3)), "one": np.array(7.0)}
    cut = split_frames(pack_arrays(Header(Kind.START, 0), {"step": 5}, arrays))
    assert np.shares_memory(np.frombuffer(cut[2], np.float32), arrays["large"])
    content, unpacked = unpack_arrays(join_frames([bytes(piece) for piece in cut]))
    assert content == {"step": 5}
    for name, one in arrays.items():
        np.testing.assert_array_equal(unpacked[name], one)


def test_an_incomplete_frame_is_an_error() -> None:
    with pytest.raises(ClusterError, match="ends in the middle of a frame"):
        join_frames([bytes(48), bytes(MOST)])
