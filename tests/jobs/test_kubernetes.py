"""Jobs on a fake Kubernetes, whose pods are processes of this machine: see scripts/fake_kubernetes.py."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubeflow_trainer_api.models import JobsetV1alpha2JobSet

from scripts.fake_kubernetes import Fake, fake_kubernetes
from scripts.storms.common import ROOT
from scripts.storms.submitting import is_running, wait_until
from tests.cluster.security import objections
from tests.jobs.conftest import Jobs
from tests.tuning.test_jobs import submit as submit_study
from torch_estimator.cli.main import main
from torch_estimator.jobs.directory import FINAL, names
from torch_estimator.jobs.kinds import status_of
from torch_estimator.jobs.kubernetes.cluster import _PATHS, Cluster
from torch_estimator.jobs.kubernetes.objects import LISTENS
from torch_estimator.jobs.kubernetes.pods import _new as new_lines
from torch_estimator.jobs.kubernetes.target import RIGHTS

FOUR_ROLES = ("--scale-tier", "CUSTOM", "--worker-count", "1", "--parameter-server-count", "1", "--on", "cluster")
ROLES = ("chief-0", "worker-0", "ps-0", "evaluator-0")
IMAGE = "registry.example.com/train@sha256:" + 64 * "0"
TABLE = """
secret_arguments = ["--token"]

[targets.cluster]
kind = "kubernetes"
image = "{image}"
claim = "jobs"
mount = "{mount}"
"""
# Lines are numbered, so that one which is missing or doubled shows.
COUNTING = """
(here / f"{me}.{os.getpid()}").touch()
number = 0
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
while not (here / "enough").exists():
    print("line", os.getpid(), number, flush=True)
    number += 1
    time.sleep(0.01)
