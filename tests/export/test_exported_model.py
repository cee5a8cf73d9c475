from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.export.models import Built, model_of
from torch_estimator import feature_column as fc
from torch_estimator import serving_input
from torch_estimator.errors import ExportError, InvalidValueError
from torch_estimator.export.exported_model import ExportedModel


@pytest.fixture(scope="module")
def built() -> Built:
    columns = [
        fc.categorical_column_with_hash_bucket("word", 10),
        fc.categorical_column_with_vocabulary_list("count", [1, 2]),
        fc.numeric_column("x"),
        fc.numeric_column("v", shape=2),
    ]
    return model_of(columns, [])


@pytest.fixture(scope="module")
def model(built: Built, tmp_path_factory: pytest.TempPathFactory) -> ExportedModel:
    receiver = serving_input.raw_features(built.transform, defaults={"x": 1.5, "key": "nokey", "v": [1, 2]})
    return built.export(tmp_path_factory.mktemp("export"), receiver)


def inputs(**changes: Any) -> dict[str, Any]:
    return {"word": ["a", "b"], "count": [1, 2], "x": [1.0, 2.0], "v": [[1, 2], [3, 4]]} | changes


def test_plain_features_are_vectors_or_columns(model: ExportedModel) -> None:
    flat = model.predict(inputs())
    column = model.predict(inputs(word=[["a"], ["b"]], count=np.array([[1], [2]]), x=[[1], [2]]))
    np.testing.assert_array_equal(flat["logits"], column["logits"])


@pytest.mark.parametrize(
    "words",
    [
        [b"\xc3\xa9", "b"],
        np.array(["é", "b"]),
        np.array([b"\xc3\xa9", b"b"]),
        np.array(["é", "b"], object),
        [np.str_("é"), np.str_("b")],
        ("é", "b"),
    ],
    ids=["bytes", "U", "S", "object", "str_", "tuple"],
)
def test_strings_of_every_kind(model: ExportedModel, words: Any) -> None:
    expected = model.predict(inputs(word=["é", "b"]))
    np.testing.assert_array_equal(model.predict(inputs(word=words))["logits"], expected["logits"])


def test_none_is_a_missing_string(model: ExportedModel) -> None:
    missing = model.predict(inputs(word=["", "b"]))
    np.testing.assert_array_equal(model.predict(inputs(word=[None, "b"]))["logits"], missing["logits"])


def test_inputs_with_a_default_may_be_left_out(model: ExportedModel) -> None:
    given = model.predict(inputs(x=[1.5, 1.5], v=[[1, 2], [1, 2]], key=["k", "k"]))
    left_out = model.predict({"word": ["a", "b"], "count": [1, 2]})
    np.testing.assert_array_equal(left_out["logits"], given["logits"])


