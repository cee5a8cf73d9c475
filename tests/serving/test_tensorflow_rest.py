"""TensorFlow Serving's REST: what is asked, what is answered, and its words and codes for errors."""

from __future__ import annotations

import base64
import gzip
import json
import math
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties.trials import tried
from tests.serving.models import app_of, as_json, ask, ask_all, error_of, floats, predict, row
from torch_estimator.export.exported_model import ExportedModel
from torch_estimator.registry import Registry
from torch_estimator.serving.app import ServingApp
from torch_estimator.serving.options import ServingOptions
from torch_estimator.serving.service import PredictionService

BYTES = {"b64": base64.b64encode("héllo".encode()).decode()}


def test_rows_are_answered_by_row(app: ServingApp) -> None:
    answer = predict(
        app, {"instances": [row(word="a", count=3), row(word="b", tags=["t", "u"], pair=[1, 2], flag=True)]}
    )
    assert answer.headers["content-type"] == "application/json"
    first, second = answer.json()["predictions"]
    assert first == {
        "scaled": 3.0,
        "word": "a",
        "word_bytes": {"b64": "YQ=="},
        "count": 3,
        "flag": False,
        "pair": [0.0, 0.0],
        "tags": ["", ""],
    }
    assert (second["tags"], second["pair"], second["flag"], second["count"]) == (["t", "u"], [1.0, 2.0], True, 0)


def test_columns_are_answered_by_column(app: ServingApp) -> None:
    answer = predict(app, {"inputs": {"x": [1.5, -2], "word": ["a", "b"]}}).json()
    assert list(answer) == ["outputs"]
    assert answer["outputs"]["scaled"] == [3.0, -4.0]
    assert answer["outputs"]["word"] == ["a", "b"]
    assert answer["outputs"]["tags"] == [[""], [""]]


def test_the_name_of_a_single_output_is_dropped(app: ServingApp) -> None:
    assert predict(app, {"signature_name": "one", "instances": [row()]}).json() == {"predictions": [3.0]}
    assert predict(app, {"signature_name": "one", "inputs": {"x": [1.5]}}).json() == {"outputs": [3.0]}


def test_a_single_input_takes_bare_values(app: ServingApp) -> None:
    for instances in ([1.5, 2], [[1.5], [2]], [{"x": 1.5}, {"x": [2]}]):
        assert predict(app, {"signature_name": "bare", "instances": instances}).json() == {"predictions": [3.0, 4.0]}
    for inputs in ([1.5, 2], [[1.5], [2]], {"x": [1.5, 2]}):
        assert predict(app, {"signature_name": "bare", "inputs": inputs}).json() == {"outputs": [3.0, 4.0]}


def test_bytes_are_base64_in_both_directions(app: ServingApp) -> None:
    (by_row,) = predict(app, {"instances": [row(word=BYTES, tags=[BYTES])]}).json()["predictions"]
    by_column = predict(app, {"inputs": {"x": [1], "word": [BYTES]}}).json()["outputs"]
    assert (by_row["word"], by_row["tags"], by_row["word_bytes"]) == ("héllo", ["héllo"], BYTES)
    assert (by_column["word"], by_column["word_bytes"]) == (["héllo"], [BYTES])


def test_whole_numbers_of_floats_keep_their_point_and_others_the_digits_of_a_float32(app: ServingApp) -> None:
    text = predict(app, {"signature_name": "one", "instances": [row(x=2), row(x=0.05)]}, "/versions/1").text
    assert text == '{"predictions":[2.0,0.05]}'


def test_nan_and_infinities_go_in_and_out(app: ServingApp) -> None:
    body = b'{"signature_name": "one", "instances": [{"x": NaN}, {"x": Infinity}, {"x": -Infinity}, {"x": 0.1}]}'
    answer = predict(app, body, "/versions/1")
    assert answer.text == '{"predictions": [NaN, Infinity, -Infinity, 0.1]}'
    nan, *rest = json.loads(answer.text)["predictions"]
    assert math.isnan(nan)
    assert rest == [math.inf, -math.inf, 0.1]
    body = b'{"inputs": {"x": [NaN], "word": ["a"]}}'
    assert math.isnan(predict(app, body).json()["outputs"]["scaled"][0])


