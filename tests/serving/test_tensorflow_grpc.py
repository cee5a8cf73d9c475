"""TensorFlow Serving's gRPC, asked with our own messages and by TensorFlow's stock client."""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from google.protobuf import descriptor_pool
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.proto import meta_graph_pb2, tensor_pb2, tensor_shape_pb2, types_pb2

from benchmarks.peers import environment as peers
from tests.properties.trials import tried
from tests.serving import models
from tests.serving.served import (
    DATATYPES,
    INPUTS,
    ROOT,
    ROWS,
    Server,
    array,
    serving,
    serving_two_versions,
    write_export,
)
from torch_estimator.cli import main
from torch_estimator.errors import InvalidValueError
from torch_estimator.registry import Registry
from torch_estimator.serving import tensorflow_grpc
from torch_estimator.serving.app import Answered
from torch_estimator.serving.grpc_server import SERVICE
from torch_estimator.serving.options import ServedModel, ServingOptions
from torch_estimator.serving.service import PredictionService
from torch_estimator.serving.tensorflow_grpc import TensorflowGrpc
from torch_estimator.tfrecord.encoder import encode_example
from torch_estimator.web.errors import RequestError

MESSAGES = tensorflow_grpc._MESSAGES
PREDICTION = "tensorflow.serving.PredictionService"
METHODS = {
    "Predict": (PREDICTION, "PredictRequest", "PredictResponse"),
    "Classify": (PREDICTION, "ClassificationRequest", "ClassificationResponse"),
    "Regress": (PREDICTION, "RegressionRequest", "RegressionResponse"),
    "GetModelMetadata": (PREDICTION, "GetModelMetadataRequest", "GetModelMetadataResponse"),
    "GetModelStatus": ("tensorflow.serving.ModelService", "GetModelStatusRequest", "GetModelStatusResponse"),
}
FIELDS = tensorflow_grpc._FIELDS
NUMBERS = tensorflow_grpc._NUMBERS
WRONG = grpc.StatusCode.INVALID_ARGUMENT
ONE = {name: values[:1] for name, values in ROWS.items()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two versions of ``same``, and ``small``."""
    small = models.write_export(tmp_path_factory.mktemp("small") / "1", factor=2)
    options = ("--tf-serving-grpc-port", "0", "--model", f"small={small}")
    with serving_two_versions(tmp_path_factory.mktemp("models"), *options) as running:
        yield running


@pytest.fixture(scope="module")
def channel(server: Server) -> Iterator[Any]:
    with grpc.insecure_channel(server.grpc) as made:
        yield made


def tensor(dtype: str, data: np.ndarray[Any, Any], *, as_content: bool = False) -> Any:
    made = MESSAGES["TensorProto"](dtype=NUMBERS[dtype])
    for size in data.shape:
        made.tensor_shape.dim.add(size=size)
    values = [one.encode() if isinstance(one, str) else one for one in data.ravel().tolist()]
    if not as_content:
        getattr(made, FIELDS[dtype]).extend(values)
    elif dtype == "DT_STRING":
        made.tensor_content = bytes(map(len, values)) + b"".join(values)
    else:
        made.tensor_content = data.tobytes()
    return made


def message(rows: dict[str, Any] = ROWS, *, as_content: bool = False, **spec: Any) -> Any:
    """A PredictRequest for the model ``same``."""
    made = MESSAGES["PredictRequest"]()
    set_spec(made, **{"name": "same", **spec})
    for name, values in rows.items():
        made.inputs[name].CopyFrom(tensor(INPUTS[name].dtype, array(name, values), as_content=as_content))
    return made


def set_spec(request: Any, *, version: int | None = None, **spec: Any) -> None:
    for name, value in spec.items():
        setattr(request.model_spec, name, value)
    if version is not None:
        request.model_spec.version.value = version


def examples_message(
    method: str, rows: list[dict[str, Any]], context: dict[str, Any] | None = None, **spec: Any
) -> Any:
    made = MESSAGES[METHODS[method][1]]()
    set_spec(made, **{"name": "small", **spec})
    given = made.input.example_list if context is None else made.input.example_list_with_context
    given.examples.extend(map(encode_example, rows))
    if context is not None:
        given.context = encode_example(context)
    return made


def send(channel: Any, method: str, content: Any, **settings: Any) -> Any:
    service, _, answer = METHODS[method]
    data = content if isinstance(content, bytes) else content.SerializeToString()
    call = channel.unary_unary(f"/{service}/{method}", response_deserializer=MESSAGES[answer].FromString)
    return call(data, timeout=60, **settings)


def refused(channel: Any, method: str, content: Any, **settings: Any) -> tuple[Any, str]:
    """The code and the sentence with which a request is refused."""
    with pytest.raises(grpc.RpcError) as caught:
        send(channel, method, content, **settings)
    return caught.value.code(), caught.value.details()


def values_of(made: Any) -> list[Any]:
    """The elements of a tensor of an answer."""
    (dtype,) = [name for name, number in NUMBERS.items() if number == made.dtype]
    values = list(getattr(made, FIELDS[dtype]))
    return [one.decode() for one in values] if dtype == "DT_STRING" else values


def assert_same(answer: Any, rows: dict[str, Any], factor: float) -> None:
    """Check that the outputs are the inputs, in typed fields."""
    assert set(answer.outputs) == set(DATATYPES)
    for name, values in rows.items():
        wanted, made = array(name, values), answer.outputs[name]
        assert made.dtype == NUMBERS[INPUTS[name].dtype]
        assert [one.size for one in made.tensor_shape.dim] == list(wanted.shape) or INPUTS[name].is_single
        assert values_of(made) == wanted.ravel().tolist(), name
    scaled = array("number", rows["number"]) * np.float32(factor)
    assert values_of(answer.outputs["scaled"]) == scaled.tolist()


def spec_of(answer: Any) -> tuple[str, int, str]:
    return answer.model_spec.name, answer.model_spec.version.value, answer.model_spec.signature_name


def test_the_messages_of_tensors_and_signatures_are_tensorflows() -> None:
    theirs = {
        "TensorProto": tensor_pb2.TensorProto,
        "TensorShapeProto": tensor_shape_pb2.TensorShapeProto,
        "SignatureDef": meta_graph_pb2.SignatureDef,
        "TensorInfo": meta_graph_pb2.TensorInfo,
    }
    for name, one in theirs.items():
        known = one.DESCRIPTOR.fields_by_name
        for field in MESSAGES[name].DESCRIPTOR.fields:
            other = known[field.name]
            assert (field.number, field.type, field.is_repeated) == (other.number, other.type, other.is_repeated), name
    for name, value in tensorflow_grpc._TYPES.values_by_name.items():
        assert value.number == types_pb2.DataType.Value(name)


def test_the_messages_do_not_clash_with_those_of_tensorflow_in_one_process() -> None:
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("tensorflow.serving.PredictRequest")


@pytest.mark.parametrize("as_content", [False, True])
def test_a_client_sends_and_gets_all_types(channel: Any, as_content: bool) -> None:
    answer = send(channel, "Predict", message(as_content=as_content))
    assert_same(answer, ROWS, 100)
    assert spec_of(answer) == ("same", 2, "serving_default")


def test_a_request_names_its_version_its_signature_and_its_outputs(channel: Any) -> None:
    answer = send(channel, "Predict", message(version=1))
    assert_same(answer, ROWS, 10)
    assert spec_of(answer) == ("same", 1, "serving_default")
    answer = send(channel, "Predict", message(signature_name="short"))
    assert (spec_of(answer), list(answer.outputs)) == (("same", 2, "short"), ["text"])
    asked = message()
    asked.output_filter.extend(["scaled", "text"])
    assert set(send(channel, "Predict", asked).outputs) == {"scaled", "text"}


def test_one_value_stands_for_a_tensor_of_equal_elements(channel: Any) -> None:
    asked = message({name: values for name, values in ROWS.items() if name not in ("bonus", "pair", "text")})
    for name, value in (("bonus", [2.5]), ("pair", [7.0]), ("text", ["a"])):
        asked.inputs[name].CopyFrom(tensor(INPUTS[name].dtype, array(name, value)))
        del asked.inputs[name].tensor_shape.dim[:]
        for size in (3, *INPUTS[name].shape[1:]):
            asked.inputs[name].tensor_shape.dim.add(size=size)
    assert_same(
        send(channel, "Predict", asked), {**ROWS, "bonus": [2.5] * 3, "pair": [[7.0] * 2] * 3, "text": ["a"] * 3}, 100
    )


def test_requests_of_many_rows_are_answered(channel: Any) -> None:
    many = {name: values * 2000 for name, values in ROWS.items()}
    asked = message(many)
    assert_same(send(channel, "Predict", asked), many, 100)
    # One value may stand for as many instances as another tensor gives.
    del asked.inputs["bonus"].float_val[1:]
    assert_same(send(channel, "Predict", asked), {**many, "bonus": [1.0] * 6000}, 100)


def test_answers_are_those_of_tensorflow_servings_rest(channel: Any, server: Server) -> None:
    served = httpx.post(f"http://{server.rest}/v1/models/same:predict", json={"inputs": ROWS}).json()["outputs"]
    answer = send(channel, "Predict", message())
    for name in ("text", "precise", "small", "large", "flag"):
        assert values_of(answer.outputs[name]) == np.ravel(served[name]).tolist()
    url = f"http://{server.rest}/v1/models/small"
    rows = [{"x": 1.5}, {"x": 2.0, "word": "own"}]
    content = {"examples": rows, "context": {"word": "all"}}
    answer = send(channel, "Classify", examples_message("Classify", rows, {"word": "all"}))
    found = [[[each.label, each.score] for each in one.classes] for one in answer.result.classifications]
    assert found == httpx.post(f"{url}:classify", json=content).json()["results"]
    assert spec_of(answer) == ("small", 1, "classify")
    answer = send(channel, "Regress", examples_message("Regress", [{"x": 1.5}, {"x": 2.0}]))
    assert [one.value for one in answer.result.regressions] == [3.0, 4.0]
    assert spec_of(answer) == ("small", 1, "regress")


def test_a_label_names_a_version(tmp_path: Path) -> None:
    registry = Registry(str(tmp_path / "registry"))
    registry.create_model("same")
    for number in (1, 2):
        write_export(tmp_path / str(number), factor=number)
        registry.create_version("same", number, str(tmp_path / str(number)))
    registry.update("same", 1, labels=["old"])
    service = PredictionService(ServingOptions(registry=registry.url))
    service.start()
    try:
        answering = TensorflowGrpc(service)
        answer = asyncio.run(answering._predict(message(version_label="old"), Answered()))
        assert_same(answer, ROWS, 1)
        assert spec_of(answer) == ("same", 1, "serving_default")
        with pytest.raises(RequestError, match=r"^Unrecognized servable version label: new$"):
            asyncio.run(answering._predict(message(version_label="new"), Answered()))
    finally:
        service.close()


def test_a_client_sees_metadata_and_states(channel: Any) -> None:
    asked = MESSAGES["GetModelMetadataRequest"](metadata_field=["signature_def"])
    set_spec(asked, name="same", version=1)
    answer = send(channel, "GetModelMetadata", asked)
    packed = answer.metadata["signature_def"]
    assert (spec_of(answer), packed.type_url) == (
        ("same", 1, ""),
        "type.googleapis.com/tensorflow.serving.SignatureDefMap",
    )
    signatures = MESSAGES["SignatureDefMap"].FromString(packed.value).signature_def
    assert set(signatures) == {"serving_default", "short"}
    pair = signatures["short"].inputs["pair"]
    assert (pair.name, pair.dtype, [one.size for one in pair.tensor_shape.dim]) == (
        "pair:0",
        NUMBERS["DT_FLOAT"],
        [-1, 2],
    )
    assert signatures["short"].method_name == "tensorflow/serving/predict"
    asked = MESSAGES["GetModelStatusRequest"]()
    set_spec(asked, name="same")
    states = send(channel, "GetModelStatus", asked).model_version_status
    assert [(one.version, one.state, one.status.error_code) for one in states] == [(2, 30, 0), (1, 30, 0)]
    set_spec(asked, version=1)
    assert [one.version for one in send(channel, "GetModelStatus", asked).model_version_status] == [1]
    set_spec(asked, version=3)
    assert refused(channel, "GetModelStatus", asked) == (
        grpc.StatusCode.NOT_FOUND,
        "Could not find version 3 of model same",
    )


def test_wrong_requests_get_tensorflow_servings_codes_and_a_sentence(channel: Any) -> None:
    missing = grpc.StatusCode.NOT_FOUND
    assert refused(channel, "Predict", b"\xff\xff") == (WRONG, "The request is no PredictRequest of the protocol.")
    assert refused(channel, "Predict", b"") == (WRONG, "Missing ModelSpec")
    assert refused(channel, "Predict", message(name="")) == (WRONG, "ModelSpec has no name specified.")
    assert refused(channel, "Predict", message(name="x")) == (missing, "Servable not found for request: Latest(x)")
    found = refused(channel, "Predict", message(name="x\ny", version=3))
    assert found == (missing, r"Servable not found for request: Specific(x\ny, 3)")
    assert refused(channel, "Predict", message(version=9)) == (
        missing,
        "Servable not found for request: Specific(same, 9)",
    )
    assert refused(channel, "Predict", message(version=-(2**63)))[0] == missing
    assert refused(channel, "Predict", message(signature_name="x")) == (
        grpc.StatusCode.FAILED_PRECONDITION,
        'Serving signature key "x" not found.',
    )
    assert refused(channel, "Predict", message({}))[0] == WRONG
    asked = message()
    asked.output_filter.append("x")
    assert refused(channel, "Predict", asked)[0] == WRONG
    asked = MESSAGES["GetModelMetadataRequest"]()
    set_spec(asked, name="same")
    assert refused(channel, "GetModelMetadata", asked) == (
        WRONG,
        "GetModelMetadataRequest must specify at least one metadata_field",
    )
    asked.metadata_field.append("x")
    assert refused(channel, "GetModelMetadata", asked) == (WRONG, "Metadata field 'x' is not supported")
    for method in ("Classify", "Regress"):
        assert refused(channel, method, examples_message(method, [])) == (WRONG, "Input is empty.")
        assert refused(channel, method, examples_message(method, [{"x": 1.0}], signature_name="x")) == (
            WRONG,
            "No signature was found with the name: x",
        )
        assert refused(channel, method, examples_message(method, [{"x": 1.0}], signature_name="one"))[0] == WRONG
        asked = examples_message(method, [{"x": 1.0}])
        asked.input.example_list.examples.append(b"\xff")
        assert refused(channel, method, asked) == (WRONG, "Instance 1 is no tf.Example.")
        asked = examples_message(method, [{"x": 1.0}, {"x": "much"}])
        assert refused(channel, method, asked) == (WRONG, "Instance 1: Input x takes numbers, but has b'much' (bytes).")


def changed(name: str, shape: list[int], **fields: Any) -> Any:
    """A request with three rows whose input has another shape and other elements."""
    asked = message()
    dtype = fields.pop("dtype", INPUTS[name].dtype)
    asked.inputs[name].CopyFrom(MESSAGES["TensorProto"](dtype=NUMBERS.get(dtype, dtype), **fields))
    for size in shape:
        asked.inputs[name].tensor_shape.dim.add(size=size)
    return asked


@pytest.mark.parametrize(
    ("name", "shape", "fields", "sentence"),
    [
        ("number", [3], {"dtype": "DT_DOUBLE", "double_val": [1, 2, 3]}, "Input number takes DT_FLOAT, not DT_DOUBLE."),
        ("number", [3], {"dtype": "DT_STRING", "string_val": [b"a"]}, "Input number takes DT_FLOAT, not DT_STRING."),
        ("number", [3], {"dtype": 19}, "Input number takes DT_FLOAT, not DT_HALF."),
        ("number", [3], {"dtype": 1234}, "Input number takes DT_FLOAT, not 1234."),
        ("text", [3], {"dtype": "DT_FLOAT", "float_val": [1, 2, 3]}, "Input text takes DT_STRING, not DT_FLOAT."),
        ("number", [3], {}, "Input number has 0 elements, but its shape [3] has 3."),
        ("number", [3], {"float_val": [1, 2]}, "Input number has 2 elements, but its shape [3] has 3."),
        ("number", [3], {"float_val": [1, 2, 3, 4]}, "Input number has 4 elements, but its shape [3] has 3."),
        ("number", [3], {"double_val": [1, 2, 3]}, "Input number has 0 elements, but its shape [3] has 3."),
        (
            "number",
            [3],
            {"tensor_content": b"1" * 11},
            "Input number has 11 bytes in its tensor_content, but 3 elements of DT_FLOAT have 12.",
        ),
        ("number", [], {"float_val": [1]}, "Input number must have the shape [rows], but has []."),
        ("number", [-3], {"float_val": [1]}, "Input number must have the shape [rows], but has [-3]."),
        ("number", [-1, -3], {"float_val": [1]}, "Input number must have the shape [rows], but has [-1, -3]."),
        ("number", [1] * 1000, {"float_val": [1]}, "Input number has 1000 dimensions in place of 1."),
        ("text", [-3], {"tensor_content": b"1"}, "Input text must have the shape [rows], but has [-3]."),
        ("text", [3], {"tensor_content": b"\x01\x01"}, "Input text has no length of element 2 in its tensor_content."),
        ("text", [3], {"tensor_content": b"\xff" * 9}, "Input text has no length of element 0 in its tensor_content."),
        ("text", [3], {"tensor_content": b"\1\1\1ab"}, "Input text has 2 bytes of text in its tensor_content, not 3."),
        ("text", [2**62], {"tensor_content": b"\0\0"}, "Input text has no length of element 2 in its tensor_content."),
        ("text", [3], {"string_val": [b"a", b"\xff", b"b"]}, "Input text has an element 1 that is not UTF-8."),
        ("tags", [2**62, 0], {}, None),
    ],
)
def test_a_wrong_tensor_is_named(
    channel: Any, name: str, shape: list[int], fields: dict[str, Any], sentence: str | None
) -> None:
    code, said = refused(channel, "Predict", changed(name, shape, **fields))
    assert code == WRONG
    assert said == sentence or sentence is None


@pytest.mark.parametrize("sizes", [[5000], [2**62], [10**6, 2], [2**40, 2**40]])
def test_a_value_that_stands_for_too_many_is_refused_without_being_repeated(
    channel: Any, server: Server, sizes: list[int]
) -> None:
    before = server.peak_bytes
    name = "number" if len(sizes) == 1 else "pair"
    code, sentence = refused(channel, "Predict", changed(name, sizes, float_val=[1]))
    assert (code, sentence[:26]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, f"Input {name} repeats one value"[:26])
    assert server.peak_bytes < before + 50e6


def test_a_context_is_not_copied_into_more_examples_than_a_body_may_have(channel: Any, server: Server) -> None:
    before = server.peak_bytes
    asked = examples_message("Classify", [{"x": 1.0}] * 1000, {"word": "a" * 200_000})
    code, sentence = refused(channel, "Classify", asked)
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert sentence.endswith("bytes, and 1000 examples get it, which --max-body-mb forbids.")
    assert server.peak_bytes < before + 50e6


ALLOWED = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


def assert_sensible(channel: Any, method: str, content: Any) -> None:
    """Check that a request is answered, or refused with a sentence."""
    try:
        send(channel, method, content)
    except grpc.RpcError as error:
        assert error.code() in ALLOWED, error
        assert error.details()


def good_requests() -> list[tuple[str, bytes]]:
    """A request of each method, with the method."""
    metadata = MESSAGES["GetModelMetadataRequest"](metadata_field=["signature_def"])
    status = MESSAGES["GetModelStatusRequest"]()
    for one in (metadata, status):
        set_spec(one, name="same", version=1)
    made = [
        ("Predict", message(ONE)),
        ("Predict", message(ONE, as_content=True, signature_name="short")),
        ("Classify", examples_message("Classify", [{"x": 1.5}, {"x": 2.0}], {"word": "a"})),
        ("Regress", examples_message("Regress", [{"x": 1.5}])),
        ("GetModelMetadata", metadata),
        ("GetModelStatus", status),
    ]
    return [(method, one.SerializeToString()) for method, one in made]


GOOD = good_requests()


@tried(200)
@given(st.data())
def test_damaged_messages_never_fail_the_server(channel: Any, data: st.DataObject) -> None:
    method, good = data.draw(st.sampled_from(GOOD))
    content = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    assert_sensible(channel, method, bytes(content[: data.draw(st.integers(len(content) // 2, len(content)))]))


sizes = st.one_of(st.integers(-1, 4), st.sampled_from([0, 1, 3, 2**31, 2**62, 2**63 - 1, -(2**63)]))
texts = st.sampled_from(["", "a", "same", "x", "\U0001f600" * 300])
tensors = st.fixed_dictionaries(
    {"dtype": st.one_of(st.sampled_from(sorted(NUMBERS.values())), st.integers(-1, 130))},
    optional={
        "tensor_content": st.one_of(st.binary(max_size=24), st.just(struct.pack("<3f", 1, 2, 3))),
        "float_val": st.lists(st.floats(width=32), max_size=6),
        "double_val": st.lists(st.floats(), max_size=6),
        "int_val": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=6),
        "int64_val": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6),
        "bool_val": st.lists(st.booleans(), max_size=6),
        "string_val": st.lists(st.binary(max_size=8), max_size=6),
    },
)


@tried(200)
@given(
    wrong=st.dictionaries(
        st.one_of(st.sampled_from(list(INPUTS)), texts), st.tuples(tensors, st.lists(sizes, max_size=4))
    ),
    signature=texts,
    outputs=st.lists(st.one_of(texts, st.sampled_from(list(INPUTS))), max_size=2),
)
def test_hostile_tensors_never_fail_the_server(
    channel: Any, wrong: dict[str, Any], signature: str, outputs: list[str]
) -> None:
    asked = message(signature_name=signature if signature in ("", "x") else "serving_default")
    asked.output_filter.extend(outputs)
    for name, (fields, shape) in wrong.items():
        asked.inputs[name].CopyFrom(MESSAGES["TensorProto"](**fields))
        for size in shape:
            asked.inputs[name].tensor_shape.dim.add(size=size)
    assert_sensible(channel, "Predict", asked)


@tried(200)
@given(
    rows=st.lists(
        st.one_of(
            st.binary(max_size=30),
            st.dictionaries(
                st.sampled_from(["x", "word", "y"]),
                st.one_of(
                    st.lists(st.floats(width=32), max_size=2), st.lists(st.integers(0, 9), max_size=2), st.just("a")
                ),
            ).map(encode_example),
        ),
        max_size=3,
    ),
    context=st.one_of(st.none(), st.binary(max_size=10)),
    method=st.sampled_from(["Classify", "Regress"]),
    signature=st.sampled_from(["", "classify", "regress", "one", "x"]),
)
def test_hostile_examples_never_fail_the_server(
    channel: Any, rows: list[bytes], context: bytes | None, method: str, signature: str
) -> None:
    asked = examples_message(method, [], None if context is None else {}, signature_name=signature)
    if context is None:
        asked.input.example_list.examples.extend(rows)
    else:
        asked.input.example_list_with_context.examples.extend(rows)
        asked.input.example_list_with_context.context = context
    assert_sensible(channel, method, asked)


def test_requests_are_counted(server: Server, channel: Any) -> None:
    send(channel, "Predict", message(version=1))
    metrics = httpx.get(f"http://{server.rest}/metrics").text
    assert 'te_requests_total{code="200",method="Predict",model="same",version="1"}' in metrics


def test_the_port_answers_the_open_inference_protocol_too(channel: Any) -> None:
    assert channel.unary_unary(f"/{SERVICE}/ServerLive")(b"", timeout=60)


def test_it_is_answered_only_where_it_is_asked_for_and_needs_a_token(tmp_path: Path) -> None:
    write_export(tmp_path / "1")
    tokens = tmp_path / "tokens"
    tokens.write_text("secret\n")
    log = tmp_path / "access.log"
    with serving(tmp_path / "1") as server, grpc.insecure_channel(server.grpc) as channel:
        assert refused(channel, "Predict", message())[0] == grpc.StatusCode.UNIMPLEMENTED
    options = ("--tf-serving-grpc-port", "0", "--token-file", str(tokens), "--access-log", str(log))
    with serving(tmp_path / "1", *options) as server, grpc.insecure_channel(server.grpc) as channel:
        for method, content in GOOD:
            assert refused(channel, method, content)[0] == grpc.StatusCode.UNAUTHENTICATED
        assert_same(send(channel, "Predict", message(), metadata=[("authorization", "Bearer secret")]), ROWS, 1)
    last = json.loads(log.read_text().splitlines()[-1])
    assert (last["path"], last["status"], last["instances"]) == (f"/{PREDICTION}/Predict", 200, 3)


def test_a_wrong_port_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export = (ServedModel(name="same", path=str(tmp_path)),)
    with pytest.raises(InvalidValueError, match="tf_serving_grpc_port must be from 0 to 65535, but got 65536"):
        ServingOptions(models=export, tf_serving_grpc_port=2**16)
    with pytest.raises(InvalidValueError, match="with min_nodes=0 no process is there"):
        ServingOptions(models=export, tf_serving_grpc_port=0, min_nodes=0)
    server = grpc.server(None)
    port = server.add_insecure_port("127.0.0.1:0")
    assert main(["serve", "--model", f"same={tmp_path}", "--tf-serving-grpc-port", str(port)]) == 2
    assert f"port {port}: Address already in use; choose another --tf-serving-grpc-port." in capsys.readouterr().err


def test_tensorflows_stock_client_is_answered(server: Server) -> None:
    name = "tensorflow-serving"
    if not peers.is_installed(name):
        pytest.skip(f".venv/bin/python -m benchmarks.peers.environment {name} installs TensorFlow's client")
    client = [str(peers.python_of(name)), str(Path(__file__).with_name("tensorflow_serving_client.py")), server.grpc]
    found = json.loads(subprocess.run(client, check=True, capture_output=True, text=True, cwd=ROOT).stdout)
    for described, ours in MESSAGES.items():
        for field in ours.DESCRIPTOR.fields:
            known = found["fields"][described][field.name]
            # The tf.Examples of a request are bytes here, which are the same on the wire.
            is_example = described.startswith("ExampleList")
            assert known == [field.number, known[1] if is_example else field.type, field.is_repeated], described
    for output in ("number", "precise", "small", "large", "flag", "pair", "ids"):
        assert found["predict"][output] == array(output, ROWS[output]).astype(str).tolist() or INPUTS[output].is_single
    assert found["texts"] == {"text": ROWS["text"], "tags": [text for row in ROWS["tags"] for text in row]}
    assert found["specs"] == [
        ["same", 2, "serving_default"],
        ["small", 1, "classify"],
        ["small", 1, "regress"],
        ["same", 2, ""],
    ]
    assert found["classify"] == [[["all", 3.0]] * 2, [["own", 4.0]] * 2]
    assert found["regress"] == [3.0, 4.0]
    assert found["inputs"]["pair"] == ["float32", [-1, 2]]
    assert found["inputs"]["text"] == ["string", [-1]]
    assert found["status"] == [[2, 30, 0], [1, 30, 0]]
    assert found["refused"] == [
        ["INVALID_ARGUMENT", "Input number takes DT_FLOAT, not DT_STRING."],
        ["NOT_FOUND", "Servable not found for request: Latest(other)"],
    ]
