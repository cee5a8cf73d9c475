"""Warm-up instances: which rows an export records, in which form, and what is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import torch_estimator as te
from tests.export.models import census_columns, model_of
from torch_estimator import feature_column as fc
from torch_estimator import files, serving_input
from torch_estimator.cli import main
from torch_estimator.errors import ExportError, InvalidTypeError, InvalidValueError
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.export.instances import to_rows
from torch_estimator.export.warmup import WarmupInstance, batches_of, difference, read_warmup
from torch_estimator.export.writer import write_export
from torch_estimator.train.seen_rows import SeenRows

WORD = fc.categorical_column_with_hash_bucket("word", 10)
TAGS = fc.categorical_column_with_vocabulary_list("tags", ["a", "b"], multivalent=True)
NUMBER = fc.categorical_column_with_identity("number", 5, default_value=0)
X, PAIR = fc.numeric_column("x", default_value=0.5), fc.numeric_column("pair", shape=2)
COLUMNS: list[Any] = [WORD, TAGS, NUMBER, X, PAIR]
ROWS = {
    "word": ["red", "", 'it\'s, "quoted"', "日本語\u2028", None],
    "tags": [["a", "b"], [], ["c"], ["", "a"], ["b"]],
    "number": [1, 2, -1, 3, 4],
    "x": [0.1, -3.5, float("nan"), 1e30, 0.25],
    "pair": [[0.1, 0.2], [1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]],
}


def input_of(rows: dict[str, Any] = ROWS) -> te.data.Dataset:
    count = len(next(iter(rows.values())))
    columns = {name: pa.array(values) if name == "tags" else values for name, values in rows.items()}
    return te.data.Dataset.from_arrays(columns, labels=np.arange(count) % 2).batch(count)


def first_of(rows: dict[str, Any]) -> dict[str, Any]:
    return {name: values[:1] for name, values in rows.items()}


def linear(columns: list[Any], model_dir: Path, make: Any = te.LinearClassifier) -> Any:
    return make(columns, model_dir=str(model_dir), config=te.RunConfig(compile=False))


def assert_reproduced(directory: str) -> list[WarmupInstance]:
    """Check that an export predicts what it has recorded; return that."""
    model, instances = ExportedModel.load(directory), read_warmup(directory)
    found = batches_of(instances, model.signatures)
    for name, (inputs, group) in found.items():
        for one, row in zip(group, to_rows(model.predict(inputs, name)), strict=True):
            assert {key: difference(one.predictions[key], value) for key, value in row.items()} == dict.fromkeys(row)
    assert set(found) == set(model.signatures)
    return instances


@pytest.mark.parametrize("kind", ["raw_features", "json"])
def test_the_rows_of_the_last_evaluation_are_recorded_as_a_caller_sends_them(tmp_path: Path, kind: str) -> None:
    calls = []

    def evaluation() -> te.data.Dataset:
        calls.append("evaluation")
        return input_of()

    # A classifier cannot be evaluated with a feature of NaN.
    estimator = linear(COLUMNS, tmp_path, te.LinearRegressor)
    estimator.train(lambda: input_of(first_of(ROWS)), steps=1)
    estimator.evaluate(evaluation)
    receiver = getattr(serving_input, kind)(COLUMNS, defaults={"key": "none"})
    instances = assert_reproduced(estimator.export_saved_model(str(tmp_path / "export"), receiver))

    assert calls == ["evaluation"]
    predict = [one.instance for one in instances if one.signature_name == "predict"]
    listed = kind == "raw_features"
    for row, instance in enumerate(predict):
        expected = {
            "word": ROWS["word"][row] or "",
            "number": ROWS["number"][row],
            "x": ROWS["x"][row],
            "key": "none",
        }
        expected = {name: [value] if listed else value for name, value in expected.items()}
        expected |= {"tags": ROWS["tags"][row], "pair": ROWS["pair"][row]}
        assert str(instance) == str({name: expected[name] for name in instance})
        assert set(instance) == set(expected)
    assert len(predict) == 5
    assert [one.instance for one in instances if one.signature_name == "serving_default"] == predict[:1]


def test_rows_of_csv_are_recorded_with_quotes(tmp_path: Path) -> None:
    columns: list[Any] = [WORD, NUMBER, X]
    estimator = linear(columns, tmp_path)
    estimator.train(lambda: input_of(first_of(ROWS)), steps=1)
    estimator.evaluate(lambda: input_of({**ROWS, "x": [0.1, -3.5, 2.5, 1e30, 0.25]}))
    receiver = serving_input.csv(["id", "x", "word", "number"], columns)
    instances = assert_reproduced(estimator.export_saved_model(str(tmp_path / "export"), receiver))
    rows = [one.instance for one in instances if one.signature_name == "predict"]
    assert rows == [
        {"csv_row": text}
        for text in (",0.1,red,1", ",-3.5,,2", ',2.5,"it\'s, ""quoted""",-1', ",1e+30,日本語\u2028,3", ",0.25,,4")
    ]
    assert {one.signature_name for one in instances} >= {"classification", "regression"}


