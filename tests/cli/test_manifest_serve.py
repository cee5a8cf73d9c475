"""What ``estimator manifest serve`` writes is valid and safe, and starts a server that answers its probes."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from tests.cluster.security import objections
from tests.cluster_jobs import free_port
from tests.serving.served import ROOT, write_export
from torch_estimator.cli import main
from torch_estimator.registry import Registry

IMAGE = "registry.example.com/torch-estimator@sha256:" + "0" * 64
PLAIN = ("--image", IMAGE, "--claim", "models")


def written(capsys: pytest.CaptureFixture[str], *arguments: str, name: str = "prices") -> dict[str, Any]:
    """The objects by kind."""
    assert main(["manifest", "serve", name, *arguments]) == 0
    text = capsys.readouterr().out
    # An operator reads and edits it: no references of YAML.
    assert "&id" not in text
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


def container(pod: Any) -> Any:
    (only,) = pod["containers"]
    return only


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("--namespace", "shop", "--min-replicas", "1", "--max-replicas", "1", "--cpus", "0.5", "--memory", "512Mi"),
        ("--secret", "tokens", "--", "--token-file", "/secrets/tokens", "--workers", "2", "--max-batch", "8"),
        ("--", "--model", "a=/models/a", "--model", "b=s3://bucket/b", "--access-log", "-"),
    ],
)
def test_every_object_is_valid_and_safe(capsys: pytest.CaptureFixture[str], more: tuple[str, ...]) -> None:
    objects = written(capsys, *PLAIN, *more)
    assert list(objects) == ["NetworkPolicy", "Service", "PodDisruptionBudget", "Deployment", "HorizontalPodAutoscaler"]
    for one in objects.values():
        kubernetes_validate.validate(one, "1.33", strict=True)
        assert one["metadata"]["name"] == "prices"
        assert one["metadata"].get("namespace") == ("shop" if "shop" in more else None)
    deployment = objects["Deployment"]["spec"]
    assert objections(deployment["template"]["spec"]) == []
    # All of them mean these pods.
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"] == labels
    assert objects["Service"]["spec"]["selector"] == labels
    assert objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    scaler = objects["HorizontalPodAutoscaler"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == objects["Deployment"]["metadata"]["name"]
    assert "replicas" not in deployment, "it would overrule the autoscaler"
    opened = [one["port"] for one in objects["NetworkPolicy"]["spec"]["ingress"][0]["ports"]]
    assert opened == [one["containerPort"] for one in container(deployment["template"]["spec"])["ports"]]
    # A server whose models lie on the volume calls nobody; one that reads a bucket does.
    closed = "Egress" in objects["NetworkPolicy"]["spec"]["policyTypes"]
    assert closed == (not any("s3://" in one for one in more))


def test_the_validator_and_the_objections_find_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    deployment = written(capsys, *PLAIN)["Deployment"]
    wrong = copy.deepcopy(deployment)
    container(wrong["spec"]["template"]["spec"])["readinessProb"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.33", strict=True)
    pod = deployment["spec"]["template"]["spec"]
    for name in ("automountServiceAccountToken", "securityContext", "volumes"):
        assert objections({**pod, name: [] if name == "volumes" else {}})
    own = container(pod)
    for name in ("securityContext", "env"):
        assert objections({**pod, "containers": [{**own, name: {} if name == "securityContext" else []}]})


def test_pods_have_time_to_answer_what_they_have(capsys: pytest.CaptureFixture[str]) -> None:
    pod = written(capsys, *PLAIN, "--", "--drain-secs", "100")["Deployment"]["spec"]["template"]["spec"]
    going = container(pod)["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert going > 0
    assert pod["terminationGracePeriodSeconds"] > going + 100


def test_the_port_of_tensorflow_servings_grpc_is_open(capsys: pytest.CaptureFixture[str]) -> None:
    def opened(port: str) -> dict[str, int]:
        objects = written(capsys, *PLAIN, "--", "--tf-serving-grpc-port", port)
        ports = container(objects["Deployment"]["spec"]["template"]["spec"])["ports"]
        allowed = [one["port"] for one in objects["NetworkPolicy"]["spec"]["ingress"][0]["ports"]]
        assert allowed == [one["containerPort"] for one in ports]
        return {one["name"]: one["containerPort"] for one in ports}

    assert opened("8500") == {"http": 8501, "grpc": 8500}
    assert opened("8502") == {"http": 8501, "grpc": 8500, "grpc-tf-serving": 8502}


def test_threads_are_those_of_the_pod_and_not_of_the_node(capsys: pytest.CaptureFixture[str]) -> None:
    def threads(*more: str) -> tuple[str, str]:
        own = container(written(capsys, *PLAIN, *more)["Deployment"]["spec"]["template"]["spec"])
        environ = {one["name"]: one["value"] for one in own["env"]}
        return own["args"][-1], environ["OMP_NUM_THREADS"]

    assert threads("--cpus", "6") == ("6", "6")
    assert threads("--cpus", "0.5") == ("1", "1")
    assert threads("--cpus", "6", "--", "--workers", "3") == ("2", "2")
    assert threads("--cpus", "6", "--", "--threads", "4") == ("4", "4")


def test_pods_have_what_a_bucket_asks_for(capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--env-secret", "bucket", "--service-account", "reader", "--", "--registry", "s3://bucket/registry")
    for kserve in ([], ["--kserve"]):
        objects = written(capsys, "--image", IMAGE, *kserve, *more)
        if kserve:
            pod = objects["InferenceService"]["spec"]["predictor"]
        else:
            kubernetes_validate.validate(objects["Deployment"], "1.33", strict=True)
            pod = objects["Deployment"]["spec"]["template"]["spec"]
        assert container(pod)["envFrom"] == [{"secretRef": {"name": "bucket"}}]
        assert pod["serviceAccountName"] == "reader"
        # The clouds mount a token of their own for it.
        assert pod["automountServiceAccountToken"] is False


@contextmanager
def running(own: Any, replaced: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run the command of a container, with other paths, until the block ends."""
    assert own["command"][0] == "estimator"
    arguments = [*own["command"][1:], *own["args"]]
    for old, new in replaced.items():
        arguments = [one.replace(old, new) for one in arguments]
    environ = {**os.environ, **{one["name"]: one["value"] for one in own["env"]}}
    command = [sys.executable, "-m", "torch_estimator.cli", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environ)
    try:
        assert process.stdout is not None
        assert "Serving" in process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)


