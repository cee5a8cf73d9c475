"""TensorFlow Serving's REST: what is in a request, and how an answer is written.

A predict request gives its instances by row (``{"instances": [{"age": 25, …}, …]}``) or by column
(``{"inputs": {"age": [25, …], …}}``), and is answered the same way. Classify and regress requests give ``examples``.
NaN and infinities are the tokens ``NaN``, ``Infinity`` and ``-Infinity`` in both directions.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from torch_estimator.errors import InvalidValueError
from torch_estimator.export.dtypes import all_texts
from torch_estimator.export.instances import InstanceError, bare_value, decoded, to_columns, to_example
from torch_estimator.export.signatures import CLASSIFY, REGRESS, Signature, TensorInfo
from torch_estimator.export.unknown_names import UnknownNames
from torch_estimator.json_text import parse_json, shortened
from torch_estimator.serving.batcher import Columns, Result
from torch_estimator.serving.catalog import Catalog, ModelState, Version
from torch_estimator.web.errors import RequestError

DEFAULT_SIGNATURE = "serving_default"

# Least number of floats in a column that becomes an array. Smaller requests are run together, which needs lists.
_MANY = 128

METHODS = ("predict", "classify", "regress")
"""What a request may ask a model to do."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a request asks for, and whether its instances were given by row."""

    signature: str
    columns: Columns
    rows: int
    by_row: bool