@pytest.mark.parametrize("features", ["array", "dict", "tuple"])
def test_modules_without_columns(tmp_path: Path, features: str) -> None:
    x, y = np.arange(12, dtype=np.float32).reshape(3, 4) / 10, np.array([[1], [2], [3]], np.float32)
    given: Any = {"array": x, "dict": {"a": {"b": x}, "c": y}, "tuple": (x, y)}[features]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, inputs: Any) -> torch.Tensor:
            first = inputs["a"]["b"] if isinstance(inputs, dict) else inputs[0] if isinstance(inputs, tuple) else inputs
            return self.layer(first)  # type: ignore[no-any-return]

    estimator = te.Estimator.from_module(
        Net(), loss=nn.MSELoss(), optimizer="SGD", model_dir=str(tmp_path), config=te.RunConfig(compile=False)
    )
    estimator.train(lambda: (given, np.zeros((3, 1), np.float32)), steps=1)
    path = estimator.export_saved_model(str(tmp_path / "export"), serving_input.like(given))
    (name,) = {"array": ["features"], "dict": ["a/b"], "tuple": ["features_0"]}[features]
    instances = [one.instance for one in assert_reproduced(path) if one.signature_name == "predict"]
    assert np.allclose([instance[name] for instance in instances], x, atol=1e-7)
    assert len(instances) == 3


def test_an_estimator_that_has_read_nothing_makes_an_instance_up(tmp_path: Path) -> None:
    linear(COLUMNS, tmp_path).train(lambda: input_of(first_of(ROWS)), steps=1)
    restored = linear(COLUMNS, tmp_path)
    receiver = serving_input.raw_features(COLUMNS, defaults={"word": "none"})
    instances = assert_reproduced(restored.export_saved_model(str(tmp_path / "export"), receiver))
    assert [one.instance for one in instances] == [
        {"number": [0], "pair": [0.0, 0.0], "tags": [], "word": ["none"], "x": [0.5]}
    ] * 2


@pytest.mark.parametrize("number", [0, 2, 8])
def test_the_number_of_rows_is_a_setting(tmp_path: Path, number: int) -> None:
    estimator = linear([X], tmp_path)
    secret = [float(one) for one in range(100, 112)]
    receiver = serving_input.raw_features([X])
    exporters = [
        te.FinalExporter("final", receiver, warmup_instances=number),
        te.LatestExporter("latest", receiver, warmup_instances=number),
        te.BestExporter("best", receiver, warmup_instances=number),
    ]
    _, exports = te.train_and_evaluate(
        estimator,
        te.TrainSpec(lambda: input_of({"x": secret}).repeat(), max_steps=2),
        te.EvalSpec(lambda: input_of({"x": secret}), exporters=exporters, throttle_secs=0),
    )
    assert exports is not None and len(exports) == 3
    for path in exports:
        assert path is not None
        predict = [one.instance["x"] for one in read_warmup(path) if one.signature_name == "predict"]
        assert predict == ([[one] for one in secret[:number]] or [[0.5]])


def test_an_estimator_with_more_metrics_records_the_same_rows(tmp_path: Path) -> None:
    estimator = linear([X], tmp_path)
    estimator.train(lambda: input_of({"x": [1.0, 2.0]}), steps=1)
    changed = te.add_metrics(estimator, lambda labels, predictions: {"zero": 0 * labels.sum()})
    changed.evaluate(lambda: input_of({"x": [3.0]}))
    for one in (estimator, changed):
        path = one.export_saved_model(str(tmp_path / "export"), serving_input.raw_features([X]))
        assert read_warmup(path)[0].instance == {"x": [3.0]}


def test_a_prediction_changes_nothing(tmp_path: Path) -> None:
    estimator = linear([X], tmp_path)
    estimator.train(lambda: input_of({"x": [1.0, 2.0]}), steps=1)
    list(estimator.predict(lambda: {"x": [9.0]}))
    path = estimator.export_saved_model(str(tmp_path / "export"), serving_input.raw_features([X]))
    assert read_warmup(path)[0].instance == {"x": [1.0]}


@pytest.mark.parametrize("number", [-1, 9, True, 1.0, "1", None])
def test_settings_that_are_none(tmp_path: Path, number: Any) -> None:
    receiver = serving_input.raw_features([X])
    for exporter in (te.FinalExporter, te.LatestExporter, te.BestExporter):
        with pytest.raises((InvalidValueError, InvalidTypeError), match="warmup_instances must be a"):
            exporter("name", receiver, warmup_instances=number)
    estimator = linear([X], tmp_path)
    estimator.train(lambda: input_of({"x": [1.0]}), steps=1)
    with pytest.raises((InvalidValueError, InvalidTypeError), match="warmup_instances must be a"):
        estimator.export_saved_model(str(tmp_path / "export"), receiver, warmup_instances=number)
    assert not (tmp_path / "export").exists()