print("last", os.getpid(), number, flush=True)
"""


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fake]:
    with fake_kubernetes(tmp_path_factory.mktemp("kubernetes")) as started:
        yield started


@pytest.fixture
def on_cluster(fake: Fake, jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    """Jobs whose target `cluster` is that Kubernetes, and whose folder is its volume. Nothing may be left of them."""
    fake.control(reset=True)
    monkeypatch.setenv("KUBECONFIG", str(fake.kubeconfig))
    table(jobs)
    yield jobs
    fake.control(reset=True)
    for name in names(str(jobs.folder / "jobs")):
        if status_of(jobs.directory(name)).state not in FINAL:
            jobs.run("cancel", name)
            jobs.wait(name)
    wait_until(lambda: not fake.pods())


@pytest.fixture
def job_sets(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """A Kubernetes with JobSets, which the target `cluster` is."""
    with fake_kubernetes(tmp_path_factory.mktemp("kubernetes"), "--jobset") as started:
        monkeypatch.setenv("KUBECONFIG", str(started.kubeconfig))
        table(jobs)
        yield started


def table(jobs: Jobs, *more: str, image: str = IMAGE) -> None:
    lines = "\n".join([TABLE.format(image=image, mount=jobs.folder), *more])
    (jobs.folder / "estimator.toml").write_text(lines)


def refused(jobs: Jobs, *options: str) -> str:
    """Submit a job that is refused; return the sentence."""
    jobs.program("print(me)")
    given = ("submit", "training", "bad", "--module-name", "trainer.task", "--on", "cluster", *options)
    status, _, err = jobs.run(*given)
    assert status in (1, 2) and err.count("\n") == 1
    assert not (jobs.folder / "jobs" / "bad").exists()
    return err.removeprefix("estimator: error: ").strip()


def processes(jobs: Jobs, role: str) -> list[int]:
    """Return the processes of a role that still run."""
    found = [int(path.suffix[1:]) for path in jobs.folder.glob(f"{role}.*") if path.suffix[1:].isdigit()]
    return [pid for pid in found if is_running(pid)]


def wait_for_process(jobs: Jobs, role: str) -> int:
    wait_until(lambda: len(processes(jobs, role)) == 1)
    return processes(jobs, role)[0]


def roles_of(jobs: Jobs, name: str, kind: str) -> list[str]:
    """Return the roles that events of a kind name, in that order."""
    return [event.role for event in jobs.directory(name).events() if event.kind == kind]


def check_lines(jobs: Jobs, name: str, role: str) -> None:
    """See that the log of a role has each line of each of its processes once, and in order."""
    lines = [line.split() for line in jobs.log(name, role).splitlines() if line.startswith(("line ", "last "))]
    for path in jobs.folder.glob(f"{role}.*"):
        mine = [int(number) for _, pid, number in lines if pid == path.suffix[1:]]
        assert mine == list(range(len(mine))) and mine
    assert lines[-1][0] == "last"


def test_roles_run_in_pods_that_know_each_other(on_cluster: Jobs, fake: Fake) -> None:
    on_cluster.program("""
    print(json.loads(os.environ["TF_CONFIG"])["task"], os.environ["OMP_NUM_THREADS"], pathlib.Path.cwd(), flush=True)
    (here / me).write_text(json.dumps([sys.argv[1:], json.loads(os.environ["TF_CONFIG"])["cluster"]]))
    """)
    given = ["it's", 'a "quote"', "$HOME", "$(HOME)", "two\nlines", "😀", "", "*"]
    on_cluster.submit("Four_Roles", *FOUR_ROLES, "--", *given)
    assert on_cluster.wait("Four_Roles") == "SUCCEEDED"
    clusters = []
    for role in ("chief-0", "worker-0", "evaluator-0"):
        arguments, cluster = json.loads((on_cluster.folder / role).read_text())
        assert arguments == given
        clusters.append(cluster)
        type, _, index = role.partition("-")
        task = {"type": type, "index": int(index)}
        assert f"{task} 1 {on_cluster.folder}" in on_cluster.log("Four_Roles", role)
    assert clusters[0] == clusters[1] == clusters[2]
    assert {type: len(each) for type, each in clusters[0].items()} == {"chief": 1, "worker": 1, "ps": 1}
    kinds = [event.kind for event in on_cluster.directory("Four_Roles").events()]
    assert kinds.count("started") == 4 and "restarted" not in kinds
    assert not fake.pods()


def test_a_role_that_was_killed_is_started_again_alone(on_cluster: Jobs) -> None:
    on_cluster.program(COUNTING)
    on_cluster.submit("struck", *FOUR_ROLES)
    # A pod that was replaced before the launcher follows the roles counts as their start.
    wait_until(lambda: len(roles_of(on_cluster, "struck", "started")) == 4)
    before = {role: wait_for_process(on_cluster, role) for role in ("chief-0", "worker-0", "evaluator-0")}
    os.kill(before["worker-0"], signal.SIGKILL)
    wait_until(lambda: processes(on_cluster, "worker-0") not in ([], [before["worker-0"]]))
    wait_for_process(on_cluster, "worker-0")
    assert processes(on_cluster, "chief-0") == [before["chief-0"]]
    assert processes(on_cluster, "evaluator-0") == [before["evaluator-0"]]
    # A worker is not started again once the chief has finished.
    wait_until(lambda: roles_of(on_cluster, "struck", "restarted") != [])
    (on_cluster.folder / "enough").touch()
    assert on_cluster.wait("struck") == "SUCCEEDED"
    assert roles_of(on_cluster, "struck", "restarted") == ["worker-0"]
    for role in before:
        check_lines(on_cluster, "struck", role)


def test_an_error_of_the_user_ends_the_job_with_its_sentence(on_cluster: Jobs, fake: Fake) -> None:
    on_cluster.program("""
    if me == "worker-0":
        sys.exit(print("error: --rate must be positive.", file=sys.stderr) or 2)
    wait_for("never")
    """)
    on_cluster.submit("wrong", *FOUR_ROLES)
    assert on_cluster.wait("wrong") == "FAILED"
    reason = on_cluster.describe("wrong")["reason"]
    assert "Worker 0 ended with status 2" in reason and "worker-0 said: error: --rate must be positive." in reason
    assert not fake.pods()


def test_a_role_without_restarts_ends_the_job(on_cluster: Jobs) -> None:
    on_cluster.program("""
    if me == "worker-0":
        raise ValueError("the file is not there")
    wait_for("never")
    """)
    on_cluster.submit("broken", *FOUR_ROLES, "--max-restarts", "1")
    assert on_cluster.wait("broken") == "FAILED"
    reason = on_cluster.describe("broken")["reason"]
    # Kubernetes counts, too, and may be first.
    assert "has no restart left" in reason or "maximal number of failed indexes" in reason
    assert "worker-0 said: ValueError: the file is not there" in reason


def test_a_cancelled_job_leaves_nothing(on_cluster: Jobs, fake: Fake) -> None:
    on_cluster.program(COUNTING)
    on_cluster.submit("long", *FOUR_ROLES)
    pid = wait_for_process(on_cluster, "chief-0")
    assert on_cluster.run("cancel", "long")[0] == 0
    assert on_cluster.wait("long") == "CANCELLED"
    assert not fake.pods() and not is_running(pid)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_job_goes_on_without_its_launcher_and_is_followed_again(on_cluster: Jobs, number: signal.Signals) -> None:
    on_cluster.program(COUNTING)
    on_cluster.submit("left", *FOUR_ROLES, "--", "--token", "a secret")
    first = wait_for_process(on_cluster, "worker-0")
    on_cluster.wait_for_line("left", "worker-0", f"line {first} 10")
    launcher = on_cluster.launcher("left")
    os.kill(launcher, number)
    wait_until(lambda: not is_running(launcher))
    # Nobody sees how this one ends.
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: processes(on_cluster, "worker-0") not in ([], [first]))
    time.sleep(0.3)
    assert on_cluster.describe("left")["state"] in ("PREPARING", "RUNNING")
    wait_until(lambda: on_cluster.launcher("left") != launcher)
    (on_cluster.folder / "enough").touch()
    assert on_cluster.wait("left") == "SUCCEEDED"
    for role in ("chief-0", "worker-0", "evaluator-0"):
        check_lines(on_cluster, "left", role)


def test_times_of_a_log_may_have_an_offset() -> None:
    seen = [
        list(new_lines([stamp + b" a line"], []))
        for stamp in (b"2026-11-29T08:00:00.12Z", b"2026-11-29T10:00:00.12+02:00")
    ]
    assert seen[0] == seen[1] and seen[0][0][1] == b"a line"


def test_the_error_of_a_worker_is_not_taken_for_that_of_the_worker_that_it_ended(on_cluster: Jobs) -> None:
    on_cluster.program("""
    if me == "worker-1":
        wait_for("go")
        for number in range(20000):
            print("a line before", number)
        print("error: worker-1 cannot go on", flush=True)
        sys.exit(2)
    (here / f"{me}.{os.getpid()}").touch()
    wait_for("never")
    """)
    on_cluster.submit("two", "--scale-tier", "CUSTOM", "--worker-count", "2", "--on", "cluster")
    wait_for_process(on_cluster, "worker-0")
    (on_cluster.folder / "go").touch()
    assert on_cluster.wait("two") == "FAILED"
    assert "worker-1 cannot go on" in on_cluster.describe("two")["reason"]


def test_an_eviction_is_not_counted(on_cluster: Jobs, fake: Fake) -> None:
    on_cluster.program(COUNTING)
    on_cluster.submit("drained", *FOUR_ROLES, "--max-restarts", "0")
    first = wait_for_process(on_cluster, "worker-0")
    on_cluster.wait_for_line("drained", "worker-0", f"line {first} 5")
    (pod,) = [name for name in fake.pods() if "-worker-0-" in name]
    cluster = Cluster("", "")
    evicted = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": "default"}}
    cluster._request("POST", f"{cluster._path('Pod', pod)}/eviction", {}, evicted)
    wait_until(lambda: processes(on_cluster, "worker-0") not in ([], [first]))
    (on_cluster.folder / "enough").touch()
    assert on_cluster.wait("drained") == "SUCCEEDED"
    check_lines(on_cluster, "drained", "worker-0")
    assert "evicted: Eviction API: evicting Kubernetes starts it again." in on_cluster.log("drained", "worker-0")


def test_lines_are_complete_although_the_cluster_breaks_off(on_cluster: Jobs, fake: Fake) -> None:
    on_cluster.program(COUNTING)
    on_cluster.submit("cut", *FOUR_ROLES)
    pid = wait_for_process(on_cluster, "chief-0")
    for number in (20, 60, 100):
        on_cluster.wait_for_line("cut", "chief-0", f"line {pid} {number}")
        fake.control(cut=True)
    fake.control(fails_until=time.time() + 1.0)
    (on_cluster.folder / "enough").touch()
    assert on_cluster.wait("cut") == "SUCCEEDED"
    for role in ("chief-0", "worker-0", "evaluator-0"):
        check_lines(on_cluster, "cut", role)


def test_values_of_secret_arguments_are_in_a_secret_only(on_cluster: Jobs, fake: Fake) -> None:
    on_cluster.program("""
    print("the token is", sys.argv[2], flush=True)
    (here / me).touch()
    wait_for("enough")
    """)
    on_cluster.submit("secret", "--on", "cluster", "--", "--token", "gold")
    wait_until(lambda: (on_cluster.folder / "chief-0").exists())
    assert "gold" not in json.dumps(fake.pods())
    (on_cluster.folder / "enough").touch()
    assert on_cluster.wait("secret") == "SUCCEEDED"
    assert "the token is ***" in on_cluster.log("secret", "chief-0")


def test_a_package_reaches_pods_that_do_not_see_the_jobs(
    on_cluster: Jobs, tmp_path_factory: pytest.TempPathFactory
) -> None:
    volume = tmp_path_factory.mktemp("volume")
    on_cluster.program(
        "print(pathlib.Path.cwd(), (pathlib.Path(__file__).parent / 'rows.csv').read_text(), flush=True)"
    )
    (on_cluster.folder / "trainer" / "rows.csv").write_text("1,2")
    lines = TABLE.format(image=IMAGE, mount=volume)
    (on_cluster.folder / "estimator.toml").write_text(lines)
    on_cluster.submit("laptop", "--on", "cluster")
    assert on_cluster.wait("laptop") == "SUCCEEDED"
    assert f"{volume} 1,2" in on_cluster.log("laptop", "chief-0")
    (on_cluster.folder / "trainer" / "large.bin").write_bytes(os.urandom(2**20))
    assert refused(on_cluster).startswith("the package has 1.0 MiB when compressed, and it comes in a Secret of ")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"unpullable": ["registry.example.com"]}, "failed to pull and unpack image"),
        ({"quota": 0}, "exceeded quota"),
        ({"node": {"cpu": 0.5}}, "Insufficient cpu"),
    ],
)
def test_why_a_pod_does_not_start_is_said(on_cluster: Jobs, fake: Fake, fault: dict[str, Any], said: str) -> None:
    on_cluster.program("print(me)")
    table(on_cluster, "start_secs = 6")
    fake.control(**fault)
    on_cluster.submit("waits", "--on", "cluster")
    assert on_cluster.wait("waits") == "FAILED"
    waiting = [event for event in on_cluster.directory("waits").events() if event.kind == "waiting"]
    assert waiting[-1].state == "QUEUED" and said in waiting[-1].reason
    reason = on_cluster.describe("waits")["reason"]
    assert reason.startswith("chief-0 has not started within 6 s") and said in reason


def test_a_volume_without_the_package_is_named(on_cluster: Jobs, fake: Fake) -> None:
    on_cluster.program("print(me)")
    fake.control(quota=0)
    on_cluster.submit("lost", "--on", "cluster")
    wait_until(lambda: "quota" in on_cluster.describe("lost")["reason"])
    package = Path(on_cluster.directory("lost").package)
    package.rename(package.with_name("elsewhere"))
    fake.control(reset=True)
    assert on_cluster.wait("lost") == "FAILED"
    assert f"error: the volume of this pod has no {package}" in on_cluster.describe("lost")["reason"]


def test_a_job_that_somebody_deletes_has_failed_and_can_be_resumed(on_cluster: Jobs, fake: Fake) -> None:
    on_cluster.program(COUNTING)
    on_cluster.submit("deleted", *FOUR_ROLES)
    wait_for_process(on_cluster, "worker-0")
    Cluster("", "").delete("Job", "deleted-worker")
    assert on_cluster.wait("deleted") == "FAILED"
    assert "the Job deleted-worker was deleted" in on_cluster.describe("deleted")["reason"]
    (on_cluster.folder / "enough").touch()
    assert on_cluster.run("resume", "deleted")[0] == 0
    assert on_cluster.wait("deleted") == "SUCCEEDED"


def test_the_role_of_the_guide_has_the_rights_that_are_checked() -> None:
    text = (ROOT / "docs" / "guides" / "kubernetes.md").read_text()
    role = yaml.safe_load(text[text.index("apiVersion: rbac") :].partition("```")[0])
    given = {(rule["resources"][0], verb) for rule in role["rules"] for verb in rule["verbs"] if verb != "create"}
    checked = {
        ("/".join(filter(None, [_PATHS[kind][1], part])), verb)
        for (kind, part), verbs in RIGHTS.items()
        for verb in verbs
    }
    assert given == checked | {("events", "list")}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("user = 0", "user must be a number from 1 on, since root is not allowed, but got 0; mend estimator.toml."),
        ("cpus = -1.0", "cpus must be a number above 0, but got -1.0; mend"),
        ("cpus = inf", "cpus must be a number above 0, but got inf; mend"),
        ('container = { env = ["A=1"] }', "container.env must be a list of tables with a name each, but got ['A=1'];"),
        ("pod = { volumes = { a = 1 } }", "pod.volumes must be a list of tables with a name each, but got {'a': 1};"),
        ('memory = "4 GB"', "memory must be a size such as 4Gi or 500M, but got '4 GB'"),
        ('container = { command = ["sh"] }', "container.command would replace what a job needs"),
    ],
)
def test_settings_that_no_pod_could_have_are_refused(on_cluster: Jobs, line: str, said: str) -> None:
    table(on_cluster, line)
    assert refused(on_cluster).startswith(f"target cluster: {said}")


def test_lists_of_the_settings_are_added_to_those_of_a_job(on_cluster: Jobs, tmp_path: Path) -> None:
    table(on_cluster, 'container = { env = [{ name = "REGION", value = "north" }, { name = "HOME", value = "/x" }] }')
    on_cluster.program("")
    given = ("manifest", "job", "env", "--module-name", "trainer.task", "--on", "cluster", "--output", "out.yaml")
    assert main(given) == 0
    *_, job = yaml.safe_load_all((tmp_path / "out.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    environ = {one["name"]: one.get("value") for one in container["env"]}
    assert environ["REGION"] == "north" and environ["HOME"] == "/x" and "TF_CONFIG" in environ


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--hang-secs", "5"], "error: --hang-secs does not work on Kubernetes"),
        (["--job-dir", "/home/me"], "error: --job-dir /home/me would be on the disks of the pods"),
    ],
)
def test_a_manifest_is_refused_what_a_submission_is(
    on_cluster: Jobs, capsys: pytest.CaptureFixture[str], option: list[str], said: str
) -> None:
    on_cluster.program("")
    assert main(["manifest", "job", "bad", "--module-name", "trainer.task", "--on", "cluster", *option]) == 2
    assert said in capsys.readouterr().err


def test_a_kubeconfig_that_is_none_gets_a_sentence(on_cluster: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    (on_cluster.folder / "broken").write_text("contexts: [a: {")
    monkeypatch.setenv("KUBECONFIG", str(on_cluster.folder / "broken"))
    assert f"the kubeconfig {on_cluster.folder}/broken cannot be read" in refused(on_cluster)


def test_what_the_cluster_would_not_take_is_refused(
    on_cluster: Jobs, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.control(forbid=[["create", "jobs"]])
    assert refused(on_cluster) == (
        'Kubernetes says: jobs.batch is forbidden: User "tester" cannot create resource "jobs" in API group "batch" in '
        'the namespace "default".'
    )
    fake.control(reset=True, forbid=[["get", "pods/log"]])
    assert refused(on_cluster).startswith("you may not get pods/log in the namespace default; ask for that right")
    fake.control(reset=True, expired=True)
    assert "does not accept the login: it has expired" in refused(on_cluster)
    fake.control(reset=True)
    assert "would be on the disks of the pods" in refused(on_cluster, "--job-dir", "/elsewhere")
    assert refused(on_cluster, "--hang-secs", "60").startswith("--hang-secs does not work on Kubernetes")
    table(on_cluster, image="")
    assert refused(on_cluster).startswith("target cluster has no image")
    table(on_cluster, 'context = "other"')
    assert refused(on_cluster) == "the kubeconfig has no context 'other'; there are fake."
    table(on_cluster)
    monkeypatch.setenv("KUBECONFIG", str(on_cluster.folder / "nothing"))
    assert refused(on_cluster).startswith("there is no Kubernetes cluster to use: ")


def test_a_cluster_that_does_not_answer_is_named(on_cluster: Jobs, monkeypatch: pytest.MonkeyPatch, fake: Fake) -> None:
    config = yaml.safe_load(fake.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    (on_cluster.folder / "config").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(on_cluster.folder / "config"))
    assert refused(on_cluster).startswith("no Kubernetes cluster answers at http://127.0.0.1:9: ")


def test_objects_of_another_job_are_left_alone(on_cluster: Jobs, fake: Fake) -> None:
    on_cluster.program(COUNTING)
    on_cluster.submit("bad", "--on", "cluster", "--jobs", str(on_cluster.folder / "others"))
    wait_for_process(on_cluster, "chief-0")
    said = refused(on_cluster)
    assert said.startswith("the namespace default has a Job bad-chief already, which is not of this job")
    (on_cluster.folder / "enough").touch()
    wait_until(lambda: not fake.pods())


@pytest.mark.parametrize("tier", ["BASIC", "STANDARD_1"])
@pytest.mark.parametrize("form", [(), ("--jobset",)])
def test_the_objects_are_valid(
    jobs: Jobs, capsys: pytest.CaptureFixture[str], tier: str, form: tuple[str, ...]
) -> None:
    jobs.program("print(me)")
    table(jobs, "[machines.large]", "cpus = 8", 'memory = "16Gi"', "gpus = 1")
    words = ("manifest", "job", "Long_" + 100 * "x", "--on", "cluster", "--module-name", "trainer.task", *form)
    more = ("--scale-tier", tier, "--master-machine-type", "large", "--queue", "team", "--job-dir", "runs/1")
    assert main([*words, *more, "--", "--token", "gold"]) in (0, None)
    found = list(yaml.safe_load_all(capsys.readouterr().out))
    pods = [template["spec"] for template in _templates(found)]
    assert [objections({**pod, "initContainers": []}) for pod in pods] == [[]] * len(pods)
    for one in found:
        assert len(one["metadata"]["name"]) < 60
        if one["kind"] == "JobSet":
            checked: Any = JobsetV1alpha2JobSet.from_dict(one)
            assert checked.to_dict() == one
            for part in one["spec"]["replicatedJobs"]:
                job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "part"}, **part["template"]}
                kubernetes_validate.validate({**job, "metadata": {"name": "x"}}, "1.33", strict=True)
        else:
            kubernetes_validate.validate(one, "1.33", strict=True)
    queued = [one["kind"] for one in found if "kueue.x-k8s.io/queue-name" in one["metadata"]["labels"]]
    assert set(queued) == {"JobSet" if form else "Job"}


def _templates(objects: list[Any]) -> list[Any]:
    """Return the templates of the pods of Jobs and of parts of JobSets."""
    jobs = [one for one in objects if one["kind"] == "Job"]
    sets = [one for one in objects if one["kind"] == "JobSet"]
    jobs += [part["template"] for one in sets for part in one["spec"]["replicatedJobs"]]
    return [job["spec"]["template"] for job in jobs]


def test_a_job_set_ends_with_its_roles(jobs: Jobs, job_sets: Fake) -> None:
    jobs.program(COUNTING)
    jobs.submit("set", *FOUR_ROLES)
    wait_until(lambda: len(roles_of(jobs, "set", "started")) == 4)
    # The child of a JobSet has a name of its own.
    assert sum(pod.startswith("set-worker-0-0-") for pod in job_sets.pods()) == 1
    first = wait_for_process(jobs, "worker-0")
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: processes(jobs, "worker-0") not in ([], [first]))
    wait_until(lambda: roles_of(jobs, "set", "restarted") != [])
    (jobs.folder / "enough").touch()
    assert jobs.wait("set") == "SUCCEEDED"
    check_lines(jobs, "set", "worker-0")
    assert not job_sets.pods()


def test_the_end_of_the_servers_of_a_job_set_leaves_an_evaluator_at_work(jobs: Jobs, job_sets: Fake) -> None:
    jobs.program("""
    (here / f"{me}.{os.getpid()}").touch()
    if me == "evaluator-0":
        wait_for("go")
        print("evaluated", end="")
    """)
    jobs.submit("set", *FOUR_ROLES)
    evaluator = wait_for_process(jobs, "evaluator-0")
    wait_until(lambda: {"chief-0", "worker-0"} <= {*roles_of(jobs, "set", "exited")})
    # Time for a deletion to reach it.
    time.sleep(1)
    assert is_running(evaluator)
    (jobs.folder / "go").touch()
    assert jobs.wait("set") == "SUCCEEDED"
    assert "evaluated" in jobs.log("set", "evaluator-0")


def test_a_server_is_ready_once_it_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        probe = [sys.executable, "-S", "-c", LISTENS, str(listening.getsockname()[1])]
        assert subprocess.run(probe).returncode == 0
    assert subprocess.run(probe).returncode == 1


def test_trials_of_a_study_run_in_pods(on_cluster: Jobs, fake: Fake) -> None:
    code = "import json, os; print(json.loads(os.environ['TF_CONFIG'])['task'], os.environ['CLOUD_ML_TRIAL_ID'])"
    submit_study(on_cluster, code, "--on", "cluster")
    assert on_cluster.wait("study") == "SUCCEEDED"
    for number in "1234":
        log = on_cluster.run("stream-logs", "study", "--task-name", f"trial-{number}")[1]
        assert f"{{'trial': '{number}'}} {number}" in log
    lines = [line.split() for line in on_cluster.run("trials", "study")[1].splitlines()]
    assert [line[1] for line in lines[1:]] == ["SUCCEEDED"] * 4
    assert lines[4][-1] == "best"
    assert not fake.pods()


def test_a_cluster_ends_although_its_pods_run(
    jobs: Jobs, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_kubernetes(tmp_path_factory.mktemp("kubernetes")) as fake:
        monkeypatch.setenv("KUBECONFIG", str(fake.kubeconfig))
        table(jobs)
        jobs.program(COUNTING)
        # Its launcher keeps streams open.
        jobs.submit("endless", *FOUR_ROLES)
        pids = [wait_for_process(jobs, role) for role in ("chief-0", "worker-0", "evaluator-0")]
    assert not any(map(is_running, pids))


def test_dry_run_prints_the_objects_and_makes_nothing(on_cluster: Jobs, fake: Fake) -> None:
    on_cluster.program("print(me)")
    given = (
        "submit",
        "training",
        "dry",
        "--module-name",
        "trainer.task",
        *FOUR_ROLES,
        "--dry-run",
        "--",
        "--token",
        "x",
    )
    status, out, _ = on_cluster.run(*given)
    assert status == 0
    kinds = [one["kind"] for one in yaml.safe_load_all(yaml.safe_load(out)["runs"])]
    assert kinds == ["Secret", "NetworkPolicy", "Service", "Job", "Job", "Job", "Job"]
    assert not fake.pods() and not (on_cluster.folder / "jobs").exists()
    table(on_cluster, image="registry.example.com/train:1")
    said = "warning: registry.example.com/train:1 has no digest; pods may run different builds.\n"
    assert on_cluster.run(*given)[::2] == (0, said)
