"""Batches by length: the order of tf.data, exact positions, and what models get."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.positions import as_arrays, assert_equal, check_every_position
from torch_estimator.data import Dataset
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError, UserError

LENGTHS = [1, 5, 2, 9, 3, 4, 1, 7, 0, 5, 12, 2, 6, 3, 8, 1, 1, 4, 10]


def columns(lengths: list[int] = LENGTHS) -> dict[str, Any]:
    return {"tokens": pa.array([[i + 1] * n for i, n in enumerate(lengths)]), "row": np.arange(len(lengths))}


def rows(lengths: list[int] = LENGTHS) -> Dataset:
    return Dataset.from_arrays(columns(lengths), np.arange(len(lengths)) * 10)


def by_hand(
    lengths: list[int], boundaries: list[int], sizes: list[int], drop: bool = False, epochs: int = 1
) -> list[list[int]]:
    """Return the rows of every batch, computed row by row as in tf.data."""
    batches = []
    for _ in range(epochs):
        buckets: list[list[int]] = [[] for _ in sizes]
        for row, length in enumerate(lengths):
            number = sum(length >= boundary for boundary in boundaries)
            buckets[number].append(row)
            if len(buckets[number]) == sizes[number]:
                batches.append(buckets[number])
                buckets[number] = []
        if not drop:
            batches += [bucket for bucket in buckets if bucket]
    return batches


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize(
    ("boundaries", "sizes"), [([3, 6], [4, 3, 2]), ([1], [1, 5]), ([20], [4, 4]), ([2, 4], [1] * 3)]
)
def test_rows_are_batched_as_in_tf_data(boundaries: list[int], sizes: list[int], drop: bool) -> None:
    data = rows().bucket_by_sequence_length("tokens", boundaries, sizes, drop_remainder=drop).repeat(2)
    batches = list(data)
    assert [features["row"].tolist() for features, _ in batches] == by_hand(LENGTHS, boundaries, sizes, drop, epochs=2)
    for features, labels in batches:
        assert labels.tolist() == (features["row"] * 10).tolist()
        lengths = [LENGTHS[row] for row in features["row"]]
        assert features["tokens_length"].tolist() == lengths
        assert features["tokens"].tolist() == [
            [row + 1] * LENGTHS[row] + [0] * (max(lengths) - LENGTHS[row]) for row in features["row"]
        ]


def parquet(folder: Path) -> Dataset:
    file = folder / "a.parquet"
    if not file.exists():
        pq.write_table(pa.table(columns()), file, row_group_size=4)
    return Dataset.from_parquet(file)


def arrays(folder: Path) -> Dataset:
    return rows()


def batches(folder: Path) -> Dataset:
    tokens = columns()["tokens"]
    return Dataset.from_iterable(lambda: ({"tokens": tokens[i : i + 3]} for i in range(0, len(LENGTHS), 3)))


def only_once(folder: Path) -> Dataset:
    tokens = columns()["tokens"]
    return Dataset.from_iterable({"tokens": tokens[i : i + 3]} for i in range(0, len(LENGTHS), 3))


def bucket(data: Dataset, **more: Any) -> Dataset:
    return data.bucket_by_sequence_length("tokens", [3, 6], [4, 3, 2], **more)


CHAINS: dict[str, Callable[[Dataset], Dataset]] = {
    "plain": bucket,
    "drop": lambda data: bucket(data, drop_remainder=True).repeat(2),
    "shuffle repeat": lambda data: bucket(data.shuffle(50, seed=4)).repeat(3),
    "repeat first": lambda data: bucket(data.shuffle(50, seed=4).repeat(3)),
    "shard": lambda data: bucket(data.shard(2, 1).repeat(4)).shard(2, 0),
    "prefetch": lambda data: bucket(data.repeat(2)).prefetch(3),
    "map": lambda data: bucket(data).map(_same).repeat(2),
    "cache": lambda data: bucket(data.cache().shuffle(50, seed=4)).repeat(2),
    "cache batches": lambda data: bucket(data).cache().repeat(2),
    "skip take": lambda data: bucket(data).skip(1).take(4).repeat(2),
}


def _same(*batch: Any) -> Any:
    return batch if len(batch) == 2 else batch[0]


@pytest.mark.parametrize("source", [parquet, arrays, batches])
@pytest.mark.parametrize("chain", CHAINS)
def test_every_position_is_restored_exactly(source: Callable[[Path], Dataset], chain: str, tmp_path: Path) -> None:
    assert check_every_position(lambda: CHAINS[chain](source(tmp_path))) > 3


def test_restoring_a_position_goes_through_a_user_s_iterator_once() -> None:
    assert check_every_position(lambda: bucket(only_once(Path()))) > 3


def test_a_map_of_rows_may_make_the_lists() -> None:
    def double(features: dict[str, Any], labels: Any) -> Any:
        return {**features, "tokens": np.array([np.repeat(one, 2) for one in features["tokens"]], object)}, labels

    data = rows().map(double).bucket_by_sequence_length("tokens", [6, 12], [4, 3, 2])
    assert [features["row"].tolist() for features, _ in data] == by_hand(LENGTHS, [3, 6], [4, 3, 2])
    assert check_every_position(lambda: data) > 3


def test_a_row_that_waits_for_many_epochs_is_restored() -> None:
    lengths = [1] * 40 + [9]

    def make() -> Dataset:
        return rows(lengths).repeat(9).bucket_by_sequence_length("tokens", [5], [40, 8])

    assert check_every_position(make) == 11


def test_positions_in_data_of_several_windows_are_restored() -> None:
    random = np.random.default_rng(1)
    lengths = random.integers(0, 6, 150_000)
    lengths[[5, 70_000, 149_000]] = 30
    values = pa.ListArray.from_arrays(
        pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32()), pa.array(np.arange(lengths.sum()))
    )

    def make() -> Dataset:
        data = Dataset.from_arrays({"tokens": values}).shuffle(10, seed=1)
        return data.bucket_by_sequence_length("tokens", [2, 4, 10], [13_000, 11_000, 9_000, 100]).repeat(2)

    assert check_every_position(make, compared=3) > 20


class Sum:
    """A transform that sees rows before they are batched and replaces the lists."""

    required = {"tokens": pa.list_(pa.int64())}  # noqa: RUF012 - a constant

    def __call__(self, features: Any, labels: Any) -> tuple[Any, Any]:
        return {"sum": np.array([sum(one) for one in features["tokens"].to_pylist()])}, labels


class Other:
    """A transform that does not read the column."""

    required = {"row": pa.int64()}  # noqa: RUF012 - a constant

    def __call__(self, features: Any, labels: Any) -> tuple[Any, Any]:
        return features, labels


@pytest.mark.parametrize("source", [parquet, arrays, batches])
@pytest.mark.parametrize("chain", ["shuffle repeat", "shard", "map", "cache"])
def test_a_model_may_turn_the_lists_into_something_else(
    source: Callable[[Path], Dataset], chain: str, tmp_path: Path
) -> None:
    def make() -> Dataset:
        return CHAINS[chain](source(tmp_path))

    assert check_every_position(make, transform=Sum()) > 3
    with make().iterator(Sum()) as summed, make().iterator() as plain:
        for got, expected in zip(summed, plain, strict=True):
            assert_equal(as_arrays(got)[0]["sum"], as_arrays(expected)[0]["tokens"].sum(axis=1))


@pytest.mark.parametrize("model", [None, Sum()])
def test_positions_over_a_cache_in_a_file_are_restored(model: Any, tmp_path: Path) -> None:
    def make() -> Dataset:
        return bucket(parquet(tmp_path).cache(tmp_path / "cache").shuffle(50, seed=4)).repeat(2)

    assert check_every_position(make, transform=model) > 3


@pytest.mark.parametrize("source", [parquet, arrays])
def test_a_model_need_not_read_the_column(source: Callable[[Path], Dataset], tmp_path: Path) -> None:
    with bucket(source(tmp_path)).iterator(Other()) as iterator:
        got = [batch.features["row"].tolist() for batch in iterator]
    assert got == by_hand(LENGTHS, [3, 6], [4, 3, 2])


def test_batches_may_be_padded_to_their_bucket_s_boundary() -> None:
    data = rows([1, 2, 2, 4, 5, 3, 0]).bucket_by_sequence_length(
        "tokens", [3, 6], [2, 2, 2], padding_values=-1, pad_to_bucket_boundary=True
    )
    shapes = [features["tokens"].shape for features, _ in data]
    assert shapes == [(2, 2), (2, 5), (2, 2), (1, 5)]
    with pytest.raises(DataError, match=r"row 1 .*'tokens' is as long as the last of bucket_boundaries, 3, or longer"):
        list(rows([1, 7, 2]).bucket_by_sequence_length("tokens", [3], [1, 1], pad_to_bucket_boundary=True))
    other = Dataset.from_arrays({"tokens": pa.array([[1]]), "tags": pa.array([[1, 2, 3]])})
    with pytest.raises(DataError, match=r"row 0 .*the list in column 'tags' has length 3, but .* padded to 2"):
        list(other.bucket_by_sequence_length("tokens", [3], [1, 1], pad_to_bucket_boundary=True))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: bucket(rows().batch(2)), InvalidValueError, "must come before batch"),
        (lambda: bucket(bucket(rows())), InvalidValueError, "must come before batch"),
        (lambda: bucket(rows()).shuffle(9), InvalidValueError, "must come before batch"),
        (lambda: rows().bucket_by_sequence_length("tokens", [3, 3], [1] * 3), InvalidValueError, r"but got \[3, 3\]"),
        (lambda: rows().bucket_by_sequence_length("tokens", [], [1]), InvalidValueError, r"but got \[\]"),
        (lambda: rows().bucket_by_sequence_length("tokens", [3], [1]), InvalidValueError, "one size more than the 1"),
        (lambda: rows().bucket_by_sequence_length("tokens", [3], [1, 0]), InvalidValueError, "at least 1, but got 0"),
        (lambda: rows().bucket_by_sequence_length("tokens", [0.5], [1, 1]), InvalidTypeError, "whole number, but"),
        (lambda: rows().bucket_by_sequence_length(len, [3], [1, 1]), InvalidTypeError, "the name of a column, but got"),
        (lambda: list(rows().bucket_by_sequence_length("row", [3], [1, 1])), DataError, "needs lists in column 'row'"),
        (lambda: list(rows().bucket_by_sequence_length("t", [3], [1, 1])), DataError, "column 't' is not in the feat"),
        (
            lambda: list(Dataset.from_arrays([1, 2]).bucket_by_sequence_length("t", [3], [1, 1])),
            DataError,
            "column 't' is not in the feat",
        ),
    ],
)  # fmt: skip
def test_invalid_arguments_are_refused(make: Any, error: type[UserError], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
