"""Iterables and DataLoaders as input."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.data.positions import numbers
from torch_estimator.data import Dataset, StateMismatch
from torch_estimator.errors import DataError, InvalidTypeError


def test_elements_are_batches_of_any_structure() -> None:
    elements: list[Any] = [
        {"x": torch.tensor([1, 2])},
        ([3, 4], np.array([0, 1])),
        [torch.ones(1, 2), ["a"]],
        ((np.zeros(2), np.ones(2)), {"a": [1, 2], "b": [3, 4]}),
    ]
    first, second, third, fourth = Dataset.from_iterable(elements)
    assert first["x"].tolist() == [1, 2]
    assert [part.tolist() for part in second] == [[3, 4], [0, 1]]
    assert third[0].shape == (1, 2)
    assert third[1].tolist() == ["a"]
    assert [part.tolist() for part in fourth[0]] == [[0, 0], [1, 1]]
    assert fourth[1]["b"].tolist() == [3, 4]


def test_a_frame_is_a_batch_of_its_columns() -> None:
    frame = pd.DataFrame({"x": [1, 2], "word": ["a", None]})
    for element, labels in ((frame, None), ((frame, [0, 1]), [0, 1])):
        (batch,) = Dataset.from_iterable([element])
        features = batch if labels is None else batch[0]
        assert {name: column.tolist() for name, column in features.items()} == {"x": [1, 2], "word": ["a", ""]}
        assert labels is None or batch[1].tolist() == labels
    with pytest.raises(DataError, match=r"^batch 0 of the input, row 0 .*: the frame has several columns called 'x'"):
        list(Dataset.from_iterable([frame.set_axis(["x", "x"], axis=1)]))


def test_a_function_is_called_for_every_pass() -> None:
    passes = iter(range(10))

    def generate() -> Iterator[dict[str, list[int]]]:
        number = next(passes)
        yield {"x": [number]}
        yield {"x": [number]}

    assert numbers(Dataset.from_iterable(generate).repeat(3)) == [0, 0, 1, 1, 2, 2]


def test_a_function_may_make_a_loader() -> None:
    data = Dataset.from_iterable(lambda: DataLoader(TensorDataset(torch.arange(5), torch.arange(5)), batch_size=2))
    assert [labels.tolist() for _, labels in data.repeat(2).prefetch(2)] == [[0, 1], [2, 3], [4]] * 2


def test_an_iterator_lasts_for_one_pass() -> None:
    generator = ({"x": [i]} for i in range(3))
    data = Dataset.from_iterable(generator).repeat()
    with pytest.raises(DataError, match="give from_iterable a function"):
        numbers(data)


def test_rows_can_be_batched_and_shuffled_again() -> None:
    data = Dataset.from_iterable([{"x": np.arange(i, i + 3)} for i in range(0, 12, 3)])
    assert [len(batch["x"]) for batch in data.batch(5)] == [5, 5, 2]
    shuffled = numbers(data.shuffle(100, seed=1).batch(5))
    assert shuffled != sorted(shuffled) == list(range(12))


@pytest.mark.parametrize("make", [np.zeros, torch.zeros], ids=["numpy", "torch"])
@pytest.mark.parametrize("hold", [Dataset.prefetch, Dataset.unbatch, Dataset.shuffle, Dataset.batch])
def test_a_generator_may_fill_the_same_arrays_again(make: Callable[..., Any], hold: Callable[..., Dataset]) -> None:
    def filled() -> Iterator[Any]:
        buffer = {"x": make((2, 1))}, make(2)
        for number in range(6):
            buffer[0]["x"][:] = buffer[1][:] = number
            yield buffer

    dataset = Dataset.from_iterable(filled)
    held = hold(dataset) if hold is Dataset.unbatch else hold(dataset, 4)
    rows = [(x, label) for features, labels in held.batch(3) for x, label in zip(features["x"], labels, strict=True)]
    assert sorted(float(label) for _, label in rows) == [number // 2 for number in range(12)]
    assert all(float(x[0]) == float(label) for x, label in rows)


def test_a_generator_of_rows_may_fill_the_same_row_again() -> None:
    def filled() -> Iterator[Any]:
        row: dict[str, Any] = {"array": np.zeros(2), "tensor": torch.zeros(1), "list": []}
        for number in range(4):
            row["array"][:] = row["tensor"][:] = row["number"] = number
            row["list"].append(number)
            yield [row, number]

    ((features, labels),) = Dataset.from_generator(filled).batch(4)
    assert labels.tolist() == features["number"].tolist() == [0, 1, 2, 3]
    assert features["array"][:, 1].tolist() == features["tensor"][:, 0].tolist() == [0, 1, 2, 3]
    assert [list(row) for row in features["list"]] == [[0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 2, 0], [0, 1, 2, 3]]


def test_batches_without_rows_are_left_out() -> None:
    assert numbers(Dataset.from_iterable([{"x": np.arange(0)}, {"x": np.arange(2)}])) == [0, 1]


def test_a_label_is_taken_out_of_every_batch() -> None:
    data = Dataset.from_iterable([{"x": [1], "y": ["a"]}, {"x": [2], "y": ["b"]}]).label("y", {"a": 5, "b": 6})
    assert [(list(features), labels.tolist()) for features, labels in data] == [(["x"], [5]), (["x"], [6])]


@pytest.mark.parametrize(
    ("element", "message"),
    [
        ((1, 2, 3), r"batch 1 of the input.*pair \(features, labels\), but got a tuple of 3"),
        (({"x": [1, 2]}, [1]), "batch 1 of the input.*same number of rows"),
        (3, "batch 1 of the input.*scalar 3"),
    ],
)
def test_an_element_that_is_no_batch_is_named(element: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(Dataset.from_iterable([{"x": [1]}, element]))


def test_batches_of_different_kinds_cannot_be_joined() -> None:
    with pytest.raises(ValueError, match=r"cannot be in one batch: int64 of shape \[1, 2\], int64 of shape \[1\]"):
        list(Dataset.from_iterable([np.zeros(1, int), np.zeros((1, 2), int)]).batch(2))


def test_an_iterable_that_got_shorter_is_refused_on_restore() -> None:
    with Dataset.from_iterable([np.ones(1)] * 3).iterator() as iterator:
        list(iterator)
        state = iterator.state()
    with (
        Dataset.from_iterable([np.ones(1)]).iterator() as iterator,
        pytest.raises(StateMismatch, match="ended before batch 3"),
    ):
        iterator.restore(state)


def test_only_iterables_are_taken() -> None:
    with pytest.raises(InvalidTypeError, match="takes an iterable of batches"):
        Dataset.from_iterable(3)  # type: ignore[arg-type]


def test_restoring_leaves_torch_s_generator_alone() -> None:
    data = TensorDataset(torch.arange(8))
    loader = DataLoader(data, batch_size=2, shuffle=True, collate_fn=lambda rows: {"x": [int(row[0]) for row in rows]})
    with Dataset.from_iterable(loader).iterator() as iterator:
        next(iterator)
        state = iterator.state()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with Dataset.from_iterable(loader).iterator() as iterator:
        iterator.restore(state)
    assert torch.equal(before, torch.get_rng_state())
