"""Predictions that are NaN: refused where a premade head made them, and answered for a model of one's own."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.grpc
from torch import nn
from tritonclient.utils import InferenceServerException

import torch_estimator as te
from tests.export.models import model_of
from tests.serving.models import app_of, ask, ask_all, error_of
from tests.serving.served import serving
from torch_estimator import feature_column as fc
from torch_estimator import serving_input
from torch_estimator.cli import main
from torch_estimator.errors import UserError
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.export.heads import is_premade
from torch_estimator.export.nan_predictions import NanPredictionError
from torch_estimator.export.signatures import SIGNATURES_FILE
from torch_estimator.export.warmup import read_warmup
from torch_estimator.export.writer import write_export
from torch_estimator.heads import BinaryClassHead, MultiHead, RegressionHead, SequentialHeadWrapper
from torch_estimator.serving.app import ServingApp
from torch_estimator.tfrecord.encoder import encode_example

COLUMNS = [fc.numeric_column("size"), fc.numeric_column("pair", shape=2), fc.numeric_column("age", default_value=3.0)]
GOOD = {"size": 1.0, "pair": [1.0, 2.0], "age": 4.0}
WRONG = {**GOOD, "size": math.nan, "pair": [0.5, math.inf]}
PROBLEM = "the prediction is NaN because of its inputs: pair has Infinity, size is NaN; give finite numbers."
PLACE = "/v1/models/small:predict"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("premade")
    model_of([], COLUMNS).export(base, serving_input.json(COLUMNS))
    return base


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of a module without a premade head."""
    base = tmp_path_factory.mktemp("own")
    estimator = te.Estimator.from_module(
        nn.Linear(1, 1), loss=nn.functional.mse_loss, optimizer="SGD", model_dir=f"{base}/run"
    )
    estimator.train(lambda: (torch.ones(4, 1), torch.ones(4, 1)), steps=1)
    estimator.export_saved_model(base / "export", te.serving_input.like(torch.ones(1, 1)))
    return base / "export"


@pytest.fixture
def app(base: Path) -> Iterator[ServingApp]:
    with app_of(base) as made:
        yield made


def counted(app: ServingApp, done: str) -> float:
    lines = ask(app, "/metrics").text.splitlines()
    return sum(
        float(one.split()[-1])
        for one in lines
        if one.startswith("te_nan_predictions_total") and f'done="{done}"' in one
    )


def by_column(*rows: dict[str, Any]) -> dict[str, Any]:
    return {name: [row[name] for row in rows] for name in GOOD}


def test_a_request_with_such_a_row_is_refused(app: ServingApp) -> None:
    refused = counted(app, "refused")
    for content in ({"instances": [GOOD, WRONG, GOOD]}, {"inputs": by_column(GOOD, WRONG, GOOD)}):
        assert error_of(ask(app, PLACE, content)) == (400, f"Instance 1: {PROBLEM}")
    inputs = [
        {"name": name, "datatype": "FP32", "shape": list(np.shape(column)), "data": column}
        for name, column in by_column(GOOD, WRONG).items()
    ]
    answer = ask(app, "/v2/models/small/infer", {"inputs": inputs})
    assert error_of(answer) == (400, f"Instance 1: {PROBLEM}")
    assert counted(app, "refused") == refused + 3
    assert counted(app, "answered") == 0


def test_only_the_request_with_the_row_is_refused(app: ServingApp) -> None:
    alone = ask(app, PLACE, {"instances": [GOOD]}).json()
    requests = [(PLACE, {"instances": [row]}) for row in (GOOD, WRONG, GOOD, GOOD)]
    answers = ask_all(app, requests)
    assert [one.status_code for one in answers] == [200, 400, 200, 200]
    np.testing.assert_allclose(
        [one.json()["predictions"][0]["logits"] for one in (answers[0], *answers[2:])],
        [alone["predictions"][0]["logits"]] * 3,
        atol=1e-6,
    )


def test_grpc_says_that_the_argument_is_wrong(base: Path) -> None:
    made = []
    for name, column in by_column(GOOD, WRONG).items():
        made.append(tritonclient.grpc.InferInput(name, list(np.shape(column)), "FP32"))
        made[-1].set_data_from_numpy(np.array(column, np.float32))
    with (
        serving(base) as server,
        tritonclient.grpc.InferenceServerClient(server.grpc) as client,
        pytest.raises(InferenceServerException) as error,
    ):
        client.infer("same", made)
    assert error.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert error.value.message() == f"Instance 1: {PROBLEM}"


def test_the_export_raises(base: Path) -> None:
    model = ExportedModel.load(base)
    with pytest.raises(UserError) as error:
        model.predict(by_column(GOOD, WRONG, WRONG))
    assert str(error.value) == f"row 1 (from 0): {PROBLEM}"
    assert isinstance(error.value, NanPredictionError)
    assert list(error.value.problems) == [1, 2]