def asked(probe: Any) -> int:
    """The status that a kubelet would get."""
    if "grpc" in probe:
        with grpc.insecure_channel(f"127.0.0.1:{probe['grpc']['port']}") as channel:
            answer = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=60)
        # The field `status` is SERVING.
        return 200 if answer == b"\x08\x01" else 503
    get = probe["httpGet"]
    address = f"{get['scheme'].lower()}://127.0.0.1:{get['port']}{get['path']}"
    return httpx.get(address, timeout=60, verify=False).status_code


@pytest.mark.parametrize("kserve", [False, True])
def test_a_container_answers_its_probes(capsys: pytest.CaptureFixture[str], tmp_path: Path, kserve: bool) -> None:
    rest, rpc = free_port(), free_port()
    more = ["--kserve", "--", "--port", str(rest)] if kserve else ["--", "--port", str(rest), "--grpc-port", str(rpc)]
    objects = written(capsys, *PLAIN, *more)
    if kserve:
        pod = objects["InferenceService"]["spec"]["predictor"]
    else:
        pod = objects["Deployment"]["spec"]["template"]["spec"]
    own = container(pod)
    ports = {one["name"]: one["containerPort"] for one in own["ports"]}
    registry = Registry(tmp_path / "registry")
    registry.create_model("same")
    registry.create_model("late")
    write_export(tmp_path / "export")
    registry.create_version("same", 1, tmp_path / "export")
    with running(own, {"/models": registry.url}) as process:
        assert [asked(own[name]) for name in ("startupProbe", "livenessProbe", "readinessProbe")] == [200, 200, 200]
        (main_port,) = {"http", "http1"} & ports.keys()
        assert httpx.get(f"http://127.0.0.1:{ports[main_port]}/v1/models/same", timeout=60).status_code == 200
        assert own["readinessProbe"].get("grpc") == (None if kserve else {"port": ports["grpc"]})
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert time.monotonic() - began < (pod["timeout"] if kserve else pod["terminationGracePeriodSeconds"])


