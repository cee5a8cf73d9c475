from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from torch_estimator import feature_column as fc
from torch_estimator import serving_input
from torch_estimator.data import FixedLenFeature
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.feature_column.transform import FeatureTransform

AGE = fc.numeric_column("age")
WORD = fc.categorical_column_with_hash_bucket("word", 10)
COUNT = fc.categorical_column_with_vocabulary_list("count", [1, 2])


def test_inputs_are_the_raw_columns_of_all_columns() -> None:
    columns = [
        fc.embedding_column(WORD, 2),
        fc.bucketized_column(AGE, [1]),
        COUNT,
        AGE,
        fc.crossed_column(["q", AGE_BUCKETS], 9),
    ]
    inputs = serving_input.raw_features(columns).inputs
    assert {key: feature.dtype for key, feature in inputs.items()} == {
        "age": "float32",
        "count": "int64",
        "q": "string",
        "word": "string",
    }


AGE_BUCKETS = fc.bucketized_column(AGE, [1])


def test_a_feature_transform_says_what_it_reads() -> None:
    transform = FeatureTransform([WORD], [AGE])
    assert serving_input.json(transform).inputs == transform.raw_features


def test_a_single_column_will_do() -> None:
    assert list(serving_input.raw_features(AGE).inputs) == ["age"]


def test_a_default_for_another_name_declares_an_input() -> None:
    receiver = serving_input.raw_features([AGE], defaults={"key": "nokey", "id": 3, "age": 40})
    assert {key: feature.dtype for key, feature in receiver.inputs.items()} == {
        "age": "float32",
        "key": "string",
        "id": "int64",
    }
    assert receiver.defaults == {"age": 40.0, "key": "nokey", "id": 3}


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        (AGE, "forty", "the default of 'age' must be float32, but got 'forty'"),
        (AGE, True, "the default of 'age' must be float32, but got True"),
        (COUNT, 1.5, "the default of 'count' must be int64, but got 1.5"),
        (COUNT, 2**70, "the default of 'count' must be int64, but got 1180591620717411303424"),
        (WORD, 3, "the default of 'word' must be string, but got 3"),
        (fc.numeric_column("v", shape=2), [1], "must be a list of float32 of shape"),
    ],
)
def test_defaults_are_of_the_inputs_type(column: Any, value: Any, problem: str) -> None:
    with pytest.raises(InvalidTypeError, match=problem):
        serving_input.raw_features([column], defaults={column.name: value})


def test_an_extra_input_needs_a_plain_default() -> None:
    with pytest.raises(InvalidTypeError, match="the default of 'key' must be a string or a number"):
        serving_input.raw_features([AGE], defaults={"key": None})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("value", "dtype", "default"),
    [
        ([0.0, 1], "float32", [0.0, 1]),
        ([1, 2, 3], "int64", [1, 2, 3]),
        (["a", "b"], "string", ["a", "b"]),
    ],
)
def test_a_list_declares_an_extra_input_of_its_length(value: Any, dtype: str, default: Any) -> None:
    for made in (
        serving_input.raw_features([AGE], defaults={"extra": value}),
        serving_input.json([AGE], defaults={"extra": value}),
        serving_input.like({"x": np.zeros(1)}, defaults={"extra": value}),
    ):
        assert (made.inputs["extra"].dtype, made.inputs["extra"].shape) == (dtype, (len(value),))
        assert made.defaults["extra"] == default


@pytest.mark.parametrize("value", [[], [None], ["a", 1]])
def test_a_list_that_declares_nothing_is_refused(value: Any) -> None:
    with pytest.raises(InvalidTypeError, match=r"^the default of 'extra' must be "):
        serving_input.raw_features([AGE], defaults={"extra": value})


def test_what_is_no_column_is_refused() -> None:
    with pytest.raises(InvalidTypeError, match="columns must hold feature columns, but holds 'age'"):
        serving_input.raw_features(["age"])
    with pytest.raises(InvalidTypeError, match="holds 'age'"):
        serving_input.raw_features("age")


@pytest.mark.parametrize(
    ("names", "columns", "defaults", "error", "problem"),
    [
        (["a", "a"], [AGE], {}, InvalidValueError, "column_names has 'a' more than once"),
        (["a"], [AGE], {}, InvalidValueError, "the columns read 'age', which is not among column_names"),
        ("age", [AGE], {}, InvalidTypeError, "column_names must be a list of strings, but got 'age'"),
        ([], [AGE], {}, InvalidTypeError, "column_names must be a list of strings"),
        (["v"], [fc.numeric_column("v", shape=2)], {}, InvalidValueError, "a CSV field holds one value"),
        (["age"], [AGE], {"key": "x"}, InvalidValueError, "defaults has 'key', which is not among column_names"),
    ],
)
def test_csv_is_checked(names: Any, columns: Any, defaults: Any, error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        serving_input.csv(names, columns, defaults)


def test_csv_takes_the_columns_defaults() -> None:
    columns = [fc.numeric_column("a", default_value=3), fc.numeric_column("b", default_value=4), WORD]
    receiver = serving_input.csv(["a", "b", "word"], columns, defaults={"b": 5})
    assert receiver.defaults == {"a": 3.0, "b": 5.0}


class Transform(nn.Module):
    def __init__(self, names: Any, result: Any) -> None:
        super().__init__()
        if names is not None:
            self.input_names = names
        self.result = result

    def forward(self, features: dict[str, torch.Tensor]) -> Any:
        return self.result


@pytest.mark.parametrize(
    ("transform", "error", "problem"),
    [
        (Transform(None, {}), InvalidValueError, "needs an attribute input_names"),
        (Transform("x", {}), InvalidValueError, "needs an attribute input_names"),
        (Transform(["x"], {}), InvalidTypeError, "must return a dict of features"),
        (Transform(["x"], {"age": 3}), InvalidValueError, "must give tensors with the batch first, but 'age' is int"),
        (Transform(["x"], {"age": torch.ones(3)}), InvalidValueError, r"but 'age' is of shape \[3\] for a batch of 2"),
        (Transform(["x"], {"b": torch.ones(2, 1)}), InvalidValueError, "gives 'b', which no column reads"),
        (Transform(["word"], {"age": torch.ones(2, 1)}), InvalidValueError, "takes 'word', but that is string"),
        (lambda features: features, InvalidTypeError, "transform must be an nn.Module"),
    ],
)
def test_transforms_are_checked(transform: Any, error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        serving_input.raw_features([AGE, WORD], transform=transform)


def test_a_csv_field_that_no_column_reads_is_declared_by_its_default() -> None:
    receiver = serving_input.csv(["age", "key", "unused"], [AGE], {"key": 0})
    assert list(receiver.inputs) == ["age", "key"]
    assert receiver.inputs["key"].dtype == "int64"
    assert receiver.defaults["key"] == 0


def test_each_serving_input_may_leave_unknown_names_out() -> None:
    x, spec = fc.numeric_column("x"), {"x": FixedLenFeature((1,), "float32")}
    for made in (
        serving_input.raw_features([x], ignore_unknown=True),
        serving_input.json([x], ignore_unknown=True),
        serving_input.csv(["x"], [x], ignore_unknown=True),
        serving_input.examples(spec, ignore_unknown=True),
        serving_input.like({"x": [1.0]}, ignore_unknown=True),
        serving_input.receiver(serving_input.json({"x": "float32"}, ignore_unknown=True), dict),
    ):
        assert made.ignore_unknown
    assert not serving_input.receiver({"x": "float32"}, dict).ignore_unknown
