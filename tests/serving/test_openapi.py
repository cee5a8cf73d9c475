"""The OpenAPI document is valid, describes every route, and a fuzzer that follows it finds nothing."""

from __future__ import annotations

import collections
import contextlib
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import requests

from tests.serving.models import INPUTS, app_of, ask, serving
from torch_estimator.registry import Registry
from torch_estimator.serving.app import ServingApp
from torch_estimator.serving.options import ServingOptions
from torch_estimator.serving.service import PredictionService

schemathesis = pytest.importorskip("schemathesis")


def test_every_model_and_method_is_described(app: ServingApp) -> None:
    document = ask(app, "/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    model = "/v1/models/small"
    ends = ["", "/ready", "/infer", "/config", "/stats"]
    methods = [":predict", ":classify", ":regress", "/metadata", ""]
    assert document["paths"].keys() == {
        *("/metrics", "/monitoring/prometheus/metrics", "/openapi.json"),
        *(f"{model}{method}" for method in methods),
        *(f"{model}/versions/{{version}}{method}" for method in methods),
        *("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/stats", "/v2/repository/index"),
        *(f"/v2/models/small{end}" for end in ends),
        *(f"/v2/models/small/versions/{{version}}{end}" for end in ends),
    }
    instance = document["components"]["schemas"]["small.serving_default.instance"]
    assert list(instance["properties"]) == list(INPUTS)
    assert (instance["required"], instance["additionalProperties"]) == (["x"], False)
    assert instance["properties"]["x"]["anyOf"][0] == {"type": "number"}
    assert instance["properties"]["count"]["anyOf"][0]["type"] == ["integer", "null"]
    assert instance["properties"]["pair"] == {
        "type": ["array", "null"],
        "items": {"type": ["number", "null"]},
        "minItems": 2,
        "maxItems": 2,
    }


def test_labels_and_tokens_are_described_where_there_are_some(base: Path, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    registry.create_model("small")
    registry.create_model("empty")
    registry.create_version("small", 1, base / "1")
    registry.update("small", 1, labels=["stable"])
    (tmp_path / "tokens").write_text("secret")
    service = PredictionService(ServingOptions(registry=registry.url, token_file=str(tmp_path / "tokens")))
    service.start()
    document = ask(ServingApp(service), "/openapi.json", headers={"authorization": "Bearer secret"}).json()
    service.close()
    assert "/v1/models/small/labels/{label}:predict" in document["paths"]
    assert "/v1/models/empty" in document["paths"]
    assert "/v1/models/empty:predict" not in document["paths"]
    assert document["security"] == [{"token": []}]


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
def test_a_fuzzer_that_follows_the_document_finds_nothing(base: Path, mode: Any) -> None:
    from schemathesis.specs.openapi import checks

    wanted = [
        checks.status_code_conformance,
        checks.content_type_conformance,
        schemathesis.checks.not_a_server_error,
        checks.response_schema_conformance,
    ]
    with serving("--model", f"small={base}", "--versions", "all") as server, requests.Session() as session:
        schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        operations = [found.ok() for found in schema.get_all_operations()]
        assert len(operations) >= 12
        statuses: collections.Counter[int] = collections.Counter()
        for operation in operations:

            @hypothesis.settings(
                max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(hypothesis.HealthCheck)
            )
            @hypothesis.given(case=operation.as_strategy(mode))
            def fuzz(case: Any) -> None:
                answer = case.call(session=session)
                statuses[answer.status_code] += 1
                # NaN and infinities are in no schema, because they are not JSON.
                is_json = b"NaN" not in answer.content and b"Infinity" not in answer.content
                case.validate_response(answer, checks=wanted if is_json else wanted[:-1])

            # Where there are no parameters, nothing can be wrong.
            with contextlib.suppress(hypothesis.errors.Unsatisfiable):
                fuzz()
        assert server.end()[0] == 0
    assert 400 in statuses
    assert set(statuses) <= {200, 400, 404}


def test_the_document_is_valid(base: Path) -> None:
    with app_of(base) as app:
        schema = schemathesis.openapi.from_dict(ask(app, "/openapi.json").json())
        schema.validate()
