"""The iterator returns batches one by one, several as one, and converts many at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from tests.data.positions import saved
from torch_estimator.data import Batch, Dataset

ROWS = 150_000

CHAINS: dict[str, Callable[[Dataset], Dataset]] = {
    "plain": lambda data: data.batch(64),
    "shuffled for several epochs": lambda data: data.shuffle(100, seed=3).repeat(2).batch(700),
    "partial batch in every epoch": lambda data: data.shuffle(100, seed=3).batch(999).repeat(2),
    "ahead": lambda data: data.shuffle(100, seed=3).repeat(2).batch(512).prefetch(2),
    "some batches": lambda data: data.batch(64).skip(3).take(2000).repeat(2),
    "every third batch": lambda data: data.batch(64).shard(3, 1),
    "mapped": lambda data: data.map(lambda features: features).batch(500),
    "cached": lambda data: data.batch(700).cache().repeat(2),
    "larger than a window": lambda data: data.batch(70_000),
}


def source() -> Dataset:
    return Dataset.from_arrays({"x": np.arange(ROWS)})


@pytest.mark.parametrize("chain", CHAINS)
def test_joined_batches_equal_single_ones_and_have_their_positions(chain: str) -> None:
    def make() -> Dataset:
        return CHAINS[chain](source())

    with make().iterator() as iterator:
        alone = [(batch.features["x"], saved(iterator.state())) for batch in iterator]
    asked = np.random.default_rng(1)
    with make().iterator() as iterator:
        place = 0
        while True:
            rows, count = int(asked.integers(1, 20_000)), int(asked.integers(1, 9))
            if asked.random() < 0.3:
                batch, together = next(iterator, None), 1
            else:
                batch, together = iterator.next_together(rows, count)
            if batch is None:
                break
            assert 1 <= together <= count or together == 1
            expected = np.concatenate([one for one, _ in alone[place : place + together]])
            assert together == 1 or len(expected) <= rows
            np.testing.assert_array_equal(batch.features["x"], expected)
            place += together
            assert saved(iterator.state()) == alone[place - 1][1]
        assert place == len(alone)
        assert iterator.next_together(10, 10) == (None, 1)


@pytest.mark.parametrize("chain", ["plain", "ahead", "some batches"])
def test_several_batches_are_joined(chain: str) -> None:
    with CHAINS[chain](source()).iterator() as iterator:
        iterator.next_together(10_000, 16)
        batch, together = iterator.next_together(10_000, 16)
        assert together == 16
        assert len(batch.features["x"]) == 16 * len(next(iterator).features["x"])


@pytest.mark.parametrize("chain", ["shuffled for several epochs", "partial batch in every epoch", "ahead"])
def test_a_position_within_a_block_is_restored(chain: str) -> None:
    with CHAINS[chain](source()).iterator() as iterator:
        next(iterator)
        for _ in range(3):
            iterator.next_together(10_000, 5)
        next(iterator)
        state = iterator.state()
        expected = [batch.features["x"] for batch, _ in zip(iterator, range(50), strict=False)]
    with CHAINS[chain](source()).iterator() as iterator:
        iterator.restore(state)
        for one, (batch, _) in zip(expected, zip(iterator, range(50), strict=False), strict=True):
            np.testing.assert_array_equal(batch.features["x"], one)


class Converted(NamedTuple):
    features: Any
    thread: str | None


def convert(batch: Batch) -> Converted:
    return Converted({"x": torch.tensor(batch.features["x"]).float()}, None)


@pytest.mark.parametrize("ahead", [0, 2])
def test_many_batches_are_converted_at_once_and_cut_again(ahead: int) -> None:
    given: list[tuple[int, str]] = []

    def noted(batch: Batch) -> Converted:
        given.append((len(batch.features["x"]), threading.current_thread().name))
        return convert(batch)

    with source().batch(64).prefetch(ahead).iterator(convert=noted) as iterator:
        batches = list(iterator)
    assert len(batches) == -(-ROWS // 64)
    assert torch.cat([batch.features["x"] for batch in batches]).tolist() == list(range(ROWS))
    assert all(isinstance(batch, Converted) for batch in batches)
    assert len(given) < 20
    assert {thread for _, thread in given} == {"te-prefetch" if ahead else "MainThread"}


def test_a_block_that_is_converted_takes_at_most_64_megabytes() -> None:
    sizes: list[int] = []

    def wide(batch: Batch) -> Converted:
        # Only the shape matters here, so all rows share the memory of one number.
        rows = torch.zeros(1, 1).expand(len(batch.features["x"]), 5000)
        sizes.append(rows.nbytes)
        return Converted({"x": rows}, None)

    with source().batch(100).iterator(convert=wide) as iterator:
        assert sum(len(batch.features["x"]) for batch in iterator) == ROWS
    assert len(sizes) > 2
    assert max(sizes) <= 64 * 2**20


@pytest.mark.parametrize("ahead", [0, 2])
def test_an_error_of_convert_is_raised_by_next(ahead: int) -> None:
    def failing(batch: Batch) -> Any:
        raise OSError("no memory to pin")

    with (
        source().batch(64).prefetch(ahead).iterator(convert=failing) as iterator,
        pytest.raises(OSError, match="no memory to pin"),
    ):
        next(iterator)
