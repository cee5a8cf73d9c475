"""Several Datasets as one: concatenated, zipped, sampled and interleaved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import torch_estimator as te
from tests.data.positions import numbers
from torch_estimator import feature_column as fc
from torch_estimator.data import Dataset
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError, UserError


def of(values: Any, name: str = "x") -> Dataset:
    return Dataset.from_arrays({name: np.asarray(values)})


def test_rows_and_batches_are_appended_and_shuffled_together() -> None:
    both = of(range(5)).concatenate(of(range(5, 8)), of([8]))
    assert numbers(both.repeat(2).batch(4)) == [*range(9), *range(9)]
    assert [len(batch["x"]) for batch in of(range(5)).batch(2).concatenate(of(range(3)).batch(3))] == [2, 2, 1, 3]
    shuffled = numbers(both.shuffle(9, seed=1).batch(3))
    assert sorted(shuffled) == list(range(9)) != shuffled
    assert numbers(both.skip(3).shard(2, 1).filter(lambda features: features["x"] != 6).take(2).batch(2)) == [4, 8]


def test_every_epoch_of_a_part_has_an_order_of_its_own() -> None:
    part = of(range(50)).shuffle(50, seed=1)
    one, other = np.split(np.array(numbers(part.concatenate(of([50])).repeat(2).batch(51))), 2)
    assert sorted(one) == sorted(other) == list(range(51))
    assert (one != other).any()


def test_zip_puts_features_labels_and_columns_together() -> None:
    x, y = of(range(6)), Dataset.from_arrays(np.arange(10) * 10)
    features, labels = next(iter(Dataset.zip((x, y)).batch(10)))
    assert (features["x"].tolist(), labels.tolist()) == (list(range(6)), [0, 10, 20, 30, 40, 50])
    named = next(iter(Dataset.zip({"a": x, "b": y}).batch(10)))
    assert (named["a"].tolist(), named["b"].tolist()) == (list(range(6)), [0, 10, 20, 30, 40, 50])
    labelled = Dataset.from_arrays({"z": np.arange(6)}, labels=np.arange(6) % 2)
    features, labels = next(iter(Dataset.zip([x, labelled]).batch(10)))
    assert (sorted(features), labels.tolist()) == (["x", "z"], [0, 1, 0, 1, 0, 1])


def test_zip_pairs_rows_of_readers_with_other_chunks() -> None:
    count = 150_000
    large = of(range(count)).shuffle(count, seed=1)
    small = Dataset.from_iterable(lambda: ({"z": np.arange(i, i + 7)} for i in range(0, count, 7))).unbatch()
    features = next(iter(Dataset.zip([large, small]).batch(count)))
    assert features["z"].tolist() == list(range(len(features["z"])))
    assert features["x"].tolist() == numbers(large.batch(count))[: len(features["z"])]


def test_a_sample_keeps_all_rows_and_their_order() -> None:
    parts = [of(range(1000)), of(range(1000, 1200)), of(range(5000, 15_000))]
    mixed = numbers(Dataset.sample_from_datasets(parts, weights=[5, 1, 2], seed=3).batch(500))
    assert sorted(mixed) == [*range(1200), *range(5000, 15_000)]
    for low, high in [(0, 1000), (1000, 1200), (5000, 15_000)]:
        assert [one for one in mixed if low <= one < high] == list(range(low, high))
    head = np.array(mixed[:400])
    assert abs((head < 1000).mean() - 5 / 8) < 0.1


def test_a_sample_may_end_with_the_first_dataset_and_differs_by_epoch() -> None:
    parts = [of([0] * 20_000), of([1] * 300)]
    data = Dataset.sample_from_datasets(parts, weights=[0.5, 0.5], seed=3, stop_on_empty_dataset=True)
    first, second = numbers(data.batch(100)), numbers(data.repeat(2).batch(100))
    assert first.count(1) == 300
    assert 450 < len(first) < 750
    assert second[: len(first)] == first
    assert second[len(first) : len(first) + 50] != first[:50]
    assert numbers(Dataset.sample_from_datasets(parts, weights=[0, 1]).batch(9)) == [1] * 300


def test_rows_come_in_turn_until_all_have_ended() -> None:
    parts = [of([0, 1, 2, 3, 4]), of([10]), of([20, 21, 22])]
    assert numbers(Dataset.interleave(parts).batch(4)) == [0, 10, 20, 1, 21, 2, 22, 3, 4]
    assert numbers(Dataset.interleave(parts, block_length=2).batch(4)) == [0, 1, 10, 20, 21, 2, 3, 22, 4]


def test_lists_and_strings_of_combined_rows_are_padded_together() -> None:
    first = Dataset.from_arrays({"l": pa.array([[1], [2, 3]]), "w": ["a", "b"]})
    second = Dataset.from_arrays({"l": pa.array([[4, 5, 6]]), "w": ["c"]})
    (batch,) = first.concatenate(second.map(lambda features: features)).batch(3)
    assert batch["l"].tolist() == [[1, 0, 0], [2, 3, 0], [4, 5, 6]]
    assert batch["w"].tolist() == ["a", "b", "c"]


def test_models_with_columns_train_on_combined_datasets(tmp_path: Any) -> None:
    town = fc.categorical_column_with_vocabulary_list("town", ["Ulm", "Bonn"])
    parts = [Dataset.from_arrays({"town": ["Ulm", "Bonn"] * 20}, np.array([1.0, 3.0] * 20) + add) for add in (0, 2)]
    data = Dataset.sample_from_datasets(parts, seed=1).shuffle(80, seed=1)
    estimator = te.LinearRegressor([town], str(tmp_path), optimizer=te.optim.Ftrl(lr=0.5))
    estimator.train(data.repeat().batch(80), steps=60)
    values = [
        float(one["predictions"][0])
        for one in estimator.predict(Dataset.from_arrays({"town": ["Ulm", "Bonn"]}).batch(2))
    ]
    assert values == pytest.approx([2.0, 4.0], abs=0.2)


@pytest.mark.parametrize(
    ("error", "words", "make"),
    [
        (
            InvalidValueError,
            "zip takes Datasets of rows, but one has batches",
            lambda: Dataset.zip((of([1]).batch(1), of([1]))),
        ),
        (InvalidTypeError, "but got a tuple of 3", lambda: Dataset.zip((of([1]), of([1]), of([1])))),
        (InvalidTypeError, "zip takes Datasets, but got 3", lambda: Dataset.zip((of([1]), 3))),
        (InvalidTypeError, "concatenate takes Datasets, but got 3", lambda: of([1]).concatenate(3)),
        (InvalidValueError, "these are some of each", lambda: of([1]).concatenate(of([1]).batch(1))),
        (InvalidTypeError, "interleave takes a list of Datasets", lambda: Dataset.interleave([])),
        (InvalidValueError, "block_length must be at least 1", lambda: Dataset.interleave([of([1])], block_length=0)),
        (
            InvalidValueError,
            "weights must be 1 numbers",
            lambda: Dataset.sample_from_datasets([of([1])], weights=[1, 2]),
        ),
        (InvalidValueError, "weights must be", lambda: Dataset.sample_from_datasets([of([1])], weights=[0])),
        (InvalidValueError, "seed must be", lambda: Dataset.sample_from_datasets([of([1])], seed=-1)),
        (DataError, "another one that it is combined with has features", lambda: of([1]).concatenate(of([1], "y"))),
        (DataError, "has features {'y'}", lambda: Dataset.interleave([of([1]), of([1], "y")])),
        (DataError, "two of the zipped Datasets have a column 'x'", lambda: Dataset.zip([of([1]), of([1])])),
        (DataError, "several labels", lambda: Dataset.zip((Dataset.from_arrays([1], [1]), of([1])))),
    ],
)
def test_mistakes_are_sentences(error: type[UserError], words: str, make: Any) -> None:
    with pytest.raises(error, match=words):
        list(make().batch(1))


def test_a_position_belongs_to_the_same_datasets() -> None:
    with of(range(9)).concatenate(of(range(3))).batch(2).iterator() as batches:
        next(batches)
        position = batches.state()
    with of(range(9)).concatenate(of(range(4))).batch(2).iterator() as batches, pytest.raises(te.data.StateMismatch):
        batches.restore(position)
