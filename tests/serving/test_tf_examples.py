"""Exports that take serialized tf.Examples: in Python, at the command line and from a server."""

from __future__ import annotations

import asyncio
import base64
import json
import math
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
import tritonclient.grpc as triton
from torch import Tensor, nn
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

import torch_estimator as te
from tests.export.models import model_of
from tests.serving.models import app_of, ask, error_of, predict
from torch_estimator import feature_column as fc
from torch_estimator import serving_input
from torch_estimator.cli import main
from torch_estimator.errors import InvalidTypeError, InvalidValueError
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.export.writer import write_export
from torch_estimator.serving import tensorflow_grpc
from torch_estimator.serving.app import Answered, ServingApp
from torch_estimator.serving.grpc_server import SERVICE, GrpcServer, reserve_port
from torch_estimator.serving.options import ServedModel, ServingOptions
from torch_estimator.serving.service import PredictionService
from torch_estimator.tfrecord.encoder import encode_example
from torch_estimator.web.errors import RequestError

COLUMNS = [
    fc.numeric_column("age", shape=(2,), default_value=[40.0, 1.0]),
    fc.numeric_column("size"),
    fc.indicator_column(fc.categorical_column_with_vocabulary_list("job", ["nurse", "käser"])),
    fc.indicator_column(fc.categorical_column_with_identity("level", 5)),
    fc.indicator_column(fc.categorical_column_with_hash_bucket("tags", 10, multivalent=True)),
]
ROWS: list[dict[str, Any]] = [
    {"age": [1.5, 2.5], "size": 1.0, "job": "käser", "level": 3, "tags": ["a", "b"]},
    {"age": [3.5, 4.5], "size": -1.0, "job": "nurse", "level": 0, "tags": []},
    {"size": 2.0},
]
# What the third row lacks.
FILLED = {"age": [40.0, 1.0], "job": "", "level": -1, "tags": []}


def serialized(row: dict[str, Any]) -> bytes:
    return encode_example(row)


