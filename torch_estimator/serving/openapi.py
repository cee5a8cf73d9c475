"""Description of the REST interface as an OpenAPI 3.1 document, with schemas made from the signatures of the models.

A schema describes the default version of a model. Some rules cannot be said in a schema: the columns of ``inputs`` must
be equally long, rows of CSV must have the right fields, and NaN and infinities are written as TensorFlow Serving writes
them, which is more than JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch_estimator.export.dtypes import BYTES_SCHEMA
from torch_estimator.export.signatures import CLASSIFY, REGRESS, Signature, TensorInfo
from torch_estimator.serving.catalog import ModelState, Version
from torch_estimator.serving.service import PredictionService

Schema = dict[str, Any]

_PROBLEMS = {
    400: "The request is wrong; the sentence names the instance and the input.",
    401: "The request needs a token.",
    404: "There is no such model or version.",
    408: "The body was not sent in time.",
    413: "The body is too large.",
    415: "The body is compressed, but with neither gzip nor deflate.",
    429: "Too many instances wait; try again later.",
    503: "The server is not ready.",
    504: "The request has waited for too long.",
}
_OF_PREDICTION = (400, 401, 404, 408, 413, 415, 429, 504)
_OF_INDEX = (400, 401, 408, 413, 415)
_VERSION = {"name": "version", "in": "path", "required": True, "schema": {"type": "integer", "minimum": 0}}
_LABEL = {"name": "label", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def document(service: PredictionService) -> dict[str, Any]:
    """Return the OpenAPI document of a server, for the versions that are loaded now."""
    paths: dict[str, Any] = {
        "/metrics": {"get": _operation("metrics", "Metrics in Prometheus' format", _text(), ())},
        "/monitoring/prometheus/metrics": {
            "get": _operation("monitoring_metrics", "The same, where TensorFlow Serving has them", _text(), ())
        },
        "/openapi.json": {"get": _operation("openapi", "This document", _json({"type": "object"}), ())},
    }
    object_answer = _json({"type": "object"})
    for place, summary, problems in (
        ("/v2", "Name, version and extensions of the server", (401,)),
        ("/v2/health/live", "Whether the server runs", ()),
        ("/v2/health/ready", "Whether every model answers", (503,)),
        ("/v2/models/stats", "What all models have answered, and how fast", (401,)),
    ):
        paths[place] = {"get": _operation(place[1:].replace("/", "_"), summary, object_answer, problems)}
    index = _operation("v2_repository_index", "Versions of all models", _json(_list({"type": "object"})), _OF_INDEX)
    ready = _object({"ready": {"type": "boolean"}}, required=())
    index["requestBody"] = {"content": {"application/json": {"schema": ready}}}
    paths["/v2/repository/index"] = {"post": index}
    schemas: dict[str, Any] = {
        "Error": _object({"error": {"type": "string"}}),
        "Status": _status_schema(),
        "Bytes": BYTES_SCHEMA,
        "Context": {"type": "object"},
    }
    for name in service.catalog.names():
        state = service.catalog.state(name)
        if state.default is not None:
            schemas |= _model_schemas(name, state.versions[state.default])
        paths |= _model_paths(name, state, schemas)
        paths |= _open_inference_paths(name, schemas)
    described = service.describe()
    content: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": described["name"], "version": described["version"]},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if service.options.token_file is not None:
        content["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        content["security"] = [{"token": []}]
    return content


def _model_paths(name: str, state: ModelState, schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Return the operations on a model, its versions and its labels."""
    paths: dict[str, Any] = {}
    model = f"/v1/models/{name}"
    places = [("", model, ()), ("_of_version", f"{model}/versions/{{version}}", (_VERSION,))]
    if state.labels:
        places.append(("_of_label", f"{model}/labels/{{label}}", (_LABEL,)))
    for suffix, place, parameters in places:
        status = _json({"$ref": "#/components/schemas/Status"})
        metadata = _json({"type": "object"})
        shared = {"parameters": list(parameters)} if parameters else {}
        paths[place] = {
            "get": _operation(f"{name}_status{suffix}", "State of the versions", status, (400, 401, 404)),
            **shared,
        }
        paths[f"{place}/metadata"] = {
            "get": _operation(f"{name}_metadata{suffix}", "Signatures", metadata, (400, 401, 404)),
            **shared,
        }
        for method in ("predict", "classify", "regress"):
            if f"{name}.{method}.request" in schemas:
                answer = _json({"$ref": f"#/components/schemas/{name}.{method}.answer"})
                operation = _operation(f"{name}_{method}{suffix}", method.capitalize(), answer, _OF_PREDICTION)
                request = {"$ref": f"#/components/schemas/{name}.{method}.request"}
                operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": request}}}
                paths[f"{place}:{method}"] = {"post": operation, **shared}
    return paths