def test_an_empty_batch_gives_empty_outputs(model: ExportedModel) -> None:
    answer = model.predict({"word": [], "count": [], "x": np.empty((0, 1))})
    assert {name: array.shape for name, array in answer.items()}["probabilities"] == (0, 2)
    assert answer["class_ids"].dtype == np.int64
    assert answer["classes"].dtype == object


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"size": [1, 2]}, "Unexpected tensor name: size; the inputs are"),
        ({"word": [1, 2]}, "Input word takes strings, but has 1 (int)."),
        ({"word": ["a", 2.5]}, "Input word takes strings, but has 2.5 (float)."),
        ({"word": [b"\xff", "b"]}, "Input word has b'\\xff', which is not UTF-8."),
        ({"word": [["a"], ["b", "c"]]}, "Input word has rows of different lengths"),
        ({"word": "ab"}, "Input word is the single value 'ab'; give a list"),
        ({"word": [["a", "b"], ["c", "d"]]}, "Input word must have the shape [rows, 1], but has [2, 2]."),
        ({"x": ["1", "2"]}, "Input x takes numbers, but has '1' (str)."),
        ({"count": [1, None, "a"]}, "Input count takes integers, but has 'a' (str)."),
        ({"x": [True, False]}, "Input x takes numbers, but has True (bool)."),
        ({"x": [1.0, True]}, "Input x takes numbers, but has True (bool)."),
        ({"x": [[1], [2, 3]]}, "Input x has rows of different lengths"),
        ({"x": 3.0}, "Input x is the single value 3.0; give a list"),
        ({"x": [1, 2, 3]}, "the inputs must have the same number of rows, but have"),
        ({"count": [1.0, 2.0]}, "Input count takes integers, but has 1.0 (float)."),
        (
            {"count": [1, 2**70]},
            "Input count takes integers, but has 1180591620717411303424, which does not fit into int64.",
        ),
        ({"count": [-1, 2**63]}, "Input count takes integers, but has 9223372036854775808, which does not fit"),
        (
            {"count": [1, 2**64 - 1]},
            "Input count takes integers, but has 18446744073709551615, which does not fit",
        ),
        ({"count": np.array([1, 2**63], np.uint64)}, "Input count takes integers, but has 9223372036854775808, which"),
        ({"v": [1, 2]}, "Input v must have the shape [rows, 2], but has [2]."),
    ],
)
def test_inputs_that_do_not_fit_are_one_sentence(model: ExportedModel, changes: Any, problem: str) -> None:
    with pytest.raises(InvalidValueError, match=f"^{re.escape(problem)}") as error:
        model.predict(inputs(**changes))
    assert "\n" not in str(error.value)


def test_the_largest_integers_are_taken(model: ExportedModel) -> None:
    unknown = model.predict(inputs(count=[9, 9]))
    largest = model.predict(inputs(count=np.array([2**63 - 1, 5], np.uint64)))
    np.testing.assert_array_equal(largest["logits"], unknown["logits"])
    model.predict(inputs(count=[-(2**63), 1]))


def test_a_missing_input_is_named(census_export: ExportedModel) -> None:
    with pytest.raises(InvalidValueError, match="Input age was missing"):
        census_export.predict({"gender": ["Male"]})
    with pytest.raises(InvalidValueError, match=re.escape("Input age takes numbers, but has None (NoneType).")):
        census_export.predict({"age": [1.0, None]})


def test_null_and_nan_are_the_default(model: ExportedModel) -> None:
    given = model.predict(inputs(x=[1.5, 2.0], v=[[1, 2], [3, 2]], count=[-1, 2], word=["", "b"]))
    for nothing in (None, np.nan):
        holes = inputs(x=[nothing, 2.0], count=[nothing, 2], word=[nothing, "b"])
        for v in ([nothing, [3, nothing]], np.array([[nothing, 2], [3, nothing]], object)):
            answer = model.predict({**holes, "v": v})
            np.testing.assert_array_equal(answer["logits"], given["logits"])
    array = model.predict(inputs(x=np.array([[np.nan], [2.0]]), count=[-1, 2], word=["", "b"], v=[[1, 2], [3, 2]]))
    np.testing.assert_array_equal(array["logits"], given["logits"])


def test_an_unknown_signature_is_named(model: ExportedModel) -> None:
    with pytest.raises(InvalidValueError, match=r"'classify' is not in .*, which has predict, serving_default"):
        model.predict(inputs(), "classify")


def test_the_newest_of_several_exports_is_loaded(model: ExportedModel, tmp_path: Path) -> None:
    for name in ("9", "10", "temp-11", "12"):
        shutil.copytree(model.directory, tmp_path / name)
    (tmp_path / "12" / "signatures.json").unlink()
    assert Path(ExportedModel.load(tmp_path).directory).name == "10"


def test_a_place_without_an_export_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"there is no export in .*: it has neither signatures\.json nor"):
        ExportedModel.load(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ExportError, match=r"there is no export in .*/file: it is a file; name the directory"):
        ExportedModel.load(tmp_path / "file")
    with pytest.raises(ExportError, match=r"there is no export in .*: it does not exist"):
        ExportedModel.load(tmp_path / "nothing")


