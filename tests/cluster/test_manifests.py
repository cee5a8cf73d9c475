"""The example manifests are valid for Kubernetes, and their pods find their place in the cluster."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from examples.mnist import task as mnist
from tests.cluster.published import built
from tests.cluster.security import objections
from torch_estimator.cluster import task_from_environment
from torch_estimator.errors import UserError
from torch_estimator.parameter_server.encryption import KEY_FILE, key_from_environment, make_key_file

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "cluster"
SPECS = {"TFJob": "tfReplicaSpecs", "PyTorchJob": "pytorchReplicaSpecs"}
CONTAINERS = {"TFJob": ("tensorflow", "tfjob-port"), "PyTorchJob": ("pytorch", "pytorchjob-port")}
KINDS = sorted(SPECS)

# The lowest status that the operator takes for a signal. It restarts a pod only from there on.
RETRYABLE = 128


def documents(kind: str) -> list[Any]:
    # A copy by way of JSON: YAML loads a part that the file refers to twice as one shared object.
    text = (FOLDER / f"{kind.lower()}.yaml").read_text(encoding="utf-8")
    return [json.loads(json.dumps(one)) for one in yaml.safe_load_all(text)]


def manifest(kind: str) -> Any:
    return documents(kind)[0]


def replicas(kind: str) -> dict[str, Any]:
    return manifest(kind)["spec"][SPECS[kind]]


def container(replica: Any) -> Any:
    (only,) = replica["template"]["spec"]["containers"]
    return only


@pytest.mark.parametrize("kind", KINDS)
def test_the_published_models_accept_them(kind: str) -> None:
    one = manifest(kind)
    assert (one["apiVersion"], one["kind"]) == ("kubeflow.org/v1", kind)
    assert built(one, f"KubeflowOrgV1{kind}", kind).metadata.name == "mnist"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("spec", "runPolicy", "cleanPodPolcy"), "None", "TFJob.spec.runPolicy has no field cleanPodPolcy"),
        (("spec", "tfReplicaSpecs", "PS", "replicas"), "1", r"TFJob.spec.tfReplicaSpecs.PS.replicas must be int, but"),
        (("spec", "tfReplicaSpecs", "PS", "template", "spec", "containers"), [{}], r"containers\[0\]: Invalid value"),
    ],
)
def test_the_published_models_refuse_mistakes(path: tuple[str, ...], value: object, message: str) -> None:
    changed = copy.deepcopy(manifest("TFJob"))
    inside = changed
    for name in path[:-1]:
        inside = inside[name]
    inside[path[-1]] = value
    with pytest.raises(ValueError, match=message):
        built(changed, "KubeflowOrgV1TFJob", "TFJob")


@pytest.mark.parametrize("kind", KINDS)
def test_pods_are_those_of_a_user_without_rights(kind: str) -> None:
    for name, replica in replicas(kind).items():
        assert (name, objections(replica["template"]["spec"])) == (name, [])
        # The volume of the job is not root's alone.
        secure = replica["template"]["spec"]["securityContext"]
        assert secure["fsGroup"] == secure["runAsGroup"]


@pytest.mark.parametrize("kind", KINDS)
def test_only_pods_of_the_job_reach_its_pods(kind: str) -> None:
    job, policy = documents(kind)
    kubernetes_validate.validate(policy, "1.33", strict=True)
    # The label that the operator gives to all pods of a job.
    pods = {"matchLabels": {"training.kubeflow.org/job-name": job["metadata"]["name"]}}
    assert policy["spec"]["podSelector"] == pods
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": pods}]}]


def test_the_image_runs_as_the_user_of_the_pods() -> None:
    lines = (FOLDER / "Dockerfile").read_text(encoding="utf-8").splitlines()
    secure = replicas("TFJob")["Chief"]["template"]["spec"]["securityContext"]
    (user,) = [line for line in lines if line.startswith("USER ")]
    assert user == f"USER {secure['runAsUser']}:{secure['runAsGroup']}"
    # What comes after it would be that user's, too.
    assert not [line for line in lines[lines.index(user) :] if line.startswith(("RUN", "COPY"))]


@pytest.mark.parametrize("kind", KINDS)
def test_pods_run_the_example_on_one_volume_and_listen_where_the_operator_says(kind: str) -> None:
    name, port = CONTAINERS[kind]
    for replica in replicas(kind).values():
        pod = replica["template"]["spec"]
        one = container(replica)
        assert one["name"] == name
        assert [named["name"] for named in one["ports"]] == [port]
        assert one["command"] == ["python", "-m", "examples.mnist.task"]
        options = mnist.parser("mnist", "", job_dir="", learning_rate=1.0, rate_help="").parse_args(one["args"])
        mount, *others = one["volumeMounts"]
        assert [mount["name"], *(other["name"] for other in others)] == [volume["name"] for volume in pod["volumes"]]
        assert options.job_dir.startswith(mount["mountPath"] + "/")


def test_pods_of_a_tfjob_read_the_key_of_the_secret(tmp_path: Path) -> None:
    for replica in replicas("TFJob").values():
        variable, mount = container(replica)["env"][0], container(replica)["volumeMounts"][-1]
        secret = replica["template"]["spec"]["volumes"][-1]["secret"]
        assert variable == {"name": KEY_FILE, "value": f"{mount['mountPath']}/key"}
        # Kubernetes gives files of Secrets the mode 0644 by default.
        key = tmp_path / "key"
        key.unlink(missing_ok=True)
        make_key_file(str(key))
        key.chmod(secret["defaultMode"])
        assert key_from_environment({KEY_FILE: str(key)}) is not None


@pytest.mark.parametrize("kind", ["TFJob", "PyTorchJob"])
def test_pods_that_a_signal_ended_are_restarted(kind: str) -> None:
    assert {replica["restartPolicy"] for replica in replicas(kind).values()} == {"ExitCode"}


def test_a_tfjob_leaves_the_evaluator_alone() -> None:
    assert UserError.exit_status < RETRYABLE
    assert manifest("TFJob")["spec"]["runPolicy"]["cleanPodPolicy"] == "None"


def tf_config(specs: dict[str, Any], type: str, index: int, *, lists_evaluator: bool) -> str:
    """Return TF_CONFIG as the operator writes it: addresses from the names of replicas, types in lower case."""
    cluster = {
        name.lower(): [
            f"mnist-{name.lower()}-{number}.jobs.svc:{container(replica)['ports'][0]['containerPort']}"
            for number in range(replica["replicas"])
        ]
        for name, replica in specs.items()
        if lists_evaluator or name != "Evaluator"
    }
    task = {"type": type.lower(), "index": index}
    return json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})


@pytest.mark.parametrize("lists_evaluator", [True, False])
def test_every_pod_of_a_tfjob_finds_its_place(lists_evaluator: bool) -> None:
    specs = replicas("TFJob")
    places = []
    for type, replica in specs.items():
        for index in range(replica["replicas"]):
            text = tf_config(specs, type, index, lists_evaluator=lists_evaluator)
            one = task_from_environment({"TF_CONFIG": text})
            assert one.has_evaluator
            assert one.rendezvous == "mnist-chief-0.jobs.svc:2222"
            places.append((str(one), one.num_workers, one.num_ps))
    assert places == [
        ("chief 0", 3, 1),
        ("worker 0", 3, 1),
        ("worker 1", 3, 1),
        ("ps 0", 3, 1),
        ("evaluator 0", 0, 0),
    ]


def test_every_pod_of_a_pytorchjob_finds_its_place() -> None:
    specs = replicas("PyTorchJob")
    size = sum(replica["replicas"] for replica in specs.values())
    (port,) = container(specs["Master"])["ports"]
    environ = {
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "mnist-master-0",
        "MASTER_PORT": str(port["containerPort"]),
        "PET_NNODES": str(size),
    }
    places = [
        task_from_environment({**environ, "RANK": str(index + (type == "Worker"))})
        for type, replica in specs.items()
        for index in range(replica["replicas"])
    ]
    assert list(map(str, places)) == ["chief 0", "worker 0", "worker 1"]
    assert {(one.num_workers, one.rendezvous, one.has_evaluator) for one in places} == {
        (3, "mnist-master-0:23456", False)
    }