def in_json(row: dict[str, Any]) -> dict[str, str]:
    return {"b64": base64.b64encode(serialized(row)).decode()}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with three exports of one model: ``examples``, ``raw``, and ``keyed``, which forwards a feature."""
    base = tmp_path_factory.mktemp("exports")
    built = model_of([], COLUMNS)
    spec = fc.make_parse_example_spec(COLUMNS)
    receivers = {"examples": serving_input.examples(spec), "raw": serving_input.raw_features(COLUMNS)}
    for name, receiver in {**receivers, "keyed": receivers["examples"]}.items():
        write_export(
            base / name,
            module=built.module,
            transform=built.transform,
            head=built.head,
            receiver=receiver,
            forward=["job"] if name == "keyed" else [],
            clock=lambda: 1_700_000_000,
        )
    return base


def test_it_predicts_what_an_export_of_raw_columns_predicts(base: Path) -> None:
    model = te.ExportedModel.load(base / "examples")
    full = [{**FILLED, **row} for row in ROWS]
    raw = te.ExportedModel.load(base / "raw").predict({name: [row[name] for row in full] for name in full[0]})
    found = model.predict({"examples": [serialized(row) for row in ROWS]})
    assert list(found) == list(raw)
    for name, values in raw.items():
        np.testing.assert_array_equal(found[name], values)
    assert len(model.predict({"examples": []})["logits"]) == 0
    lines = Path(model.directory, "assets.extra", "warmup.jsonl").read_text().splitlines()
    assert {json.loads(line)["signature_name"] for line in lines} == set(model.signatures)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([serialized({"age": [1.0, 2.0]})], "Input examples: 'size': the feature is missing and has no default."),
        ([serialized(ROWS[0]), b"x"], "row 1 (from 0): the record is not a tf.Example."),
        ([serialized({"size": 1})], "'size': the values are int64, but the schema reads float32."),
        ([serialized({"size": 1.0, "job": b"\xff"})], "'job' of a tf.Example is not UTF-8 text."),
        ([1.5], 'takes serialized tf.Examples, in JSON as {"b64": "..."}, but has 1.5.'),
    ],
)
def test_a_wrong_example_is_refused(base: Path, value: Any, problem: str) -> None:
    with pytest.raises(InvalidValueError) as error:
        te.ExportedModel.load(base / "examples").predict({"examples": value})
    assert problem in str(error.value)


def test_the_command_line_predicts_and_shows(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"examples": in_json(row)}) + "\n" for row in ROWS))
    directory = str(base / "examples")
    arguments = ["--json-instances", str(file), "--signature-name", "predict", "--format", "json"]
    assert main(["predict", "--model-dir", directory, *arguments]) == 0
    found = json.loads(capsys.readouterr().out)["predictions"]
    wanted = ExportedModel.load(directory).predict({"examples": [serialized(row) for row in ROWS]})
    assert [row["classes"] for row in found] == wanted["classes"].tolist()
    assert main(["show", "--dir", str(base / "examples" / "1700000000"), "--all"]) == 0
    assert "Features of a tf.Example: age, job, level, size, tags." in capsys.readouterr().out


def test_a_batch_prediction_reads_tfrecord_files(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    many = [{**ROWS[row % 3], "level": row % 5} for row in range(30_000)]
    many[20_001] = {"age": [1.0, 2.0]}
    te.data.write_tfrecord(tmp_path / "a.tfrecord", many)
    te.data.write_tfrecord(tmp_path / "b.tfrecord", ROWS)
    files = [str(tmp_path / "a.tfrecord"), str(tmp_path / "b.tfrecord")]
    command = ["predict-batch", "--model", str(base / "examples"), "--signature-name", "predict", "--shards", "1"]
    assert main([*command, "--input", *files, "--output", str(tmp_path / "out")]) == 0
    results = (tmp_path / "out" / "prediction.results-00000-of-00001").read_text().splitlines()
    good = [row for row in many if "size" in row] + ROWS
    wanted = ExportedModel.load(base / "examples").predict({"examples": [serialized(row) for row in good]})
    np.testing.assert_allclose([json.loads(line)["logistic"] for line in results], wanted["logistic"], atol=1e-6)
    error = json.loads((tmp_path / "out" / "prediction.errors_stats-00000-of-00001").read_text())
    assert (error["file"], error["row"]) == (files[0], 20_001)
    assert "'size': the feature is missing" in error["reason"]
    for model, more, problem in (
        (
            "raw",
            [],
            "TFRecord files are for exports of te.serving_input.examples, but the signature has the inputs age,",
        ),
        ("examples", ["--key", "id"], "--key names 'id', but TFRecord files have no columns; leave it out, and export"),
    ):
        command[2] = str(base / model)
        assert main([*command, "--input", *files, "--output", str(tmp_path / model), *more]) == 2
        assert problem in capsys.readouterr().err
    command[2] = str(base / "keyed")
    assert main([*command, "--input", files[1], "--output", str(tmp_path / "keyed")]) == 0
    results = (tmp_path / "keyed" / "prediction.results-00000-of-00001").read_text().splitlines()
    assert [json.loads(line)["job"] for line in results] == [["käser"], ["nurse"], [""]]


def test_a_server_takes_them(base: Path) -> None:
    wanted = ExportedModel.load(base / "examples").predict({"examples": [serialized(row) for row in ROWS]})
    logistic = wanted["logistic"].ravel().tolist()
    with app_of(base / "examples") as app:
        body = {"signature_name": "predict", "instances": [{"examples": in_json(row)} for row in ROWS]}
        answer = predict(app, body).json()["predictions"]
        assert [row["logistic"][0] for row in answer] == pytest.approx(logistic, abs=1e-6)
        body = {"signature_name": "predict", "inputs": {"examples": [in_json(row) for row in ROWS]}}
        assert len(predict(app, body).json()["outputs"]["logistic"]) == 3
        # Classify and regress requests name the features; a whole number is a float where the model takes floats.
        rows = [{**ROWS[0], "size": 1}, *ROWS[1:]]
        answer = ask(app, "/v1/models/small:regress", {"examples": rows}).json()
        assert answer["results"] == pytest.approx(logistic, abs=1e-6)
        holes = [rows[0], {**rows[1], "age": [math.nan] * 2}, {**rows[2], "age": None, "job": None, "level": None}]
        filled = [rows[0], {**rows[1], "age": FILLED["age"]}, rows[2]]
        answers = [ask(app, "/v1/models/small:regress", {"examples": some}).json() for some in (holes, filled)]
        assert answers[0] == answers[1]
        wrong = ask(app, "/v1/models/small:regress", {"examples": [{"size": "large"}]})
        assert error_of(wrong) == (400, "Input size takes values of float32, but has 'large'.")
        status, message = error_of(predict(app, {"instances": [{"b64": "é"}]}))
        assert (status, message) == (400, "Instance 0: Input inputs has 'é', which is not base64.")
        status, message = error_of(predict(app, {"instances": [in_json(ROWS[0]), in_json({"age": [1.0, 2.0]})]}))
        assert status == 400
        assert message == "Instance 1: Input inputs: 'size': the feature is missing and has no default."


def test_triton_clients_send_them_over_grpc(base: Path) -> None:
    examples = [serialized(row) for row in ROWS]
    wanted = ExportedModel.load(base / "examples").predict({"examples": examples})
    with pytest.raises(UnicodeDecodeError):
        examples[0].decode()
    settings, reserved = reserve_port(
        ServingOptions(models=(ServedModel(name="small", path=str(base / "examples")),), grpc_port=0)
    )
    assert reserved is not None
    service = PredictionService(settings)

    def ask(client: triton.InferenceServerClient, texts: list[bytes]) -> Any:
        given = triton.InferInput("examples", [len(texts)], "BYTES")
        given.set_data_from_numpy(np.array(texts, dtype=object))
        return client.infer("small", [given], parameters={"signature_name": "predict"})

    def check() -> None:
        with triton.InferenceServerClient(f"127.0.0.1:{settings.grpc_port}") as client:
            found = ask(client, examples)
            np.testing.assert_allclose(found.as_numpy("logistic"), wanted["logistic"], atol=1e-6)
            with pytest.raises(InferenceServerException, match=r"Instance 1: .*the record is not a tf.Example"):
                ask(client, [examples[0], b"\xff"])
        typed = service_pb2.ModelInferRequest(model_name="small")
        typed.parameters["signature_name"].string_param = "predict"
        tensor = typed.inputs.add(name="examples", datatype="BYTES", shape=[len(examples)])
        tensor.contents.bytes_contents.extend(examples)
        with grpc.insecure_channel(f"127.0.0.1:{settings.grpc_port}") as channel:
            answer = channel.unary_unary(f"/{SERVICE}/ModelInfer")(typed.SerializeToString(), timeout=60)
            outputs = {one.name: one for one in service_pb2.ModelInferResponse.FromString(answer).outputs}
            found = outputs["logistic"].contents.fp32_contents
            np.testing.assert_allclose(found, wanted["logistic"].ravel(), atol=1e-6)

    async def serve() -> None:
        server = GrpcServer(ServingApp(service))
        await server.start()
        try:
            await asyncio.to_thread(check)
        finally:
            await server.stop_after(lambda: True)

    service.start()
    try:
        asyncio.run(serve())
    finally:
        service.close()
        reserved.close()


def test_clients_of_tensorflow_serving_send_them_over_grpc(base: Path) -> None:
    def regress(rows: list[dict[str, Any]], context: dict[str, Any]) -> Any:
        request = messages["RegressionRequest"]()
        request.model_spec.name = "small"
        request.input.example_list_with_context.examples.extend(map(serialized, rows))
        request.input.example_list_with_context.context = serialized(context)
        return asyncio.run(answering._regress(request, Answered()))

    messages = tensorflow_grpc._MESSAGES
    context = {"size": 7.0, "job": "nurse"}
    merged = [{**context, **row} for row in (ROWS[0], {"level": 2})]
    wanted = ExportedModel.load(base / "examples").predict({"examples": list(map(serialized, merged))})
    with app_of(base / "examples") as app:
        answering = tensorflow_grpc.TensorflowGrpc(app.service)
        answer = regress([ROWS[0], {"level": 2}], context)
        found = [one.value for one in answer.result.regressions]
        np.testing.assert_allclose(found, wanted["logistic"].ravel(), atol=1e-6)
        assert answer.model_spec.signature_name == "regression"
        with pytest.raises(RequestError, match=r"^Instance 1: Input inputs: 'size': the feature is missing"):
            regress([ROWS[0], {"level": 2}], {})
        request = messages["PredictRequest"]()
        request.model_spec.name, request.model_spec.signature_name = "small", "predict"
        request.inputs["examples"].dtype = tensorflow_grpc._NUMBERS["DT_STRING"]
        request.inputs["examples"].tensor_shape.dim.add(size=2)
        request.inputs["examples"].string_val.extend(map(serialized, merged))
        answer = asyncio.run(answering._predict(request, Answered()))
        np.testing.assert_allclose(answer.outputs["logistic"].float_val, wanted["logistic"].ravel(), atol=1e-6)


class Sums(nn.Module):
    """Module without columns whose answer depends on any padding."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 1)

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        points = features["points"].cumsum(1)
        return torch.cat([self.table(features["ids"])[:, -1], points[:, -1], points.mean(1)], 1)


