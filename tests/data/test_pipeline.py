"""The operations, alone and combined, have the semantics of tf.data."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.data.positions import check_every_position, numbers
from torch_estimator.data import Dataset
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError


def rows(count: int) -> Dataset:
    return Dataset.from_arrays({"x": np.arange(count)}, np.arange(count) * 10)


def batches(data: Dataset) -> list[list[int]]:
    return [batch[0]["x"].tolist() for batch in data]


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        (lambda d: d.batch(2), [[0, 1], [2, 3], [4]]),
        (lambda d: d.batch(2, drop_remainder=True), [[0, 1], [2, 3]]),
        (lambda d: d.batch(9), [[0, 1, 2, 3, 4]]),
        (lambda d: d.batch(9, drop_remainder=True), []),
        (lambda d: d.repeat(2).batch(3), [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4]]),
        (lambda d: d.batch(3).repeat(2), [[0, 1, 2], [3, 4], [0, 1, 2], [3, 4]]),
        (lambda d: d.repeat(3).batch(12), [[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1], [2, 3, 4]]),
        (lambda d: d.repeat(0).batch(3), []),
        (lambda d: d.repeat(-1).take(7).batch(4), [[0, 1, 2, 3], [4, 0, 1]]),
        (lambda d: d.take(3).repeat(2).batch(4), [[0, 1, 2, 0], [1, 2]]),
        (lambda d: d.skip(3).batch(4), [[3, 4]]),
        (lambda d: d.skip(9).batch(4), []),
        (lambda d: d.take(0).repeat().batch(4), []),
        (lambda d: d.batch(2).skip(1).take(1), [[2, 3]]),
        (lambda d: d.batch(2).shard(2, 0), [[0, 1], [4]]),
        (lambda d: d.shard(2, 0).batch(2), [[0, 2], [4]]),
        (lambda d: d.shard(2, 1).batch(2), [[1, 3]]),
        (lambda d: d.repeat(2).shard(2, 1).batch(9), [[1, 3, 0, 2, 4]]),
        (lambda d: d.shard(9, 7).batch(2), []),
        (lambda d: d.shuffle(1, seed=3).batch(9), [[0, 1, 2, 3, 4]]),
        (lambda d: d.batch(3).batch(2), [[0, 1], [2, 3], [4]]),
        (lambda d: d.batch(np.int64(3)), [[0, 1, 2], [3, 4]]),
        (lambda d: d.prefetch(2).batch(3).prefetch(0).prefetch(2), [[0, 1, 2], [3, 4]]),
    ],
)
def test_operations_act_in_their_order(chain: Callable[[Dataset], Dataset], expected: list[list[int]]) -> None:
    assert batches(chain(rows(5))) == expected


def test_the_shards_together_are_the_data() -> None:
    parts = [numbers(rows(10).shuffle(10, seed=2).shard(3, i).batch(4)) for i in range(3)]
    assert sorted(x for part in parts for x in part) == list(range(10))


def test_small_data_is_shuffled_fully_and_differently_in_every_epoch() -> None:
    epochs = np.array(numbers(rows(1000).shuffle(2, seed=1).repeat(3).batch(7))).reshape(3, 1000)
    assert all(sorted(epoch) == list(range(1000)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    # A uniform permutation moves a row by a third of the length on average.
    assert abs(np.abs(epochs[0] - np.arange(1000)).mean() - 333) < 30


def test_the_seed_decides_about_the_order() -> None:
    assert numbers(rows(50).shuffle(9, seed=1).batch(7)) == numbers(rows(50).shuffle(9, seed=1).batch(8))
    assert numbers(rows(50).shuffle(9, seed=1).batch(7)) != numbers(rows(50).shuffle(9, seed=2).batch(7))


def test_shuffling_after_repeat_mixes_epochs() -> None:
    order = numbers(rows(50).repeat(2).shuffle(100, seed=1).batch(10))
    assert sorted(order) == sorted([*range(50), *range(50)])
    assert sorted(order[:50]) != list(range(50))


def test_features_and_labels_stay_together() -> None:
    for features, labels in rows(100).shuffle(9, seed=1).repeat(2).batch(7):
        assert (features["x"] * 10 == labels).all()


def test_datasets_are_never_changed() -> None:
    data = rows(4)
    batched = data.batch(2)
    batched.repeat(2).map(lambda features, labels: (features, labels)).take(1)
    assert batches(batched) == batches(batched) == [[0, 1], [2, 3]]


def test_a_map_sees_batches_of_plain_arrays() -> None:
    seen = []

    def double(features: dict[str, np.ndarray], labels: np.ndarray) -> tuple[Any, Any]:
        seen.append({name: column.dtype for name, column in features.items()})
        return {"x": features["x"] * 2, "s": features["s"]}, labels + 1

    data = Dataset.from_arrays({"x": [1, 2, 3], "s": ["a", "b", "a"]}, [0, 1, 0]).batch(2).map(double).map(double)
    assert [(features["x"].tolist(), labels.tolist()) for features, labels in data] == [([4, 8], [2, 3]), ([12], [2])]
    assert seen[0] == {"x": np.int64, "s": object}


def test_a_map_before_batch_sees_many_rows_at_once() -> None:
    seen = []

    def scale(features: dict[str, np.ndarray], labels: np.ndarray) -> tuple[Any, Any]:
        seen.append(len(labels))
        return {"x": features["x"] / 2}, labels

    data = rows(5).map(scale).repeat(2).batch(3)
    assert batches(data) == [[0, 0.5, 1], [1.5, 2, 0], [0.5, 1, 1.5], [2]]
    assert seen == [5, 5]


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("where", ["map after batch", "map before batch", "iterable"])
def test_a_stop_iteration_of_a_user_does_not_end_the_data(where: str, prefetch: int) -> None:
    nothing: list[Any] = []

    def drained(features: Any) -> Any:
        return next(iter(nothing)) if features["x"][-1] > 20 else features

    data = Dataset.from_arrays({"x": np.arange(100)})
    if where == "iterable":
        passes = itertools.count()
        data = Dataset.from_iterable(lambda: next(iter(nothing)) if next(passes) % 2 else [{"x": [1]}]).repeat()
    else:
        data = data.batch(10).map(drained) if where == "map after batch" else data.map(drained).batch(10)
    place = rf"{re.escape(__file__)}, line \d+ raised StopIteration in a function of the input; catch it there"
    with pytest.raises(DataError, match=place):
        list(data.prefetch(prefetch))
    with data.prefetch(prefetch).iterator() as iterator, pytest.raises(DataError, match=place):
        while iterator.next_together(20, 2)[0] is not None:
            pass


def test_a_map_may_make_labels() -> None:
    data = Dataset.from_arrays({"x": [1, 2]}).batch(2).map(lambda features: (features, features["x"] > 1))
    ((_, labels),) = data
    assert labels.tolist() == [False, True]


def test_a_transform_is_applied_after_the_last_map_and_before_everything_else() -> None:
    sizes = []

    class Transform:
        required = {"x": pa.int64(), "s": pa.string()}  # noqa: RUF012 - a constant

        def __call__(self, features: Any, labels: Any) -> tuple[Any, Any]:
            assert isinstance(features["s"], pa.DictionaryArray)
            sizes.append(len(features["x"]))
            return features["x"] * 2, labels

    data = Dataset.from_arrays({"x": np.arange(10), "s": ["a"] * 10, "other": np.arange(10)}).repeat(2).batch(4)
    with data.iterator(Transform()) as iterator:
        assert [batch.features.tolist() for batch in iterator][:2] == [[0, 2, 4, 6], [8, 10, 12, 14]]
    assert sizes == [10]
    sizes.clear()
    with data.map(lambda features: features).iterator(Transform()) as iterator:
        assert [batch.features.tolist() for batch in iterator][:2] == [[0, 2, 4, 6], [8, 10, 12, 14]]
    assert sizes == [4] * 5


@pytest.mark.parametrize(
    ("chain", "error", "message"),
    [
        (lambda d: list(d), InvalidValueError, "no batch size"),
        (lambda d: d.iterator(), InvalidValueError, "no batch size"),
        (lambda d: d.batch(0), InvalidValueError, "batch's size must be at least 1, but got 0"),
        (lambda d: d.batch("9"), InvalidTypeError, "batch's size must be a whole number, but got '9'"),
        (lambda d: d.shuffle(0), InvalidValueError, "buffer must be positive"),
        (lambda d: d.shuffle(None), InvalidTypeError, "buffer must be a number"),
        (lambda d: d.shuffle(5, seed=-1), InvalidValueError, "seed must be a whole number from 0"),
        (lambda d: d.batch(2).shuffle(5), InvalidValueError, "before batch"),
        (lambda d: d.repeat(-2), InvalidValueError, "repeat's count must be at least 0"),
        (lambda d: d.shard(2, 2), InvalidValueError, "index must be less than num_shards 2, but got 2"),
        (lambda d: d.shard(0, 0), InvalidValueError, "num_shards must be at least 1"),
        (lambda d: d.skip(-1), InvalidValueError, "skip's count"),
        (lambda d: d.take(-1), InvalidValueError, "take's count"),
        (lambda d: d.prefetch(-2), InvalidValueError, "prefetch's count"),
        (lambda d: d.cache(3), InvalidTypeError, "cache's filename must be a path, but got 3"),
        (lambda d: list(d.map(lambda f, y: (f["x"][:1], y[:1])).batch(2)), InvalidValueError, "made 1 of 5"),
        (lambda d: d.batch(2).map(3), InvalidTypeError, "map takes a function"),
        (
            lambda d: list(d.batch(2).map(lambda f: f)),
            InvalidTypeError,
            "is called with features and labels: .*1 positional",
        ),
        (lambda d: list(d.batch(2).map(lambda f, y: (f + 1, y))), TypeError, "unsupported operand"),
        (lambda d: list(d.batch(2).map(lambda f, y: f)), InvalidValueError, "if it gets both, but returned a dict"),
        (lambda d: list(d.batch(2).map(lambda f, y: (f, y[:1]))), InvalidValueError, "same number of rows"),
    ],
)
def test_invalid_arguments_are_refused(chain: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        chain(rows(5))


def test_batches_that_a_map_leaves_without_rows_are_skipped_at_every_position() -> None:
    def kept() -> Dataset:
        return rows(9).batch(2).map(lambda f, y: ({"x": f["x"][f["x"] % 4 > 1]}, y[f["x"] % 4 > 1])).repeat(2)

    assert batches(kept()) == [[2, 3], [6, 7]] * 2
    assert batches(rows(4).batch(2).map(lambda f, y: ({"x": f["x"][:0]}, y[:0])).repeat()) == []
    check_every_position(kept)


def test_a_map_after_batch_may_make_more_rows() -> None:
    def twice() -> Dataset:
        return rows(4).batch(2).map(lambda f, y: ({"x": f["x"].repeat(2)}, y.repeat(2))).batch(3)

    assert batches(twice()) == [[0, 0, 1], [1, 2, 2], [3, 3]]
    check_every_position(twice)


def test_empty_elements_of_an_iterable_are_skipped() -> None:
    elements = [*({"x": np.zeros(0)} for _ in range(3000)), {"x": np.ones(1)}]
    assert [batch["x"].tolist() for batch in Dataset.from_iterable(elements)] == [[1]]


@pytest.mark.parametrize(
    "chain",
    [
        lambda d: d.repeat().filter(lambda features, labels: features["x"] < 0).batch(4),
        lambda d: (
            d.shuffle(8).repeat().map(lambda *row: row).filter(lambda features, labels: features["x"] < 0).batch(4)
        ),
        lambda d: d.repeat().shuffle(8, seed=1).filter(lambda features, labels: features["x"] < 0).repeat(2).batch(4),
        lambda d: d.repeat().batch(2**16).prefetch(2).filter(lambda features, labels: False),
        lambda d: d.repeat(2).repeat().batch(2**16).filter(lambda features, labels: features["x"] < 0),
    ],
)
def test_an_endless_input_of_which_filter_keeps_nothing_is_an_error(chain: Callable[[Dataset], Dataset]) -> None:
    with pytest.raises(DataError, match=r"filter has kept none of .* rows, .* and repeat\(\) before it never ends"):
        next(iter(chain(rows(2**18))))


def test_a_filter_that_keeps_a_row_or_whose_input_ends_takes_many_rows() -> None:
    data = rows(2**18)
    assert not list(data.repeat(9).filter(lambda features, labels: features["x"] < 0).batch(4))
    assert not list(data.filter(lambda features, labels: features["x"] < 0).repeat().batch(4))
    rare = data.repeat().filter(lambda features, labels: features["x"] == 7).batch(9)
    assert batches(rare.take(1)) == [[7] * 9]
