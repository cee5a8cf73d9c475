"""Jobs on Kubernetes: Kubernetes runs the roles, and the launcher on this machine follows them.

The launcher creates the objects, writes events and logs, and removes the objects at the end. The roles do not need it:
if it is killed, they go on, and the next command that looks at the job starts it again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch_estimator import files
from torch_estimator.cluster.task import Task
from torch_estimator.errors import ClusterError, InvalidValueError, UserError
from torch_estimator.jobs.directory import JobDirectory, JobEvent, JobSpec, ended_here, role_of
from torch_estimator.jobs.kubernetes.cluster import Cluster, MissingError, Object, TakenError
from torch_estimator.jobs.kubernetes.objects import CREATED, Objects, Settings, secrets_in
from torch_estimator.jobs.kubernetes.pods import PodProcess, Pods, Role, has_started, trouble_of
from torch_estimator.jobs.logs import LogReader
from torch_estimator.jobs.request import SECRETS, without_secrets
from torch_estimator.jobs.targets import Local, check_runs, settings_of, tasks_of
from torch_estimator.launch.layout import Program
from torch_estimator.launch.lines import WriteLine
from torch_estimator.launch.process import Start
from torch_estimator.runs.locks import FileLock
from torch_estimator.yaml_text import to_yaml

_KINDS = ("JobSet", "Job", "Service", "PodDisruptionBudget", "NetworkPolicy", "Secret")
# What a launcher asks for, but for creating, which is tried.
RIGHTS = {
    ("Pod", ""): ("list", "watch", "delete"),
    ("Pod", "log"): ("get",),
    ("Job", ""): ("get", "list", "delete"),
    ("JobSet", ""): ("list", "delete"),
    ("Secret", ""): ("get", "list", "delete"),
    ("Service", ""): ("list", "delete"),
    ("NetworkPolicy", ""): ("list", "delete"),
    ("PodDisruptionBudget", ""): ("list", "delete"),
}
_QUIET_SECS, _LOOK_SECS = 3.0, 0.2
_CLEAN_SECS = 60.0


class Kubernetes(Local):
    """A cluster that this machine has a kubeconfig for, or in which this machine is a pod."""

    SETTINGS = tuple(one.name for one in dataclasses.fields(Settings))
    INTERPRETER = "python"
    HAS_TIMES = True

    def check(self, spec: JobSpec, url: str, package: Path | None = None) -> None:
        """Raise a UserError if the cluster does not take the job's objects, or the pods would not see its files."""
        settings = settings_of(Settings, spec)
        if importlib.util.find_spec("kubernetes") is None:
            raise InvalidValueError(
                f"target {spec.target} needs the client of Kubernetes; pip install 'torch-estimator[kubernetes]'."
            )
        settings.check(spec)
        if settings.mounts(url) and os.geteuid() not in (0, settings.user):
            raise InvalidValueError(
                f"the pods of target {spec.target} run as user {settings.user} and could not read {url}, which only "
                f"you can read; write user = {os.geteuid()} in estimator.toml."
            )
        cluster = _cluster(settings)
        _check_rights(cluster)
        if package is not None:
            objects = _objects(cluster, spec, url)
            for one in objects.build(package, without_secrets(spec.arguments, spec.secret_arguments)[1], b"key", 0.0):
                _create(cluster, one, is_dry=True)

    def plan(self, spec: JobSpec, url: str, package: Path) -> str:
        """Return the objects as YAML, without the content of the Secret."""
        objects = _objects(_cluster(settings_of(Settings, spec)), spec, url)
        found = objects.build(package, without_secrets(spec.arguments, spec.secret_arguments)[1], b"", 0.0)
        for secret in (one for one in found if one["kind"] == "Secret"):
            secret["data"] = dict.fromkeys(secret["data"], "")
        return to_yaml(found)

    def check_cancel(self, job: JobDirectory, launched: JobEvent) -> None:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if ended_here(launched) is None and launched.place is not None:
                check_runs(files.read_text(f"/proc/{launched.pid}/cmdline").rstrip("\0").rpartition("\0")[2], job)

    def cancel(self, job: JobDirectory, launched: JobEvent) -> None:
        """Delete what the job has in the cluster; its launcher, wherever it is, sees that."""
        super().cancel(job, launched)
        spec = job.spec()
        _delete(_cluster(settings_of(Settings, spec)), spec)

    def ended(self, job: JobDirectory, launched: JobEvent) -> str | None:
        """Start a launcher again that was killed, if the cluster has the job."""
        why = ended_here(launched)
        if why is None:
            return None
        spec = job.spec()
        try:
            cluster = _cluster(settings_of(Settings, spec))
            there = _found(cluster, spec, "JobSet", "Job")
        except UserError:
            return None
        if not there:
            return why
        environ = dict(os.environ)
        if without_secrets(spec.arguments, spec.secret_arguments)[1]:
            objects = Objects(spec, job.url)
            try:
                secret = cluster.find("Secret", objects.name)
                if secret is None:
                    raise ClusterError(f"its Secret {objects.name} is gone.")
            except ClusterError as error:
                cure = f"kubectl delete all,secret -l {objects.selector} ends them"
                return f"{why}, while the roles go on; {cure}: {error}"
            environ[SECRETS] = json.dumps(secrets_in(secret))
        with contextlib.suppress(BlockingIOError), FileLock(job.url, directory=True):
            if job.launched() == launched:
                self.submit(job, spec, environ)
        return None

    def leaves(self, job: JobDirectory) -> bool:
        """Return whether the roles go on when the launcher gets a signal, as when this machine is shut down."""
        return not job.is_cancelled()

    def requeue(self, job: JobDirectory, spec: JobSpec, environ: Mapping[str, str]) -> bool:
        """Leave the roles alone, which go on."""
        return True

    def clean(self, job: JobDirectory, spec: JobSpec) -> str:
        """Delete what the job has in the cluster, and wait until it is gone."""
        settings = settings_of(Settings, spec)
        deadline = time.monotonic() + _CLEAN_SECS + settings.grace_secs
        try:
            cluster = _cluster(settings)
            _delete(cluster, spec)
            while (left := _found(cluster, spec, "Pod")) and time.monotonic() < deadline:
                time.sleep(_LOOK_SECS)
        except UserError as error:
            return f"Not everything of it could be removed: {error}"
        return f"Kubernetes has not removed {left[0]['metadata']['name']} yet." if left else ""

    @contextlib.contextmanager
    def start(self, job: JobDirectory, spec: JobSpec, program: Program) -> Iterator[tuple[list[str], Start]]:
        """Create the objects, unless they are there, and wait until all pods have started."""
        from torch_estimator.parameter_server.encryption import KEY_FILE

        cluster = _cluster(settings_of(Settings, spec))
        objects = _objects(cluster, spec, job.url)
        _, secrets = without_secrets(program.arguments, spec.secret_arguments)
        key = files.read_bytes(os.environ[KEY_FILE]) if spec.parameter_server_count else b""
        for one in objects.build(Path(program.package_path or ""), secrets, key, program.began):
            _create(cluster, one)
        tasks = tasks_of(spec, objects.addresses())
        pods = Pods(cluster, objects)
        try:
            roles = {role_of(task): Role(pods, cluster, objects, task, _lines(job, role_of(task))) for task in tasks}
            _wait_for_pods(job, spec, cluster, pods, roles)
            yield objects.addresses(), functools.partial(_start, roles, set(roles))
        finally:
            pods.close()


