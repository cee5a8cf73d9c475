"""Serving inputs whose features are computed from strings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.export.models import Built, assert_same, model_of
from tests.serving.models import app_of, ask_all
from torch_estimator import feature_column as fc
from torch_estimator import serving_input, strings
from torch_estimator.cli import main
from torch_estimator.data import Dataset
from torch_estimator.errors import ExportError, InvalidTypeError, InvalidValueError
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.export.warmup import read_warmup
from torch_estimator.export.writer import write_export
from torch_estimator.heads.function_head import FunctionHead

TEXTS = np.array(["A good, GOOD film", "", "Not bad", "awful"], object)
PRICES = np.array(["1.5", " 2", "-3e1", "0"], object)
SENT = {"text": "string", "price": "string"}


def review(inputs: dict[str, Any]) -> dict[str, Any]:
    words = strings.split(strings.lower(inputs["text"]), [" ", ","])
    return {"words": words, "price": strings.to_number(inputs["price"])}


@pytest.fixture(scope="module")
def built() -> Built:
    words = fc.categorical_column_with_vocabulary_list(
        "words", ["good", "bad", "film"], num_oov_buckets=2, multivalent=True
    )
    return model_of([], [fc.embedding_column(words, 3), fc.numeric_column("price")], hidden=(4,))


def write(built: Built, base: Path, receiver: serving_input.ServingInput, **options: Any) -> ExportedModel:
    parts = {"module": built.module, "transform": built.transform, "head": built.head}
    return ExportedModel.load(write_export(base, **parts, receiver=receiver, **options))


def test_a_request_gets_what_the_same_function_in_the_input_gives(built: Built, tmp_path: Path) -> None:
    model = write(built, tmp_path, serving_input.receiver(SENT, review))
    assert {name: info.shape for name, info in model.signature("predict").inputs.items()} == {
        "price": (-1,),
        "text": (-1,),
    }
    rows = Dataset.from_arrays({"text": TEXTS, "price": PRICES})
    for batch in (*rows.map(review).batch(4), *rows.batch(4).map(review)):
        assert_same(built.predict(batch), model.predict({"text": TEXTS, "price": PRICES}))


def test_fields_of_csv_are_computed_with_and_others_forwarded(built: Built, tmp_path: Path) -> None:
    csv = serving_input.csv(["id", "price", "text"], SENT, defaults={"id": 0, "text": "bad"})
    model = write(built, tmp_path, serving_input.receiver(csv, review), forward=["id"])
    answer = model.predict({"csv_row": ['7,1.5,"A good, GOOD film"', "8,2,"]})
    expected = built.predict(review({"text": np.array([TEXTS[0], "bad"], object), "price": PRICES[:2]}))
    assert answer.pop("id").tolist() == [[7], [8]]
    assert_same(expected, answer)


def test_text_that_is_not_a_number_is_an_error_of_its_request_alone(
    built: Built, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write(built, tmp_path, serving_input.receiver(SENT, review))
    with pytest.raises(InvalidValueError, match=r"^Input price has text that is not a number: 'cheap'\.$"):
        model.predict({"text": ["a"], "price": ["cheap"]})
    for wrong in range(5):
        prices = ["1"] * wrong + ["cheap", "2", "dear"][: 5 - wrong] + ["3"] * (2 - wrong)
        with pytest.raises(InvalidValueError, match=rf"^Input price has .* in row {wrong} \(from 0\): 'cheap'\.$"):
            model.predict({"text": ["a"] * 5, "price": prices})
    with app_of(tmp_path) as app:
        rows = [{"text": "a", "price": price} for price in ("1", "cheap", "2")]
        answers = ask_all(app, [("/v1/models/small:predict", {"instances": [row]}) for row in rows])
        several = ask_all(app, [("/v1/models/small:predict", {"instances": rows})])[0]
    assert [one.status_code for one in answers] == [200, 400, 200]
    sentence = "Input price has text that is not a number: 'cheap'."
    assert answers[1].json() == {"error": f"Instance 0: {sentence}"}
    assert several.json() == {"error": f"Instance 1: {sentence}"}
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert main(["predict", "--model-dir", model.directory, "--json-instances", str(tmp_path / "rows.jsonl")]) == 2
    assert capsys.readouterr().err == f"estimator: error: {tmp_path}/rows.jsonl, line 2: {sentence}\n"


def test_text_without_a_number_is_shown_as_far_as_the_inputs_are_known(built: Built, tmp_path: Path) -> None:
    csv = serving_input.csv(["id", "price", "text"], SENT)
    model = write(built, tmp_path / "csv", serving_input.receiver(csv, review))
    with pytest.raises(InvalidValueError, match=r"^Input price has text that is not a number in row 1 \(from 0\)\.$"):
        model.predict({"csv_row": ["7,1.5,a", "8,cheap,b"]})

    def joined(inputs: dict[str, Any]) -> dict[str, Any]:
        return {"words": strings.split(inputs["text"]), "price": strings.to_number(inputs["price"] + inputs["cents"])}

    model = write(built, tmp_path / "two", serving_input.receiver({**SENT, "cents": "string"}, joined))
    with pytest.raises(InvalidValueError, match=r"^Input price or cents has text that is not a number: '1', '\.x'\.$"):
        model.predict({"text": ["a"], "price": ["1"], "cents": [".x"]})


def test_a_warmup_instance_has_text_that_is_a_number(built: Built, tmp_path: Path) -> None:
    rows = [{"words": ["good"], "price": 1.5}]
    model = write(built, tmp_path, serving_input.receiver(SENT, review), rows=rows)
    assert [one.instance for one in read_warmup(model.directory)][:1] == [{"price": "0", "text": "0"}]


class Area(nn.Module):
    input_names = ("height", "width")

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"area": features["height"] * features["width"]}


def test_transforms_follow_each_other(tmp_path: Path) -> None:
    built = model_of([], [fc.numeric_column("area"), fc.numeric_column("width")], hidden=(4,))
    module = serving_input.raw_features(built.transform, transform=Area())
    doubled = serving_input.receiver(module, lambda inputs: {**inputs, "area": inputs["area"] * 2})
    receiver = serving_input.receiver(doubled, lambda inputs: {"area": inputs["area"] + 1, "width": inputs["width"]})
    answer = write(built, tmp_path, receiver).predict({"height": [3.0], "width": [2.0]})
    assert_same(built.predict({"area": np.array([13], np.float32), "width": np.array([2], np.float32)}), answer)


class Words(nn.Module):
    """Model whose answer depends on the padding, and on the lengths without it."""

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        words = features["words"].float()
        return torch.stack([words.sum(1), words[:, -1], features["words_length"].float()], 1)


def ids(inputs: dict[str, Any]) -> dict[str, Any]:
    words = inputs["text"] if "text" in inputs else inputs["words"]
    words = strings.split(words) if "text" in inputs else words
    return {"words": strings.lookup(words, {"a": 1, "b": 2}, default=9)}


@pytest.mark.parametrize(
    ("inputs", "sent"),
    [
        ({"text": "string"}, {"text": ["a b c", "", "b"]}),
        (serving_input.like({"words": [["a", "b"]]}, variable=["words"]), {"words": [["a", "b", "c"], ["b"]]}),
    ],
)
def test_a_module_without_columns_gets_padded_ids_and_their_lengths(tmp_path: Path, inputs: Any, sent: Any) -> None:
    structure = {"dict": {"words": {"dtype": "int64", "shape": [3]}, "words_length": {"dtype": "int64", "shape": []}}}
    parts = {"module": Words(), "transform": None, "head": FunctionHead(None, None, None)}
    receiver = serving_input.receiver(inputs, ids)
    model = ExportedModel.load(write_export(tmp_path, **parts, receiver=receiver, structure=structure))
    if "text" in sent:
        (batch,) = Dataset.from_arrays({"text": sent["text"]}).map(ids).padded_batch(3)
        expected = Words()({key: torch.from_numpy(value) for key, value in batch.items()}).tolist()
        assert expected == [[12, 9, 3], [0, 0, 0], [2, 0, 1]]
    else:
        expected = [[12, 9, 3], [2, 2, 1]]
    assert model.predict(sent)["output"].tolist() == expected


def test_a_module_without_columns_gets_lists_as_long_as_they_are(tmp_path: Path) -> None:
    structure = {"dict": {"words": {"dtype": "int64", "shape": [3]}, "words_length": {"dtype": "int64", "shape": []}}}
    column = fc.categorical_column_with_identity("words", 5, multivalent=True)
    receiver = serving_input.raw_features([column])
    parts = {"module": Words(), "transform": None, "head": FunctionHead(None, None, None)}
    model = ExportedModel.load(write_export(tmp_path, **parts, receiver=receiver, structure=structure))
    assert model.predict({"words": [[1, 2, 4], [3]]})["output"].tolist() == [[7, 4, 3], [3, 3, 1]]


@pytest.mark.parametrize(
    ("transform", "error", "problem"),
    [
        (lambda inputs: None, InvalidTypeError, "transform must return a dict of features, but returned None"),
        (lambda inputs: {}, InvalidTypeError, r"must return a dict of features, but returned \{\}"),
        (lambda inputs: {1: inputs["text"]}, InvalidTypeError, "must return expressions by name, but 1 is text"),
        (lambda inputs: {"x": inputs["txt"]}, InvalidValueError, "reads the input 'txt', but the inputs are .*text"),
    ],
)
def test_results_of_a_transform_are_checked(transform: Any, error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        serving_input.receiver(SENT, transform)


def test_an_unknown_dtype_names_its_input() -> None:
    with pytest.raises(InvalidTypeError, match="the dtype of 'area' must be string, float32, int64, but got 'flaot32'"):
        serving_input.receiver({"area": "flaot32"}, dict)


def test_features_that_the_model_does_not_take_are_named(built: Built, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"the model reads 'words', but the serving input has only \['price'\]"):
        write(built, tmp_path, serving_input.receiver(SENT, lambda inputs: {"price": review(inputs)["price"]}))
    with pytest.raises(ExportError, match=r"the model reads 'price' as 1 float32 per row, but .* has 1 string"):
        write(
            built, tmp_path, serving_input.receiver(SENT, lambda inputs: {**review(inputs), "price": inputs["price"]})
        )