def test_a_byte_order_mark_is_skipped(app: ServingApp) -> None:
    assert predict(app, "\ufeff".encode() + json.dumps({"instances": [row()]}).encode()).status_code == 200


def test_a_version_a_label_or_neither_is_named_in_the_path(base: Path, tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    registry.create_model("small")
    for version in (1, 2):
        registry.create_version("small", version, base / str(version))
    registry.update("small", 2, labels=["canary"])
    service = PredictionService(ServingOptions(registry=str(tmp_path)))
    service.start()
    app, content = ServingApp(service), {"signature_name": "one", "instances": [{"x": 1}]}
    answers = {
        place: predict(app, content, place).json().get("predictions")
        for place in ("", "/versions/1", "/versions/v2", "/versions/02", "/labels/canary", "/labels/can%61ry")
    }
    service.close()
    assert answers == {
        "": [1.0],
        "/versions/1": [1.0],
        "/versions/v2": [2.0],
        "/versions/02": [2.0],
        "/labels/canary": [2.0],
        "/labels/can%61ry": [2.0],
    }


@pytest.mark.parametrize("path", ["/v1/models/SMALL:predict", "/V1/Models/Small:PREDICT", "/v1/models/sm%61ll:predict"])
def test_paths_do_not_depend_on_case_and_names_may_be_percent_encoded(app: ServingApp, path: str) -> None:
    assert ask(app, path, {"signature_name": "one", "instances": [row()]}).json() == {"predictions": [3.0]}


def test_a_name_is_decoded_once(app: ServingApp) -> None:
    assert error_of(ask(app, "/v1/models/sm%2561ll")) == (404, "Could not find any versions of model sm%61ll")
    assert error_of(ask(app, "/v1/models/..%2fsmall")) == (404, "Could not find any versions of model ../small")


def test_classify_and_regress_merge_the_context_into_the_examples(app: ServingApp) -> None:
    content = {"context": {"word": "a", "x": 9}, "examples": [{"x": 1.5}, {"x": [2], "word": ["b"]}]}
    assert ask(app, "/v1/models/small:classify", content).json() == {
        "results": [[["a", 3.0], ["a", 3.0]], [["b", 4.0], ["b", 4.0]]]
    }
    answer = ask(app, "/v1/models/small:regress", {"examples": [{"x": 1.5}, {"x": 2}]})
    assert answer.json() == {"results": [3.0, 4.0]}
    content = {"signature_name": "classify", "examples": [{"x": 1}]}
    assert ask(app, "/v1/models/small/versions/1:classify", content).json() == {"results": [[["none", 1.0]] * 2]}


def test_the_status_of_all_versions_and_of_one(app: ServingApp) -> None:
    def status(version: int) -> dict[str, Any]:
        return {
            "version": str(version),
            "state": "AVAILABLE",
            "status": {"error_code": "OK", "error_message": ""},
        }

    assert ask(app, "/v1/models/small").json() == {"model_version_status": [status(2), status(1)]}
    assert ask(app, "/v1/models/small/versions/1").json() == {"model_version_status": [status(1)]}


def test_the_metadata_is_that_of_tensorflow_serving(app: ServingApp) -> None:
    content = ask(app, "/v1/models/small/versions/1/metadata").json()
    assert content["model_spec"] == {"name": "small", "signature_name": "", "version": "1"}
    signature = content["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["method_name"] == "tensorflow/serving/predict"
    assert signature["inputs"]["pair"] == {
        "dtype": "DT_FLOAT",
        "tensor_shape": {"dim": [{"size": "-1", "name": ""}, {"size": "2", "name": ""}], "unknown_rank": False},
        "name": "pair:0",
    }
    assert list(signature["outputs"]) == ["scaled", "word", "word_bytes", "count", "flag", "pair", "tags"]


def test_answers_are_those_of_the_export(app: ServingApp, base: Path) -> None:
    columns = {"x": floats([0.1, -1e30, 7]), "word": ["a", "", "日本"], "pair": [[1, 2], [3, 4], [5, 6]]}
    outputs = predict(app, {"inputs": columns}).json()["outputs"]
    expected = ExportedModel.load(base / "2").predict(columns, "serving_default")
    del outputs["word_bytes"]
    assert {name: floats(values) if name in ("scaled", "pair") else values for name, values in outputs.items()} == {
        name: expected[name].tolist() for name in outputs
    }


WRONG: list[tuple[Any, str | None]] = [
    ({}, "Missing 'inputs' or 'instances' key"),
    (
        {"instances": [row()], "inputs": {"x": [1]}},
        "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist",
    ),
    ([], "The body must be a JSON object, but got []."),
    ({"instances": []}, "'instances' must be a list with at least one instance, but got []."),
    ({"instances": {"x": 1}}, "'instances' must be a list with at least one instance, but got {'x': 1}."),
    ({"signature_name": "none", "instances": [row()]}, 'Serving signature name: "none" not found in signature def'),
    ({"signature_name": 1, "instances": [row()]}, "'signature_name' must be a string, but got 1."),
    ({"instances": [row(), {"word": "a"}]}, "Instance 1: Input x was missing in at least one input instance."),
    ({"instances": [row(pairs=[1, 2])]}, "Instance 0: Unexpected tensor name: pairs; the nearest input is pair."),
    ({"instances": [row(), row(), row(x="a")]}, "Instance 2: Input x takes numbers, but has 'a' (str)."),
    ({"instances": [row(), row(x=True)]}, "Instance 1: Input x takes numbers, but has True (bool)."),
    ({"instances": [row(), row(count=1.5)]}, "Instance 1: Input count takes integers, but has 1.5 (float)."),
    (
        {"instances": [row(), row(count=2**63)]},
        "Instance 1: Input count takes integers, but has 9223372036854775808, which does not fit into int64.",
    ),
    ({"instances": [row(), row(word=1)]}, "Instance 1: Input word takes strings, but has 1 (int)."),
    ({"instances": [row(), row(flag=1)]}, "Instance 1: Input flag takes booleans, but has 1 (int)."),
    ({"instances": [row(word={"b64": "!"})]}, "Instance 0: Input word has '!', which is not base64."),
    (
        {"instances": [row(word={"b65": "aa"})]},
        "Instance 0: Input word takes values, but has the object {'b65': 'aa'}.",
    ),
    ({"instances": [row(), row(tags=[["a"]])]}, None),
    (
        {"instances": [row(), row(pair=[1])]},
        "Instance 1: Input pair must have the shape [2], but has the shape [1].",
    ),
    ({"instances": [row(pair=1)]}, "Instance 0: Input pair must have the shape [2], but is a single value."),
    ({"instances": [row(x=[1, 2])]}, "Instance 0: Input x must be a single value, but has the shape [2]."),
    ({"instances": [row(), 1.5]}, None),
    ({"inputs": {"word": ["a"]}}, "Missing named input: x in 'inputs' object."),
    ({"inputs": {"x": [1, 2], "word": ["a"]}}, "Input word has 1 values, but the inputs before it have 2."),
    ({"inputs": {"x": 1}}, "Input x must be a list with one value per instance, not 1."),
    ({"inputs": {"x": []}}, "The request has no instance; give at least one."),
    ({"inputs": [1]}, None),
    ({"inputs": {"x": [1, "a"]}}, "Instance 1: Input x takes numbers, but has 'a' (str)."),
    ({"inputs": {"x": [1, {}]}}, "Instance 1: Input x takes values, but has the object {}."),
    # numpy takes booleans among many numbers for numbers.
    ({"inputs": {"x": [1, 2.5] * 100 + [True]}}, "Instance 200: Input x takes numbers, but has True (bool)."),
]


@pytest.mark.parametrize(("content", "message"), WRONG, ids=[json.dumps(content)[:60] for content, _ in WRONG])
def test_a_wrong_request_gets_400_and_a_sentence_that_names_instance_and_input(
    app: ServingApp, content: Any, message: str | None
) -> None:
    status, found = error_of(predict(app, content))
    assert status == 400
    if message is None:
        # These are worded by the export; what matters is that the sentence names the place.
        assert found.startswith(("Instance ", "'inputs' must be an object with x, "))
    else:
        assert found == message


# Without the time, which would give the tests another name in each process.
GZIPPED = gzip.compress(b"{}", mtime=0)
COMPRESSIONS = {"gzip": gzip.compress, "X-GZip": gzip.compress, "deflate": zlib.compress}


def ask_compressed(app: ServingApp, body: bytes, *encodings: str) -> httpx.Response:
    headers = [("content-encoding", one) for one in encodings]
    return ask(app, "/v1/models/small:predict", body, verb="POST", headers=headers)


@pytest.mark.parametrize("encoding", COMPRESSIONS)
def test_a_compressed_body_is_read(app: ServingApp, encoding: str) -> None:
    body = as_json({"signature_name": "bare", "inputs": {"x": [1.5] * 100_000}})
    answer = ask_compressed(app, COMPRESSIONS[encoding](body), encoding, "identity")
    assert answer.json() == {"outputs": [3.0] * 100_000}


@pytest.mark.parametrize(
    ("body", "encodings", "status", "message"),
    [
        (b"{}", ["gzip"], 400, "The body is not what its Content-Encoding 'gzip' says: Error -3 while decompressing"),
        (b"", ["deflate"], 400, "The body ends before its Content-Encoding 'deflate' does; it has been cut off."),
        (GZIPPED[:-1], ["gzip"], 400, "The body ends before its Content-Encoding 'gzip' does"),
        (GZIPPED + b"x", ["gzip"], 400, "1 bytes follow the body in its Content-Encoding 'gzip'."),
        (GZIPPED + GZIPPED, ["gzip"], 400, "22 bytes follow the body in its Content-Enc"),
        (b"{}", ["br"], 415, "The body has the Content-Encoding 'br'; the server takes gzip and deflate."),
        (b"{}", ["gzip, gzip"], 415, "The body has the Content-Encoding 'gzip, gzip'; the server"),
        (b"{}", ["gzip", "deflate"], 415, "The body has the Content-Encoding 'gzip, deflate'; the server"),
    ],
)
def test_a_body_that_cannot_be_inflated_gets_a_sentence(
    app: ServingApp, body: bytes, encodings: list[str], status: int, message: str
) -> None:
    found = error_of(ask_compressed(app, body, *encodings))
    assert found[0] == status
    assert found[1].startswith(message)


def test_the_limit_of_a_body_is_that_of_the_context_in_each_example(base: Path) -> None:
    with app_of(base, max_body_mb=1) as app:
        content = {"context": {"word": "a" * 9990}, "examples": [{"x": 1}] * 100}
        assert ask(app, "/v1/models/small:classify", content).status_code == 200
        content["examples"] = [{"x": 1}] * 105
        assert error_of(ask(app, "/v1/models/small:classify", content)) == (
            413,
            "The context has 10001 bytes, and 105 examples get it, which --max-body-mb forbids.",
        )


def test_the_limit_of_a_body_is_that_of_the_inflated_one(base: Path) -> None:
    with app_of(base, max_body_mb=1) as app:
        body = as_json({"signature_name": "bare", "inputs": {"x": [1]}}).ljust(2**20)
        assert ask_compressed(app, gzip.compress(body), "gzip").status_code == 200
        assert ask_compressed(app, gzip.compress(body + b" "), "gzip").status_code == 413
        bomb = gzip.compress(bytes(2**28))
        tracemalloc.start()
        found = error_of(ask_compressed(app, bomb, "gzip"))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert found == (413, "The body is larger than 1 MiB.")
    assert peak < 2**23


@tried(200)
@given(
    st.binary(max_size=100),
    st.sampled_from(["gzip", "deflate", "x-gzip", "br", "gzip, deflate", ""]),
    st.sampled_from([None, gzip.compress, zlib.compress]),
    st.integers(0, 60),
    st.integers(0, 255),
)
def test_any_compressed_bytes_are_refused_or_read(
    app: ServingApp, body: bytes, encoding: str, compress: Any, at: int, byte: int
) -> None:
    sent = bytearray(body if compress is None else compress(body))
    if at < len(sent):
        sent[at] = byte
    status, found = error_of(ask_compressed(app, bytes(sent), encoding))
    assert status in (400, 415)
    assert found.endswith((".", ")"))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "JSON Parse error: the body is empty; send a JSON object."),
        (b'{"instances": [', "JSON Parse error: Expecting value"),
        (b'{"instances": ["\xff"]}', "JSON Parse error: the body is not UTF-8 (byte 16)."),
        (b'{"instances": ["\\ud800"]}', "JSON Parse error: a string has one half of a surrogate pair."),
        (b'{"instances": [%s]}' % (b"1" * 5000), "JSON Parse error: a number has too many digits."),
        (b"[" * 100_000, "JSON Parse error: Nested deeper than 100 levels"),
        (b'{"instances": [{"x": ' + b"[" * 900 + b"]" * 900 + b"}]}", "JSON Parse error: the body nests too deep."),
    ],
    ids=["empty", "half", "no UTF-8", "half a pair", "many digits", "very deep", "deep"],
)
def test_what_is_no_json_gets_400(app: ServingApp, body: bytes, message: str) -> None:
    status, found = error_of(predict(app, body))
    assert status == 400
    assert found.startswith(message)