def test_a_model_without_a_version_keeps_a_pod_from_being_ready_but_not_from_living(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rest = free_port()
    more = ("--kserve", "--", "--port", str(rest), "--registry", "/models/registry", "--model", "empty")
    own = container(written(capsys, *PLAIN, *more)["InferenceService"]["spec"]["predictor"])
    Registry(tmp_path / "registry").create_model("empty")
    with running(own, {"/models": str(tmp_path)}):
        assert [asked(own[name]) for name in ("startupProbe", "livenessProbe", "readinessProbe")] == [200, 200, 503]


# What Knative takes in its default settings: knative/serving, pkg/apis/serving/fieldmask.go and pkg/apis/config/
# features.go. The fields before them are those of KServe: config/crd/full/serving.kserve.io_inferenceservices.yaml.
PREDICTOR = {"minReplicas", "maxReplicas", "timeout", "containers", "volumes"}
PREDICTOR |= {"automountServiceAccountToken", "enableServiceLinks"}
CONTAINER = {"name", "args", "command", "env", "image", "ports", "resources", "volumeMounts", "securityContext"}
CONTAINER |= {"livenessProbe", "readinessProbe", "startupProbe", "terminationMessagePolicy"}


def test_kserve_and_knative_know_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    objects = written(capsys, *PLAIN, "--kserve", "--namespace", "shop", name="Prices_" + "x" * 60)
    (service,) = objects.values()
    assert (service["apiVersion"], service["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    name = service["metadata"]["name"]
    assert len(f"{name}-predictor-00001") <= 63
    assert service["metadata"]["annotations"]["torch-estimator/name"] == "Prices_" + "x" * 60
    assert service["metadata"]["annotations"]["serving.kserve.io/deploymentMode"] == "Knative"
    (part,) = service["spec"]
    predictor = service["spec"][part]
    assert part == "predictor"
    assert predictor.keys() <= PREDICTOR
    assert (predictor["minReplicas"], predictor["maxReplicas"]) == (0, 4)
    own = container(predictor)
    assert own.keys() <= CONTAINER
    assert own["name"] == "kserve-container"
    assert own["ports"] == [{"name": "http1", "containerPort": 8501}]
    assert {"name": "PROTOCOL", "value": "v2"} in own["env"]
    assert not {"PORT", "K_SERVICE"} & {one["name"] for one in own["env"]}
    assert objections(predictor) == []
    # The container is one of Kubernetes.
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {}}
    pod["spec"] = {key: predictor[key] for key in ("containers", "volumes", "automountServiceAccountToken")}
    kubernetes_validate.validate(pod, "1.33", strict=True)


def test_tls_changes_the_scheme_of_the_probes(capsys: pytest.CaptureFixture[str]) -> None:
    tls = ("--tls-certificate", "/secrets/tls.crt", "--tls-key", "/secrets/tls.key")
    pod = written(capsys, *PLAIN, "--secret", "tls", "--", *tls)["Deployment"]["spec"]["template"]["spec"]
    assert container(pod)["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert {"name": "secrets", "secret": {"secretName": "tls"}} in pod["volumes"]


def test_other_names_are_mapped_and_said_and_a_tag_is_warned_of(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "serve.yaml"
    assert main(["manifest", "serve", "Prices_1", "--image", "a/b:1", "--claim", "c", "--output", str(file)]) == 0
    said = capsys.readouterr()
    assert said.out == f"Wrote {file}; create the objects with kubectl apply -f {file}.\n"
    assert said.err.splitlines() == [
        "warning: a/b:1 has no digest; pods may run different builds.",
        "The objects are called prices-1-eb7e1c09: Kubernetes does not allow 'Prices_1'.",
    ]
    for one in yaml.safe_load_all(file.read_text()):
        assert one["metadata"]["name"] == "prices-1-eb7e1c09"
        assert one["metadata"]["annotations"] == {"torch-estimator/name": "Prices_1"}
    written(capsys, *PLAIN)
    assert not capsys.readouterr().err


def test_kubernetes_gets_arguments_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    objects = written(capsys, *PLAIN, "--", "--model", "a=/models/$(HOME)")
    own = container(objects["Deployment"]["spec"]["template"]["spec"])
    assert "a=/models/$$(HOME)" in own["args"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "there is nothing to serve; name a volume with --claim"),
        (["--", "--registry", "/models"], "the pods have no /models; name with --claim what they mount at /models."),
        (["--claim", "c", "--", "--model", "a=runs/a"], "the pods have no runs/a; name a path below /models."),
        (["--claim", "c", "--", "--model", "a=/models/../a"], "the pods have no /models/../a"),
        (["--claim", "c", "--mount", "/"], "--mount must be a path such as /models, but got '/'."),
        (["--claim", "c", "--", "--token-file", "tokens"], "name with --secret what they mount at /secrets."),
        (["--claim", "c", "--image", " "], "--image must be the name of an image, but got ' '."),
        (["--claim", "c", "--service-account", "A"], "--service-account takes a name of Kubernetes"),
        (["--claim", "c", "--", "--port", "8500"], "REST and gRPC need ports of their own, but both got 8500."),
        (["--claim", "C_1"], "--claim takes a name of Kubernetes, such as models-1, but got 'C_1'."),
        (["--claim", "c", "--namespace", "a b"], "--namespace takes a name of Kubernetes"),
        (["--claim", "c", "--cpus", "0"], "--cpus must be a number of cores, such as 2 or 0.5, but got 0.0."),
        (["--claim", "c", "--cpus", "nan"], "--cpus must be a number of cores"),
        (["--claim", "c", "--memory", "2"], "--memory must be a number with a unit, such as 2Gi, but got '2'."),
        (["--claim", "c", "--min-replicas", "0"], "but got 0 and 4; only --kserve can start from 0."),
        (["--claim", "c", "--kserve", "--max-replicas", "0"], "--min-replicas must be from 0 to --max-replicas"),
        (["--claim", "c", "--min-replicas", "5"], "--min-replicas must be from 1 to --max-replicas, but got 5 and 4"),
        (["--claim", "c", "--kserve", "--", "--grpc-port", "1"], "KServe passes on one port"),
        (["--claim", "c", "--kserve", "--", "--tf-serving-grpc-port", "1"], "KServe passes on one port"),
        (["--claim", "c", "--", "--config", "a.yaml"], "the settings in a.yaml are unknown here"),
        (["--claim", "c", "--", "--host", "127.0.0.1"], "the pods must listen at 0.0.0.0"),
        (["--claim", "c", "--", "--grpc-port", "0"], "and at a port other than 0, to be reached."),
        (["--claim", "c", "--", "--max-batch", "0"], "max_batch must be at least 1"),
    ],
)
def test_mistakes_are_one_sentence(capsys: pytest.CaptureFixture[str], arguments: list[str], problem: str) -> None:
    assert main(["manifest", "serve", "prices", "--image", IMAGE, *arguments]) == 2
    captured = capsys.readouterr()
    assert problem in captured.err
    assert captured.err.count("\n") == 1
    assert not captured.out
