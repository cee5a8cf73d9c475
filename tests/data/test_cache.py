"""Caches in memory: data is read once, iterators share it, and operations act as in tf.data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import torch_estimator as te
from tests.data.positions import check_every_position, numbers
from torch_estimator.data import Dataset, StateMismatch
from torch_estimator.errors import InvalidTypeError, InvalidValueError


class Counted:
    """A function that yields three batches and counts its calls and the batches taken."""

    def __init__(self) -> None:
        self.passes = 0
        self.taken = 0

    def __call__(self) -> Iterator[dict[str, Any]]:
        # The pass begins with the first batch, not with the call.
        return self._batches()

    def _batches(self) -> Iterator[dict[str, Any]]:
        self.passes += 1
        for number in range(3):
            self.taken += 1
            yield {"x": np.arange(2) + 2 * number}


def test_the_input_is_read_once() -> None:
    source = Counted()
    data = Dataset.from_iterable(source).cache().repeat(4)
    assert numbers(data) == [*range(6)] * 4
    assert (source.passes, source.taken) == (1, 3)


def test_iterators_of_one_dataset_share_what_was_read() -> None:
    source = Counted()
    cached = Dataset.from_iterable(source).cache()
    assert numbers(cached) == numbers(cached.repeat(1)) == [*range(6)]
    assert source.passes == 1


def test_the_next_pass_continues_one_that_ended_early() -> None:
    source = Counted()
    cached = Dataset.from_iterable(source).cache()
    with cached.take(1).repeat(3).iterator() as iterator:
        assert len(list(iterator)) == 3
    assert (source.passes, source.taken) == (1, 1)
    assert numbers(cached) == [*range(6)]
    assert source.passes == 2


class Doubling:
    """A transform that counts the rows that it gets."""

    required = {"x": pa.int64()}  # noqa: RUF012 - a constant

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, features: Any, labels: Any) -> tuple[Any, Any]:
        self.rows += len(features["x"])
        return {"x": features["x"] * 2}, labels


def test_a_transform_is_applied_once_and_its_result_not_shared_with_other_models() -> None:
    data = Dataset.from_arrays({"x": np.arange(5)}).cache().shuffle(9, seed=1).repeat(3).batch(2)
    one, other = Doubling(), Doubling()
    for model in (one, one, other):
        with data.iterator(model) as iterator:
            assert sum(int(batch.features["x"].sum()) for batch in iterator) == 3 * 20
    assert (one.rows, other.rows) == (5, 5)
    assert sorted(numbers(data)) == sorted([*range(5)] * 3)


def test_evaluations_of_one_estimator_share_a_cache(tmp_path: Path) -> None:
    calls = []

    def count(features: Any, labels: Any) -> Any:
        calls.append(len(labels))
        return features, labels

    data = Dataset.from_arrays({"x": np.arange(6.0)}, np.arange(6.0)).batch(4).map(count).cache()
    estimator = te.LinearRegressor([te.feature_column.numeric_column("x")], str(tmp_path))
    estimator.train(lambda: data.repeat(5))
    assert calls == [4, 2]
    first = estimator.evaluate(lambda: data)
    assert estimator.evaluate(lambda: data) == first
    assert calls == [4, 2] * 2


def test_a_cache_in_front_of_a_map_keeps_what_the_map_sees() -> None:
    model = Doubling()
    calls = []

    def add_one(features: Any) -> Any:
        calls.append(len(features["x"]))
        return {"x": features["x"] + 1}

    data = Dataset.from_arrays({"x": np.arange(4)}).batch(4).cache().map(add_one).repeat(2)
    with data.iterator(model) as iterator:
        assert [batch.features["x"].tolist() for batch in iterator] == [[2, 4, 6, 8]] * 2
    assert calls == [4, 4]
    calls.clear()
    with Dataset.from_arrays({"x": np.arange(4)}).batch(4).map(add_one).cache().repeat(2).iterator(model) as iterator:
        assert [batch.features["x"].tolist() for batch in iterator] == [[2, 4, 6, 8]] * 2
    assert calls == [4]


def test_shuffling_after_a_cache_is_new_in_every_epoch_and_before_it_is_not() -> None:
    rows = Dataset.from_arrays({"x": np.arange(50)})
    after = np.array(numbers(rows.cache().shuffle(50, seed=1).repeat(2).batch(5))).reshape(2, 50)
    assert after[0].tolist() != after[1].tolist()
    before = np.array(numbers(rows.shuffle(50, seed=1).cache().repeat(2).batch(5))).reshape(2, 50)
    assert before[0].tolist() == before[1].tolist() != [*range(50)]
    assert sorted(after[1]) == sorted(before[0]) == [*range(50)]


def test_a_cache_after_a_shard_keeps_the_shard() -> None:
    data = Dataset.from_arrays({"x": np.arange(10)}).shard(2, 1).cache().repeat(2).batch(3)
    assert numbers(data) == [1, 3, 5, 7, 9] * 2


def test_labels_and_their_cache_belong_together() -> None:
    cached = Dataset.from_arrays({"x": [1, 2], "y": ["a", "b"]}).cache()
    assert [list(features) for features in cached.batch(2)] == [["x", "y"]]
    for mapping in ({"a": 0, "b": 1}, {"a": 5, "b": 6}):
        ((features, labels),) = cached.label("y", mapping).batch(2)
        assert list(features) == ["x"]
        assert labels.tolist() == list(mapping.values())


def test_cached_arrays_are_read_only() -> None:
    cached = Dataset.from_arrays({"x": np.arange(4)}).cache().batch(4)
    with cached.repeat(2).iterator() as iterator, pytest.raises(ValueError, match="read-only"):
        next(iterator).features["x"] += 1


def loader(seed: int | None) -> DataLoader[Any]:
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return DataLoader(
        TensorDataset(torch.arange(12), torch.arange(12)), batch_size=5, shuffle=True, generator=generator
    )


@pytest.mark.parametrize("seed", [None, 3])
def test_a_loader_s_order_is_kept_and_restored(seed: int | None) -> None:
    torch.manual_seed(7)
    with Dataset.from_iterable(loader(seed)).cache().repeat(2).iterator() as iterator:
        before = next(iterator)
        torch.rand(5)
        state = iterator.state()
        rest = [batch.features.tolist() for batch in iterator]
    assert rest[2] == before.features.tolist()
    torch.manual_seed(8)
    with Dataset.from_iterable(loader(seed)).cache().repeat(2).iterator() as iterator:
        iterator.restore(state)
        assert [batch.features.tolist() for batch in iterator] == rest


def test_an_input_that_became_shorter_is_refused_on_restore() -> None:
    with Dataset.from_iterable([np.ones(1)] * 3).cache().iterator() as iterator:
        list(iterator)
        state = iterator.state()
    with (
        Dataset.from_iterable([np.ones(1)]).cache().iterator() as iterator,
        pytest.raises(StateMismatch, match="The input ended before the saved position"),
    ):
        iterator.restore(state)


def test_a_cache_of_lists_and_strings_and_tuples() -> None:
    def make() -> Dataset:
        features = ({"n": pa.array([[1], [2, 3], []]), "w": ["a", "b", "a"]}, np.ones((3, 2, 2)))
        return Dataset.from_arrays(features, {"y": [1, 2, 3]}).cache().shuffle(5, seed=2).repeat(2).batch(2)

    assert check_every_position(make) == 3


@pytest.mark.parametrize(
    ("filename", "error", "message"),
    [
        ("", InvalidValueError, "must be a path on this machine, but got ''"),
        ("memory://a", InvalidValueError, "must be a path on this machine, but got 'memory://a'"),
        (b"a", InvalidTypeError, "must be a path, but got b'a'"),
    ],
)
def test_other_filenames_are_refused(filename: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Dataset.from_arrays([1]).cache(filename)