def test_a_missing_model_version_or_label_is_told_in_tensorflow_servings_words(app: ServingApp) -> None:
    content = {"instances": [row()]}
    assert error_of(ask(app, "/v1/models/other:predict", content)) == (
        404,
        "Servable not found for request: Latest(other)",
    )
    assert error_of(predict(app, content, "/versions/7")) == (404, "Servable not found for request: Specific(small, 7)")
    assert error_of(predict(app, content, "/labels/gold")) == (400, "Unrecognized servable version label: gold")
    assert error_of(ask(app, "/v1/models/other")) == (404, "Could not find any versions of model other")
    assert error_of(ask(app, "/v1/models/small/versions/7")) == (404, "Could not find version 7 of model small")
    assert error_of(ask(app, "/v1/models/small/labels/gold")) == (400, "Unrecognized servable version label: gold")
    assert error_of(ask(app, "/v1/models/small/versions/9223372036854775808")) == (
        400,
        "Failed to convert version: 9223372036854775808 to numeric.",
    )


@pytest.mark.parametrize(
    ("verb", "path", "message"),
    [
        ("GET", "/v1/models/small:predict", "Malformed request: GET /v1/models/small:predict"),
        ("POST", "/v1/models/small", "Malformed request: POST /v1/models/small"),
        ("POST", "/v1/models/small:train", "Malformed request: POST /v1/models/small:train"),
        ("DELETE", "/v1/models/small", "Malformed request: DELETE /v1/models/small"),
        ("GET", "/v1/models/small/versions/one", "Malformed request: GET /v1/models/small/versions/one"),
        ("GET", "/v1/models/a/b/small", "Malformed request: GET /v1/models/a/b/small"),
        ("GET", "/v1/models", "Missing model name in request."),
    ],
)
def test_a_malformed_path_gets_400(app: ServingApp, verb: str, path: str, message: str) -> None:
    assert error_of(ask(app, path, verb=verb)) == (400, message)


