"""The fake Kubernetes has the semantics of the real one, as the official client sees them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts.fake_kubernetes import Fake, fake_kubernetes

kubernetes = pytest.importorskip("kubernetes")

_WAIT_SECS = 60.0
_IN = {"namespace": "default"}


class Cluster:
    """A fake, and the client's APIs of it."""

    def __init__(self, fake: Fake) -> None:
        self.fake = fake
        self.client = kubernetes.config.new_client_from_config(str(fake.kubeconfig))
        self.core = kubernetes.client.CoreV1Api(self.client)
        self.batch = kubernetes.client.BatchV1Api(self.client)
        self.custom = kubernetes.client.CustomObjectsApi(self.client)

    def job(self, name: str, code: str, *, dry_run: str | None = None, **spec: Any) -> None:
        """Create an Indexed Job of a Python program."""
        self.batch.create_namespaced_job(body=job(name, code, **spec), dry_run=dry_run, **_IN)

    def condition(self, name: str) -> tuple[str, str, str]:
        """Wait until a job is complete or has failed; return which, reason and message."""

        def found() -> Any:
            conditions = self.batch.read_namespaced_job(name, **_IN).status.conditions or []
            return next((one for one in conditions if one.type in ("Complete", "Failed")), None)

        condition = until(found)
        return condition.type, condition.reason, condition.message

    def pods(self, selector: str = "") -> list[Any]:
        found: list[Any] = self.core.list_namespaced_pod(label_selector=selector, **_IN).items
        return found

    def running(self, count: int) -> list[Any]:
        """Wait until as many pods run, and have said so in their log."""

        def found() -> list[Any] | None:
            pods = [pod for pod in self.pods() if pod.status.phase == "Running" and not pod.metadata.deletion_timestamp]
            return pods if len(pods) == count and all("here" in self.log(pod) for pod in pods) else None

        return until(found)

    def log(self, pod: Any) -> str:
        text: str = self.core.read_namespaced_pod_log(pod.metadata.name, **_IN)
        return text


def job(name: str, code: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "here", "command": ["python", "-c", code], **spec.pop("container", {})}
    pod = {
        "restartPolicy": "Never",
        "containers": [container],
        "terminationGracePeriodSeconds": 5,
        **spec.pop("pod", {}),
    }
    indexed = {"completionMode": "Indexed", "template": {"spec": pod}}
    return {"metadata": {"name": name, "labels": {"app": name}}, "spec": {**indexed, **spec}}


def until(found: Callable[[], Any]) -> Any:
    ends = time.monotonic() + _WAIT_SECS
    while not (value := found()):
        assert time.monotonic() < ends
        time.sleep(0.02)
    return value


def is_alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


@contextlib.contextmanager
def refused(status: int) -> Iterator[SimpleNamespace]:
    """Yield an object that has the message of the refusal afterwards."""
    answer = SimpleNamespace()
    with pytest.raises(kubernetes.client.ApiException) as error:
        yield answer
    assert error.value.status == status
    answer.text = error.value.body if isinstance(error.value.body, str) else error.value.reason


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with fake_kubernetes(tmp_path / "fake", "--jobset") as fake:
        cluster = Cluster(fake)
        yield cluster
        cluster.client.rest_client.pool_manager.clear()


RUNS = "import time; print('here', flush=True); time.sleep(1000)"
STOPS = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(143)); " + RUNS