def test_an_export_of_tensorflow_is_named(tmp_path: Path) -> None:
    version = tmp_path / "3"
    version.mkdir()
    (version / "saved_model.pb").write_bytes(b"graph")
    for place in (tmp_path, version):
        with pytest.raises(ExportError, match=rf"{version} is a SavedModel of TensorFlow.*import-checkpoint {version}"):
            ExportedModel.load(place)


@pytest.mark.parametrize("place", ["", "export"])
def test_the_exports_of_a_job_are_named_where_its_directory_is_given(
    model: ExportedModel, tmp_path: Path, place: str
) -> None:
    shutil.copytree(model.directory, tmp_path / "export" / "census" / "1700000000")
    (tmp_path / "export" / "empty").mkdir()
    with pytest.raises(ExportError, match=rf"numbered directory with one; name {tmp_path}/export/census\.$"):
        ExportedModel.load(tmp_path / place)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("signatures.json", b"{", "is not the description of an export"),
        ("signatures.json", b"[]", "is not the description of an export"),
        ("signatures.json", b'{"format": "x", "format_version": 1}', "has the format 'x', version 1"),
        ("signatures.json", b"\xff", "cannot be read"),
        ("model.onnx", b"garbage", "cannot be loaded"),
        ("model.onnx", b"", "cannot be loaded"),
        ("model.onnx", None, "has no model.onnx"),
    ],
)
def test_a_damaged_export_is_named(
    model: ExportedModel, tmp_path: Path, name: str, content: bytes | None, problem: str
) -> None:
    shutil.copytree(model.directory, tmp_path / "1")
    if content is None:
        (tmp_path / "1" / name).unlink()
    else:
        (tmp_path / "1" / name).write_bytes(content)
    with pytest.raises(ExportError, match=problem) as error:
        ExportedModel.load(tmp_path / "1")
    assert "\n" not in str(error.value)


PREDICT = ("signatures", "predict")


@pytest.mark.parametrize(
    ("place", "value", "problem"),
    [
        ((*PREDICT, "inputs", "x", "tensor"), ["x"], "expected str, but got ..x.."),
        ((*PREDICT, "inputs", "x", "shape"), {"0": 1}, "expected list, but got "),
        ((*PREDICT, "inputs", "x", "shape", 0), True, "expected int, but got True"),
        ((*PREDICT, "inputs", "x", "default"), "abc", "could not convert string to float: 'abc'"),
        ((*PREDICT, "inputs", "v", "default"), [1, 2, 3], r"the default .1, 2, 3. has not the shape .2. of a row"),
        ((*PREDICT, "inputs", "v", "shape", 1), -3, "tensor 'v' has the shape .-1, -3."),
        ((*PREDICT, "inputs", "x", "lengths_of"), "nothing", "the lengths of input 'x' are those of 'nothing'"),
        ((*PREDICT, "outputs", "logits", "shape", 1), 2**63, "tensor 'logits' has the shape"),
        ((*PREDICT, "method_name"), 5, "expected str, but got 5"),
        (("hashing", "seeds"), [None], "expected int, but got None"),
        (
            ("csv",),
            {"tensor": "x", "fields_tensor": "y", "column_names": [], "fields": {}},
            "the CSV rows are the input 'x', which is not of the type DT_STRING",
        ),
        (
            ("csv",),
            {"tensor": "r", "fields_tensor": "f", "column_names": [], "fields": {"a": {"dtype": "DT_FLOAT"}}},
            "the CSV field 'a' is not in column_names",
        ),
        (
            ("csv",),
            {"tensor": "r", "fields_tensor": "f", "column_names": ["a"], "fields": {"a": {"dtype": "DT_HALF"}}},
            "ValueError: unknown type 'DT_HALF'",
        ),
    ],
)
def test_a_damaged_description_is_named(
    model: ExportedModel, tmp_path: Path, place: tuple[str | int, ...], value: object, problem: str
) -> None:
    shutil.copytree(model.directory, tmp_path / "1")
    path = tmp_path / "1" / "signatures.json"
    content = json.loads(path.read_text())
    functools.reduce(lambda inner, key: inner[key], place[:-1], content)[place[-1]] = value
    path.write_text(json.dumps(content))
    with pytest.raises(ExportError, match=rf"signatures\.json is not the description of an export .*{problem}"):
        ExportedModel.load(tmp_path / "1")


