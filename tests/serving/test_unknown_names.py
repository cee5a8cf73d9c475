"""With `ignore_unknown`, names that a model does not read are left out of requests, counted, and said once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from tritonclient.grpc import service_pb2

from tests.serving import served
from tests.serving.models import app_of, ask, predict, row
from torch_estimator.export.signatures import SIGNATURES_FILE
from torch_estimator.serving.app import ServingApp

X = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2]}
LABEL = {"name": "label", "datatype": "INT64", "shape": [2], "data": [0, 1]}


@pytest.fixture
def app(base: Path) -> Iterator[ServingApp]:
    with app_of(base, ignore_unknown=True) as app:
        yield app


def counted(app: ServingApp) -> float:
    lines = ask(app, "/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("te_unknown_names_total{"))


def test_rest_leaves_them_out_by_row_by_column_and_of_tensors(
    app: ServingApp, caplog: pytest.LogCaptureFixture
) -> None:
    before = counted(app)
    rows = [row(x=1, label=0, id={"a": 1}), row(x=2, label=1)]
    assert predict(app, {"signature_name": "one", "instances": rows}).json() == {"predictions": [2.0, 4.0]}
    inputs = {"x": [1, 2], "label": [0, 1]}
    assert predict(app, {"signature_name": "bare", "inputs": inputs}).json() == {"outputs": [2.0, 4.0]}
    parameters = {"signature_name": "one"}
    answer = ask(app, "/v2/models/small/infer", {"inputs": [LABEL, X], "parameters": parameters}).json()
    assert answer["outputs"][0]["data"] == [2.0, 4.0]
    examples = ask(app, "/v1/models/small:regress", {"examples": [{"x": 3, "label": 1}]}).json()
    assert examples == {"results": [6.0]}
    assert counted(app) - before == 3 + 1 + 1 + 1
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said == [
        f"Version 2 of model small does not read {name}, which is left out from here on."
        for name in ("'label'", "'id'")
    ]


def test_a_name_in_place_of_an_input_with_a_default_is_counted(app: ServingApp) -> None:
    before = counted(app)
    inputs = {"x": [1], "label": [0]}
    assert predict(app, {"signature_name": "one", "inputs": inputs}).json() == {"outputs": [2.0]}
    assert counted(app) - before == 1


def test_what_is_left_is_checked(app: ServingApp) -> None:
    assert predict(app, {"signature_name": "one", "instances": [{"label": 1}]}).status_code == 400
    assert predict(app, {"signature_name": "one", "instances": [row(x="a", label=1)]}).status_code == 400
    assert ask(app, "/v2/models/small/infer", {"inputs": [LABEL]}).status_code == 400


def test_the_schema_of_a_row_takes_other_names(app: ServingApp, base: Path) -> None:
    def of_row(one: ServingApp) -> Any:
        return ask(one, "/openapi.json").json()["components"]["schemas"]["small.one.instance"]["additionalProperties"]

    assert of_row(app) is True
    with app_of(base) as other:
        assert of_row(other) is False


def test_an_export_asks_for_it_and_the_command_does(tmp_path: Path) -> None:
    directory = tmp_path / "models"
    served.write_export(directory / "1", factor=1)
    path = directory / "1" / SIGNATURES_FILE
    request = service_pb2.ModelInferRequest(model_name="same")
    for name, values in served.ROWS.items():
        data = served.array(name, values)
        request.inputs.add(name=name, datatype=served.DATATYPES[name], shape=data.shape)
        request.raw_input_contents.append(served.INPUTS[name].type.encode(data))
    request.inputs.add(name="label", datatype="FP32", shape=[1])
    request.raw_input_contents.append(b"1234")
    instance = {"instances": [{"label": 1}]}
    text = path.read_text()
    for option in ((), ("--ignore-unknown",)):
        if not option:
            path.write_text(text.replace("{", '{"ignore_unknown": true,', 1))
        with served.serving(directory, *option) as running, grpc.insecure_channel(running.grpc) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            answer = service_pb2.ModelInferResponse.FromString(call(request.SerializeToString(), timeout=60))
            assert len(answer.raw_output_contents) == len(answer.outputs) > 0
            answered = httpx.post(f"http://{running.rest}/v1/models/same:predict", json=instance, timeout=60)
            assert "Unexpected tensor name" not in answered.text
        path.write_text(text)
    with served.serving(directory) as running, grpc.insecure_channel(running.grpc) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError, match="Unexpected tensor name: 'label'"):
            call(request.SerializeToString(), timeout=60)