def test_pods_of_a_job_have_index_variables_volumes_and_addresses_of_this_machine(cluster: Cluster) -> None:
    cluster.core.create_namespaced_secret(body={"metadata": {"name": "key"}, "stringData": {"a": "secret"}}, **_IN)
    service = {"clusterIP": "None", "publishNotReadyAddresses": True}
    cluster.core.create_namespaced_service(body={"metadata": {"name": "s"}, "spec": service}, **_IN)
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    code = """
import os, pathlib, socket
say = os.environ
print(say["JOB_COMPLETION_INDEX"], say["TEXT"], say["A"], pathlib.Path(say["KEY"]).read_text(), say["ADDRESS"])
print(pathlib.Path("/fetched/code").read_text(), oct(pathlib.Path(say["KEY"]).stat().st_mode)[-3:], say["UNKNOWN"])
"""
    env = [
        {"name": "I", "valueFrom": index},
        {"name": "TEXT", "value": "$(I)$$(I)$(NONE)"},
        {"name": "A", "valueFrom": {"secretKeyRef": {"name": "key", "key": "a"}}},
        {"name": "KEY", "value": "/key/a"},
        {"name": "ADDRESS", "value": "x-1.s:2222"},
        {"name": "UNKNOWN", "value": "x-1.other:2222"},
    ]
    mounts = [{"name": "key", "mountPath": "/key"}, {"name": "empty", "mountPath": "/fetched"}]
    container = {"env": env, "volumeMounts": mounts}
    secret = {"secretName": "key", "defaultMode": 0o400}
    fetch = {"name": "fetch", "image": "here", "command": ["sh", "-c", "echo fetched > /fetched/code"]}
    pod = {
        "volumes": [{"name": "key", "secret": secret}, {"name": "empty", "emptyDir": {}}],
        "initContainers": [{**fetch, "volumeMounts": mounts}],
        "subdomain": "s",
    }
    cluster.job("x", code, completions=2, parallelism=2, container=container, pod=pod)
    assert cluster.condition("x")[:2] == ("Complete", "CompletionsReached")
    pods = sorted(cluster.pods("batch.kubernetes.io/job-name=x"), key=lambda pod: pod.metadata.name)
    assert [pod.spec.hostname for pod in pods] == ["x-0", "x-1"]
    assert all(pod.metadata.name.startswith(f"{pod.spec.hostname}-") for pod in pods)
    logs = [cluster.log(pod).split() for pod in pods]
    assert [log[:4] for log in logs] == [
        ["0", "0$(I)$(NONE)", "secret", "secret"],
        ["1", "1$(I)$(NONE)", "secret", "secret"],
    ]
    assert logs[0][4] == logs[1][4] and logs[0][4].startswith("127.0.0.1:")
    assert logs[0][5:] == ["fetched", "400", "x-1.other:2222"]
    status = cluster.batch.read_namespaced_job("x", **_IN).status
    assert (status.succeeded, status.failed, status.completed_indexes) == (2, 0, "0,1")


def test_only_the_pod_that_was_killed_is_replaced(cluster: Cluster) -> None:
    cluster.job("x", RUNS, completions=2, parallelism=2, backoffLimitPerIndex=1)
    first = {pod.spec.hostname: pod.metadata.name for pod in cluster.running(2)}
    os.kill(cluster.fake.pid(first["x-1"]), signal.SIGKILL)
    ended = until(lambda: [pod for pod in cluster.pods() if pod.status.phase == "Failed"])[0]
    state = ended.status.container_statuses[0].state.terminated
    assert (ended.metadata.name, state.exit_code, state.reason) == (first["x-1"], 137, "Error")
    second = {pod.spec.hostname: pod.metadata.name for pod in cluster.running(2)}
    assert second["x-0"] == first["x-0"] and second["x-1"] != first["x-1"]
    os.kill(cluster.fake.pid(second["x-1"]), signal.SIGKILL)
    until(lambda: cluster.batch.read_namespaced_job("x", **_IN).status.failed_indexes == "1")
    os.kill(cluster.fake.pid(second["x-0"]), signal.SIGKILL)
    cluster.running(1)


def test_an_index_that_fails_too_often_fails_the_job_when_the_others_have_ended(cluster: Cluster) -> None:
    cluster.job(
        "x",
        "import os; exit(int(os.environ['JOB_COMPLETION_INDEX']) % 2)",
        completions=4,
        parallelism=4,
        backoffLimitPerIndex=1,
    )
    assert cluster.condition("x") == ("Failed", "FailedIndexes", "Job has failed indexes")
    status = cluster.batch.read_namespaced_job("x", **_IN).status
    assert (status.completed_indexes, status.failed_indexes, status.failed) == ("0,2", "1,3", 4)
    assert len(cluster.pods()) == 6