def read_json(body: bytes) -> Any:
    """Return the value of a JSON body; raise a RequestError if it is not JSON or nests too deep."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        pass
    # Read it again: orjson refuses NaN and Infinity, which TensorFlow Serving takes, and its messages are short.
    try:
        content = parse_json(body.decode("utf-8-sig"))
        if b"\\ud" in body.lower():
            # JSON can name halves of surrogate pairs, such as \ud800, which are no text. This finds them.
            json.dumps(content, ensure_ascii=False).encode()
        return content
    except UnicodeEncodeError as error:
        raise RequestError(400, "JSON Parse error: a string has one half of a surrogate pair.") from error
    except UnicodeDecodeError as error:
        raise RequestError(400, f"JSON Parse error: the body is not UTF-8 (byte {error.start}).") from error
    except json.JSONDecodeError as error:
        if not body.strip():
            raise RequestError(400, "JSON Parse error: the body is empty; send a JSON object.") from error
        raise RequestError(400, f"JSON Parse error: {error}") from error
    except ValueError as error:
        # Python reads integers of up to 4,300 digits.
        raise RequestError(400, "JSON Parse error: a number has too many digits.") from error


def read_predict(body: bytes, version: Version) -> Call:
    """Return what a predict request asks for; a RequestError names the wrong instance and input."""
    content = _object(read_json(body))
    name, signature = _signature(content, version)
    instances, inputs = content.get("instances"), content.get("inputs")
    if (instances is None) == (inputs is None):
        if instances is None:
            raise RequestError(400, "Missing 'inputs' or 'instances' key")
        raise RequestError(400, "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist")
    if inputs is not None:
        columns, rows = _columns(inputs, signature, version.export.unknown)
        return Call(name, columns, rows, by_row=False)
    if not isinstance(instances, list) or not instances:
        raise RequestError(
            400, f"'instances' must be a list with at least one instance, but got {shortened(instances)}."
        )
    return Call(name, _by_column(instances, signature, version.export.unknown), len(instances), by_row=True)


def read_examples(body: bytes, version: Version, method: str, most_bytes: int) -> Call:
    """Return what a ``classify`` or ``regress`` request asks for; a RequestError names the wrong example and input."""
    content = _object(read_json(body))
    if (context := content.get("context")) and isinstance(examples := content.get("examples"), list):
        try:
            size = len(orjson.dumps(context))
        except orjson.JSONEncodeError:
            # It is nested deeply, or has integers that no input takes; such a context is refused anyway.
            size = len(body)
        check_context(size, len(examples), most_bytes)
    return examples_call(content, version, method)


def check_context(size: int, examples: int, most_bytes: int) -> None:
    """Raise a RequestError if a context of so many bytes, which each example gets, takes more than a body may have."""
    if size * examples > most_bytes:
        raise RequestError(
            413, f"The context has {size} bytes, and {examples} examples get it, which --max-body-mb forbids."
        )


def examples_call(content: Mapping[str, Any], version: Version, method: str) -> Call:
    """Return what a request like `read_examples` asks for, given its JSON; examples may be serialized tf.Examples."""
    name, signature = _signature(content, version)
    wanted = CLASSIFY if method == "classify" else REGRESS
    if "signature_name" not in content and signature.method_name != wanted:
        # The default signature may be for predict, so take the first one that fits.
        for other, candidate in version.export.signatures.items():
            if candidate.method_name == wanted:
                name, signature = other, candidate
                break
    if signature.method_name != wanted:
        raise RequestError(400, f"The signature {name!r} is for {signature.method_name}, not for {wanted}.")
    examples, context = content.get("examples"), content.get("context", {})
    if not isinstance(examples, list) or not examples:
        raise RequestError(400, f"'examples' must be a list with at least one example, but got {shortened(examples)}.")
    if not isinstance(context, dict):
        raise RequestError(400, f"'context' must be an object, but got {shortened(context)}.")
    if context:
        examples = [{**context, **one} if isinstance(one, dict) else one for one in examples]
    example_format = version.export.manifest.examples
    if example_format is not None:
        try:
            examples = [
                to_example(one, example_format) if isinstance(one, dict) and set(one) != {"b64"} else one
                for one in examples
            ]
        except InvalidValueError as error:
            raise RequestError(400, str(error)) from error
    return Call(name, _by_column(examples, signature, version.export.unknown), len(examples), by_row=True)


def write_predict(call: Call, result: Result) -> bytes:
    """Return the body of the answer to a predict request."""
    # By column, orjson writes the arrays of numbers itself. By row, short lists are faster for all but floats.
    as_arrays = "f" if call.by_row else "fiu"
    outputs = {name: _as_json(name, array, as_arrays) for name, array in result.outputs.items()}
    if not call.by_row:
        only = next(iter(outputs.values())) if len(outputs) == 1 else outputs
        return _dumps({"outputs": only}, result.is_finite)
    if len(outputs) == 1:
        return _dumps({"predictions": next(iter(outputs.values()))}, result.is_finite)
    names = list(outputs)
    rows = [dict(zip(names, values, strict=True)) for values in zip(*outputs.values(), strict=True)]
    return _dumps({"predictions": rows}, result.is_finite)


def write_examples(result: Result, method: str) -> bytes:
    """Return the body of the answer to a classify or regress request, as `example_results`."""
    return _dumps({"results": example_results(result, method)}, result.is_finite)


def example_results(result: Result, method: str) -> Any:
    """Return a number for each example to regress, and the pairs of label and score for each one to classify.

    Raise a RequestError if the signature lacks the outputs of its method.
    """
    try:
        if method == "regress":
            values = result.outputs["outputs"]
            return values.reshape(len(values), -1)[:, 0]
        labels, scores = result.outputs["classes"], result.outputs["scores"]
    except KeyError as error:
        raise RequestError(400, f"The signature has no output {error}, which {method} needs.") from error
    return [
        [[label, score] for label, score in zip(row_labels, row_scores, strict=True)]
        for row_labels, row_scores in zip(labels.tolist(), scores, strict=True)
    ]


def write_status(catalog: Catalog, model: str, number: int | None, label: str | None) -> bytes:
    """Return the status of a model's versions, or of the one that the request names by number or label."""
    state = catalog.state(model) if catalog.has(model) else ModelState()
    known = state.states
    if label is not None:
        number = state.number_of(label)
    if number is not None:
        known = {number: known[number]} if number in known else {}
    if not known:
        what = "any versions" if number is None else f"version {number}"
        raise RequestError(404, f"Could not find {what} of model {model}")
    return orjson.dumps(
        {
            "model_version_status": [
                {
                    "version": str(one),
                    "state": word,
                    "status": {"error_code": "UNKNOWN" if problem else "OK", "error_message": problem},
                }
                for one, (word, problem) in sorted(known.items(), reverse=True)
            ]
        }
    )


def write_metadata(version: Version) -> bytes:
    """Return the signatures of a version."""
    definitions = {
        name: {
            "inputs": {key: _tensor(info) for key, info in signature.inputs.items()},
            "outputs": {key: _tensor(info) for key, info in signature.outputs.items()},
            "method_name": signature.method_name,
            "defaults": {},
        }
        for name, signature in version.export.signatures.items()
    }
    return orjson.dumps(
        {
            "model_spec": {"name": version.model, "signature_name": "", "version": str(version.number)},
            "metadata": {"signature_def": {"signature_def": definitions}},
        }
    )


def _tensor(info: TensorInfo) -> dict[str, Any]:
    dimensions = [{"size": str(size), "name": ""} for size in info.shape]
    return {
        "dtype": info.dtype,
        "tensor_shape": {"dim": dimensions, "unknown_rank": False},
        "name": f"{info.tensor}:0",
    }


