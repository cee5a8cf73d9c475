"""Jobs against a real API server of Kubernetes, whose binaries KUBEBUILDER_ASSETS names, as for envtest.

It has no controllers, so no pod ever starts: what is tested is that it takes what jobs send, and no less.
"""

from __future__ import annotations

import os
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.storms.submitting import wait_until
from tests.jobs.conftest import Jobs
from tests.jobs.test_kubernetes import FOUR_ROLES, table
from torch_estimator.jobs.kubernetes.cluster import Cluster
from torch_estimator.launch.layout import free_ports

KINDS = ("Job", "Service", "PodDisruptionBudget", "NetworkPolicy", "Secret")


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A kubeconfig with the contexts `admin` and `guest`, who has no rights."""
    if "KUBEBUILDER_ASSETS" not in os.environ:
        pytest.skip("needs KUBEBUILDER_ASSETS, a folder with etcd and kube-apiserver")
    programs, folder = Path(os.environ["KUBEBUILDER_ASSETS"]), tmp_path_factory.mktemp("server")
    port, store, peers = free_ports(3)
    host, key, certificate = "127.0.0.1", folder / "key.pem", folder / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*made, "-subj", "/CN=own", "-addext", f"subjectAltName=IP:{host}"], check=True, capture_output=True)
    (folder / "tokens.csv").write_text("admins,admin,1,system:masters\nguests,guest,2\n")
    etcd = {
        "data-dir": folder / "etcd",
        "listen-client-urls": f"http://{host}:{store}",
        "advertise-client-urls": f"http://{host}:{store}",
        "listen-peer-urls": f"http://{host}:{peers}",
    }
    server = {
        "etcd-servers": f"http://{host}:{store}",
        "tls-cert-file": certificate,
        "tls-private-key-file": key,
        "bind-address": host,
        "secure-port": port,
        "token-auth-file": folder / "tokens.csv",
        "authorization-mode": "RBAC",
        "disable-admission-plugins": "ServiceAccount",
        "service-account-issuer": f"https://{host}:{port}/",
        "service-account-key-file": key,
        "service-account-signing-key-file": key,
        "service-cluster-ip-range": "10.0.0.0/24",
    }
    people = {"admin": "admins", "guest": "guests"}
    config = {
        "current-context": "admin",
        "clusters": [
            {"name": "own", "cluster": {"server": f"https://{host}:{port}", "certificate-authority": str(certificate)}}
        ],
        "contexts": [{"name": one, "context": {"cluster": "own", "user": one}} for one in people],
        "users": [{"name": one, "user": {"token": token}} for one, token in people.items()],
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    with ExitStack() as stack:
        for name, options in (("etcd", etcd), ("kube-apiserver", server)):
            command = [str(programs / name), *(f"--{option}={value}" for option, value in options.items())]
            log = stack.enter_context(open(folder / f"{name}.log", "wb"))
            process = stack.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
            stack.callback(process.kill)
        wait_until(lambda: is_ready(f"https://{host}:{port}/readyz", certificate))
        yield folder / "kubeconfig"


def is_ready(url: str, certificate: Path) -> bool:
    request = urllib.request.Request(url, headers={"Authorization": "Bearer admins"})
    try:
        with urllib.request.urlopen(
            request, timeout=5, context=ssl.create_default_context(cafile=certificate)
        ) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@pytest.fixture
def on_server(kubeconfig: Path, jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    table(jobs)
    jobs.program("print(me)")
    return jobs


def there(name: str) -> list[dict[str, Any]]:
    """Return what the server has of a job."""
    cluster, selector = Cluster("", ""), f"torch-estimator/job={name}"
    return [one for kind in KINDS for one in cluster.list(kind, labelSelector=selector)["items"]]


def test_the_server_keeps_each_field_of_the_objects_and_cancel_removes_them(on_server: Jobs) -> None:
    given = ("training", "real", "--module-name", "trainer.task", *FOUR_ROLES, "--dry-run", "--", "--token", "x")
    status, out, _ = on_server.run("submit", *given)
    assert status == 0
    on_server.submit("real", *FOUR_ROLES, "--", "--token", "x")
    wait_until(lambda: len(there("real")) == 7)
    specs = {(one["kind"], one["metadata"]["name"]): one["spec"] for one in there("real") if "spec" in one}
    for sent in yaml.safe_load_all(yaml.safe_load(out)["runs"]):
        if "spec" in sent:
            assert_has(specs[sent["kind"], sent["metadata"]["name"]], without_times(sent["spec"]))
    assert on_server.run("cancel", "real")[0] == 0
    assert on_server.wait("real") == "CANCELLED"
    assert not there("real")


def without_times(part: Any) -> Any:
    """Return a part of an object without variables and annotations, which have times."""
    if isinstance(part, dict):
        return {key: without_times(part[key]) for key in part.keys() - {"env", "annotations"}}
    return [without_times(one) for one in part] if isinstance(part, list) else part


def assert_has(kept: Any, sent: Any) -> None:
    """See that a server has kept what it was sent, to which it adds defaults."""
    if isinstance(sent, dict):
        for key, value in sent.items():
            assert key in kept, key
            assert_has(kept[key], value)
    elif isinstance(sent, list):
        assert len(kept) == len(sent)
        for one, other in zip(kept, sent, strict=True):
            assert_has(one, other)
    else:
        assert kept == sent


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('context = "guest"', "you may not watch pods in the namespace default"),
        ("pod = { nodeSelector = 4 }", "Kubernetes says: "),
    ],
)
def test_what_the_server_would_not_take_is_refused(on_server: Jobs, line: str, said: str) -> None:
    table(on_server, line)
    given = ("submit", "training", "bad", "--module-name", "trainer.task", *FOUR_ROLES)
    status, _, err = on_server.run(*given)
    assert status in (1, 2) and said in err and err.count("\n") == 1
    assert not there("bad")