def test_long_rows_are_left_out(tmp_path: Path) -> None:
    words = ["short", "x" * 10**6, "y" * 30_000, "z" * 40_000, "also short"]
    estimator = linear([WORD], tmp_path)
    estimator.train(lambda: input_of({"word": words}), steps=1)
    path = estimator.export_saved_model(str(tmp_path / "export"), serving_input.raw_features([WORD]))
    recorded = [one.instance["word"][0] for one in assert_reproduced(path) if one.signature_name == "predict"]
    assert recorded == ["short", "y" * 30_000, "also short"]
    assert Path(path, "assets.extra", "warmup.jsonl").stat().st_size < 2**16


def test_large_rows_are_not_kept_in_memory() -> None:
    seen = SeenRows()
    seen.note({"image": np.zeros((4, 300, 300), np.float32), "x": np.zeros(4, np.float32)})
    assert seen.rows == ()
    whole = np.zeros((10_000, 3), np.float32)
    seen.note((whole, np.array(["a"] * 10_000, object)))
    assert len(seen.rows) == 8
    assert set(seen.rows[0]) == {"features_0", "features_1"}
    assert all(row["features_0"].base is None for row in seen.rows)


def test_a_receiver_without_an_instance_says_how_to_give_it_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    def prepare(inputs: dict[str, Any]) -> dict[str, Any]:
        return {"x": te.strings.to_number(te.strings.split(inputs["date"], "-", 3)[:, 1]) % 12}

    estimator = te.LinearRegressor([X], str(tmp_path / "model"), config=te.RunConfig(compile=False))
    estimator.train(lambda: ({"x": [1.0, 2.0]}, [1.0, 2.0]), steps=1)
    receiver = te.serving_input.receiver({"date": "string"}, prepare)
    path = estimator.export_saved_model(str(tmp_path / "without"), receiver)
    assert read_warmup(path) == []
    assert "date has text that is not a number" in caplog.text
    assert "Give te.serving_input.json(…, defaults=…) a row that it can answer." in caplog.text
    assert main(["check", path]) == 0
    assert "nothing was compared" in capsys.readouterr().out

    dated = te.serving_input.json({"date": "string"}, defaults={"date": "2026-11-27"})
    (instance, *_) = assert_reproduced(
        estimator.export_saved_model(str(tmp_path / "with"), te.serving_input.receiver(dated, prepare))
    )
    assert instance.instance == {"date": "2026-11-27"}


def test_a_file_of_the_users_stays(tmp_path: Path) -> None:
    line = {"signature_name": "predict", "instance": {"x": [7.0]}, "predictions": {}}
    (tmp_path / "mine").write_text(json.dumps(line) + "\n")
    estimator = linear([X], tmp_path / "model")
    estimator.train(lambda: input_of({"x": [1.0]}), steps=1)
    path = estimator.export_saved_model(
        str(tmp_path / "export"), serving_input.raw_features([X]), {"warmup.jsonl": str(tmp_path / "mine")}
    )
    assert read_warmup(path) == [WarmupInstance(signature_name="predict", instance={"x": [7.0]}, predictions={})]


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"signature_name": "predict"}', '{"signature_name": 1, "instance": {}, "predictions": {}}']
)
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    assert read_warmup(str(tmp_path)) == []
    files.makedirs(tmp_path / "assets.extra")
    path = tmp_path / "assets.extra" / "warmup.jsonl"
    path.write_text('{"signature_name": "predict", "instance": {}, "predictions": {}}\n' + content)
    with pytest.raises(ExportError, match=r"warmup\.jsonl, line 2 is not a warm-up instance"):
        read_warmup(str(tmp_path))
    path.write_bytes(b"\xff")
    with pytest.raises(ExportError, match=r"warmup\.jsonl cannot be read"):
        read_warmup(str(tmp_path))


@pytest.mark.parametrize(
    ("recorded", "predicted", "same"),
    [
        ([0.5], [0.500001], True),
        ([0.5], [0.5001], False),
        ([1e9], [1e9 + 1], True),
        ([float("nan"), float("inf")], [float("nan"), float("inf")], True),
        ([float("inf")], [1e38], False),
        ([1], [2], False),
        (["a"], ["a"], True),
        (["a"], ["a", "b"], False),
        ([[1.0], [2.0]], [[1.0], [2.0]], True),
        ([], [], True),
        ([0.5], ["0.5"], False),
        (True, True, True),
        (0.5, 0.5000001, True),
    ],
)
def test_numbers_may_differ_a_little_and_nothing_else_at_all(recorded: Any, predicted: Any, same: bool) -> None:
    assert (difference(recorded, predicted) is None) == same


def test_the_census_model(tmp_path: Path) -> None:
    built = model_of(*census_columns())
    rows = [{"age": 39, "workclass": "Private", "occupation": "Sales", "capital_gain": 0.0}] * 3
    model = write_export(
        tmp_path,
        module=built.module,
        transform=built.transform,
        head=built.head,
        receiver=serving_input.json(built.transform),
        rows=rows,
    )
    instances = assert_reproduced(model)
    assert instances[0].instance["age"] == 39.0
    assert instances[0].instance["race"] == ""