def test_classify_needs_a_signature_for_it(app: ServingApp) -> None:
    content = {"signature_name": "regress", "examples": [{"x": 1}]}
    assert error_of(ask(app, "/v1/models/small:classify", content)) == (
        400,
        "The signature 'regress' is for tensorflow/serving/regress, not for tensorflow/serving/classify.",
    )
    assert error_of(ask(app, "/v1/models/small:regress", {"examples": 1}))[0] == 400
    assert error_of(ask(app, "/v1/models/small:regress", {"examples": [{"x": 1}], "context": 1}))[0] == 400


def test_other_paths_get_404_in_the_same_form(app: ServingApp) -> None:
    assert error_of(ask(app, "/none")) == (404, "Not Found: GET /none")
    assert error_of(ask(app, "/metrics", verb="DELETE")) == (405, "Method Not Allowed: DELETE /metrics")


def test_requests_that_arrive_together_are_answered_as_single_ones(app: ServingApp) -> None:
    contents = [{"instances": [row(x=number, word=f"w{number}")] * (number % 4 + 1)} for number in range(50)]
    single = [predict(app, content).json() for content in contents]
    together = ask_all(app, [("/v1/models/small:predict", content) for content in contents])
    assert [answer.json() for answer in together] == single


def test_a_wrong_request_among_others_fails_alone(app: ServingApp) -> None:
    contents = [{"instances": [row(x="a" if number == 3 else number)]} for number in range(8)]
    answers = ask_all(app, [("/v1/models/small:predict", content) for content in contents])
    assert [answer.status_code for answer in answers] == [200, 200, 200, 400, 200, 200, 200, 200]
    assert error_of(answers[3])[1] == "Instance 0: Input x takes numbers, but has 'a' (str)."


