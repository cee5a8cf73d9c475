"""TensorFlow Serving's gRPC: ``PredictionService`` and ``ModelService``, for clients that have nothing else.

Names, signatures, examples, states and metadata are those of TensorFlow Serving's REST (``tensorflow_rest.py``), and
inputs are checked as tensors of the Open Inference Protocol (``tensors.py``). Here are only the messages: what is in a
request, and how an answer is written.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from google.protobuf import json_format  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from torch_estimator.export.dtypes import DTYPES
from torch_estimator.export.signatures import Signature, TensorInfo
from torch_estimator.json_text import shortened
from torch_estimator.serving.app import Answered
from torch_estimator.serving.batcher import Columns
from torch_estimator.serving.catalog import Version
from torch_estimator.serving.messages import read_messages
from torch_estimator.serving.open_inference import chosen_outputs
from torch_estimator.serving.service import PredictionService
from torch_estimator.serving.tensorflow_rest import (
    DEFAULT_SIGNATURE,
    check_context,
    example_results,
    examples_call,
    write_metadata,
    write_status,
)
from torch_estimator.serving.tensors import InputTensor, read_columns, texts_of
from torch_estimator.web.errors import RequestError

if TYPE_CHECKING:
    from torch_estimator.serving.grpc_server import Method

_MESSAGES = read_messages("tensorflow_serving")
_Response = _MESSAGES["PredictResponse"]
_TYPES = _MESSAGES["TensorProto"].DESCRIPTOR.fields_by_name["dtype"].enum_type

# TensorFlow's number of each type, and the field of its elements.
_FIELDS = {
    "DT_STRING": "string_val",
    "DT_FLOAT": "float_val",
    "DT_DOUBLE": "double_val",
    "DT_INT64": "int64_val",
    "DT_INT32": "int_val",
    "DT_BOOL": "bool_val",
}
_NUMBERS = {name: _TYPES.values_by_name[name].number for name in DTYPES}

_FAILED_PRECONDITION = 412


class TensorflowGrpc:
    """Answers TensorFlow Serving's requests; a RequestError says why one cannot be answered."""

    def __init__(self, service: PredictionService) -> None:
        self._service = service
        self._most_bytes = service.options.most_body_bytes
        self._most_rows = service.options.max_queue

    def services(self) -> Mapping[str, Mapping[str, tuple[Any, Method]]]:
        """Return the methods of each service by name, with the class of a request."""
        return {
            "tensorflow.serving.PredictionService": {
                "Predict": (_MESSAGES["PredictRequest"], self._predict),
                "Classify": (_MESSAGES["ClassificationRequest"], self._classify),
                "Regress": (_MESSAGES["RegressionRequest"], self._regress),
                "GetModelMetadata": (_MESSAGES["GetModelMetadataRequest"], self._metadata),
            },
            "tensorflow.serving.ModelService": {
                "GetModelStatus": (_MESSAGES["GetModelStatusRequest"], self._status),
            },
        }

    async def _predict(self, request: Any, answered: Answered) -> Any:
        version = self._version(request, answered)
        name = request.model_spec.signature_name or DEFAULT_SIGNATURE
        signature = version.export.signatures.get(name)
        if signature is None:
            raise RequestError(_FAILED_PRECONDITION, f'Serving signature key "{name}" not found.')
        columns, rows = self._columns(request, signature, version)
        chosen = chosen_outputs([(output, {}) for output in request.output_filter], signature, False)
        answered.instances = rows
        result = await self._service.predict_instances(version, name, columns, rows)
        answer = _Response()
        _name_version(answer.model_spec, version, name)
        for output, _ in chosen:
            write_tensor(answer.outputs[output], result.outputs[output], signature.outputs[output])
        return answer

    async def _classify(self, request: Any, answered: Answered) -> Any:
        version, name, results = await self._examples(request, answered, "classify")
        answer = _MESSAGES["ClassificationResponse"]()
        for pairs in results:
            classes = answer.result.classifications.add().classes
            for label, score in pairs:
                classes.add(label=str(label), score=score)
        _name_version(answer.model_spec, version, name)
        return answer

    async def _regress(self, request: Any, answered: Answered) -> Any:
        version, name, results = await self._examples(request, answered, "regress")
        answer = _MESSAGES["RegressionResponse"]()
        for value in results:
            answer.result.regressions.add(value=value)
        _name_version(answer.model_spec, version, name)
        return answer

    async def _metadata(self, request: Any, answered: Answered) -> Any:
        if not request.metadata_field:
            raise RequestError(400, "GetModelMetadataRequest must specify at least one metadata_field")
        for field in request.metadata_field:
            if field != "signature_def":
                raise RequestError(400, f"Metadata field {shortened(field)} is not supported")
        version = self._version(request, answered)
        signatures = _MESSAGES["SignatureDefMap"]()
        json_format.ParseDict(orjson.loads(write_metadata(version))["metadata"]["signature_def"], signatures)
        answer = _MESSAGES["GetModelMetadataResponse"]()
        _name_version(answer.model_spec, version, "")
        packed = answer.metadata["signature_def"]
        packed.type_url = f"type.googleapis.com/{signatures.DESCRIPTOR.full_name}"
        packed.value = signatures.SerializeToString()
        return answer

    async def _status(self, request: Any, answered: Answered) -> Any:
        written = write_status(self._service.catalog, *_named(request))
        return json_format.Parse(written, _MESSAGES["GetModelStatusResponse"]())

    def _version(self, request: Any, answered: Answered) -> Version:
        version = self._service.catalog.version(*_named(request))
        answered.model, answered.version = version.model, version.number
        return version

    def _columns(self, request: Any, signature: Signature, version: Version) -> tuple[Columns, int]:
        """Return the tensors of a request to predict by column, and the number of instances."""
        as_text = version.export.manifest.examples is None
        tensors = []
        for name, tensor in request.inputs.items():
            info = signature.inputs.get(name)
            if info is None:
                # It is refused, or left out, by read_columns.
                tensors.append(InputTensor(name, "", (), []))
            else:
                tensors.append(self._input(name, tensor, info, request, as_text=as_text))
        return read_columns(tensors, signature, version.export.unknown, as_text=as_text)

    def _input(self, name: str, tensor: Any, info: TensorInfo, request: Any, *, as_text: bool) -> InputTensor:
        number = tensor.dtype
        if number != _NUMBERS[info.dtype]:
            given = _TYPES.values_by_number.get(number)
            raise RequestError(400, f"Input {name} takes {info.dtype}, not {number if given is None else given.name}.")
        dimensions = tensor.tensor_shape.dim
        # Checked before they are read, since there may be millions of them.
        if len(dimensions) > len(info.shape) + 1:
            raise RequestError(400, f"Input {name} has {len(dimensions)} dimensions in place of {len(info.shape)}.")
        # Slices are lists, which are read several times faster than these sequences.
        shape = [one.size for one in dimensions[:]]
        datatype, count = info.type.datatype, math.prod(shape)
        if count < 0 or (len(shape) > 1 and min(shape) < 0):
            # It is refused by read_columns.
            return InputTensor(name, datatype, shape, [])
        content = tensor.tensor_content
        if content and datatype != "BYTES":
            if len(content) != count * info.type.wire.itemsize:
                wanted = f"{count} elements of {info.dtype} have {count * info.type.wire.itemsize}"
                raise RequestError(400, f"Input {name} has {len(content)} bytes in its tensor_content, but {wanted}.")
            return InputTensor(name, datatype, shape, content)
        values = _split_strings(content, count, name) if content else getattr(tensor, _FIELDS[info.dtype])[:]
        times = 1
        if len(values) == 1 < count:
            # TensorFlow's short form of a tensor whose elements are equal. Without limits, a small message could ask
            # for any number of instances; those that another tensor gives take a byte each at least.
            if 8 * count > self._most_bytes or shape[0] > max(self._most_rows, request.ByteSize()):
                problem = f"Input {name} repeats one value {count} times, which --max-queue and --max-body-mb forbid."
                raise RequestError(413, problem)
            times = count
        if datatype != "BYTES" and len(values) * times == count:
            # Arrays are run faster than lists, and together with those of other requests.
            return InputTensor(name, datatype, shape, np.array(values, info.type.wire).tobytes() * times)
        if as_text and datatype == "BYTES":
            values = texts_of(values, name)
        return InputTensor(name, datatype, shape, values * times)

    async def _examples(self, request: Any, answered: Answered, method: str) -> tuple[Version, str, Any]:
        """Return what a request to classify or regress is answered with: the version, the signature, the results."""
        version = self._version(request, answered)
        name = request.model_spec.signature_name
        if name and name not in version.export.signatures:
            raise RequestError(400, f"No signature was found with the name: {name}")
        content: dict[str, Any] = {"signature_name": name} if name else {}
        kind = request.input.WhichOneof("kind")
        examples = list(getattr(request.input, kind).examples) if kind else []
        if not examples:
            raise RequestError(400, "Input is empty.")
        if context := request.input.example_list_with_context.context:
            check_context(len(context), len(examples), self._most_bytes)
            # Two messages one after the other are one with the fields of both, in which the later one prevails.
            examples = [context + one for one in examples]
        if version.export.manifest.examples is None:
            examples = [_features(one, index) for index, one in enumerate(examples)]
        call = examples_call({**content, "examples": examples}, version, method)
        answered.instances = call.rows
        result = await self._service.predict_instances(version, call.signature, call.columns, call.rows)
        return version, call.signature, example_results(result, method)