def _object(content: Any) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise RequestError(400, f"The body must be a JSON object, but got {shortened(content)}.")
    return content


def _signature(content: Mapping[str, Any], version: Version) -> tuple[str, Signature]:
    name = content.get("signature_name", DEFAULT_SIGNATURE)
    if not isinstance(name, str):
        raise RequestError(400, f"'signature_name' must be a string, but got {shortened(name)}.")
    signature = version.export.signatures.get(name or DEFAULT_SIGNATURE)
    if signature is None:
        raise RequestError(400, f'Serving signature name: "{name}" not found in signature def')
    return name or DEFAULT_SIGNATURE, signature


def _by_column(instances: Sequence[Any], signature: Signature, unknown: UnknownNames) -> Columns:
    try:
        return to_columns(instances, signature, unknown)
    except InstanceError as error:
        raise RequestError(400, f"Instance {error.index}: {error}") from error


def _columns(inputs: Any, signature: Signature, unknown: UnknownNames) -> tuple[Columns, int]:
    """Return the inputs of a request by column, and the number of instances."""
    if not isinstance(inputs, dict) or (set(inputs) == {"b64"} and len(signature.inputs) == 1):
        if len(signature.inputs) != 1:
            names = ", ".join(signature.inputs)
            raise RequestError(400, f"'inputs' must be an object with {names}, but got {shortened(inputs)}.")
        inputs = {next(iter(signature.inputs)): inputs}
    if unknown.ignore:
        # Without that, TensorFlow Serving leaves them out of a request by column without a word.
        unknown.see(inputs, signature)
    columns: dict[str, Any] = {}
    rows: int | None = None
    for name, info in signature.inputs.items():
        values = inputs.get(name)
        if values is None:
            if info.default is None:
                raise RequestError(400, f"Missing named input: {name} in 'inputs' object.")
            continue
        if not isinstance(values, list):
            raise RequestError(
                400, f"Input {name} must be a list with one value per instance, not {shortened(values)}."
            )
        if rows is not None and len(values) != rows:
            raise RequestError(400, f"Input {name} has {len(values)} values, but the inputs before it have {rows}.")
        rows = len(values)
        columns[name] = _plain_column(values, info, name)
    if not rows:
        raise RequestError(400, "The request has no instance; give at least one.")
    for name, info in signature.inputs.items():
        if name not in columns:
            columns[name] = [info.missing] * rows
    return columns, rows


def _plain_column(values: list[Any], info: TensorInfo, name: str) -> Any:
    """Return a column without lists of one value and with its bytes decoded; many floats as an array."""
    if info.dtype == "DT_STRING" and all_texts(values):
        return values
    types = set(map(type, values))
    if info.dtype == "DT_FLOAT" and len(values) >= _MANY and types <= {int, float}:
        array = np.asarray(values)
        # An integer of more than 64 bits makes an array of objects. The model's check of the list names the integer.
        return array if array.dtype.kind in "fi" else values
    if types <= {str, int, float}:
        return values
    plain: list[Any] = []
    try:
        plain.extend(bare_value(decoded(value, name), info.shape) for value in values)
    except InvalidValueError as error:
        raise RequestError(400, f"Instance {len(plain)}: {error}") from error
    return plain


def _as_json(name: str, array: npt.NDArray[Any], as_arrays: str) -> Any:
    """Return an output as a list, or as an array if its kind is among `as_arrays`.

    Floats have to stay arrays, because orjson writes these in their own precision.
    """
    if array.dtype.kind in as_arrays:
        return array
    values = array.tolist()
    return _base64(values) if name.endswith("_bytes") else values


def _base64(value: Any) -> Any:
    if isinstance(value, list):
        return [_base64(item) for item in value]
    return {"b64": base64.b64encode(value if isinstance(value, bytes) else value.encode()).decode()}


def _dumps(content: Any, is_finite: bool) -> bytes:
    if is_finite:
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY, default=_contiguous)
    # orjson writes null for NaN and infinities; Python's json writes the tokens that TensorFlow Serving writes.
    return json.dumps(_python(content), ensure_ascii=False).encode()


def _contiguous(value: Any) -> Any:
    """Convert an array that orjson refuses to a contiguous one, or to a list if it is contiguous already."""
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value) if not value.flags.c_contiguous else value.tolist()
    raise TypeError(f"{type(value)} is not JSON")


def _python(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [_python(item) for item in value]
    if isinstance(value, np.floating):
        # The text of a float32 is its shortest form; converted to a double directly, 0.1 would be 0.10000000149011612.
        return float(str(value))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: _python(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_python(item) for item in value]
    return value
