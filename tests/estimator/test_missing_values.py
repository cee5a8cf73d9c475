"""A missing value is the same from every source: the columns' default, `''`, or no id."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import torch_estimator as te
from torch_estimator import feature_column as fc
from torch_estimator.data import Dataset
from torch_estimator.errors import DataError, UserError

NAN = math.nan
HOLES: dict[str, list[Any]] = {
    "age": [31.0, None, 52.5, None],
    "count": [1, None, 3, 2],
    "job": ["a", None, "b", ""],
    "id": [1, 0, None, 2],
}
LABELS = [0.0, 1.0, 0.0, 1.0]
FULL = {"age": [31.0, 40.0, 52.5, 40.0], "count": [1, 7, 3, 2], "job": ["a", "", "b", ""], "id": [1, 0, -1, 2]}
JOB = fc.categorical_column_with_vocabulary_list("job", ["a", "b"])
ID = fc.categorical_column_with_identity("id", 3)
NUMBERS = [fc.numeric_column("age", default_value=40), fc.numeric_column("count", default_value=7)]
COLUMNS = [*NUMBERS, JOB, ID]
MARKS = [
    fc.missing_indicator_column("age"),
    fc.missing_indicator_column("count"),
    fc.missing_indicator_column("job", dtype="string"),
    fc.missing_indicator_column("id", dtype=int),
]
SCHEMA = fc.schema([*COLUMNS, *MARKS])

TABLE = pa.table({**{key: pa.array(values) for key, values in HOLES.items()}, "y": LABELS})
FRAME = pd.DataFrame({**HOLES, "y": LABELS})
OBJECTS = {key: np.array(values, object) for key, values in HOLES.items()}
NANS = {
    key: OBJECTS[key] if key == "job" else np.array([NAN if one is None else one for one in values])
    for key, values in HOLES.items()
}
MASKED = {
    key: values
    if key == "job"
    else np.ma.array([0 if one is None else one for one in values], mask=[one is None for one in values])
    for key, values in HOLES.items()
}


def _rows(values: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def _csv(path: Path, nothing: str = "") -> str:
    lines = [",".join(nothing if one is None else str(one) for one in row.values()) for row in _rows(HOLES)]
    with_labels = [f"{line},{label}" for line, label in zip(lines, LABELS, strict=True)]
    (path / "a.csv").write_text("\n".join([",".join([*HOLES, "y"]), *with_labels]) + "\n")
    return str(path / "a.csv")


def _json(path: Path, *, absent: bool = False) -> str:
    rows = _rows({**HOLES, "y": LABELS})
    if absent:
        rows = [{key: one for key, one in row.items() if one is not None} for row in rows]
    (path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path / "a.jsonl")


def _parquet(path: Path, table: pa.Table = TABLE) -> str:
    pq.write_table(table, path / "a.parquet")
    return str(path / "a.parquet")


def _tfrecord(path: Path) -> str:
    rows = [{**row, "count": row["count"] and float(row["count"])} for row in _rows({**HOLES, "y": LABELS})]
    te.data.write_tfrecord(path / "a.tfrecord", rows)
    return str(path / "a.tfrecord")


def _generated() -> Any:
    return ((row, label) for row, label in zip(_rows(HOLES), LABELS, strict=True))


def _mapped(made: dict[str, Any]) -> Dataset:
    """Return a Dataset whose map makes the columns."""
    return Dataset.from_arrays({"k": np.arange(4)}, LABELS).batch(4).map(lambda _, labels: (made, labels))


Source = Callable[[Path], Any]
SOURCES: dict[str, Source] = {
    "csv": lambda path: Dataset.from_csv(_csv(path), label="y"),
    "csv with NA": lambda path: Dataset.from_csv(_csv(path, "NA"), missing_values=["NA"], label="y"),
    "csv with a schema": lambda path: Dataset.from_csv(_csv(path), schema=SCHEMA, label="y"),
    "csv and a map": lambda path: Dataset.from_csv(_csv(path), label="y").batch(4).map(lambda f, y: (f, y)),
    "csv in a cache": lambda path: Dataset.from_csv(_csv(path), label="y").cache(str(path / "cache")),
    "null in JSON": lambda path: Dataset.from_json(_json(path), label="y"),
    "null in JSON with a schema": lambda path: Dataset.from_json(_json(path), schema=SCHEMA, label="y"),
    "absent in JSON": lambda path: Dataset.from_json(_json(path, absent=True), label="y"),
    "Parquet": lambda path: Dataset.from_parquet(_parquet(path), label="y"),
    "Parquet with a schema": lambda path: Dataset.from_parquet(_parquet(path), schema=SCHEMA, label="y"),
    "NaN in Parquet": lambda path: Dataset.from_parquet(_parquet(path, pa.table({**NANS, "y": LABELS})), label="y"),
    "Parquet twice": lambda path: (
        Dataset.from_parquet(_parquet(path), label="y")
        .concatenate(Dataset.from_parquet(_parquet(path), label="y").take(1))
        .take(4)
    ),
    "TFRecord": lambda path: Dataset.from_tfrecord(_tfrecord(path), label="y"),
    "TFRecord with a schema": lambda path: Dataset.from_tfrecord(_tfrecord(path), schema=SCHEMA, label="y"),
    "TFRecord with a spec": lambda path: Dataset.from_tfrecord(
        _tfrecord(path), schema=fc.make_parse_example_spec([*COLUMNS, *MARKS]), label="y"
    ),
    "pandas": lambda path: Dataset.from_pandas(FRAME, label="y"),
    "nullable pandas": lambda path: Dataset.from_pandas(FRAME.convert_dtypes(), label="y"),
    "pandas of objects": lambda path: Dataset.from_pandas(FRAME.astype(object), label="y"),
    "pandas_input_fn": lambda path: te.inputs.pandas_input_fn(
        FRAME[list(HOLES)], FRAME["y"], batch_size=4, shuffle=False
    )(),
    "numpy_input_fn": lambda path: te.inputs.numpy_input_fn(NANS, np.array(LABELS), batch_size=4, shuffle=False)(),
    "Arrow": lambda path: Dataset.from_arrow(TABLE, label="y"),
    "lists": lambda path: Dataset.from_arrays(HOLES, LABELS),
    "objects": lambda path: Dataset.from_arrays(OBJECTS, LABELS),
    "NaN": lambda path: Dataset.from_arrays(NANS, LABELS),
    "masked arrays": lambda path: Dataset.from_arrays(MASKED, LABELS),
    "tensors": lambda path: Dataset.from_arrays(
        {key: list(values) if key == "job" else torch.tensor(values) for key, values in NANS.items()}, LABELS
    ),
    "a generator": lambda path: Dataset.from_generator(_generated),
    "batches": lambda path: Dataset.from_iterable(lambda: [(OBJECTS, LABELS)]),
    "masked batches": lambda path: Dataset.from_iterable(lambda: [(MASKED, LABELS)]),
    "one batch": lambda path: (HOLES, LABELS),
    "one batch of pandas": lambda path: (FRAME[list(HOLES)], FRAME["y"]),
    "one batch of Arrow": lambda path: ({key: TABLE[key] for key in HOLES}, LABELS),
    "a map to objects": lambda path: _mapped(OBJECTS),
    "a map to Arrow": lambda path: _mapped({key: TABLE[key] for key in HOLES}),
    "a map to NaN": lambda path: _mapped(NANS),
}


def _source(name: str, path: Path) -> Any:
    made = SOURCES[name](path)
    is_of_rows = isinstance(made, Dataset) and not any(one in name for one in ("map", "batches", "_input_fn"))
    return made.batch(4) if is_of_rows else made


def _encoded(columns: list[Any], source: Any) -> list[list[float]]:
    model = te.Estimator.from_module(nn.Identity(), columns=columns, model_dir="memory://encoded")
    return [row["output"].tolist() for row in model.predict(lambda: source)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    model = te.LinearRegressor([*COLUMNS, *MARKS], tmp_path_factory.mktemp("trained"))
    return model.train(lambda: Dataset.from_arrays(HOLES, LABELS).repeat().batch(4), steps=5)


@pytest.mark.parametrize("name", SOURCES)
def test_each_source_gives_the_same_features_and_predictions(name: str, trained: Any, tmp_path: Path) -> None:
    columns = [*NUMBERS, fc.indicator_column(JOB), fc.indicator_column(ID)]
    expected = _encoded(columns, Dataset.from_arrays(FULL, LABELS).batch(4))
    assert _encoded(columns, _source(name, tmp_path)) == expected
    marks = [[0, 0, 0, 0], [1, 1, 0, 1], [0, 0, 1, 0], [1, 0, 0, 1]]
    assert _encoded(MARKS, _source(name, tmp_path)) == marks
    predictions, given = (
        [float(row["predictions"][0]) for row in trained.predict(input_fn)]
        for input_fn in (lambda: _source(name, tmp_path), lambda: Dataset.from_arrays(HOLES, LABELS).batch(4))
    )
    np.testing.assert_allclose(predictions, given, rtol=1e-6)


STAY_NAN = {
    *("NaN in Parquet", "pandas", "pandas_input_fn", "numpy_input_fn", "NaN", "tensors", "one batch of pandas"),
    "a map to NaN",
}
HAVE_DEFAULTS = {name for name in SOURCES if "a schema" in name or "a spec" in name}


@pytest.mark.parametrize("name", sorted(SOURCES.keys() - STAY_NAN - HAVE_DEFAULTS))
def test_a_missing_number_without_a_default_is_named_with_its_place(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        _encoded([NUMBERS[0], fc.numeric_column("count")], _source(name, tmp_path))
    message = str(error.value)
    problem = "(missing and has no default|masked; replace it, as with array.filled)"
    assert re.search(f"column 'count': the (value|feature) is {problem}", message)
    assert any(place in message for place in ("a.csv, line 3", "a.jsonl, line 2", "a.tfrecord", "row 1 "))
    assert "\n" not in message


@pytest.mark.parametrize("name", sorted(STAY_NAN))
def test_nan_without_a_default_is_a_number_as_in_tensorflow(name: str, tmp_path: Path) -> None:
    numbers = _encoded([fc.numeric_column("count")], _source(name, tmp_path))
    np.testing.assert_array_equal(numbers, [[1], [NAN], [3], [2]])


def test_ids_that_are_no_whole_numbers_are_refused() -> None:
    for ids in ([1.5, 2.0], [2.0**60, 1.0]):
        with pytest.raises(UserError, match="raw column 'id' must be int64, but is float64"):
            _encoded([fc.indicator_column(ID)], Dataset.from_arrays({"id": np.array(ids)}).batch(2))


def test_a_default_that_is_no_integer_makes_floats_of_integers(tmp_path: Path) -> None:
    columns = [*COLUMNS[:1], fc.numeric_column("count", default_value=2.5), fc.indicator_column(ID)]
    for name in SOURCES.keys() - HAVE_DEFAULTS:
        numbers = _encoded(columns, _source(name, tmp_path))
        assert [row[1] for row in numbers] == [1, 2.5, 3, 2], name


def test_a_column_without_any_value_is_missing_everywhere(tmp_path: Path) -> None:
    nothing = {"age": [None, None]}
    (tmp_path / "a.csv").write_text("age,x\n,1\n,1\n")
    (tmp_path / "a.jsonl").write_text('{"age": null}\n' * 2)
    _parquet(tmp_path, pa.table({"age": pa.nulls(2)}))
    for data in (
        Dataset.from_csv(tmp_path / "a.csv"),
        Dataset.from_json(tmp_path / "a.jsonl"),
        Dataset.from_parquet(tmp_path / "a.parquet"),
        Dataset.from_arrays(nothing),
        Dataset.from_pandas(pd.DataFrame(nothing)),
        Dataset.from_generator(lambda: ({"age": None} for _ in range(2))),
    ):
        assert _encoded([NUMBERS[0], MARKS[0]], data.batch(2)) == [[40, 1], [40, 1]]


VECTORS = [[5.0, 6.0], None, [7.0, None]]
VECTOR = fc.numeric_column("v", shape=2, default_value=[1, 2])


@pytest.mark.parametrize("schema", [None, fc.schema([VECTOR])], ids=["types of the data", "schema"])
def test_vectors_and_numbers_in_them_are_filled_in_files(schema: pa.Schema | None, tmp_path: Path) -> None:
    lists, fixed = (
        pa.table({"v": pa.array(VECTORS, kind)}) for kind in (pa.list_(pa.float32()), pa.list_(pa.float32(), 2))
    )
    rows: list[dict[str, Any]] = [{"v": [5.0, 6.0]}, {}, {"v": [7.0, NAN]}]
    te.data.write_tfrecord(tmp_path / "a.tfrecord", rows)
    (tmp_path / "a.jsonl").write_text('{"v": [5, 6]}\n{"v": null}\n{"v": [7, null]}\n')
    expected = [[5, 6], [1, 2], [7, 2]]
    for table in (lists, fixed):
        data = Dataset.from_parquet(_parquet(tmp_path, table), schema=schema)
        assert _encoded([VECTOR], data.batch(3)) == expected
        assert _encoded([VECTOR], data.skip(1).take(1).map(lambda features: features).batch(1)) == expected[1:2]
    assert _encoded([VECTOR], Dataset.from_json(tmp_path / "a.jsonl", schema=schema).batch(3)) == expected
    assert _encoded([VECTOR], Dataset.from_tfrecord(tmp_path / "a.tfrecord", schema=schema).batch(3)) == expected


def test_vectors_and_numbers_in_them_are_filled_in_memory() -> None:
    for data in (
        Dataset.from_arrays({"v": pa.array([[5, 6], None, [7, NAN]])}),
        Dataset.from_pandas(pd.DataFrame({"v": [[5, 6], None, [7, 2]]})),
        Dataset.from_iterable(lambda: [{"v": pa.array(VECTORS)}]).unbatch(),
        Dataset.from_arrays({"v": np.array([[5, 6], [NAN, NAN], [7, NAN]])}),
        Dataset.from_generator(lambda: ({"v": vector} for vector in VECTORS)),
    ):
        assert _encoded([VECTOR], data.batch(3)) == [[5, 6], [1, 2], [7, 2]]
    problem = r"row 2 \(from 0\): column 'v': the value is missing and has no default"
    with pytest.raises(DataError, match=problem):
        Dataset.from_arrays({"v": pa.array(VECTORS)})


@pytest.mark.parametrize("columns", [[NUMBERS[0]], [NUMBERS[0], MARKS[0]]], ids=["number", "number and indicator"])
@pytest.mark.parametrize("schema", [False, True], ids=["types of the data", "schema"])
def test_nan_in_a_text_file_is_missing_where_the_column_has_a_default(
    columns: list[Any], schema: bool, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("age\n5\nnan\n")
    (tmp_path / "a.jsonl").write_text('{"age": 5}\n{"age": NaN}\n')
    wanted = fc.schema(columns) if schema else None
    for data in (
        Dataset.from_csv(tmp_path / "a.csv", schema=wanted),
        Dataset.from_csv(tmp_path / "a.csv", schema=wanted).map(lambda features: features),
        Dataset.from_json(tmp_path / "a.jsonl", schema=wanted),
    ):
        assert _encoded(columns, data.batch(2)) == [[5, 0][: len(columns)], [40, 1][: len(columns)]]


def test_nan_and_infinity_in_a_text_file_are_named_where_the_column_has_none(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age\n5\nnan\n")
    (tmp_path / "b.csv").write_text("age\n5\ninf\n")
    (tmp_path / "a.jsonl").write_text('{"age": 5}\n{"age": NaN}\n')
    for data, default, problem in (
        (Dataset.from_csv(tmp_path / "a.csv"), None, "a.csv, line 3: column 'age': 'nan' is not a finite number"),
        (Dataset.from_csv(tmp_path / "b.csv"), 40, "b.csv, line 3: column 'age': 'inf' is not a finite number"),
        (Dataset.from_json(tmp_path / "a.jsonl"), None, "a.jsonl, line 2: column 'age': NaN is not a number"),
    ):
        with pytest.raises(DataError, match=problem):
            _encoded([fc.numeric_column("age", default_value=default)], data.batch(2))


def test_a_cache_behind_a_map_is_made_anew_for_another_default(tmp_path: Path) -> None:
    data = Dataset.from_arrays({"k": np.arange(2)}).map(_one_hole).cache(str(tmp_path / "cache")).batch(2)
    for default in (3.0, 3.0, 4.0):
        assert _encoded([fc.numeric_column("x", default_value=default)], data) == [[1], [default]]
    with pytest.raises(DataError, match=r"row 1 .*column 'x': the value is missing and has no default"):
        _encoded([fc.numeric_column("x")], data)


def _one_hole(features: dict[str, Any]) -> dict[str, Any]:
    return {"x": np.array([1.0, None], object)[features["k"]]}
