"""Tensors whose rows lie in several files."""

from __future__ import annotations

import pytest
import torch

from torch_estimator.engine.saved_tensors import SavedTensors, leaving_out, rows_in, shape_in

WHOLE = torch.arange(14.0).reshape(7, 2)


@pytest.fixture
def saved() -> SavedTensors:
    return SavedTensors([{"w": WHOLE[:3], "step": torch.tensor(5)}, {"w": WHOLE[3:6]}, {"w": WHOLE[6:]}])


def test_rows_are_joined_in_the_order_of_files(saved: SavedTensors) -> None:
    assert torch.equal(saved["w"], WHOLE)
    assert saved["step"] == 5
    assert (list(saved), len(saved)) == (["w", "step"], 2)


def test_shapes_are_those_of_the_whole(saved: SavedTensors) -> None:
    assert shape_in(saved, "w") == [7, 2]
    assert shape_in(saved, "step") == []


@pytest.mark.parametrize("start", range(8))
def test_any_rows_can_be_had(saved: SavedTensors, start: int) -> None:
    for stop in range(start, 8):
        assert torch.equal(rows_in(saved, "w", start, stop), WHOLE[start:stop])


def test_some_can_be_left_out(saved: SavedTensors) -> None:
    assert dict(leaving_out(saved, {"w"})) == {"step": torch.tensor(5)}
