"""Rows with holes: what trains also predicts, with the same result by every way to ask."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tritonclient.grpc
import tritonclient.http

import torch_estimator as te
from tests.serving.models import app_of, ask, error_of
from tests.serving.served import Server, serving
from tests.serving.ways import Asked, without_missing, write_lines
from torch_estimator import feature_column as fc
from torch_estimator.cli import main

NAN = math.nan
AGE, OCCUPATION, REGION = (
    fc.numeric_column("age", default_value=38.0),
    fc.categorical_column_with_hash_bucket("occupation", 20),
    fc.categorical_column_with_identity("region", 9),
)
WORK = fc.categorical_column_with_vocabulary_list("workclass", ["Private", "State-gov"], num_oov_buckets=1)
COLUMNS = [fc.numeric_column("hours_per_week"), AGE, WORK, OCCUPATION, REGION]
KINDS = {
    "hours_per_week": pa.float32(),
    "age": pa.float32(),
    "workclass": pa.string(),
    "occupation": pa.string(),
    "region": pa.int64(),
}
FULL = {"hours_per_week": 40.0, "age": 25.0, "workclass": "Private", "occupation": "Sales", "region": 3}
OPTIONAL = ("age", "workclass", "occupation", "region")
ROWS: list[dict[str, Any]] = [
    FULL,
    *({**FULL, name: None} for name in OPTIONAL),
    {**FULL, "hours_per_week": 12.5, "workclass": "never seen", "age": None},
    {"hours_per_week": 8.0, **dict.fromkeys(OPTIONAL)},
]
ABSENT = without_missing(ROWS)
WITH_NAN = [{name: NAN if value is None else value for name, value in row.items()} for row in ROWS]


@dataclass(frozen=True)
class Trained:
    """A model that was trained on the rows, the export of it, a server of that, and what the estimator predicts."""

    export: str
    server: Server
    asked: Asked
    expected: list[float]
    folder: Path


def column(name: str, missing: Any = None) -> list[Any]:
    return [missing if row[name] is None else row[name] for row in ROWS]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    folder = tmp_path_factory.mktemp("missing")
    table = pa.table({name: pa.array(column(name), kind) for name, kind in KINDS.items()})
    pq.write_table(table, folder / "rows.parquet")
    pq.write_table(table.append_column("label", pa.array([0, 1] * 3 + [0])), folder / "train.parquet")
    write_lines(folder / "rows.jsonl", ROWS)
    write_lines(folder / "absent.jsonl", ABSENT)
    lines = [",".join("" if value is None else str(value) for value in row.values()) for row in ROWS]
    (folder / "rows.csv").write_text("\n".join([",".join(FULL), *lines, ""]))
    schema = fc.schema(COLUMNS)
    deep = [COLUMNS[0], AGE, fc.embedding_column(OCCUPATION, 3), fc.indicator_column(REGION)]
    model = te.DNNLinearCombinedClassifier(
        f"{folder}/run", linear_feature_columns=COLUMNS[2:], dnn_feature_columns=deep, dnn_hidden_units=[4]
    )
    rows = te.data.Dataset.from_parquet(f"{folder}/train.parquet", schema=schema, label="label")
    model.train(lambda: rows.repeat().batch(7), max_steps=5)
    export = model.export_saved_model(f"{folder}/export", te.serving_input.json(COLUMNS))
    answers = model.predict(lambda: te.data.Dataset.from_parquet(f"{folder}/rows.parquet", schema=schema).batch(3))
    expected = [float(one["logits"][0]) for one in answers]
    with serving(folder / "export") as server:
        asked = Asked(export, "same", lambda path, **given: httpx.post(f"http://{server.rest}{path}", **given))
        yield Trained(export, server, asked, expected, folder)


def open_inference_binary(trained: Trained, module: Any, address: str) -> Any:
    """Binary tensors have no null: NaN, the empty string and -1 are missing there."""
    made = []
    for name, kind in KINDS.items():
        text = kind == pa.string()
        missing = "" if text else NAN if name == "age" else -1
        values = np.array(column(name, missing), object if text else kind.to_pandas_dtype())
        datatype = "BYTES" if text else "FP32" if kind == pa.float32() else "INT64"
        made.append(module.InferInput(name, list(values.shape), datatype))
        made[-1].set_data_from_numpy(values)
    with module.InferenceServerClient(address) as client:
        return client.infer("same", made).as_numpy("logits")


def exported(trained: Trained, **columns: Any) -> Any:
    inputs = {name: column(name) for name in FULL} | columns
    return te.ExportedModel.load(trained.export).predict(inputs)["logits"]


AGES = np.array([25, NAN, 25, 25, 25, NAN, NAN])
WAYS: dict[str, Callable[[Trained], Any]] = {
    "REST by row, null": lambda it: it.asked.by_row(ROWS),
    "REST by row, absent": lambda it: it.asked.by_row(ABSENT),
    "REST by row, NaN": lambda it: it.asked.by_row(WITH_NAN),
    "REST by column, null": lambda it: it.asked.by_column(ROWS),
    "REST by column, NaN": lambda it: it.asked.by_column(WITH_NAN),
    "v2 JSON, null": lambda it: it.asked.v2_json(ROWS),
    "v2 JSON, NaN": lambda it: it.asked.v2_json(WITH_NAN),
    "v2 binary": lambda it: open_inference_binary(it, tritonclient.http, it.server.rest),
    "gRPC": lambda it: open_inference_binary(it, tritonclient.grpc, it.server.grpc),
    "ExportedModel, None": exported,
    "ExportedModel, arrays": lambda it: exported(it, age=AGES, occupation=np.array(column("occupation", NAN), object)),
    "ExportedModel, ids as floats": lambda it: exported(it, region=np.array(column("region", NAN))),
    "ExportedModel, columns of one": lambda it: exported(it, age=AGES[:, None], region=[[v] for v in column("region")]),
    "predict-batch of Parquet": lambda it: it.asked.predict_batch(it.folder / "rows.parquet"),
    "predict-batch of JSON lines": lambda it: it.asked.predict_batch(it.folder / "rows.jsonl"),
    "predict-batch of JSON lines, absent": lambda it: it.asked.predict_batch(it.folder / "absent.jsonl"),
    "predict-batch of CSV": lambda it: it.asked.predict_batch(it.folder / "rows.csv"),
}


@pytest.mark.parametrize("way", WAYS)
def test_rows_with_holes_are_predicted_as_the_estimator_does(trained: Trained, way: str) -> None:
    np.testing.assert_allclose(np.ravel(WAYS[way](trained)), trained.expected, atol=1e-5)


@pytest.mark.parametrize("name", ["rows.jsonl", "absent.jsonl"])
def test_the_command_predict_takes_rows_with_holes(trained: Trained, name: str) -> None:
    np.testing.assert_allclose(trained.asked.predict(trained.folder / name), trained.expected, atol=1e-5)


def test_a_file_may_lack_a_column_that_may_be_missing(trained: Trained, caplog: pytest.LogCaptureFixture) -> None:
    table = pq.read_table(trained.folder / "rows.parquet").drop_columns(["occupation", "age"])
    pq.write_table(table, trained.folder / "narrow.parquet")
    expected = np.ravel(exported(trained, occupation=[None] * len(ROWS), age=[None] * len(ROWS)))
    np.testing.assert_allclose(trained.asked.predict_batch(trained.folder / "narrow.parquet"), expected, atol=1e-5)
    assert "narrow.parquet has no column 'age', 'occupation'; each row gets the default." in caplog.text


def test_a_number_without_a_default_must_be_given(trained: Trained) -> None:
    wrong = [FULL, {**FULL, "hours_per_week": None}]
    columns = {name: [row[name] for row in wrong] for name in FULL}
    message = "Instance 1: Input hours_per_week takes numbers, but has None (NoneType)."
    with app_of(Path(trained.export).parent) as app:
        for content in ({"instances": wrong}, {"inputs": columns}):
            assert error_of(ask(app, "/v1/models/small:predict", content)) == (400, message)
        problem = "Instance 0: Input hours_per_week was missing in at least one input instance."
        assert error_of(ask(app, "/v1/models/small:predict", {"instances": [{"age": 1.0}]})) == (400, problem)
        instance = ask(app, "/openapi.json").json()["components"]["schemas"]["small.serving_default.instance"]
    assert instance["required"] == ["hours_per_week"]
    assert instance["properties"]["hours_per_week"]["anyOf"][0] == {"type": "number"}
    assert instance["properties"]["age"]["anyOf"][0] == {"type": ["number", "null"]}
    assert {"type": "null"} in instance["properties"]["occupation"]["anyOf"][0]["anyOf"]


def test_a_row_with_nothing_in_it_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = [AGE, WORK]
    model = te.LinearClassifier(columns, f"{tmp_path}/run")
    data = {"age": np.array([1.0, 2.0], np.float32), "workclass": np.array(["Private", ""])}
    model.train(lambda: (data, np.array([0, 1])), max_steps=1)
    export = model.export_saved_model(f"{tmp_path}/export", te.serving_input.json(columns))
    problem = "the row {} has none of the inputs age, workclass; give at least one, which may be null."
    with app_of(tmp_path / "export") as app:
        answer = ask(app, "/v1/models/small:predict", {"instances": [{"age": None}, {}]})
        assert error_of(answer) == (400, f"Instance 1: {problem}")
        assert ask(app, "/v1/models/small:predict", {"inputs": {}}).status_code == 400
        assert ask(app, "/v1/models/small:predict", {"instances": [{"age": None}]}).status_code == 200
    (tmp_path / "rows.jsonl").write_text('{"workclass": null}\n{}\n')
    instances = ["--json-instances", f"{tmp_path}/rows.jsonl"]
    assert main(["predict", "--model-dir", export, *instances]) == 2
    assert f"rows.jsonl, line 2: {problem}" in capsys.readouterr().err
    output, one = tmp_path / "output", tmp_path / "rows.csv"
    # Training skips empty lines of CSV, too.
    one.write_text("age,workclass\n\n1,Private\n,\n")
    arguments = ["predict-batch", "--model", export, "--output", str(output)]
    assert main([*arguments, "--input", str(one)]) == 0
    assert len((output / "prediction.results-00000-of-00001").read_text().splitlines()) == 2
    assert main([*arguments[:-1], f"{output}-json", "--input", f"{tmp_path}/rows.jsonl"]) == 0
    (wrong,) = (tmp_path / "output-json" / "prediction.errors_stats-00000-of-00001").read_text().splitlines()
    assert json.loads(wrong)["line"] == 2
    assert problem in wrong