def _open_inference_paths(name: str, schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Return the operations of the Open Inference Protocol on a model and on its versions."""
    paths: dict[str, Any] = {}
    model = f"/v2/models/{name}"
    for suffix, place, shared in (
        ("", model, {}),
        ("_of_version", f"{model}/versions/{{version}}", {"parameters": [_VERSION]}),
    ):
        for end, summary, problems in (
            ("", "Inputs and outputs of the default signature", (400, 401, 404)),
            ("/ready", "Whether the model answers", (400, 401, 404, 503)),
            ("/config", "Settings of the model, as Triton says them", (400, 401, 404)),
            ("/stats", "What the model has answered, and how fast", (401, 404)),
        ):
            identifier = f"{name}_v2{end.replace('/', '_')}{suffix}"
            paths[f"{place}{end}"] = {
                "get": _operation(identifier, summary, _json({"type": "object"}), problems),
                **shared,
            }
        if f"{name}.infer.request" in schemas:
            answer = _json({"type": "object"})
            operation = _operation(f"{name}_v2_infer{suffix}", "Infer", answer, _OF_PREDICTION)
            request = {"$ref": f"#/components/schemas/{name}.infer.request"}
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": request}}}
            paths[f"{place}/infer"] = {"post": operation, **shared}
    return paths


def _infer_request(signature: Signature) -> Schema:
    """Return the schema of a request of the Open Inference Protocol, with its data in JSON."""
    tensors = []
    for name, info in signature.inputs.items():
        fields: dict[str, Schema] = {
            "name": {"const": name},
            "datatype": {"const": info.type.datatype},
            "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
            "data": {"type": "array", "items": {}},
        }
        tensors.append(_object(fields))
    outputs = {"type": "array", "items": _object({"name": {"enum": list(signature.outputs)}})}
    request: dict[str, Schema] = {"id": {"type": "string"}, "inputs": _list({"anyOf": tensors}), "outputs": outputs}
    return _object(request, required=["inputs"])


def _model_schemas(name: str, version: Version) -> dict[str, Any]:
    """Return the schemas of the requests and the answers of a model."""
    signatures = version.export.signatures
    schemas: dict[str, Any] = {}
    requests, answers = [], []

    def named_schema(key: str, schema: Schema) -> Schema:
        # Generators of clients make a class of each object. Without names of their own, many would get the same one.
        schemas[f"{name}.{key}"] = schema
        return {"$ref": f"#/components/schemas/{name}.{key}"}

    for key, signature in signatures.items():
        instance = named_schema(f"{key}.instance", _instance(signature, version.export.unknown.ignore))
        named = {"signature_name": {"const": key}}
        required = () if key == "serving_default" else ("signature_name",)
        rows = _object({**named, "instances": _list(instance)}, required=("instances", *required))
        inputs = named_schema(f"{key}.inputs", _inputs(signature))
        columns = _object({**named, "inputs": inputs}, required=("inputs", *required))
        requests.append(named_schema(f"{key}.by_row", {**rows, "not": {"required": ["inputs"]}}))
        requests.append(named_schema(f"{key}.by_column", {**columns, "not": {"required": ["instances"]}}))
        outputs = {output: _row(info, is_input=False) for output, info in signature.outputs.items()}
        row, column = _object(outputs), _object({output: _list(schema) for output, schema in outputs.items()})
        if len(outputs) == 1:
            # TensorFlow Serving drops the name of a single output.
            (row,) = outputs.values()
            column = _list(row)
        else:
            row, column = named_schema(f"{key}.prediction", row), named_schema(f"{key}.outputs", column)
        answers.append(named_schema(f"{key}.answer_by_row", _object({"predictions": _list(row)})))
        answers.append(named_schema(f"{key}.answer_by_column", _object({"outputs": column})))
    schemas[f"{name}.predict.request"] = {"anyOf": requests}
    schemas[f"{name}.predict.answer"] = {"anyOf": answers}
    if "serving_default" in signatures:
        schemas[f"{name}.infer.request"] = _infer_request(signatures["serving_default"])
    pair: Schema = {"type": "array", "items": {"type": ["string", "number"]}, "minItems": 2, "maxItems": 2}
    for method, kind, result in (("classify", CLASSIFY, _list(pair)), ("regress", REGRESS, {"type": "number"})):
        fitting = [key for key, signature in signatures.items() if signature.method_name == kind]
        if not fitting:
            continue
        # Without a name, serving_default answers if it is for this method, and the first one that is otherwise.
        unnamed = "serving_default" if "serving_default" in fitting else fitting[0]
        of_method = []
        for key in fitting:
            instance = {"$ref": f"#/components/schemas/{name}.{key}.instance"}
            fields = {
                "signature_name": {"const": key},
                "examples": _list(instance),
                "context": {"$ref": "#/components/schemas/Context"},
            }
            of_method.append(_object(fields, required=["examples"] + ["signature_name"] * (key != unnamed)))
        schemas[f"{name}.{method}.request"] = {"anyOf": of_method}
        schemas[f"{name}.{method}.answer"] = _object({"results": _list(result)})
    return schemas


def _instance(signature: Signature, ignore_unknown: bool) -> Schema:
    """Return the schema of one row."""
    rows = {key: _row(info, is_input=True) for key, info in signature.inputs.items()}
    needed = [key for key, info in signature.inputs.items() if info.default is None]
    instance = {**_object(rows, required=needed), "additionalProperties": ignore_unknown}
    if len(rows) == 1:
        return {"anyOf": [instance, *rows.values()]}
    return instance


def _inputs(signature: Signature) -> Schema:
    """Return the schema of the columns of a request."""
    columns = {key: _list(_row(info, is_input=True)) for key, info in signature.inputs.items()}
    needed = [key for key, info in signature.inputs.items() if info.default is None]
    inputs = _object(columns, required=needed)
    if len(columns) == 1:
        return {"anyOf": [inputs, *columns.values()]}
    return inputs


def _row(info: TensorInfo, *, is_input: bool) -> Schema:
    """Return the schema of an input's or output's value for one row."""
    scalar = info.type.schema(is_input=is_input)
    is_nullable = is_input and info.default is not None
    if is_nullable:
        scalar = _or_null(scalar)
    schema = scalar
    for size in reversed(info.shape[1:]):
        schema = {"type": "array", "items": schema}
        if size >= 0:
            schema |= {"minItems": size, "maxItems": size}
    if is_input and (info.is_single or info.holds_lists):
        # A single value may be given bare, and as a list.
        alternative = {"type": "array", "items": scalar, "minItems": 1, "maxItems": 1}
        return {"anyOf": [scalar, schema if info.holds_lists else alternative]}
    return _or_null(schema) if is_nullable else schema


def _or_null(schema: Schema) -> Schema:
    if "anyOf" in schema:
        return {"anyOf": [*schema["anyOf"], {"type": "null"}]}
    return {**schema, "type": [schema["type"], "null"]}


def _status_schema() -> Schema:
    status = _object({"error_code": {"type": "string"}, "error_message": {"type": "string"}})
    version = _object({"version": {"type": "string"}, "state": {"type": "string"}, "status": status})
    return _object({"model_version_status": _list(version)})


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items, "minItems": 1}


def _object(fields: Mapping[str, Schema], required: Iterable[str] | None = None) -> Schema:
    return {"type": "object", "properties": dict(fields), "required": list(fields if required is None else required)}


def _operation(identifier: str, summary: str, answer: Schema, problems: Iterable[int]) -> dict[str, Any]:
    error = _json({"$ref": "#/components/schemas/Error"})
    responses = {str(code): {"description": _PROBLEMS[code], **error} for code in problems}
    return {
        "operationId": identifier,
        "summary": summary,
        "responses": {"200": {"description": "The answer.", **answer}, **responses},
    }


def _json(schema: Schema) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def _text() -> dict[str, Any]:
    return {"content": {"text/plain": {"schema": {"type": "string"}}}}