def test_a_weight_that_is_not_finite_is_suspected(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    built = model_of([], COLUMNS)
    with torch.no_grad():
        next(built.module.parameters()).fill_(math.nan)
    model = built.export(tmp_path, serving_input.json(COLUMNS))
    assert "An export without warm-up instances: it predicts no number for zeros and empty inputs." in caplog.text
    problem = "^the prediction is NaN, although its inputs are finite: some are too large, or a weight is not finite.$"
    with pytest.raises(UserError, match=problem):
        model.predict(by_column(GOOD))


def test_the_command_names_the_line(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (GOOD, WRONG)))
    assert main(["predict", "--model-dir", str(base), "--json-instances", str(path)]) == 2
    assert capsys.readouterr().err.endswith(f"estimator: error: {path}, line 2: {PROBLEM}\n")


@pytest.mark.parametrize("with_text", [False, True])
def test_a_batch_prediction_rejects_the_row(tmp_path: Path, with_text: bool) -> None:
    columns = (
        COLUMNS[:1] + [fc.indicator_column(fc.categorical_column_with_vocabulary_list("k", ["a", "b"]))] * with_text
    )
    model_of([], columns).export(tmp_path / "export", serving_input.json(columns))
    sizes = [math.nan if row % 5 == 3 else float(row) for row in range(20)]
    rows = [{"size": size, **({"k": "a"} if with_text else {})} for size in sizes]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out"
    arguments = ["--model", str(tmp_path / "export"), "--input", str(tmp_path / "rows.jsonl"), "--output", str(out)]
    assert main(["predict-batch", *arguments, "--shards", "1", "--batch", "8"]) == 0
    lines = (out / "prediction.results-00000-of-00001").read_text().splitlines()
    expected = ExportedModel.load(tmp_path / "export").predict(
        {name: [row[name] for row in rows if not math.isnan(row["size"])] for name in rows[0]}
    )
    np.testing.assert_allclose([json.loads(line)["logits"] for line in lines], expected["logits"], atol=1e-6)
    rejected = [json.loads(line) for line in (out / "prediction.errors_stats-00000-of-00001").read_text().splitlines()]
    assert [one["line"] for one in rejected] == [4, 9, 14, 19]
    problem = "The prediction is NaN because of its inputs: size is NaN; give finite numbers."
    assert {one["reason"] for one in rejected} == {problem}


@pytest.mark.parametrize("kind", ["csv", "examples"])
def test_the_input_is_named_within_a_row_of_text(kind: str, tmp_path: Path) -> None:
    columns = [COLUMNS[0], COLUMNS[2]]
    if kind == "csv":
        receiver, row = serving_input.csv(["id", "size", "age"], columns), "7,nan,2"
    else:
        receiver = serving_input.examples(fc.make_parse_example_spec(columns))
        row = encode_example({"size": math.nan})
    model = model_of([], columns).export(tmp_path, receiver)
    (name,) = model.signature("predict").inputs
    with pytest.raises(UserError, match=r"NaN because of its inputs: size is NaN; give"):
        model.predict({name: [row]})


def test_a_model_of_ones_own_is_answered_with_nan(own: Path) -> None:
    with app_of(own) as app:
        answered = counted(app, "answered")
        good, odd = ask_all(app, [(PLACE, {"instances": [[1.0]]}), (PLACE, {"instances": [[math.nan]]})])
        assert odd.status_code == 200
        assert np.isnan(odd.json()["predictions"]).all()
        assert np.isfinite(good.json()["predictions"]).all()
        assert counted(app, "answered") == answered + 1
        assert counted(app, "refused") == 0


def test_an_older_export_is_answered_with_nan(base: Path, tmp_path: Path) -> None:
    directory = Path(ExportedModel.load(base).directory)
    for file in (one for one in directory.iterdir() if one.is_file()):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    content = json.loads((directory / SIGNATURES_FILE).read_text())
    assert content.pop("head_outputs") == ["logits", "logistic", "probabilities"]
    (tmp_path / SIGNATURES_FILE).write_text(json.dumps(content))
    assert np.isnan(ExportedModel.load(tmp_path).predict(by_column(WRONG))["logits"]).all()
    (tmp_path / "rows.jsonl").write_text(json.dumps(WRONG))
    arguments = ["--model", str(tmp_path), "--input", str(tmp_path / "rows.jsonl"), "--output", str(tmp_path / "out")]
    assert main(["predict-batch", *arguments, "--shards", "1"]) == 0
    assert '"logits":[NaN]' in (tmp_path / "out" / "prediction.results-00000-of-00001").read_text()


def test_rows_whose_prediction_is_nan_are_not_recorded(tmp_path: Path) -> None:
    built = model_of([], COLUMNS)
    rows = [GOOD, WRONG, {**GOOD, "size": 2.0}]
    path = write_export(
        tmp_path,
        module=built.module,
        transform=built.transform,
        head=built.head,
        receiver=serving_input.json(COLUMNS),
        rows=rows,
    )
    sizes = [one.instance["size"] for one in read_warmup(path) if one.signature_name == "predict"]
    assert sizes == [1.0, 2.0]


def test_a_head_of_ones_own_is_not_premade() -> None:
    class Own(RegressionHead):
        pass

    assert is_premade(BinaryClassHead())
    assert is_premade(MultiHead([BinaryClassHead(name="a"), RegressionHead(name="b")]))
    assert is_premade(SequentialHeadWrapper(BinaryClassHead()))
    assert not is_premade(Own())
    assert not is_premade(MultiHead([BinaryClassHead(name="a"), Own(name="b")]))