def test_a_request_larger_than_a_batch_is_answered_and_its_wrong_instance_is_named(app: ServingApp) -> None:
    xs: list[Any] = [*range(10_000)]
    answer = predict(app, {"signature_name": "one", "inputs": {"x": xs}})
    assert answer.json()["outputs"] == [2.0 * x for x in xs]
    xs[7_777] = "a"
    assert error_of(predict(app, {"signature_name": "one", "instances": [{"x": x} for x in xs]})) == (
        400,
        "Instance 7777: Input x takes numbers, but has 'a' (str).",
    )


def test_a_body_over_the_limit_gets_413_and_a_long_string_under_it_an_answer(base: Path) -> None:
    with app_of(base, max_body_mb=1) as app:
        word = "é" * 400_000
        (prediction,) = predict(app, {"instances": [row(word=word)]}).json()["predictions"]
        assert prediction["word"] == word
        assert error_of(predict(app, {"instances": [row(word="a" * 2**20)]})) == (413, "The body is larger than 1 MiB.")
        status, message = error_of(predict(app, {"instances": [row(x=word)]}))
        assert status == 400
        assert len(message) < 1100


def test_a_token_is_needed_where_the_server_has_a_file_of_them(base: Path, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("first\n\n  second \n")
    with app_of(base, token_file=str(file)) as app:
        for value in ("Bearer first", "Bearer second", "bearer  first"):
            assert ask(app, "/v1/models/small", headers={"authorization": value}).status_code == 200
        for value in ("Bearer third", "Bearer firs", "Bearer ", "Basic first", "first", "Bearer first second", "é"):
            headers = {"authorization": value.encode()}
            answer = ask(app, "/v1/models/small", headers=headers)
            assert error_of(answer)[0] == 401
            assert answer.headers["www-authenticate"] == "Bearer"
        assert ask(app, "/metrics").status_code == 401
        assert ask(app, "/openapi.json").status_code == 401


def test_the_application_can_be_mounted_below_another_path(app: ServingApp) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    outer = Starlette(routes=[Mount("/serving", app)])
    assert ask(outer, "/serving/v1/models/small").status_code == 200
    content = {"signature_name": "one", "instances": [row()]}
    assert ask(outer, "/serving/v1/models/small:predict", content).json() == {"predictions": [3.0]}
    assert ask(outer, "/serving/metrics").status_code == 200


def test_head_is_answered_where_get_is(app: ServingApp) -> None:
    assert ask(app, "/v1/models/small", verb="HEAD").status_code == 200