def test_a_status_that_fails_the_job_ends_its_other_pods_with_their_logs(cluster: Cluster) -> None:
    codes = {"containerName": "main", "operator": "In", "values": [2]}
    policy = {"rules": [{"action": "FailJob", "onExitCodes": codes}]}
    code = f"import os\nif os.environ['JOB_COMPLETION_INDEX'] == '1': exit(2)\n{STOPS}"
    cluster.job("x", code, completions=2, parallelism=2, backoffLimitPerIndex=3, podFailurePolicy=policy)
    kind, reason, message = cluster.condition("x")
    (pod,) = cluster.pods()
    rest = "failed with exit code 2 matching FailJob rule at index 0"
    assert (kind, reason) == ("Failed", "PodFailurePolicy")
    assert message == f"Container main for pod default/{pod.metadata.name} {rest}"
    assert pod.spec.hostname == "x-1"


def test_an_evicted_pod_is_not_counted_and_its_last_state_is_seen(cluster: Cluster) -> None:
    disrupted = [{"type": "DisruptionTarget", "status": "True"}]
    policy = {"rules": [{"action": "Ignore", "onPodConditions": disrupted}]}
    cluster.job("x", STOPS, backoffLimitPerIndex=0, podFailurePolicy=policy)
    (pod,) = cluster.running(1)
    version = cluster.core.list_namespaced_pod(**_IN).metadata.resource_version
    eviction = {"metadata": {"name": pod.metadata.name}}
    cluster.core.create_namespaced_pod_eviction(pod.metadata.name, body=eviction, **_IN)
    seen = []
    for event in kubernetes.watch.Watch().stream(cluster.core.list_namespaced_pod, resource_version=version, **_IN):
        if event["object"].metadata.name == pod.metadata.name:
            seen.append((event["type"], event["object"].status.phase))
            if event["type"] == "DELETED":
                break
    assert event["object"].status.container_statuses[0].state.terminated.exit_code == 143
    assert seen[-2:] == [("MODIFIED", "Failed"), ("DELETED", "Failed")]
    assert cluster.running(1)[0].metadata.name != pod.metadata.name
    assert cluster.batch.read_namespaced_job("x", **_IN).status.failed == 0


def test_a_followed_log_has_every_line_once_with_growing_times(cluster: Cluster) -> None:
    cluster.job("x", "for number in range(10_000): print(number, flush=number % 7 == 0)")
    (pod,) = until(lambda: [pod for pod in cluster.pods() if pod.status.phase != "Pending"])
    answer = cluster.core.read_namespaced_pod_log(
        pod.metadata.name, container="main", follow=True, timestamps=True, _preload_content=False, **_IN
    )
    lines = [line.split() for line in answer.data.decode().splitlines()]
    assert [line for _, line in lines] == [str(number) for number in range(10_000)]
    times = [when for when, _ in lines]
    assert times == sorted(set(times))
    last = cluster.core.read_namespaced_pod_log(pod.metadata.name, tail_lines=2, since_seconds=1000, **_IN)
    assert last == "9998\n9999\n"


def test_a_cut_stream_breaks_and_a_watch_from_a_forgotten_version_gets_410(cluster: Cluster) -> None:
    version = cluster.core.list_namespaced_pod(**_IN).metadata.resource_version
    cluster.job("x", RUNS)
    (pod,) = cluster.running(1)
    answer = cluster.core.read_namespaced_pod_log(pod.metadata.name, follow=True, _preload_content=False, **_IN)
    assert answer.readline() == b"here\n"
    cluster.fake.control(cut=True)
    with pytest.raises(Exception, match=r"IncompleteRead|Connection broken|prematurely"):
        answer.read()
    cluster.fake.control(compact=True)
    with refused(410) as answer:
        since = {"resource_version": version, "timeout_seconds": 5}
        list(kubernetes.watch.Watch().stream(cluster.core.list_namespaced_pod, **since, **_IN))
    assert "too old resource version" in answer.text


