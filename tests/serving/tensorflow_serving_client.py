"""A client with TensorFlow's own packages, stock, in an environment of its own: asks a server, and prints what it got.

The argument is the address of the server. It needs nothing of this project.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import grpc
import tensorflow as tf
from google.protobuf import any_pb2, wrappers_pb2
from tensorflow.core.example import example_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

ROWS: dict[str, tuple[Any, Any]] = {
    "text": (["a", "", "héllo 日本 😀"], tf.string),
    "number": ([0.1, -2.5, 3e8], tf.float32),
    "precise": ([0.1, 1 / 3, -1e300], tf.float64),
    "small": ([1, -(2**31), 2**31 - 1], tf.int32),
    "large": ([1, -(2**63), 2**63 - 1], tf.int64),
    "flag": ([True, False, True], tf.bool),
    "pair": ([[1.0, 2.0], [3.0, 4.0], [5.0, 0.1]], tf.float32),
    "tags": ([["x", "y"], ["z", "u"], ["", "v"]], tf.string),
    "ids": ([[1], [2], [3]], tf.int64),
}
FILES = (
    predict_pb2,
    classification_pb2,
    regression_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    example_pb2,
    any_pb2,
    wrappers_pb2,
)


def predict_request() -> Any:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "same"
    for name, (values, dtype) in ROWS.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(values, dtype))
    request.inputs["bonus"].CopyFrom(tf.make_tensor_proto(1.5, tf.float32, shape=[3]))
    return request


def classify_request() -> Any:
    request = classification_pb2.ClassificationRequest()
    request.model_spec.name = "small"
    given = request.input.example_list_with_context
    given.context.features.feature["word"].bytes_list.value.append(b"all")
    for x in (1.5, 2.0):
        given.examples.add().features.feature["x"].float_list.value.append(x)
    given.examples[1].features.feature["word"].bytes_list.value.append(b"own")
    return request


def regress_request() -> Any:
    request = regression_pb2.RegressionRequest()
    request.model_spec.name = "small"
    for x in (1.5, 2.0):
        request.input.example_list.examples.add().features.feature["x"].float_list.value.append(x)
    return request


def spec_of(message: Any) -> list[Any]:
    return [message.model_spec.name, message.model_spec.version.value, message.model_spec.signature_name]


def refused(ask: Any, request: Any) -> list[str]:
    try:
        ask(request, timeout=60)
    except grpc.RpcError as error:
        return [error.code().name, error.details()]
    return ["OK", ""]


def fields_by_message() -> dict[str, dict[str, list[Any]]]:
    """Return the number, the type and the kind of each field of TensorFlow's messages."""
    found: dict[str, dict[str, list[Any]]] = {}

    def add(described: Any) -> None:
        # Names of entries of maps are not unique without those of their messages.
        name = described.full_name if described.GetOptions().map_entry else described.name
        if name in found:
            return
        found[name] = {one.name: [one.number, one.type, one.is_repeated] for one in described.fields}
        for one in described.fields:
            if one.message_type is not None:
                add(one.message_type)

    for file in FILES:
        for described in file.DESCRIPTOR.message_types_by_name.values():
            add(described)
    return found


def main() -> None:
    with grpc.insecure_channel(sys.argv[1]) as channel:
        service = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        answer = service.Predict(predict_request(), timeout=60)
        outputs = {name: tf.make_ndarray(one) for name, one in answer.outputs.items()}
        classified = service.Classify(classify_request(), timeout=60)
        regressed = service.Regress(regress_request(), timeout=60)
        request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        request.model_spec.name = "same"
        metadata = service.GetModelMetadata(request, timeout=60)
        signatures = get_model_metadata_pb2.SignatureDefMap()
        assert metadata.metadata["signature_def"].Unpack(signatures)
        request = get_model_status_pb2.GetModelStatusRequest()
        request.model_spec.name = "same"
        status = model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus(request, timeout=60)
        wrong = predict_request()
        wrong.inputs["number"].CopyFrom(tf.make_tensor_proto(["a", "b", "c"]))
        nowhere = predict_pb2.PredictRequest()
        nowhere.model_spec.name = "other"
        printed = {
            "fields": fields_by_message(),
            "predict": {
                name: one.astype(str).tolist() for name, one in outputs.items() if name not in ("text", "tags")
            },
            "texts": {name: [text.decode() for text in outputs[name].flat] for name in ("text", "tags")},
            "specs": [spec_of(one) for one in (answer, classified, regressed, metadata)],
            "classify": [
                [[each.label, each.score] for each in one.classes] for one in classified.result.classifications
            ],
            "regress": [one.value for one in regressed.result.regressions],
            "inputs": {
                name: [tf.dtypes.as_dtype(one.dtype).name, [size.size for size in one.tensor_shape.dim]]
                for name, one in signatures.signature_def["serving_default"].inputs.items()
            },
            "status": [[one.version, one.state, one.status.error_code] for one in status.model_version_status],
            "refused": [refused(service.Predict, one) for one in (wrong, nowhere)],
        }
        print(json.dumps(printed))


main()
