"""What Triton's clients ask for beside the Open Inference Protocol: a model's settings, its statistics, and all models.

The same answers go out as JSON and as messages of gRPC, whose fields they name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from torch_estimator.export.signatures import Signature, TensorInfo
from torch_estimator.json_text import shortened
from torch_estimator.serving.catalog import Catalog, Version
from torch_estimator.serving.metrics import Metrics
from torch_estimator.serving.service import PredictionService
from torch_estimator.serving.tensorflow_rest import read_json
from torch_estimator.web.errors import RequestError

# Methods of all protocols, in lower case, that ask a model for an answer.
_INFERENCE = ("infer", "modelinfer", "predict", "classify", "regress")

_STATES = {"AVAILABLE": "READY", "END": "UNAVAILABLE"}


def describe_config(service: PredictionService, model: str, signature: Signature) -> dict[str, Any]:
    """Return the settings of a model: how many instances run together, and its inputs and outputs for one instance."""
    inputs = [{**_tensor(name, info), "optional": info.default is not None} for name, info in signature.inputs.items()]
    return {
        "name": model,
        "platform": "onnxruntime_onnx",
        "backend": "onnxruntime",
        "max_batch_size": service.options.max_batch,
        "input": inputs,
        "output": [_tensor(name, info) for name, info in signature.outputs.items()],
        "dynamic_batching": {"max_queue_delay_microseconds": round(service.options.max_delay_ms * 1000)},
    }


def _tensor(name: str, info: TensorInfo) -> dict[str, Any]:
    datatype = info.type.datatype
    kind = "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"
    return {"name": name, "data_type": kind, "dims": list(info.shape[1:])}


async def statistics(service: PredictionService, models: list[str], version: Version | None) -> dict[str, Any]:
    """Return what a version, or else each loaded one of some models, has answered since the start, and how fast."""
    loaded = [one for name in models for _, one in sorted(service.catalog.state(name).versions.items())]
    versions = loaded if version is None else [version]
    # With many processes and models this reads many numbers.
    by_version = await asyncio.to_thread(_sums, service.metrics)
    return {"model_stats": [_statistics(one, by_version.get((one.model, str(one.number)), {})) for one in versions]}


def _sums(metrics: Metrics) -> dict[tuple[str, str], dict[str, float]]:
    """Return the metrics of inferences by model and version; those of single requests apart if they have failed."""
    sums: dict[tuple[str, str], dict[str, float]] = {}
    for name, labels, value in metrics.samples():
        if labels.get("method", "infer").lower() in _INFERENCE and "version" in labels:
            what = name.removeprefix("te_")
            if int(labels.get("code", 0)) >= 400:
                what = f"failed_{what}"
            of_version = sums.setdefault((labels["model"], labels["version"]), {})
            of_version[what] = of_version.get(what, 0.0) + value
    return sums


def _statistics(version: Version, sums: Mapping[str, float]) -> dict[str, Any]:
    def duration(count: str = "", secs: float = 0.0) -> dict[str, int]:
        return {"count": int(sums.get(count, 0)), "ns": max(0, round(secs * 1e9))}

    failed_secs = sums.get("failed_request_seconds_total", 0.0)
    return {
        "name": version.model,
        "version": str(version.number),
        "last_inference": round(sums.get("last_inference_timestamp_seconds", 0.0) * 1000),
        "inference_count": int(sums.get("predicted_instances_total", 0)),
        "execution_count": int(sums.get("executions_total", 0)),
        "inference_stats": {
            "success": duration("requests_total", sums.get("request_seconds_sum", 0.0) - failed_secs),
            "fail": duration("failed_requests_total", failed_secs),
            "queue": duration("predicted_requests_total", sums.get("queue_seconds_total", 0.0)),
            "compute_infer": duration("predicted_requests_total", sums.get("compute_seconds_total", 0.0)),
            # To read a request and to write its answer is not measured apart.
            **dict.fromkeys(("compute_input", "compute_output", "cache_hit", "cache_miss"), duration()),
        },
    }


def repository_index(catalog: Catalog, *, only_ready: bool) -> list[dict[str, Any]]:
    """Return the versions of all models with their states, in Triton's words."""
    entries: list[dict[str, Any]] = []
    for name in catalog.names():
        states = catalog.state(name).states
        for number, (word, problem) in sorted(states.items()):
            state = _STATES.get(word, word)
            if state == "READY" or not only_ready:
                entries.append({"name": name, "version": str(number), "state": state, "reason": problem})
        if not states and not only_ready:
            entries.append({"name": name})
    return entries


def wants_only_ready(body: bytes) -> bool:
    """Return whether the body of a request for the index, which may be empty, asks for no other versions."""
    content = read_json(body) if body.strip() else {}
    only_ready = content.get("ready", False) if isinstance(content, dict) else None
    if not isinstance(only_ready, bool):
        raise RequestError(400, f"The body may be an object with 'ready' as true or false, not {shortened(content)}.")
    return only_ready