def test_deleting_leaves_neither_pods_nor_processes(cluster: Cluster) -> None:
    code = f"import subprocess; print(subprocess.Popen(['sleep', '1000']).pid); {STOPS}"
    for name in ("x", "y", "z"):
        cluster.job(name, code)
    pods = cluster.running(3)
    pids = [cluster.fake.pid(pod.metadata.name) for pod in pods] + [int(cluster.log(pod).split()[0]) for pod in pods]
    assert all(map(is_alive, pids))
    cluster.batch.delete_collection_namespaced_job(
        label_selector="app in (x,y)", propagation_policy="Background", **_IN
    )
    assert [one.metadata.name for one in cluster.batch.list_namespaced_job(**_IN).items] == ["z"]
    until(lambda: len(cluster.pods()) == 1)
    # Jobs are the only ones whose pods stay when nothing else is said.
    cluster.batch.delete_namespaced_job("z", **_IN)
    (pod,) = cluster.pods()
    assert pod.metadata.owner_references is None and not pod.metadata.deletion_timestamp
    cluster.core.delete_collection_namespaced_pod(grace_period_seconds=0, **_IN)
    until(lambda: not cluster.pods())
    until(lambda: not any(map(is_alive, pids)))


def test_what_cannot_be_created_is_refused_in_the_words_of_the_server(cluster: Cluster, tmp_path: Path) -> None:
    cluster.job("dry", RUNS, dry_run="All")
    assert not cluster.batch.list_namespaced_job(**_IN).items
    with refused(422) as answer:
        cluster.job("x" * 62, RUNS, completions=2)
    assert f"will not able to create pod with invalid DNS label: {'x' * 62}-1" in answer.text
    with refused(422) as answer:
        cluster.job("Not_valid", RUNS)
    assert "a lowercase RFC 1123 subdomain must consist of" in answer.text
    cluster.job("x", RUNS)
    with refused(409) as answer:
        cluster.job("x", RUNS)
    assert 'jobs.batch \\"x\\" already exists' in answer.text
    with refused(404) as answer:
        cluster.batch.read_namespaced_job("y", **_IN)
    assert 'jobs.batch \\"y\\" not found' in answer.text
    cluster.fake.control(forbid=[{"verb": "create", "resource": "jobs"}])
    with refused(403) as answer:
        cluster.job("y", RUNS)
    cannot = 'cannot create resource "jobs" in API group "batch" in the namespace "default"'
    assert f'jobs.batch is forbidden: User "tester" {cannot}' in answer.text.replace("\\", "")
    for verb, allowed in (("create", False), ("list", True)):
        attributes = {"namespace": "default", "verb": verb, "group": "batch", "resource": "jobs"}
        review = kubernetes.client.AuthorizationV1Api(cluster.client).create_self_subject_access_review
        assert review({"spec": {"resourceAttributes": attributes}}).status.allowed is allowed
    cluster.fake.control(expired=True)
    with refused(401):
        cluster.pods()
    with fake_kubernetes(tmp_path / "other") as other, refused(404):
        Cluster(other).custom.list_namespaced_custom_object("jobset.x-k8s.io", "v1alpha2", "default", "jobsets")


