"""Several batches at once are the batches that come one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.data.positions import as_arrays, assert_equal, saved
from torch_estimator.data import Dataset

ROWS = 150_000

Chain = Callable[[Dataset], Dataset]

CHAINS: dict[str, tuple[Chain, int]] = {
    "batch": (lambda d: d.batch(40), 25),
    "batch and drop the remainder": (lambda d: d.batch(41, drop_remainder=True), 24),
    "prefetch": (lambda d: d.batch(40).prefetch(8), 25),
    "shuffle": (lambda d: d.shuffle(9, seed=3).batch(40), 25),
    "repeat before batch": (lambda d: d.repeat(2).batch(999), 1),
    "repeat after batch": (lambda d: d.batch(300).repeat(2), 3),
    "take and skip after batch": (lambda d: d.batch(40).skip(7).take(1001), 25),
    "take rows": (lambda d: d.take(1234).batch(40), 25),
    "shard after batch": (lambda d: d.batch(40).shard(3, 1), 1),
    "map": (lambda d: d.batch(1000).map(lambda x, y: (x, y + 1)), 1),
    "cache": (lambda d: d.cache().batch(40), 25),
    "a batch as large as all": (lambda d: d.batch(10 * ROWS), 1),
}


def rows() -> Dataset:
    return Dataset.from_arrays({"x": np.arange(ROWS), "y": np.arange(2 * ROWS).reshape(ROWS, 2)}, np.arange(ROWS) % 3)


@pytest.mark.parametrize("name", CHAINS)
def test_they_are_the_same_with_the_same_positions(name: str) -> None:
    chain, most = CHAINS[name]
    counts = []
    with chain(rows()).iterator() as one_by_one, chain(rows()).iterator() as together:
        while True:
            several, count = together.next_together(1000, 30)
            singles = [next(one_by_one, None) for _ in range(count)]
            if several is None:
                assert singles == [None]
                break
            counts.append(count)
            lengths = {len(single.labels) for single in singles if single is not None}
            assert len(lengths) == 1
            assert len(several.labels) <= max(1000, *lengths)
            for place, single in enumerate(singles):
                assert single is not None
                where = slice(place * len(single.labels), (place + 1) * len(single.labels))
                assert_equal(_cut(as_arrays(several), where), as_arrays(single))
            assert saved(together.state()) == saved(one_by_one.state())
    assert max(counts) == most


def test_there_are_no_more_than_asked_for() -> None:
    with rows().batch(40).iterator() as batches:
        assert batches.next_together(1000, 30)[1] == 1  # Only now it is known what there is without a copy.
        assert batches.next_together(1000, 3)[1] == 3
        assert batches.next_together(80, 30)[1] == 2
        assert batches.next_together(0, 30)[1] == 1


def test_lists_are_padded_batch_by_batch() -> None:
    lists = pa.array([[1] * (row % 5) for row in range(100)])
    with Dataset.from_arrays({"x": lists}, np.arange(100)).batch(4).iterator() as batches:
        counts = [batches.next_together(1000, 30)[1] for _ in range(10)]
    assert counts == [1] * 10


def _cut(structure: Any, where: slice) -> Any:
    features, labels = structure
    return {name: column[where] for name, column in features.items()}, labels[where]