@pytest.mark.parametrize("given", [None, "yes"])
def test_nothing_is_kept_for_telemetry(model: ExportedModel, tmp_path: Path, given: str | None) -> None:
    code = f"""
import os
from torch_estimator.export.exported_model import ExportedModel
answer = ExportedModel.load({model.directory!r}).predict({inputs()!r})
print(answer["logits"].shape, os.environ.get("ORT_DISABLE_TELEMETRY"))
"""
    # Set HOME instead of XDG_CACHE_HOME, so that every file kept for the user would be in the folder.
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    environment |= {} if given is None else {"ORT_DISABLE_TELEMETRY": given}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert list(tmp_path.glob(".cache/Microsoft/**")) == []
    assert done.stdout == f"(2, 1) {given or 1}\n"


@pytest.mark.parametrize("receiver", [serving_input.raw_features, serving_input.json])
def test_an_input_whose_column_has_a_default_may_be_omitted(receiver: Any, tmp_path: Path) -> None:
    x, v = fc.numeric_column("x", default_value=7.0), fc.numeric_column("v", shape=(2, 2), default_value=3)
    built = model_of([fc.bucketized_column(x, [6.5]), v], [])
    model = built.export(tmp_path, receiver(built.transform, defaults={"key": "none"}))
    info = model.signature("predict").inputs
    assert (info["x"].default, info["v"].default) == (7.0, [3.0] * 4)
    left_out, given = model.predict({"key": ["a"]}), model.predict({"x": [7.0], "v": [[[3.0, 3.0], [3.0, 3.0]]]})
    assert left_out["logits"].tolist() == given["logits"].tolist()
    overruled = built.export(tmp_path, receiver(built.transform, defaults={"x": 1.0}))
    assert overruled.signature("predict").inputs["x"].default == 1.0


def test_operators_that_onnxruntime_lacks_are_refused(model: ExportedModel, tmp_path: Path) -> None:
    import onnx

    shutil.copytree(model.directory, tmp_path / "1")
    path = str(tmp_path / "1" / "model.onnx")
    graph = onnx.load(path)
    graph.opset_import.append(onnx.helper.make_opsetid("ai.onnx.contrib", 1))
    graph.graph.node[0].domain = "ai.onnx.contrib"
    onnx.save(graph, path)
    with pytest.raises(ExportError, match="cannot be loaded"):
        ExportedModel.load(tmp_path)


def test_the_description_survives_a_round_trip(model: ExportedModel) -> None:
    from torch_estimator.export.signatures import Manifest

    text = model.manifest.to_json()
    assert Manifest.from_json(text, where="here") == model.manifest
    assert json.loads(text)["hashing"]["functions"] == {"word": "murmur3"}


def test_json_inputs_are_vectors(built: Built, tmp_path: Path) -> None:
    exported = built.export(tmp_path, serving_input.json(built.transform))
    shapes = {name: info.shape for name, info in exported.signatures["predict"].inputs.items()}
    assert shapes == {"count": (-1,), "v": (-1, 2), "word": (-1,), "x": (-1,)}
    raw = {
        "word": np.array(["a", ""], object),
        "count": np.array([1, -1]),
        "x": np.array([1, 2], np.float32),
        "v": np.array([[1, 2], [3, 4]], np.float32),
    }
    np.testing.assert_allclose(exported.predict(raw)["logits"], built.predict(raw)["logits"], atol=1e-6)
