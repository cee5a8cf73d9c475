"""pandas_input_fn: tf.estimator's rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import torch_estimator as te
from tests.data.positions import check_every_position
from torch_estimator.errors import InvalidTypeError, InvalidValueError, UserError

pandas_input_fn = te.inputs.pandas_input_fn

X = pd.DataFrame({"a": np.arange(5), "s": list("vwxyz")}, index=[7, 3, 1, 9, 2])
Y = pd.Series(np.arange(5) * 100, index=X.index)


def test_rows_come_in_order_without_their_index() -> None:
    got = [(f["a"].tolist(), f["s"].tolist(), y.tolist()) for f, y in pandas_input_fn(X, Y, 2, shuffle=False)()]
    assert got == [
        ([0, 1], ["v", "w"], [0, 100]),
        ([2, 3], ["x", "y"], [200, 300]),
        ([4], ["z"], [400]),
    ]
    assert list(next(iter(pandas_input_fn(X, shuffle=False)()))) == ["a", "s"]


def test_epochs_straddle_batches_and_may_be_endless() -> None:
    got = [f["a"].tolist() for f in pandas_input_fn(X, batch_size=3, num_epochs=2, shuffle=False)()]
    assert got == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4]]
    endless = iter(pandas_input_fn(X, Y, batch_size=4, num_epochs=None, shuffle=True)())
    assert [len(next(endless)[1]) for _ in range(9)] == [4] * 9


def test_a_frame_of_labels_gives_a_dict() -> None:
    labels = pd.DataFrame({"p": Y, "a": Y + 1})
    ((features, got),) = pandas_input_fn(X, labels, shuffle=False)()
    assert got["p"].tolist() == Y.tolist()
    # As in tf.estimator, a label may have the name of a feature.
    assert (features["a"] + 1).tolist() != got["a"].tolist() == (Y + 1).tolist()


def test_later_changes_of_the_frames_are_not_seen() -> None:
    x, y = X.copy(), Y.copy()
    input_fn = pandas_input_fn(x, y, shuffle=False)
    x["a"] = 0
    y[:] = 0
    ((features, labels),) = input_fn()
    assert features["a"].tolist() == [0, 1, 2, 3, 4]
    assert labels.tolist() == Y.tolist()


def test_every_position_is_restored() -> None:
    assert check_every_position(lambda: pandas_input_fn(X, Y, 2, num_epochs=3, shuffle=True)()) == 8


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"shuffle": None}, InvalidValueError, "pandas_input_fn needs shuffle=True or shuffle=False, but got None"),
        ({"target_column": 3}, InvalidTypeError, "target_column must be a string, but got 3"),
        ({"target_column": "a"}, InvalidValueError, "x has a column called 'a' already, the name of the labels"),
        (
            {"y": pd.Series(np.arange(5))},
            InvalidValueError,
            r"indices, \[7, 3, 1, 9, 2\] and \[0, 1, 2, 3, 4\]",
        ),
        ({"y": Y[:4]}, InvalidValueError, "different indices"),
        ({"y": np.arange(5)}, InvalidTypeError, "y must be a pandas Series or DataFrame, but got ndarray"),
        ({"x": {"a": [1]}}, InvalidTypeError, "x must be a pandas.DataFrame, but got dict"),
        ({"batch_size": -1}, InvalidValueError, "batch_size must be at least 1"),
    ],
)
def test_invalid_arguments_are_refused_at_once(arguments: dict[str, Any], error: type[UserError], message: str) -> None:
    with pytest.raises(error, match=message):
        pandas_input_fn(**{"x": X, "y": Y, "shuffle": False, **arguments})


def test_without_labels_their_name_does_not_matter() -> None:
    frame = pd.DataFrame({"target": [1, 2]})
    (features,) = pandas_input_fn(frame, shuffle=False)()
    assert features["target"].tolist() == [1, 2]


def test_an_empty_frame_is_refused_when_it_is_read() -> None:
    input_fn = pandas_input_fn(X[:0], shuffle=False)
    with pytest.raises(InvalidValueError, match="at least one row"):
        input_fn()