def test_a_module_without_columns_gets_sequences_as_long_as_they_are(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"ids": [1, 2, 3], "points": [1.0, 2.0, 3.0, 4.0]},
        {"ids": [4], "points": [5.0, 6.0]},
        {"ids": [2, 0, 1], "points": [0.5, 0.25, 1.0, 1.0]},
    ]
    te.data.write_tfrecord(tmp_path / "rows.tfrecord", [{**row, "y": 1.0} for row in rows])
    spec = {
        "ids": te.data.VarLenFeature("int64"),
        "points": te.data.FixedLenSequenceFeature([2], "float32", allow_missing=True),
    }

    def data() -> te.data.Dataset:
        schema = {**spec, "y": te.data.FixedLenFeature([], "float32")}
        return te.data.Dataset.from_tfrecord(tmp_path / "rows.tfrecord", schema=schema, label="y").batch(1)

    estimator = te.Estimator.from_module(
        Sums(),
        loss=nn.L1Loss(),
        optimizer=te.optim.SGD(lr=0.0),
        config=te.RunConfig(str(tmp_path / "job"), compile=False),
    )
    estimator.train(lambda: data().map(lambda features, y: (features, np.ones((1, 5), np.float32))), steps=1)
    wanted = [one["output"] for one in estimator.predict(data)]
    model = te.ExportedModel.load(estimator.export_saved_model(str(tmp_path), serving_input.examples(spec)))
    found = model.predict({"examples": [serialized(row) for row in rows]})["output"]
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    for wrong, problem in (
        ({"ids": [1], "points": [1.0, 2.0, 3.0]}, "'points': there are 3 values, which are no steps of 2."),
        ({"points": [1.0, 2.0]}, "'ids': the list is empty; give a value."),
    ):
        with pytest.raises(InvalidValueError, match=rf"^Input examples, row 1 \(from 0\): {problem}"):
            model.predict({"examples": [serialized(rows[0]), serialized(wrong)]})


def test_other_features_are_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"'steps' is a FixedLenSequenceFeature, .* allow_missing=True"):
        serving_input.examples({"steps": te.data.FixedLenSequenceFeature([], "int64")})
    with pytest.raises(InvalidTypeError, match="'image' is FixedLenFeature"):
        serving_input.examples({"image": te.data.FixedLenFeature([], "bytes")})
