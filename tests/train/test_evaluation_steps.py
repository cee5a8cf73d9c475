"""An evaluation of a part of its input says so."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import torch_estimator as te

SAID = "Evaluated the first 3 batches of the input, which has more; steps=None takes all."


@pytest.mark.parametrize(
    ("rows", "steps", "repeats", "says"),
    [(16, 3, False, True), (12, 3, False, False), (8, 3, False, False), (16, None, False, False), (16, 3, True, False)],
)
def test_a_part_of_the_input(
    rows: int, steps: int | None, repeats: bool, says: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    estimator = te.BaselineRegressor(str(tmp_path)).train(lambda: ({"x": [1.0]}, [1.0]), steps=1)
    data = te.data.Dataset.from_arrays({"x": [1.0] * rows}, [1.0] * rows).batch(4)
    estimator.evaluate(lambda: data.repeat() if repeats else data, steps=steps)
    assert (SAID in caplog.messages) == says
