"""numpy_input_fn: tf.estimator's rules."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torch_estimator as te
from tests.data.positions import check_every_position
from torch_estimator.errors import InvalidTypeError, InvalidValueError, UserError

numpy_input_fn = te.inputs.numpy_input_fn

X = {"a": np.arange(5), "b": np.arange(5) * 10.0}
Y = np.arange(5) * 100


def batches(input_fn: Any, most: int = 20) -> list[Any]:
    return [(features["a"].tolist(), labels.tolist()) for features, labels in itertools.islice(input_fn(), most)]


def test_the_last_batch_may_be_smaller() -> None:
    assert batches(numpy_input_fn(X, Y, batch_size=2, shuffle=False)) == [
        ([0, 1], [0, 100]),
        ([2, 3], [200, 300]),
        ([4], [400]),
    ]
    assert [len(a) for a, _ in batches(numpy_input_fn(X, Y, shuffle=False))] == [5]


def test_batches_straddle_epochs() -> None:
    got = batches(numpy_input_fn(X, Y, batch_size=3, num_epochs=2, shuffle=False))
    assert [a for a, _ in got] == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4]]
    assert [a for a, _ in batches(numpy_input_fn(X, Y, batch_size=9, num_epochs=2, shuffle=False))] == [
        [0, 1, 2, 3, 4, 0, 1, 2, 3],
        [4],
    ]


@pytest.mark.parametrize("shuffle", [False, True])
def test_endless_input_has_full_batches(shuffle: bool) -> None:
    got = batches(numpy_input_fn(X, Y, batch_size=4, num_epochs=None, shuffle=shuffle))
    assert [len(a) for a, _ in got] == [4] * 20
    assert all([100 * value for value in a] == y for a, y in got)


def test_every_epoch_has_every_row_in_another_order() -> None:
    x = {"a": np.arange(100)}
    torch.manual_seed(1)
    epochs = np.concatenate([f["a"] for f in numpy_input_fn(x, batch_size=7, num_epochs=3, shuffle=True)()])
    epochs = epochs.reshape(3, 100)
    assert all(sorted(epoch) == [*range(100)] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    # Also where tf.estimator's queue would hold a single row.
    one = numpy_input_fn(x, shuffle=True, queue_capacity=1)
    assert next(iter(one()))["a"].tolist() != [*range(100)]


def test_features_and_labels_are_of_any_structure() -> None:
    (features,) = numpy_input_fn(X, shuffle=False)()
    assert sorted(features) == ["a", "b"]
    (features,) = numpy_input_fn(np.ones((3, 2)), shuffle=False)()
    assert features.shape == (3, 2)
    (_, labels) = next(iter(numpy_input_fn(X, {"p": Y, "q": Y + 1}, shuffle=False)()))
    assert labels["q"].tolist() == (Y + 1).tolist()
    (features,) = numpy_input_fn({"s": np.array(["a", "b"], object), "t": torch.ones(2)}, shuffle=False)()
    assert features["s"].tolist() == ["a", "b"]


def test_every_position_is_restored() -> None:
    torch.manual_seed(3)
    assert check_every_position(numpy_input_fn(X, Y, batch_size=2, num_epochs=3, shuffle=True)) == 8


def test_the_seed_of_the_run_decides_about_the_order(tmp_path: Path) -> None:
    def losses(folder: str, seed: int) -> Any:
        estimator = te.LinearRegressor(
            [te.feature_column.numeric_column("a")],
            str(tmp_path / folder),
            config=te.RunConfig(random_seed=seed, save_checkpoints_steps=3),
        )
        estimator.train(numpy_input_fn(X, Y, batch_size=2, num_epochs=None, shuffle=True), steps=7)
        return estimator.get_variable_value("linear/linear_model/a/weights").tolist()

    assert losses("one", 1) == losses("two", 1) != losses("three", 2)


@pytest.mark.parametrize("shuffle", [None, 1, "yes"])
def test_shuffle_must_be_given(shuffle: Any) -> None:
    with pytest.raises(InvalidValueError, match=f"needs shuffle=True or shuffle=False, but got {shuffle!r}"):
        numpy_input_fn(X, Y, shuffle=shuffle)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"batch_size": 0}, InvalidValueError, "batch_size must be at least 1, but got 0"),
        ({"num_epochs": 0}, InvalidValueError, "num_epochs must be at least 1, but got 0"),
        ({"num_epochs": 1.5}, InvalidTypeError, "num_epochs must be a whole number, but got 1.5"),
        ({"queue_capacity": 0}, InvalidValueError, "queue_capacity must be at least 1"),
        ({"num_threads": "1"}, InvalidTypeError, "num_threads must be a whole number"),
    ],
)
def test_numbers_are_checked_at_once(arguments: dict[str, Any], error: type[UserError], message: str) -> None:
    with pytest.raises(error, match=message):
        numpy_input_fn(X, Y, shuffle=False, **arguments)


@pytest.mark.parametrize(
    ("x", "y", "error", "message"),
    [
        ({}, None, InvalidValueError, "x must not be an empty dict; give a column"),
        (X, {}, InvalidValueError, "y must not be an empty dict; give None for no labels"),
        ([1, 2], None, InvalidTypeError, "x must be an array or a dict of arrays, but got list"),
        ({"a": np.ones(2), "b": np.ones(3)}, None, InvalidValueError, "rows, but have {'a': 2, 'b': 3}"),
        (X, np.ones(4), InvalidValueError, "same number of rows, but have {'x': {'a': 5, 'b': 5}, 'y': 4}"),
        (X, {"p": np.ones(5), "q": np.ones(4)}, InvalidValueError, "same number of rows"),
        (X, {"a": Y}, InvalidValueError, r"x and y must not both have \['a'\]"),
        ({"a": np.float32(1)}, None, InvalidValueError, "column 'a' must have one row per example"),
        ({"a": np.empty(0)}, None, InvalidValueError, "at least one row"),
    ],
)
def test_data_is_checked_when_the_function_is_called(x: Any, y: Any, error: type[UserError], message: str) -> None:
    input_fn = numpy_input_fn(x, y, shuffle=False)
    with pytest.raises(error, match=message):
        input_fn()


def test_a_frame_is_refused() -> None:
    import pandas as pd

    with pytest.raises(InvalidTypeError, match="an array or a dict of arrays, but got DataFrame"):
        numpy_input_fn(pd.DataFrame(X), shuffle=False)()