def test_pods_that_cannot_start_say_why(cluster: Cluster) -> None:
    cluster.fake.control(quota=1, unpullable=["registry.example/"], node={"cpu": 2})
    big = {"image": "registry.example/a", "resources": {"requests": {"cpu": "2500m"}}}
    cluster.job("x", RUNS, completions=2, parallelism=2, container=big)

    def said(kind: str, name: str) -> list[tuple[str, str]]:
        events = cluster.core.list_namespaced_event(field_selector=f"involvedObject.name={name}", **_IN).items
        return [(event.reason, event.message) for event in events if event.involved_object.kind == kind]

    full = 'Error creating: pods "x-1-" is forbidden: exceeded quota: pods, requested: pods=1, used: pods=1'
    ((reason, message),) = until(lambda: said("Job", "x"))
    assert reason == "FailedCreate" and message.startswith(full)
    (pod,) = cluster.pods()
    unfit = "0/3 nodes are available: 3 Insufficient cpu."
    assert until(lambda: said("Pod", pod.metadata.name)) == [("FailedScheduling", unfit)]
    (condition,) = cluster.pods()[0].status.conditions
    assert (condition.type, condition.status, condition.reason) == ("PodScheduled", "False", "Unschedulable")
    cluster.fake.control(node=None)

    def waiting() -> Any:
        statuses = cluster.pods()[0].status.container_statuses
        return statuses and statuses[0].state.waiting.reason == "ImagePullBackOff"

    until(waiting)
    with refused(400) as answer:
        cluster.log(pod)
    assert "is waiting to start: trying and failing to pull image" in answer.text
    cluster.fake.control(quota=None, unpullable=[])
    cluster.running(2)


def test_a_jobset_is_complete_with_its_targets_and_failed_with_any_job(cluster: Cluster) -> None:
    group = ("jobset.x-k8s.io", "v1alpha2", "default", "jobsets")

    def create(name: str, code: str) -> None:
        roles = [{"name": role, "template": job("", text)} for role, text in (("worker", code), ("ps", STOPS))]
        spec = {"replicatedJobs": roles, "successPolicy": {"operator": "All", "targetReplicatedJobs": ["worker"]}}
        cluster.custom.create_namespaced_custom_object(*group, {"metadata": {"name": name}, "spec": spec})

    def state(name: str) -> Any:
        return until(lambda: cluster.custom.get_namespaced_custom_object(*group, name)["status"].get("terminalState"))

    create("good", "import time; time.sleep(0.5)")
    hosts = until(lambda: {pod.spec.hostname: pod.spec.subdomain for pod in cluster.pods() if len(cluster.pods()) == 2})
    assert hosts == {"good-worker-0-0": "good", "good-ps-0-0": "good"}
    assert cluster.core.read_namespaced_service("good", **_IN).spec.publish_not_ready_addresses
    assert state("good") == "Completed"
    until(lambda: [pod.spec.hostname for pod in cluster.pods()] == ["good-worker-0-0"])
    create("bad", "exit(1)")
    cluster.custom.patch_namespaced_custom_object(*group, "bad", {"metadata": {"labels": {"a": "b"}}})
    until(lambda: [pod.status.phase for pod in cluster.pods("job-name=bad-worker-0")].count("Failed"))
    cluster.custom.delete_namespaced_custom_object(*group, "good")
    cluster.custom.delete_namespaced_custom_object(*group, "bad")
    until(lambda: not cluster.pods() and not cluster.core.list_namespaced_service(**_IN).items)


def test_a_job_can_be_suspended_has_a_deadline_and_conflicting_changes_are_refused(cluster: Cluster) -> None:
    cluster.job("x", STOPS)
    cluster.running(1)
    read = cluster.batch.read_namespaced_job("x", **_IN)
    cluster.batch.patch_namespaced_job("x", body={"spec": {"suspend": True}}, **_IN)
    until(lambda: not cluster.pods())
    with refused(409) as answer:
        cluster.batch.replace_namespaced_job("x", body=read, **_IN)
    assert "the object has been modified" in answer.text
    cluster.batch.patch_namespaced_job("x", body={"spec": {"suspend": False, "activeDeadlineSeconds": 1}}, **_IN)
    assert cluster.condition("x")[1:] == ("DeadlineExceeded", "Job was active longer than specified deadline")