def _cluster(settings: Settings) -> Cluster:
    return Cluster(settings.context, settings.namespace)


def _check_rights(cluster: Cluster) -> None:
    asked = [(verb, kind, part) for (kind, part), verbs in RIGHTS.items() for verb in verbs]
    if not cluster.has_job_sets:
        asked = [one for one in asked if one[1] != "JobSet"]
    with ThreadPoolExecutor(len(asked)) as pool:
        allowed = list(pool.map(lambda one: cluster.may(*one), asked))
    if missing := [one for one, may in zip(asked, allowed, strict=True) if not may]:
        verb, kind, part = missing[0]
        what = cluster.plural(kind) + (f"/{part}" if part else "")
        raise InvalidValueError(
            f"you may not {verb} {what} in the namespace {cluster.namespace}; ask for that right, or name another "
            "namespace in estimator.toml."
        )


def _found(cluster: Cluster, spec: JobSpec, *kinds: str) -> list[Object]:
    """Return the objects of a job that the cluster has, and none of another job of that name."""
    found = []
    for kind in kinds:
        # Not every cluster knows JobSets.
        with contextlib.suppress(MissingError):
            found += cluster.list(kind, labelSelector=Objects(spec, "").selector)["items"]
    return [one for one in found if one["metadata"].get("annotations", {}).get(CREATED) == repr(spec.created)]


