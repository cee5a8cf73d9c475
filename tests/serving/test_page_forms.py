"""The form of the page: fields from a signature, an instance from the filled form, and how a prediction is shown."""

from __future__ import annotations

import math
import shlex
from typing import Any

import numpy as np
import pytest

from tests.serving.echo_export import HOSTILE, INPUTS, INSTANCE
from torch_estimator.errors import InvalidValueError
from torch_estimator.export.instances import to_columns
from torch_estimator.export.signatures import PREDICT, Signature, TensorInfo
from torch_estimator.serving.page_forms import command_line, fields_of, outcome_of, read_instance

SIGNATURE = Signature(method_name=PREDICT, inputs=INPUTS, outputs=INPUTS)


def texts(instance: dict[str, Any]) -> dict[str, str]:
    return {field.name: field.value for field in fields_of(SIGNATURE, instance)}


def test_a_form_that_is_sent_as_it_is_gives_the_instance_that_filled_it() -> None:
    assert read_instance(SIGNATURE, texts(INSTANCE)) == INSTANCE
    strange = {**INSTANCE, "number": -1e-30, "text": " a\tb ", "pair": [1e30, 0.0], "flag": False, "tags": []}
    assert read_instance(SIGNATURE, texts(strange)) == strange


def test_each_input_has_a_field_of_its_kind() -> None:
    fields = {field.name: field for field in fields_of(SIGNATURE, INSTANCE)}
    kinds = {name: (field.kind, field.type) for name, field in fields.items()}
    assert kinds == {
        "text": ("text", "string"),
        HOSTILE: ("text", "string"),
        "number": ("number", "float"),
        "count": ("number", "int64"),
        "flag": ("bool", "bool"),
        "pair": ("json", "float [2]"),
        "tags": ("json", "list of string"),
    }
    assert (fields["number"].value, fields["number"].default) == ("2.5", None)
    assert fields["count"].default == "7"


def test_recorded_values_may_be_lists_of_one() -> None:
    fields = fields_of(SIGNATURE, {"text": ["a"], "number": [25.0], "flag": [True], HOSTILE: [None]})
    assert [field.value for field in fields[:5]] == ["a", "", "25", "", "true"]


def test_a_single_text_gets_several_lines() -> None:
    only = Signature(method_name=PREDICT, inputs={"text": INPUTS["text"]}, outputs={})
    assert fields_of(only, {})[0].kind == "long"


def test_empty_fields_with_a_default_are_left_out() -> None:
    instance = read_instance(SIGNATURE, {**texts(INSTANCE), "count": "", "tags": "", HOSTILE: "", "pair": " "})
    assert set(instance) == {"text", "number", "flag", "pair"}
    assert instance["pair"] == []


def test_an_empty_form_is_a_row_of_missing_values() -> None:
    inputs = {"count": TensorInfo(dtype="DT_INT64", shape=(-1,), tensor="count", default=0)}
    signature = Signature(method_name=PREDICT, inputs=inputs, outputs=inputs)
    instance = read_instance(signature, {"count": ""})
    assert instance == {"count": None}
    assert to_columns([instance], signature) == {"count": [None]}


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("number", "", "Input number must be a number, but its field is empty."),
        ("number", "12abc", "Input number must be a number, but got '12abc'."),
        ("count", "1.5", "Input count must be a whole number, but got '1.5'."),
        ("flag", "yes", "Input flag must be true or false, but got 'yes'."),
        ("pair", "1, 2", r"Input pair is a float \[2\]; write it as JSON, such as \[1, 2\], not '1, 2'."),
        ("tags", "[" * 200, "Input tags is a list of string; write it as JSON"),
        ("text", '{"b64": "%"}', "Input text has '%', which is not base64."),
    ],
)
def test_a_text_that_is_no_value_is_named(name: str, text: str, sentence: str) -> None:
    with pytest.raises(InvalidValueError, match=sentence):
        read_instance(SIGNATURE, {**texts(INSTANCE), name: text})


def test_bytes_are_written_as_in_requests() -> None:
    assert read_instance(SIGNATURE, {**texts(INSTANCE), "text": '{"b64": "AP8="}'})["text"] == b"\x00\xff"
    assert read_instance(SIGNATURE, {**texts(INSTANCE), "text": '{"b64" no JSON'})["text"] == '{"b64" no JSON'


def test_not_a_number_is_a_number() -> None:
    assert math.isnan(read_instance(SIGNATURE, {**texts(INSTANCE), "number": "NaN"})["number"])


def outcome(**outputs: Any) -> Any:
    return outcome_of({name: np.array([row]) for name, row in outputs.items()}, milliseconds=1.0, request="")


def test_a_classification_shows_the_class_and_the_probabilities() -> None:
    shown = outcome(
        probabilities=np.float32([0.1, 0.7, 0.2]), all_classes=["a", "b", "c"], classes=["b"], class_ids=[1]
    )
    assert shown.headline == "b"
    assert [(bar.label, bar.value) for bar in shown.bars] == [("b", 0.7), ("c", 0.2), ("a", 0.1)]
    assert dict(shown.outputs)["probabilities"] == "[0.1, 0.7, 0.2]"


def test_the_signature_to_classify_shows_the_most_probable_class() -> None:
    shown = outcome(scores=np.float32([0.1, 0.9]), classes=["no", "yes"])
    assert (shown.headline, shown.bars[0].label) == ("yes", "yes")


def test_only_the_most_probable_of_many_classes_are_shown() -> None:
    shown = outcome(probabilities=np.full(1000, 0.001, np.float32), class_ids=[3])
    assert (shown.headline, len(shown.bars), shown.more) == ("3", 10, 990)
    assert len(dict(shown.outputs)["probabilities"]) <= 301


def test_a_regression_shows_the_number() -> None:
    shown = outcome(predictions=np.float32([7.25]))
    assert (shown.headline, shown.bars) == ("7.25", [])


def test_numbers_that_are_no_probabilities_get_no_bars() -> None:
    assert outcome(scores=np.float32([1.5, -2.0])).bars == []
    assert outcome(probabilities=np.float32([math.nan, 0.5])).bars == []


def test_the_command_line_is_safe_in_a_shell() -> None:
    command = command_line("http://h/v1/models/m", "predict", {"a": "it's $HOME `id`", "n": 2.0}, with_token=False)
    assert shlex.split(command) == [
        "curl",
        "http://h/v1/models/m:predict",
        "-d",
        """{"signature_name": "predict", "instances": [{"a": "it's $HOME `id`", "n": 2}]}""",
    ]
    assert "Authorization: Bearer $TOKEN" in command_line("http://h", "predict", {"b": b"x"}, with_token=True)


def test_types_of_several_dimensions_are_shown() -> None:
    info = TensorInfo(dtype="DT_FLOAT", shape=(-1, -1, 3), tensor="x")
    field = fields_of(Signature(method_name=PREDICT, inputs={"x": info}, outputs={}), {"x": [[1, 2, 3]]})[0]
    assert (field.type, field.kind, field.value) == ("float [any, 3]", "json", "[[1, 2, 3]]")
