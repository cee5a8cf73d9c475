"""len(dataset), which programs write in shuffle(len(dataset))."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torch_estimator as te


@pytest.mark.parametrize(
    ("change", "length"),
    [
        (lambda data: data, 10),
        (lambda data: data.shuffle(4).cache().prefetch(1), 10),
        (lambda data: data.batch(4), 3),
        (lambda data: data.batch(4, drop_remainder=True), 2),
        (lambda data: data.repeat(3).batch(4), 8),
        (lambda data: data.batch(4).repeat(3), 9),
        (lambda data: data.repeat().take(25).batch(4), 7),
        (lambda data: data.batch(4).repeat().take(25), 25),
        (lambda data: data.skip(3).shard(3, 1), 2),
        (lambda data: data.skip(20).batch(4), 0),
        (lambda data: data.shard(7, 6), 1),
        (lambda data: data.map(lambda x: x).batch(3).skip(1), 3),
    ],
)
def test_the_length_is_the_number_of_rows_or_batches(change: Callable[[Any], Any], length: int) -> None:
    data = change(te.data.Dataset.from_arrays({"x": np.arange(10)}))
    assert len(data) == length
    assert bool(data)
    rows = data if data._batched else data.batch(1)
    assert sum(1 for _ in rows) == length


def test_a_length_that_is_not_known_is_a_type_error_that_says_why(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    data = te.data.Dataset.from_arrays({"x": np.arange(10)})
    with pytest.raises(TypeError, match=r"^<Dataset: .*> has no length, because its rows are repeated without end\.$"):
        len(data.batch(4).repeat())
    for unknown in (data.filter(lambda x: x["x"] > 3), te.data.Dataset.from_csv(str(tmp_path / "a.csv"))):
        with pytest.raises(TypeError, match=r"^the length of <Dataset: .*> is not known before it is read"):
            len(unknown)
        assert list(unknown.batch(2))
