"""forward_features: exact copies of features in predictions and exports."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torch_estimator as te
from tests.estimator_wrappers.models import COLUMNS, FIRST_KEY, ROWS, WORDS, columns, predicted, regressor, rows, two
from torch_estimator.cli import main
from torch_estimator.errors import ExportError
from torch_estimator.export.exported_model import ExportedModel

NAMES = ["name", "x", "word", "key"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> te.Estimator:
    return regressor(tmp_path_factory.mktemp("job")).train(rows, steps=3)


def exported(estimator: te.Estimator, base: Path, receiver: Any) -> ExportedModel:
    return ExportedModel.load(estimator.export_saved_model(str(base), receiver))


def raw_receiver(**defaults: Any) -> Any:
    return te.serving_input.raw_features(COLUMNS, defaults=defaults)


def test_one_example_at_a_time(trained: te.Estimator) -> None:
    examples = list(te.forward_features(trained, "key").predict(rows))
    assert [example["key"] for example in examples] == columns()["key"].tolist()
    assert examples[0]["key"].dtype == np.int64
    assert list(examples[0]) == ["predictions", "key"]


def test_whole_batches(trained: te.Estimator) -> None:
    batches = list(te.forward_features(trained, ["name", "key"]).predict(rows, yield_single_examples=False))
    assert [len(batch["name"]) for batch in batches] == [10] * 10 + [3]
    assert np.concatenate([batch["name"] for batch in batches]).tolist() == columns()["name"].tolist()


def test_other_predictions_do_not_change(trained: te.Estimator) -> None:
    extended = predicted(te.forward_features(trained, "key"))
    np.testing.assert_array_equal(extended["predictions"], predicted(trained)["predictions"])


def test_without_keys_all_features_are_forwarded(trained: te.Estimator) -> None:
    got = predicted(te.forward_features(trained))
    assert sorted(got) == ["key", "name", "predictions", "word", "x"]
    for key, column in columns().items():
        assert got[key].tolist() == column.tolist()


def test_a_key_that_the_model_reads_is_forwarded_too(trained: te.Estimator) -> None:
    assert predicted(te.forward_features(trained, "word"))["word"].tolist() == columns()["word"].tolist()


def test_forwarded_features_are_copies_of_the_input(trained: te.Estimator) -> None:
    x = columns()["x"]
    data = te.data.Dataset.from_arrays({**columns(), "x": x}).batch(ROWS)
    (batch,) = te.forward_features(trained, "x").predict(lambda: data, yield_single_examples=False)
    batch["x"][:] = 0
    np.testing.assert_array_equal(x, columns()["x"])


def test_predict_keys_choose_among_them(trained: te.Estimator) -> None:
    example = next(te.forward_features(trained, ["key", "name"]).predict(rows, predict_keys=["key"]))
    assert example == {"key": FIRST_KEY}


def test_keys_add_up_over_calls(trained: te.Estimator) -> None:
    both = te.forward_features(te.forward_features(trained, "key"), ["name", "key"])
    assert list(predicted(both)) == ["predictions", "key", "name"]
    assert sorted(predicted(te.forward_features(both))) == ["key", "name", "predictions", "word", "x"]


def test_a_model_without_columns_forwards_features(tmp_path: Path) -> None:
    estimator = te.forward_features(two(tmp_path).train(rows, steps=1), ["key", "name"])
    got = predicted(estimator)
    assert got["key"].tolist() == columns()["key"].tolist()
    assert got["name"].tolist() == columns()["name"].tolist()


def test_files_are_read_for_them(tmp_path: Path, trained: te.Estimator) -> None:
    raw = columns()
    lines = [",".join(map(str, row)) for row in zip(*(raw[name] for name in NAMES), strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")

    def data() -> te.data.Dataset:
        return te.data.Dataset.from_csv(tmp_path / "rows.csv", column_names=NAMES).batch(20)

    got = list(te.forward_features(trained, ["key", "name"]).predict(data))
    assert [example["key"] for example in got] == raw["key"].tolist()
    assert [example["name"] for example in got] == raw["name"].tolist()


def test_a_key_that_the_input_lacks_is_named(trained: te.Estimator, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"column 'id' is not in the features.*; the columns there are x, word, key, name"
    ):
        next(te.forward_features(trained, "id").predict(rows))
    plain = te.forward_features(two(tmp_path).train(rows, steps=1), "id")
    with pytest.raises(
        ValueError, match=r"^The feature 'id' is to be forwarded, but the input has only x, word, key, n"
    ):
        next(plain.predict(rows))


def test_training_tells_of_a_key_that_its_input_lacks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "torch_estimator")
    (tmp_path / "rows.csv").write_text("id,x,word,y\n1,0.5,a,1\n2,1.5,b,2\n")

    def file() -> te.data.Dataset:
        return te.data.Dataset.from_csv(tmp_path / "rows.csv", label="y").batch(2)

    def mapped() -> te.data.Dataset:
        return file().map(lambda features, label: ({**features, "made": features["x"]}, label))

    def generated() -> te.data.Dataset:
        return te.data.Dataset.from_iterable(lambda: iter(list(mapped())))

    make = {"columns": regressor, "plain": two}
    for kind, estimator in ((kind, make[kind](tmp_path / kind)) for kind in make):
        for data, names in ((file, "id, x, word"), (mapped, "id, x, word, made"), (generated, "id, x, word, made")):
            caplog.clear()
            te.forward_features(estimator, ["id", "idd"]).train(data, steps=1)
            (line,) = [one.getMessage() for one in caplog.records if "forward" in one.getMessage()]
            assert line.startswith(f"te.forward_features names 'idd', but the training input has only {names}. "), kind
    caplog.clear()
    te.forward_features(two(tmp_path / "last"), ["id", "x"]).train(file, steps=1)
    te.forward_features(regressor(tmp_path / "last two"), ["id", "word"]).train(file, steps=1)
    assert "forward" not in caplog.text


def test_features_without_names_cannot_be_forwarded(tmp_path: Path) -> None:
    def model_fn(mode: str) -> te.EstimatorSpec:
        import torch

        return te.EstimatorSpec(
            mode=mode,
            module=torch.nn.Linear(2, 1),
            loss=lambda outputs, labels: outputs.mean(),
            optimizer=lambda named: torch.optim.SGD([one for _, one in named], 0.1),
        )

    def data() -> Any:
        return np.ones((4, 2), np.float32), np.ones(4, np.float32)

    estimator = te.Estimator(model_fn, str(tmp_path)).train(data, steps=1)
    with pytest.raises(ValueError, match=r"^Features can be forwarded by name only, but the input's have none"):
        next(te.forward_features(estimator).predict(data))


def test_a_key_that_is_a_prediction_is_refused(trained: te.Estimator, tmp_path: Path) -> None:
    def data() -> te.data.Dataset:
        return te.data.Dataset.from_arrays({**columns(), "predictions": columns()["key"]}).batch(4)

    estimator = te.forward_features(trained, "predictions")
    message = "^The feature 'predictions' cannot be forwarded, because a prediction is called that"
    with pytest.raises(ValueError, match=message):
        next(estimator.predict(data))
    with pytest.raises(te.UserError, match=message):
        estimator.export_saved_model(str(tmp_path), raw_receiver(predictions=0))


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        (3, TypeError, "keys must be a string or a list of strings, but got 3."),
        (["key", 3], TypeError, r"keys must be a string or a list of strings, but got \['key', 3\]."),
        ([], ValueError, "keys must not be empty; leave it out for all features."),
    ],
)
def test_keys_are_checked(trained: te.Estimator, keys: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"^forward_features: {message}"):
        te.forward_features(trained, keys)
    with pytest.raises(TypeError, match=r"^forward_features: estimator must be an Estimator"):
        te.forward_features(None, "key")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["raw_features", "json", "csv"])
def test_an_export_copies_features_as_predict_does(trained: te.Estimator, tmp_path: Path, kind: str) -> None:
    estimator = te.forward_features(trained, ["key", "name"])
    raw, expected = columns(), predicted(estimator)
    defaults = {"key": -1, "name": "nokey"}
    if kind == "csv":
        model = exported(estimator, tmp_path, te.serving_input.csv(NAMES, COLUMNS, defaults))
        lines = [",".join(map(str, row)) for row in zip(*(raw[name] for name in NAMES), strict=True)]
        inputs: dict[str, Any] = {"csv_row": lines}
    else:
        model = exported(estimator, tmp_path, getattr(te.serving_input, kind)(COLUMNS, defaults))
        inputs = dict(raw)
    for signature in ("predict", "serving_default"):
        got = model.predict(inputs, signature)
        assert list(got) == ["predictions", "key", "name"]
        np.testing.assert_allclose(got["predictions"], expected["predictions"], rtol=0, atol=1e-5)
        assert got["key"].dtype == np.int64
        assert got["key"].shape == ((ROWS,) if kind == "json" else (ROWS, 1))
        assert got["key"].ravel().tolist() == expected["key"].tolist()
        assert got["name"].ravel().tolist() == expected["name"].tolist()


def test_classification_and_regression_stay_as_they_are(trained: te.Estimator, tmp_path: Path) -> None:
    receiver = te.serving_input.csv(NAMES, COLUMNS, {"key": 0, "name": ""})
    model = exported(te.forward_features(trained, "key"), tmp_path, receiver)
    plain = exported(trained, tmp_path, te.serving_input.csv(NAMES, COLUMNS))
    assert model.signatures["regression"].outputs.keys() == plain.signatures["regression"].outputs.keys() == {"outputs"}
    line = [f"nöbody,0.5,b,{FIRST_KEY}"]
    np.testing.assert_array_equal(
        model.predict({"inputs": line}, "regression")["outputs"],
        plain.predict({"inputs": line})["outputs"]
        if "inputs" in plain.signatures["predict"].inputs
        else plain.predict({"csv_row": line})["predictions"],
    )


def test_a_key_left_out_is_its_default(trained: te.Estimator, tmp_path: Path) -> None:
    model = exported(te.forward_features(trained, "name"), tmp_path, raw_receiver(name="nokey"))
    assert model.predict({"x": [1.0, 2.0], "word": ["a", "b"]})["name"].tolist() == [["nokey"], ["nokey"]]
    assert model.predict({"x": [], "word": []})["name"].shape == (0, 1)
    rows = te.serving_input.csv(NAMES, COLUMNS, {"name": "nokey", "key": -7})
    model = exported(te.forward_features(trained, ["name", "key"]), tmp_path, rows)
    got = model.predict({"csv_row": [",1,a,", "é,2,b,9223372036854775807"]})
    assert got["name"].tolist() == [["nokey"], ["é"]]
    assert got["key"].tolist() == [[-7], [2**63 - 1]]


def test_an_export_without_keys_copies_all_inputs(trained: te.Estimator, tmp_path: Path) -> None:
    everything = te.forward_features(trained)
    model = exported(everything, tmp_path, raw_receiver(key=0))
    assert list(model.signatures["predict"].outputs) == ["predictions", "word", "x", "key"]
    got = model.predict({"x": [0.5], "word": ["zzz"], "key": [FIRST_KEY]})
    assert (got["x"].tolist(), got["word"].tolist(), got["key"].tolist()) == ([[0.5]], [["zzz"]], [[FIRST_KEY]])
    rows = exported(everything, tmp_path, te.serving_input.csv(NAMES, COLUMNS, {"key": 0}))
    assert list(rows.signatures["predict"].outputs) == ["predictions", "word", "x", "key"]


def test_an_export_says_which_input_to_declare(trained: te.Estimator, tmp_path: Path) -> None:
    estimator = te.forward_features(trained, "key")
    for receiver in (raw_receiver(), te.serving_input.csv(NAMES, COLUMNS)):
        with pytest.raises(
            ExportError, match=r"^the input 'key' is to be forwarded, .* declare it with defaults={'key'"
        ):
            estimator.export_saved_model(str(tmp_path), receiver)


def test_a_plain_module_exports_them(tmp_path: Path) -> None:
    from torch_estimator.feature_column.raw_feature import RawFeature

    estimator = te.forward_features(two(tmp_path / "job").train(rows, steps=1), "name")
    receiver = te.serving_input.raw_features([RawFeature(key="x", dtype="float32")], {"name": "nokey"})
    got = exported(estimator, tmp_path, receiver).predict({"x": columns()["x"], "name": columns()["name"]})
    expected = predicted(estimator)
    np.testing.assert_allclose(got["output"], expected["output"], rtol=0, atol=1e-5)
    assert got["name"].ravel().tolist() == expected["name"].tolist()


def test_the_command_line_predicts_and_shows_them(
    trained: te.Estimator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = exported(te.forward_features(trained, ["key", "name"]), tmp_path, raw_receiver(key=-1, name="nokey"))
    instances = [{"x": 1.5, "word": "a", "key": FIRST_KEY, "name": "é"}, {"x": 0, "word": "b"}]
    (tmp_path / "instances").write_text("\n".join(map(json.dumps, instances)))
    predict = ["predict", "--model-dir", model.directory, "--json-instances", str(tmp_path / "instances")]
    assert main([*predict, "--format", "json"]) == 0
    predictions = json.loads(capsys.readouterr().out)["predictions"]
    assert [one["key"] for one in predictions] == [[FIRST_KEY], [-1]]
    assert [one["name"] for one in predictions] == [["é"], ["nokey"]]
    assert main(predict) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["KEY", "NAME", "PREDICTIONS"]
    assert main(["show", "--dir", model.directory, "--signature_def", "serving_default"]) == 0
    shown = capsys.readouterr().out
    assert "outputs['key'] tensor_info:\n      dtype: DT_INT64\n      shape: (-1, 1)\n      name: key_out" in shown


def test_strings_are_ordered_by_vocabulary_and_not_changed(trained: te.Estimator) -> None:
    assert set(predicted(te.forward_features(trained, "word"))["word"]) == set(WORDS)


@pytest.mark.parametrize("kind", ["raw_features", "json"])
def test_a_vector_that_no_column_reads_is_declared_by_its_default(
    trained: te.Estimator, tmp_path: Path, kind: str
) -> None:
    extended = te.forward_features(trained, ["vector", "tags"])
    receiver = getattr(te.serving_input, kind)(COLUMNS, defaults={"vector": [0.0, 0.5, 1.0], "tags": ["a", "b"]})
    model = exported(extended, tmp_path, receiver)
    given = {key: columns()[key][:2] for key in ("x", "word")}
    vectors = np.arange(6, dtype=np.float32).reshape(2, 3)
    got = model.predict({**given, "vector": vectors, "tags": np.array([["p", "q"], ["r", "s"]])})
    np.testing.assert_array_equal(got["vector"], vectors)
    assert np.asarray(got["tags"]).astype(str).tolist() == [["p", "q"], ["r", "s"]]
    left_out = model.predict(given)
    assert np.asarray(left_out["vector"]).tolist() == [[0.0, 0.5, 1.0]] * 2
    assert np.asarray(left_out["tags"]).astype(str).tolist() == [["a", "b"]] * 2
