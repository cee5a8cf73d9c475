"""Missing indicators, and what a missing number is to the other columns of its key."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import torch_estimator as te
from tests.export.models import assert_same, model_of
from torch_estimator import feature_column as fc
from torch_estimator.errors import InvalidTypeError, InvalidValueError, UserError
from torch_estimator.export.exported_model import ExportedModel

NAN = math.nan


def _numbers(columns: list[Any], rows: dict[str, Any]) -> list[list[float]]:
    numbers: np.ndarray = fc.FeatureTransform(dnn_columns=columns)(rows)["dnn/numeric"]
    assert numbers.dtype == np.float32
    return numbers.tolist()


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (fc.missing_indicator_column("x"), np.array([1.0, NAN, 0.0])),
        (fc.missing_indicator_column("x"), pa.array([1, None, 0])),
        (fc.missing_indicator_column("x", dtype=int), np.array([1, -1, 0])),
        (fc.missing_indicator_column("x", dtype=int), pa.array([1, None, 0])),
        (fc.missing_indicator_column("x", dtype="string"), np.array(["a", None, "b"], object)),
        (fc.missing_indicator_column("x", dtype="string"), pa.array(["a", "", "b"])),
    ],
)
def test_a_missing_value_of_each_type_is_one(column: Any, values: Any) -> None:
    assert _numbers([column], {"x": values}) == [[0], [1], [0]]
    assert column.name == "x_missing"


def test_the_indicator_sees_a_number_before_its_default_fills_it() -> None:
    columns = [
        fc.missing_indicator_column("age"),
        fc.numeric_column("age", default_value=40, normalizer_fn=lambda age: age / 10),
        fc.numeric_column("age", default_value=40, normalizer_fn=torch.log, name="age_log"),
    ]
    rows = _numbers(columns, {"age": np.array([30.0, NAN])})
    np.testing.assert_allclose(rows, [[3, math.log(30), 0], [4, math.log(40), 1]], rtol=1e-6)
    buckets = fc.bucketized_column(fc.numeric_column("age", default_value=40), [35])
    transform = fc.FeatureTransform([buckets, columns[0]], columns[1:])
    assert transform({"age": np.array([30.0, NAN])})["linear/ids"].tolist() == [[0], [1]]


def test_vectors_are_filled_number_by_number() -> None:
    column = fc.numeric_column("v", shape=(2, 1), default_value=[[1], [2]])
    assert _numbers([column], {"v": np.array([[[NAN], [5]], [[6], [NAN]]])}) == [[1, 5], [6, 2]]


def test_nan_is_equal_to_nan_as_the_default_of_one_key() -> None:
    number = fc.numeric_column("age", default_value=NAN)
    buckets = fc.bucketized_column(fc.numeric_column("age", default_value=float("nan")), [18])
    assert number == fc.numeric_column("age", default_value=np.float32("nan"))
    transform = fc.FeatureTransform([buckets], [number])
    assert transform.raw_features["age"].default is not None
    assert fc.schema(fc.schema([number, buckets])).equals(fc.schema([number]), check_metadata=True)
    features = transform({"age": np.array([3.0, NAN])})
    assert features["linear/ids"].tolist() == [[0], [1]]
    np.testing.assert_array_equal(features["dnn/numeric"], [[3], [NAN]])


def test_readers_and_omitted_inputs_leave_the_filling_to_the_columns() -> None:
    columns = [
        fc.numeric_column("age", default_value=40),
        fc.missing_indicator_column("age"),
        fc.numeric_column("size", default_value=5),
        fc.missing_indicator_column("job", dtype="string"),
        fc.missing_indicator_column("id", dtype=int),
    ]
    schema = fc.schema(columns)
    assert [(field.name, str(field.type), field.nullable) for field in schema] == [
        ("age", "float", True),
        ("id", "int64", True),
        ("job", "string", True),
        ("size", "float", True),
    ]
    assert (schema.field("age").metadata, schema.field("size").metadata) == ({b"default": b"NaN"}, {b"default": b"5.0"})
    spec = fc.make_parse_example_spec(columns)
    np.testing.assert_array_equal(spec["age"].default_value, [NAN])
    assert (spec["size"].default_value, spec["job"].default_value, spec["id"].default_value) == ((5,), ("",), (-1,))
    defaults = te.serving_input.raw_features(columns).defaults
    assert (list(defaults), defaults["size"]) == (["age", "size"], 5.0)
    assert math.isnan(defaults["age"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (
            lambda: fc.missing_indicator_column("x", dtype=bool),
            "dtype of missing indicator column 'x' must be 'string'",
        ),
        (lambda: fc.missing_indicator_column("x", dtype="day"), "but got 'day'"),
        (
            lambda: fc.schema([fc.missing_indicator_column("x"), fc.numeric_column("x")]),
            "raw column 'x' may be missing, since a missing_indicator_column reads it, but another column reads it "
            "without a default_value",
        ),
        (
            lambda: fc.schema(
                [fc.numeric_column("x", dtype=int, default_value=1), fc.missing_indicator_column("x", int)]
            ),
            "raw column 'x' is read as integers, of which a missing_indicator_column cannot see",
        ),
        (
            lambda: fc.schema([fc.missing_indicator_column("x"), fc.categorical_column_with_hash_bucket("x", 9)]),
            "raw column 'x' is read as float32 .* and as string .* give both the same dtype",
        ),
        (lambda: fc.numeric_column("x", default_value="4"), "must be a number or numbers, but got '4'"),
        (lambda: fc.numeric_column("x", default_value=0.5, dtype=int), r"is \(0.5,\), but its dtype is int64"),
        (lambda: fc.numeric_column("x", default_value=NAN, dtype=int), r"is \(nan,\), but its dtype is int64"),
        (lambda: fc.numeric_column("x", name=3), "name of numeric column 'x' must be a string, but got 3"),  # type: ignore[arg-type]
        (
            lambda: fc.FeatureTransform([fc.numeric_column("x"), fc.numeric_column("x", normalizer_fn=torch.log)]),
            "two linear columns have the name 'x'; give each column once, or one of two numeric columns a name",
        ),
    ],
)
def test_what_cannot_work_is_one_sentence(make: Callable[[], Any], problem: str) -> None:
    with pytest.raises((InvalidValueError, InvalidTypeError), match=problem) as error:
        make()
    assert isinstance(error.value, UserError)
    assert "\n" not in str(error.value)


def test_an_indicator_without_other_columns_of_its_key_needs_no_default() -> None:
    [feature] = fc.FeatureTransform([fc.missing_indicator_column("x")]).raw_features.values()
    assert math.isnan(feature.absent)  # type: ignore[arg-type]


COLUMNS = [
    fc.missing_indicator_column("age"),
    fc.numeric_column("age", default_value=40),
    fc.numeric_column("age", default_value=40, normalizer_fn=lambda age: (age - 20) / 7, name="age_scaled"),
    fc.bucketized_column(fc.numeric_column("h", default_value=NAN), [10]),
    fc.missing_indicator_column("job", dtype="string"),
    fc.missing_indicator_column("id", dtype=int),
    fc.numeric_column("v", shape=2, default_value=[1, 2]),
]
ROWS = {
    "age": np.array([31, NAN, 7], np.float32),
    "h": np.array([3, NAN, 12], np.float32),
    "job": np.array(["a", "", "b"], object),
    "id": np.array([3, -1, 0]),
    "v": np.array([[1, NAN], [NAN, NAN], [3, 4]], np.float32),
}


class _Layers(nn.Module):
    """A `DenseFeatures` and a `LinearModel` with the weight 0, so that their sum is that of the dense numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = fc.DenseFeatures(COLUMNS[:3])
        self.wide = fc.LinearModel(COLUMNS[:3])

    def forward(self, features: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.dense(features).sum(1, keepdim=True) + self.wide(features)


def test_layers_of_columns_in_a_module_take_an_indicator(tmp_path: Path) -> None:
    def model_fn(mode: str) -> te.EstimatorSpec:
        adagrad = te.optim.Adagrad(lr=1e-9)
        return te.EstimatorSpec(mode=mode, module=_Layers(), head=te.RegressionHead(), optimizer=adagrad)

    data = te.data.Dataset.from_arrays({"age": torch.tensor([27.0, NAN])}, [0.0, 0.0]).batch(2)
    model = te.Estimator(model_fn, str(tmp_path)).train(lambda: data, steps=1)
    rows = [float(row["predictions"][0]) for row in model.predict(lambda: data)]
    np.testing.assert_allclose(rows, [27 + 1 + 0, 40 + 20 / 7 + 1], rtol=1e-5)


def test_an_export_fills_and_marks_what_is_missing(tmp_path: Path) -> None:
    built = model_of(COLUMNS, COLUMNS)
    expected = built.predict(ROWS)
    model = built.export(tmp_path)
    assert_same(expected, model.predict(ROWS))
    omitted = {key: values for key, values in ROWS.items() if key != "age"}
    nothing = {**ROWS, "age": np.full(3, NAN, np.float32)}
    assert_same(built.predict(nothing), model.predict(omitted))


def test_a_csv_export_fills_and_marks_empty_fields(tmp_path: Path) -> None:
    built = model_of(COLUMNS[:5], [])
    receiver = te.serving_input.csv(["job", "age", "h"], built.transform)
    model: ExportedModel = built.export(tmp_path, receiver)
    rows = {"age": np.array([31, NAN], np.float32), "h": np.array([NAN, 3], np.float32), "job": ["a", ""]}
    rows["job"] = np.array(rows["job"], object)
    for lines in (["a,31,", ",,3"], ["a,31,nan", ",NaN,3"]):
        assert_same(built.predict(rows), model.predict({"csv_row": lines}))


@pytest.mark.parametrize("version", [te, te.v2])
def test_premade_models_name_their_variables_by_the_columns(version: Any, tmp_path: Path) -> None:
    data = te.data.Dataset.from_arrays({"age": [31.0, NAN, 7.0]}, [0.0, 1.0, 0.0]).repeat().batch(3)
    wide = version.LinearRegressor(COLUMNS[:3], tmp_path / "wide")
    wide.train(lambda: data, steps=2)
    for name in ("age", "age_scaled", "age_missing"):
        assert f"linear/linear_model/{name}/weights" in wide.get_variable_names()
    version.DNNRegressor([2], COLUMNS[:3], tmp_path / "deep").train(lambda: data, steps=1)
    renamed = fc.numeric_column("age", default_value=40, name="age_other")
    other = version.DNNRegressor([2], [*COLUMNS[:2], renamed], tmp_path / "deep")
    with pytest.raises(UserError, match="'age_scaled', which the model lacks, and not with the model's 'age_other'"):
        other.train(lambda: data, steps=1)
