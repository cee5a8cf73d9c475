"""The schema of feature columns, which parsing and serving inputs follow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import torch_estimator as te
from torch_estimator import feature_column as fc
from torch_estimator.data import Dataset
from torch_estimator.errors import DataError, InvalidTypeError, InvalidValueError, UserError

TAGS = fc.categorical_column_with_hash_bucket("tags", 50, multivalent=True)
COLUMNS = [
    fc.weighted_categorical_column(TAGS, "weights"),
    fc.categorical_column_with_identity("ids", 5, multivalent=True),
    fc.categorical_column_with_identity("id", 5),
    fc.crossed_column(["city", "job"], 20),
    fc.bucketized_column(fc.numeric_column("age", default_value=30), [18, 65]),
    fc.numeric_column("count", dtype=int, default_value=7),
    fc.numeric_column("pair", shape=2),
]
SCHEMA = fc.schema(COLUMNS)
ROWS: list[dict[str, Any]] = [
    {"tags": ["a", "b"], "weights": [1, 0.5], "ids": [3], "id": 1, "city": "Oslo", "job": "x", "age": 20.5},
    {"tags": [], "weights": [], "ids": [], "id": -1, "city": "", "job": "y"},
    {"tags": ["é"], "weights": [2], "ids": [4, 9, 0], "id": 4, "city": "Rome", "job": ""},
]
for number, row in enumerate(ROWS):
    row |= {"pair": [number, -number], "unused": "u", "label": number}


def test_a_schema_has_types_lists_shapes_and_defaults() -> None:
    assert SCHEMA.remove_metadata() == pa.schema(
        [
            pa.field("age", pa.float32()),
            pa.field("city", pa.string()),
            pa.field("count", pa.int64()),
            pa.field("id", pa.int64()),
            pa.field("ids", pa.list_(pa.int64())),
            pa.field("job", pa.string()),
            pa.field("pair", pa.list_(pa.float32(), 2), nullable=False),
            pa.field("tags", pa.list_(pa.string())),
            pa.field("weights", pa.list_(pa.float32())),
        ]
    )
    assert {field.name: field.metadata for field in SCHEMA if field.metadata} == {
        "age": {b"default": b"30.0"},
        "count": {b"default": b"7"},
        "id": {b"missing": b"-1"},
        "ids": {b"missing": b"-1"},
    }


@pytest.mark.parametrize("wrap", [list, tuple, iter, fc.FeatureTransform, lambda columns: dict(enumerate(columns))])
def test_columns_may_be_a_list_a_dict_a_transform_or_one_column(wrap: Any) -> None:
    assert fc.schema(wrap(COLUMNS)).equals(SCHEMA, check_metadata=True)
    assert fc.schema(fc.numeric_column("x")).names == ["x"]


def test_a_shape_of_several_dimensions_is_kept() -> None:
    cube = fc.schema([fc.numeric_column("x", shape=(2, 3), default_value=1)])
    assert cube.field("x").type == pa.list_(pa.float32(), 6)
    assert te.serving_input.raw_features(cube).inputs["x"].shape == (2, 3)


def csv_file(folder: Path) -> str:
    def text(value: Any) -> str:
        return "|".join(map(str, value)) if isinstance(value, list) else str(value)

    names = [*ROWS[0], "count"]
    lines = [",".join(text(row.get(name, "")) for name in names) for row in ROWS]
    path = folder / "rows.csv"
    path.write_text("\n".join([",".join(names), *lines]) + "\n")
    return str(path)


def json_file(folder: Path) -> str:
    path = folder / "rows.json"
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS))
    return str(path)


def parquet_file(folder: Path) -> str:
    path = folder / "rows.parquet"
    values = {name: [row.get(name) for row in ROWS] for name in [*ROWS[0], "count"]}
    arrays = {name: pa.array(v, pa.int32() if name == "count" else None) for name, v in values.items()}
    pq.write_table(pa.table(arrays), path)
    return str(path)


def read(kind: str, folder: Path, **arguments: Any) -> Dataset:
    if kind == "csv":
        return Dataset.from_csv(csv_file(folder), list_separator="|", **arguments)
    if kind == "json":
        return Dataset.from_json(json_file(folder), **arguments)
    return Dataset.from_parquet(parquet_file(folder), **arguments)


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_files_of_every_kind_are_read_by_the_schema_alone(kind: str, tmp_path: Path) -> None:
    data = read(kind, tmp_path, schema=SCHEMA, label="label").batch(10)
    transform = fc.FeatureTransform(COLUMNS)
    ((features, labels),) = data
    assert sorted(features) == SCHEMA.names
    assert features["age"].tolist() == [20.5, 30, 30]
    assert features["count"].tolist() == [7, 7, 7]
    assert features["pair"].tolist() == [[0, 0], [1, -1], [2, -2]]
    assert labels.tolist() == [0, 1, 2]
    estimator = te.LinearRegressor(COLUMNS, str(tmp_path / "job"))
    estimator.train(lambda: data, steps=2)
    predictions = [one["predictions"][0] for one in estimator.predict(lambda: data)]
    path = estimator.export_saved_model(str(tmp_path / "export"), te.serving_input.raw_features(SCHEMA))
    export = te.ExportedModel.load(path)
    assert sorted(export.signature("predict").inputs) == sorted(transform.raw_features)
    given = {name: [row.get(name, 30 if name == "age" else 7) for row in ROWS] for name in SCHEMA.names}
    answer = export.predict(given)["predictions"].ravel()
    np.testing.assert_allclose(answer, predictions, atol=1e-5)


def test_serving_inputs_follow_from_the_schema() -> None:
    assert te.serving_input.raw_features(SCHEMA) == te.serving_input.raw_features(COLUMNS)
    plain = [fc.crossed_column(["city", "job"], 20), fc.numeric_column("age", default_value=30)]
    names = ["age", "job", "city"]
    assert te.serving_input.csv(names, fc.schema(plain)) == te.serving_input.csv(names, plain)
    assert te.serving_input.csv(names, fc.schema(plain)).defaults == {"age": 30.0}


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_explicit_defaults_override_those_of_the_schema(kind: str, tmp_path: Path) -> None:
    data = read(kind, tmp_path, schema=SCHEMA, label="label", defaults={"age": 1.5}).batch(10)
    ((features, _),) = data
    assert features["age"].tolist() == [20.5, 1.5, 1.5]
    assert features["count"].tolist() == [7, 7, 7]


def test_lists_in_csv_need_a_separator(tmp_path: Path) -> None:
    path = csv_file(tmp_path)
    with pytest.raises(InvalidValueError, match=r"column 'ids' holds lists, .* give from_csv\(list_separator="):
        list(Dataset.from_csv(path, schema=SCHEMA, label="label").batch(1))
    estimator = te.LinearRegressor([TAGS], str(tmp_path / "job"))
    with pytest.raises(UserError, match="column 'tags' holds lists"):
        estimator.train(lambda: Dataset.from_csv(path, label="label").batch(1), steps=1)
    estimator.train(lambda: Dataset.from_csv(path, label="label", list_separator="|").batch(1), steps=1)


def test_a_separator_that_splits_nothing_behind_a_map_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def train(**arguments: Any) -> list[str]:
        caplog.clear()
        path, used = csv_file(tmp_path), ["tags", "label"]
        data = Dataset.from_csv(path, select_columns=used, label="label", list_separator="|", **arguments)
        estimator.train(lambda: data.map(lambda features, labels: (features, labels)).batch(1), steps=1)
        return [record.message for record in caplog.records if "list_separator" in record.message]

    estimator = te.LinearRegressor([TAGS], str(tmp_path / "job"))
    (warning,) = train()
    assert warning.startswith("list_separator='|' splits no field of ")
    assert train(column_types={"tags": pa.list_(pa.string())}) == []


@pytest.mark.parametrize("separator", ["", ",", '"', 3])
def test_invalid_separators_are_refused(separator: Any) -> None:
    with pytest.raises((InvalidValueError, InvalidTypeError), match="list_separator must be a string"):
        Dataset.from_csv("x.csv", list_separator=separator)


def test_a_list_with_text_in_place_of_a_number_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("n,x\n1| 2,0\n\n,1\n3|x,2\n")

    def numbers(kind: Any) -> Dataset:
        return Dataset.from_csv(path, column_types={"n": pa.list_(kind)}, list_separator="|").batch(3)

    for kind, wanted in ((pa.int64(), "whole number"), (pa.float32(), "number")):
        with pytest.raises(DataError, match=rf"rows.csv, line 5: column 'n': 'x' in the list is not a {wanted} \("):
            list(numbers(kind))
    (features,) = numbers(pa.string())
    assert features["n"].tolist() == [["1", " 2"], ["", ""], ["3", "x"]]
    path.write_text("n,x\n1| 2,0\n\n,1\n")
    (features,) = numbers(pa.int64())
    assert features["n"].tolist() == [[1, 2], [0, 0]]


def test_schemas_with_types_that_no_column_reads_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="field 'd' of the schema is date32"):
        te.serving_input.raw_features(pa.schema({"d": pa.date32()}))
    with pytest.raises(InvalidTypeError, match="columns must hold feature columns, but holds 'age'"):
        fc.schema(["age"])
