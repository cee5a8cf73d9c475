"""Tensors of a checkpoint with rows in several files."""

from __future__ import annotations

import pytest
import torch

from torch_estimator.checkpoint.format import CHECKSUMS
from torch_estimator.checkpoint.saved_tensors import SavedTensors, TensorFile, saved_rows, saved_shape, without
from torch_estimator.errors import CheckpointError

WHOLE = torch.arange(14.0).reshape(7, 2)


@pytest.fixture
def saved() -> SavedTensors:
    return SavedTensors([{"w": WHOLE[:3], "step": torch.tensor(5)}, {"w": WHOLE[3:6]}, {"w": WHOLE[6:]}])


def test_rows_are_joined_in_the_order_of_files(saved: SavedTensors) -> None:
    assert torch.equal(saved["w"], WHOLE)
    assert saved["step"] == 5
    assert (list(saved), len(saved)) == (["w", "step"], 2)


def test_shapes_are_those_of_the_whole(saved: SavedTensors) -> None:
    assert saved_shape(saved, "w") == [7, 2]
    assert saved_shape(saved, "step") == []


@pytest.mark.parametrize("start", range(8))
def test_any_range_of_rows_can_be_read(saved: SavedTensors, start: int) -> None:
    for stop in range(start, 8):
        assert torch.equal(saved_rows(saved, "w", start, stop), WHOLE[start:stop])


def test_a_file_without_any_of_the_rows_is_not_read() -> None:
    header = {"__metadata__": {CHECKSUMS: "00000000"}, "w": {"dtype": "F32", "shape": [3, 2]}}
    # The checksum of this file is wrong, so reading it would raise an error.
    saved = SavedTensors([TensorFile("first", {"w": WHOLE[:3]}, header), {"w": WHOLE[3:]}])
    assert torch.equal(saved_rows(saved, "w", 3, 5), WHOLE[3:5])
    with pytest.raises(CheckpointError, match="first is damaged"):
        saved_rows(saved, "w", 2, 5)


def test_some_tensors_can_be_left_out(saved: SavedTensors) -> None:
    assert dict(without(saved, {"w"})) == {"step": torch.tensor(5)}