def _named(request: Any) -> tuple[str, int | None, str | None]:
    """Return the name, the version and the label in the ``ModelSpec`` of a request."""
    if not request.HasField("model_spec"):
        raise RequestError(400, "Missing ModelSpec")
    spec = request.model_spec
    if not spec.name:
        raise RequestError(400, "ModelSpec has no name specified.")
    choice = spec.WhichOneof("version_choice")
    number = spec.version.value if choice == "version" else None
    return spec.name, number, spec.version_label if choice == "version_label" else None


def _name_version(spec: Any, version: Version, signature: str) -> None:
    """Write which version and signature have answered into a ``ModelSpec``."""
    spec.name = version.model
    spec.version.value = version.number
    spec.signature_name = signature


def write_tensor(tensor: Any, array: Any, info: TensorInfo) -> None:
    """Write an array into an empty ``TensorProto``, as the type in `info`."""
    tensor.dtype = _NUMBERS[info.dtype]
    dimensions = tensor.tensor_shape.dim
    for size in array.shape:
        dimensions.add(size=size)
    values = array.ravel().tolist()
    if info.dtype == "DT_STRING":
        values = [text.encode() for text in values]
    getattr(tensor, _FIELDS[info.dtype]).extend(values)


def _features(serialized: bytes, index: int) -> dict[str, Any]:
    """Return the features of a tf.Example by name, for a model that takes them by name; a lone value as such."""
    try:
        example = _MESSAGES["Example"].FromString(serialized)
    except DecodeError as error:
        raise RequestError(400, f"Instance {index} is no tf.Example.") from error
    kinds = {name: (one, one.WhichOneof("kind")) for name, one in example.features.feature.items()}
    return {name: list(getattr(one, kind).value) for name, (one, kind) in kinds.items() if kind is not None}


def _split_strings(content: bytes, count: int, name: str) -> list[bytes]:
    r"""Return the strings in the ``tensor_content`` of a tensor: `count` lengths as varints, then the bytes of all.

    >>> _split_strings(b"\x01\x02abc", 2, "word")
    [b'a', b'bc']
    """
    sizes: list[int] = []
    at = 0
    for index in range(min(count, len(content) + 1)):
        size = shift = 0
        while True:
            if at == len(content) or shift > 28:
                raise RequestError(400, f"Input {name} has no length of element {index} in its tensor_content.")
            size |= (content[at] & 127) << shift
            shift += 7
            at += 1
            if content[at - 1] < 128:
                break
        sizes.append(size)
    if at + sum(sizes) != len(content):
        raise RequestError(
            400, f"Input {name} has {len(content) - at} bytes of text in its tensor_content, not {sum(sizes)}."
        )
    ends = itertools.accumulate(sizes, initial=at)
    return [content[start:stop] for start, stop in itertools.pairwise(ends)]
