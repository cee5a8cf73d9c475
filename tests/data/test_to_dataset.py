"""Everything that an input_fn may return becomes a Dataset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from torch_estimator.data import Dataset, to_dataset
from torch_estimator.errors import InvalidTypeError, InvalidValueError


def first_two(value: Any, *, repeat: bool) -> list[Any]:
    with to_dataset(value, repeat_single_batch=repeat).iterator() as iterator:
        return [batch for batch in (next(iterator, None), next(iterator, None)) if batch is not None]


@pytest.mark.parametrize(
    "value",
    [
        ({"x": [1, 2]}, [0, 1]),
        [{"x": np.array([1, 2])}, np.array([0, 1])],
        ({"x": torch.tensor([1, 2])}, torch.tensor([0, 1])),
        ({"x": pd.Series([1, 2])}, pd.Series([0, 1])),
        (pd.DataFrame({"x": [1, 2]}), pd.Series([0, 1])),
        ({"x": pa.array([1, 2])}, pa.array([0, 1])),
    ],
)
def test_a_pair_is_one_batch_repeated_only_for_training(value: Any) -> None:
    (batch,) = first_two(value, repeat=False)
    assert batch.features["x"].tolist() == [1, 2]
    assert batch.labels.tolist() == [0, 1]
    again = first_two(value, repeat=True)
    assert [batch.labels.tolist() for batch in again] == [[0, 1], [0, 1]]


@pytest.mark.parametrize("value", [np.array([1, 2]), torch.tensor([1, 2]), {"x": [1, 2]}, pd.DataFrame({"x": [1, 2]})])
def test_features_alone_are_one_batch(value: Any) -> None:
    (batch,) = first_two(value, repeat=False)
    assert batch.labels is None
    column = batch.features["x"] if isinstance(batch.features, dict) else batch.features
    assert column.tolist() == [1, 2]
    assert len(first_two(value, repeat=True)) == 2


class Strings:
    """A column that gives Arrow data, as a Series of Polars does."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return pa.chunked_array([["no", "yes"]]).__arrow_c_stream__(requested_schema)


def test_labels_may_give_arrow_data() -> None:
    (batch,) = first_two(({"x": [1, 2]}, Strings()), repeat=False)
    assert batch.labels.to_pylist() == ["no", "yes"]


def test_a_tensor_dataset_is_its_tensors() -> None:
    rows = TensorDataset(torch.tensor([1, 2]), torch.tensor([0, 1]))
    (batch,) = first_two(rows, repeat=False)
    assert (batch.features.tolist(), batch.labels.tolist()) == ([1, 2], [0, 1])
    (features, labels) = next(iter(Dataset.from_arrays(rows).batch(2)))
    assert (features.tolist(), labels.tolist()) == ([1, 2], [0, 1])
    assert next(iter(Dataset.from_arrays(TensorDataset(torch.tensor([1]))).batch(1))).tolist() == [1]
    with pytest.raises(InvalidValueError, match="but has 3 tensors; give a dict of features"):
        to_dataset(TensorDataset(*3 * [torch.tensor([1])]), repeat_single_batch=True)


def test_rows_of_torch_are_refused_with_what_to_return() -> None:
    with pytest.raises(InvalidTypeError, match=r"the rows of a torch Subset; return DataLoader\(dataset, batch_size"):
        to_dataset(Subset(TensorDataset(torch.tensor([1])), [0]), repeat_single_batch=True)


def test_a_dataset_is_left_as_it_is() -> None:
    data = Dataset.from_arrays([1, 2]).batch(1)
    assert to_dataset(data, repeat_single_batch=True) is data


def test_loaders_and_iterables_give_their_batches_once() -> None:
    loader = DataLoader(TensorDataset(torch.arange(4), torch.arange(4)), batch_size=2)
    assert len(list(to_dataset(loader, repeat_single_batch=True))) == 2
    assert len(list(to_dataset(({"x": [i]} for i in range(3)), repeat_single_batch=True))) == 3


@pytest.mark.parametrize("value", [({"x": [1]}, [1], [2]), [{"x": [1]}], ()])
def test_other_tuples_and_lists_are_refused(value: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"features or a pair \(features, labels\), but got a (tuple|list) of"):
        to_dataset(value, repeat_single_batch=True)


@pytest.mark.parametrize("value", [None, 3, "data.csv"])
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(InvalidTypeError, match="input_fn must return a Dataset"):
        to_dataset(value, repeat_single_batch=True)