def _delete(cluster: Cluster, spec: JobSpec) -> None:
    for kind in _KINDS:
        for one in _found(cluster, spec, kind):
            cluster.delete(kind, one["metadata"]["name"])


def _objects(cluster: Cluster, spec: JobSpec, url: str) -> Objects:
    is_job_set = spec.is_cluster and cluster.has_job_sets
    if is_job_set and not _found(cluster, spec, "JobSet"):
        # The cluster may know JobSets only since the job was submitted.
        is_job_set = not _found(cluster, spec, "Job")
    return Objects(spec, url, is_job_set=is_job_set, environ=os.environ)


def _create(cluster: Cluster, body: Object, *, is_dry: bool = False) -> None:
    """Create an object of a job, unless the job has it already."""
    try:
        cluster.create(body, is_dry=is_dry)
    except TakenError:
        kind, metadata = body["kind"], body["metadata"]
        found = cluster.find(kind, metadata["name"])
        if found and found["metadata"].get("annotations", {}).get(CREATED) != metadata["annotations"][CREATED]:
            raise InvalidValueError(
                f"the namespace {cluster.namespace} has a {kind} {metadata['name']} already, which is not of this job; "
                "cancel the job of that name, or choose another name."
            ) from None


def _lines(job: JobDirectory, role: str) -> Iterator[bytes]:
    """Yield what the log of a role has, each line after its time."""
    return (f"{line.time} {line.text}".encode() for line in LogReader(job.logs, role).read())


def _wait_for_pods(job: JobDirectory, spec: JobSpec, cluster: Cluster, pods: Pods, roles: Mapping[str, Role]) -> None:
    """Wait until the first pods of all roles have started. Say why they have not, and raise a ClusterError at last."""
    settings = settings_of(Settings, spec)
    is_limited = bool(settings.start_secs) and not settings.queue
    began = time.monotonic()
    said = ""
    while True:
        waiting = [name for name in roles if not (pods.are_known and any(map(has_started, pods.of(name))))]
        if not waiting:
            return
        secs = time.monotonic() - began
        why = "" if secs < _QUIET_SECS else _why(cluster, pods, roles[waiting[0]])
        if why and why != said:
            said = why
            job.add("waiting", "QUEUED", role=waiting[0], reason=f"{waiting[0]} waits: {why}.")
        if is_limited and secs > settings.start_secs:
            raise ClusterError(
                f"{waiting[0]} has not started within {settings.start_secs:g} s, which start_secs of target "
                f"{spec.target} allows: {why or 'Kubernetes does not say why'}."
            )
        pods.wait(0.1 if secs < _QUIET_SECS else 1.0)


def _why(cluster: Cluster, pods: Pods, role: Role) -> str:
    """Return why a role has not started, as Kubernetes says it."""
    if pods.trouble:
        return pods.trouble.rstrip(".")
    found = pods.of(role.name)
    if not found and (ended := role.end()):
        raise ClusterError(f"{role.name} cannot start: {ended}")
    if found and (said := trouble_of(found[-1])):
        return said
    name = found[-1]["metadata"]["name"] if found else role.job_name
    try:
        events = cluster.list("Event", fieldSelector=f"involvedObject.name={name}")["items"]
    except ClusterError:
        return ""
    return next((str(one["message"]) for one in reversed(events) if one.get("type") == "Warning"), "")


def _start(
    roles: Mapping[str, Role],
    first: set[str],
    task: Task,
    write: WriteLine,
    on_exit: Callable[[int], None],
) -> PodProcess:
    role = roles[role_of(task)]
    is_first = role.name in first
    first.discard(role.name)
    if not is_first and not role.has_next() and (why := role.end()):
        raise ClusterError(f"{role.name} is not started again: {why}")
    return PodProcess(role, is_first, write, on_exit)
