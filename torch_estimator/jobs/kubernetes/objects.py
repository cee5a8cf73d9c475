"""The objects of a job on Kubernetes: an Indexed Job for each type of task, and what these need.

A pod is called after the job, its role and its index, so that all addresses are known beforehand: ``TF_CONFIG`` is a
constant but for the index. Kubernetes itself starts a pod again that died, and nothing supervises the program in it.
"""

from __future__ import annotations

import base64
import io
import json
import math
import os
import re
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_estimator import files
from torch_estimator.cluster.task import PARAMETER_SERVER, Task
from torch_estimator.cluster.tf_config import tf_config_of
from torch_estimator.errors import InvalidValueError, UserError
from torch_estimator.jobs.directory import JobSpec, Machine, role_of
from torch_estimator.jobs.kubernetes.cluster import Object
from torch_estimator.jobs.package import package_files
from torch_estimator.jobs.request import with_secrets, without_secrets
from torch_estimator.jobs.targets import layout_of, settings_of, tasks_of
from torch_estimator.kubernetes_objects import RESTRICTED, label, unprivileged, warn_of_tag
from torch_estimator.launch.layout import command_of, environ_of

JOB, ROLE, CREATED = "torch-estimator/job", "torch-estimator/role", "torch-estimator/created"
MAIN = "main"
INDEX = "batch.kubernetes.io/job-completion-index"

_PORT = 2222
# The longest name of a pod is that of a JobSet's evaluator, which has -evaluator-0-, an index and six characters more.
_MOST_NAME = 40
_MOST_SECRET_BYTES = 2**20
_PACKAGE, _PACKED, _KEYS = "/torch-estimator/package", "/torch-estimator/packed", "/torch-estimator/key"
_ARCHIVE, _KEY, _ARGUMENT = "package.tar.gz", "key", "argument-"
_KEEP_SECS = 7 * 24 * 3600
_SIZE = re.compile(r"[0-9]+(\.[0-9]+)?([EPTGMk]|[EPTGMK]i)?")
# What settings must be, and whether a value is that.
_BOUNDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "user": ("a number from 1 on, since root is not allowed", lambda value: value >= 1),
    "cpus": ("a number above 0", lambda value: 0 < value < math.inf),
    "grace_secs": ("0 or more", lambda value: value >= 0),
    "start_secs": ("0 or more", lambda value: value >= 0),
    "mount": ("an absolute path", lambda value: value.startswith("/")),
    "memory": ("a size such as 4Gi or 500M", lambda value: bool(_SIZE.fullmatch(value))),
}
# What a job is made of; the settings have other ways to change some of it.
_OWN_OF_POD = {"containers", "initContainers", "restartPolicy", "subdomain", "hostname"}
_OWN_OF_CONTAINER = {"name", "image", "command", "args"}
# Variables of a trial, as `tuning.trial` makes them.
_OF_TRIALS = ("CLOUD_ML_", "TORCH_ESTIMATOR_COMPILE")
# Lists to which the settings add.
_NAMED = {"env", "ports", "volumeMounts", "volumes"}
# What the init container runs: it needs Python only.
_FETCH = """\
import os, shutil, sys, tarfile
source, target = sys.argv[1:]
try:
    os.stat(source)
except PermissionError:
    who = f"user {os.getuid()}, as whom this pod runs, may not read {source}"
    print(f"error: {who}; submit the job as that user, or give the target yours (user = …).", file=sys.stderr)
    sys.exit(2)
except FileNotFoundError:
    print(f"error: the volume of this pod has no {source}: it is not that of the jobs directory.", file=sys.stderr)
    sys.exit(2)
if os.path.isdir(source):
    shutil.copytree(source, target, dirs_exist_ok=True)
else:
    tarfile.open(source).extractall(target, filter="data")
"""
# Whether a process of the pod listens on a port; 0A is the state LISTEN.
LISTENS = """\
import glob, sys
port = f":{int(sys.argv[1]):04X}"
lines = [line.split() for name in glob.glob("/proc/net/tcp*") for line in open(name)]
sys.exit(not any(line[1].endswith(port) and line[3] == "0A" for line in lines))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What ``estimator.toml`` has for a target of this kind.

    The pods of all roles run `image`, and mount the PersistentVolumeClaim `claim` at `mount`, where this machine has
    the same volume, too, or a URL is used for everything. `cpus` and `memory` are those of a role without a machine
    type. A job whose pods have not all started after `start_secs` has failed; 0 means no limit. `grace_secs` is the
    time that a role has to save. `env` are variables of the program; `pod` and `container` are further fields of each
    pod and its container, which win.
    """

    image: str = ""
    context: str = ""
    namespace: str = ""
    claim: str = ""
    mount: str = "/jobs"
    queue: str = ""
    cpus: float = 1.0
    memory: str = "4Gi"
    user: int = 1000
    start_secs: float = 1800.0
    grace_secs: int = 20
    env: dict[str, str] = field(default_factory=dict)
    pod: dict[str, Any] = field(default_factory=dict)
    container: dict[str, Any] = field(default_factory=dict)

    def check(self, spec: JobSpec) -> None:
        """Raise an InvalidValueError for what no pod of the job could have; warn of an image that may change."""
        target, folder = spec.target, spec.job_dir
        for name, (wanted, holds) in _BOUNDS.items():
            if not holds(value := getattr(self, name)):
                raise InvalidValueError(
                    f"target {target}: {name} must be {wanted}, but got {value!r}; mend estimator.toml."
                )
        for table, more, own in (("pod", self.pod, _OWN_OF_POD), ("container", self.container, _OWN_OF_CONTAINER)):
            if wrong := sorted(own & more.keys()):
                raise InvalidValueError(
                    f"target {target}: {table}.{wrong[0]} would replace what a job needs; leave it out of "
                    "estimator.toml."
                )
            for key in sorted(_NAMED & more.keys()):
                given = more[key]
                if not isinstance(given, list) or not all(isinstance(one, dict) and "name" in one for one in given):
                    raise InvalidValueError(
                        f"target {target}: {table}.{key} must be a list of tables with a name each, but got {given!r}; "
                        "mend estimator.toml."
                    )
        if not self.image:
            raise InvalidValueError(
                f"target {target} has no image; name in estimator.toml the one that all pods run: image = "
                '"registry.example.com/train@sha256:…".'
            )
        warn_of_tag(self.image)
        if spec.hang_secs:
            raise InvalidValueError(
                "--hang-secs does not work on Kubernetes, as nothing looks into the pods; leave it out."
            )
        is_kept = bool(self.claim) and folder is not None and (not os.path.isabs(folder) or self.mounts(folder))
        if folder is not None and files.is_local(folder) and not is_kept:
            where = f"below {self.mount}, where the pods have claim {self.claim}" if self.claim else "a URL"
            raise InvalidValueError(
                f"--job-dir {folder} would be on the disks of the pods, which end with them; give {where}"
                f"{', or a URL' if self.claim else f', or target {target} a claim'}."
            )

    def mounts(self, path: str) -> bool:
        """Return whether the volume has a path."""
        return bool(self.claim and path) and files.is_local(path) and Path(path).is_relative_to(self.mount)


@dataclass(frozen=True, slots=True)
class Objects:
    """The objects of a job: their names, and the JSON of each.

    Args:
        spec: What was asked for.
        url: Directory of the job; empty if there is none.
        is_job_set: Whether the Jobs are parts of a JobSet, which ends the others if one fails.
        environ: Variables of the launcher. The pods get those of a study's trial.
    """

    spec: JobSpec
    url: str
    is_job_set: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        """The settings of the target."""
        return settings_of(Settings, self.spec)

    @property
    def name(self) -> str:
        """The job's name as Kubernetes allows it."""
        return label(self.spec.name, _MOST_NAME)

    @property
    def selector(self) -> str:
        """The label that all objects and pods have."""
        return f"{JOB}={self.name}"

    def job_name(self, type: str) -> str:
        """Return the name of the Job of a type of task."""
        return f"{self.name}-{type}-0" if self.is_job_set else f"{self.name}-{type}"

    def owner(self, job_name: str) -> tuple[str, str]:
        """Return kind and name of what is to be deleted so that a Job is gone for good."""
        return ("JobSet", self.name) if self.is_job_set else ("Job", job_name)

    def addresses(self) -> list[str]:
        """Return the addresses of the tasks that have one, as the pods know them."""
        if not self.spec.is_cluster:
            return []
        count: dict[str, int] = {}
        found = []
        for type in layout_of(self.spec).addressed:
            index = count[type] = count.get(type, -1) + 1
            found.append(f"{self.job_name(type)}-{index}.{self.name}:{_PORT}")
        return found

    def build(self, package: Path, secrets: Sequence[str], key: bytes, began: float) -> list[Object]:
        """Return the objects in the order in which they are to be created.

        Args:
            package: Folder or file of the package; only looked at where the pods do not see the job's directory.
            secrets: Values of the secret arguments.
            key: Secret of the parameter servers.
            began: When the roles are started, in seconds since 1970; see `Program`.
        """
        spec, settings = self.spec, self.settings
        data = {f"{_ARGUMENT}{number}": value.encode() for number, value in enumerate(secrets)}
        if spec.parameter_server_count:
            data[_KEY] = key
        if not settings.mounts(self.url):
            data[_ARCHIVE] = _packed(package)
        if sum(map(len, data.values())) > _MOST_SECRET_BYTES:
            cure = "leave files out by .gitignore"
            if self.url:
                cure = (
                    f"name with --jobs a directory below {settings.mount}, where the pods have their claim, or {cure}"
                )
            raise InvalidValueError(
                f"the package has {len(data.get(_ARCHIVE, b'')) / 2**20:.1f} MiB when compressed, and it comes in a "
                f"Secret of Kubernetes, which holds 1 MiB; {cure}."
            )
        found = [self._secret(data)] if data else []
        groups = self._groups()
        if spec.is_cluster:
            found += [self._policy(), *([] if self.is_job_set else [self._service()])]
        if (servers := len(groups.get(PARAMETER_SERVER, []))) > 1:
            found.append(self._budget(servers))
        jobs = {type: self._job(type, tasks, data, began) for type, tasks in groups.items()}
        return [*found, *([self._job_set(jobs)] if self.is_job_set else jobs.values())]

    def _groups(self) -> dict[str, list[Task]]:
        groups: dict[str, list[Task]] = {}
        for task in tasks_of(self.spec, self.addresses()):
            groups.setdefault(type_of(task), []).append(task)
        return groups

    def _object(self, version: str, kind: str, name: str, spec: Object | None, type: str = "") -> Object:
        metadata = {"name": name, **self._metadata(type)}
        if self.settings.queue and kind == ("JobSet" if self.is_job_set else "Job"):
            metadata["labels"]["kueue.x-k8s.io/queue-name"] = self.settings.queue
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **({} if spec is None else {"spec": spec})}

    def _metadata(self, type: str = "") -> Object:
        return {
            "labels": {**self.spec.labels, JOB: self.name, **({ROLE: type} if type else {})},
            "annotations": {JOB: self.spec.name, CREATED: repr(self.spec.created)},
        }

    def _secret(self, data: Mapping[str, bytes]) -> Object:
        encoded = {name: base64.b64encode(value).decode() for name, value in data.items()}
        return {**self._object("v1", "Secret", self.name, None), "type": "Opaque", "immutable": True, "data": encoded}

    def _service(self) -> Object:
        # Roles look for each other before all of them have started.
        own = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {JOB: self.name}}
        return self._object("v1", "Service", self.name, own)

    def _policy(self) -> Object:
        # In step, the roles trust whoever connects.
        own = {"matchLabels": {JOB: self.name}}
        rule = {"podSelector": own, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": own}]}]}
        return self._object("networking.k8s.io/v1", "NetworkPolicy", self.name, rule)

    def _budget(self, servers: int) -> Object:
        own = {"matchLabels": {JOB: self.name, ROLE: PARAMETER_SERVER}}
        return self._object(
            "policy/v1", "PodDisruptionBudget", f"{self.name}-ps", {"minAvailable": servers - 1, "selector": own}
        )

    def _job(self, type: str, tasks: Sequence[Task], data: Mapping[str, bytes], began: float) -> Object:
        spec = self.spec
        own: Object = {
            "completions": len(tasks),
            "parallelism": len(tasks),
            "completionMode": "Indexed",
            "backoffLimitPerIndex": spec.max_restarts,
            "maxFailedIndexes": 0,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [
                    # A restart would repeat an error of the user.
                    {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [UserError.exit_status]}},
                    # Evictions are not counted.
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                ]
            },
            "ttlSecondsAfterFinished": _KEEP_SECS,
            "template": {
                "metadata": self._metadata(type),
                "spec": self._pod(tasks[0], data, began),
            },
        }
        if spec.max_running_secs:
            # The launcher ends it before, as it counts from the start of the roles.
            secs = spec.max_running_secs + self.settings.start_secs + self.settings.grace_secs
            own["activeDeadlineSeconds"] = math.ceil(secs)
        return self._object("batch/v1", "Job", self.job_name(type), own, type)

    def _job_set(self, jobs: Mapping[str, Object]) -> Object:
        parts = [
            {
                "name": type,
                "replicas": 1,
                "template": {"metadata": self._metadata(type), "spec": job["spec"]},
            }
            for type, job in jobs.items()
        ]
        for part in parts:
            del part["template"]["spec"]["ttlSecondsAfterFinished"]  # type: ignore[index]
        own = {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": self.name},
            # Servers serve until they are stopped.
            "successPolicy": {
                "operator": "All",
                "targetReplicatedJobs": [type for type in jobs if type != PARAMETER_SERVER],
            },
            "failurePolicy": {"maxRestarts": 0},
            "ttlSecondsAfterFinished": _KEEP_SECS,
            "replicatedJobs": parts,
        }
        return self._object("jobset.x-k8s.io/v1alpha2", "JobSet", self.name, own)

    def _pod(self, task: Task, data: Mapping[str, bytes], began: float) -> Object:
        settings = self.settings
        volumes: list[Object] = [
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
            {"name": "package", "emptyDir": {}},
        ]
        mounts: list[Object] = [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "shm", "mountPath": "/dev/shm"},
        ]
        if settings.claim:
            volumes.append({"name": "jobs", "persistentVolumeClaim": {"claimName": settings.claim}})
            mounts.append({"name": "jobs", "mountPath": settings.mount})
        if _ARCHIVE in data:
            volumes.append(_of_secret("packed", self.name, _ARCHIVE))
            source, path = {"name": "packed", "mountPath": _PACKED, "readOnly": True}, f"{_PACKED}/{_ARCHIVE}"
        else:
            source, path = mounts[-1], files.join(self.url, "package")
        if _KEY in data:
            volumes.append(_of_secret("key", self.name, _KEY))
            mounts.append({"name": "key", "mountPath": _KEYS, "readOnly": True})
        pod: Object = {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            # Otherwise the program is process 1, which SIGTERM does not end unless it has a handler.
            "shareProcessNamespace": True,
            "terminationGracePeriodSeconds": settings.grace_secs,
            "securityContext": {
                **unprivileged(settings.user),
                "fsGroup": settings.user,
                "fsGroupChangePolicy": "OnRootMismatch",
            },
            "volumes": volumes,
            "initContainers": [self._fetch(source, path)],
            "containers": [self._main(task, data, began, mounts)],
        }
        if self.spec.is_cluster:
            pod["subdomain"] = self.name
        if task.type == PARAMETER_SERVER:
            apart = {
                "labelSelector": {"matchLabels": {JOB: self.name, ROLE: task.type}},
                "topologyKey": "kubernetes.io/hostname",
            }
            pod["affinity"] = {
                "podAntiAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": apart}]
                }
            }
        return _over(pod, settings.pod)

    def _fetch(self, source: Object, path: str) -> Object:
        """Return the init container that copies or unpacks the package, which `source` mounts."""
        return {
            "name": "package",
            "image": self.settings.image,
            "command": [self.spec.interpreter, "-c", _FETCH, path, _PACKAGE],
            "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
            "securityContext": RESTRICTED,
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [source, {"name": "package", "mountPath": _PACKAGE}],
        }

    def _main(self, task: Task, data: Mapping[str, bytes], began: float, mounts: Sequence[Object]) -> Object:
        """Return the container of the program."""
        settings, spec = self.settings, self.spec
        machine = spec.machines.get(type_of(task), Machine())
        cpus, memory = machine.cpus or settings.cpus, machine.memory or settings.memory
        gpus = {"nvidia.com/gpu": str(machine.gpus)} if machine.gpus else {}
        main: Object = {
            "name": MAIN,
            "image": settings.image,
            "command": self._command(task),
            "env": self._environ(task, data, cpus, began),
            "workingDir": spec.folder if settings.mounts(spec.folder) else settings.mount if settings.claim else "/tmp",
            "ports": [{"name": "task", "containerPort": _PORT, "protocol": "TCP"}],
            "resources": {
                "requests": {"cpu": f"{cpus:g}", "memory": memory, **gpus},
                "limits": {"memory": memory, **gpus},
            },
            "securityContext": RESTRICTED,
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": [*mounts, {"name": "package", "mountPath": _PACKAGE, "readOnly": True}],
        }
        if task.type == PARAMETER_SERVER:
            # The budget counts servers that are ready. A connection would look like a peer without the key.
            main["readinessProbe"] = {
                "exec": {"command": [spec.interpreter, "-S", "-c", LISTENS, str(_PORT)]},
                "timeoutSeconds": 10,
            }
        return _over(main, settings.container)

    def _command(self, task: Task) -> list[str]:
        spec = self.spec
        # Kubernetes replaces $(NAME) in arguments.
        plain = [one.replace("$(", "$$(") for one in spec.arguments]
        _, holes = without_secrets(spec.arguments, spec.secret_arguments)
        names = [f"$(TORCH_ESTIMATOR_ARGUMENT_{number})" for number in range(len(holes))]
        arguments = with_secrets(plain, spec.secret_arguments, names)
        job_dir = [] if spec.job_dir is None else ["--job-dir", spec.job_dir]
        return command_of(task, spec.interpreter, spec.module_name, [*arguments, *job_dir])

    def _environ(self, task: Task, data: Mapping[str, bytes], cpus: float, began: float) -> list[Object]:
        # This loads ZeroMQ, which most commands can do without.
        from torch_estimator.parameter_server.encryption import KEY_FILE

        number = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}
        secret = [
            {
                "name": f"TORCH_ESTIMATOR_{name.upper().replace('-', '_')}",
                "valueFrom": {"secretKeyRef": {"name": self.name, "key": name}},
            }
            for name in data
            if name.startswith(_ARGUMENT)
        ]
        trial = {name: value for name, value in self.environ.items() if name.startswith(_OF_TRIALS)}
        values = {
            **environ_of(began),
            **{name: value.replace("$(", "$$(") for name, value in trial.items()},
            "TF_CONFIG": self._config(task),
            "PYTHONPATH": _PACKAGE,
            "HOME": "/tmp",
            "OMP_NUM_THREADS": str(math.ceil(cpus)),
            **({KEY_FILE: f"{_KEYS}/{_KEY}"} if _KEY in data else {}),
            **self.settings.env,
        }
        return [
            {"name": "INDEX", "valueFrom": number},
            *secret,
            *({"name": name, "value": value} for name, value in values.items()),
        ]

    def _config(self, task: Task) -> str:
        """Return ``TF_CONFIG``, into which Kubernetes puts the index of the pod."""
        config = json.loads(tf_config_of(task, self.environ.get("TF_CONFIG", "{}")))
        if "index" in config["task"]:
            config["task"]["index"] = "$(INDEX)"
        return json.dumps(config).replace('"$(INDEX)"', "$(INDEX)")


def secrets_in(secret: Object) -> list[str]:
    """Return the values of secret arguments that `Objects.build` has put into a Secret."""
    found = {name: value for name, value in secret["data"].items() if name.startswith(_ARGUMENT)}
    return [base64.b64decode(found[f"{_ARGUMENT}{number}"]).decode() for number in range(len(found))]


def type_of(task: Task) -> str:
    """Return the type of a task; that of a program without a cluster is the chief."""
    return role_of(task).rpartition("-")[0]


def _over(own: Object, more: Mapping[str, Any]) -> Object:
    """Put further fields over ours. Lists of named things have ours, too, unless one of the same name is given."""
    found = {**own, **more}
    for key in _NAMED & more.keys():
        # One volume may be mounted at several places.
        by = "mountPath" if key == "volumeMounts" else "name"
        names = {one.get(by) for one in more[key]}
        found[key] = [one for one in own.get(key, []) if one[by] not in names] + more[key]
    return found


def _of_secret(name: str, secret: str, key: str) -> Object:
    # A key that everybody can read is refused; the group is that of the pod.
    return {
        "name": name,
        "secret": {"secretName": secret, "defaultMode": 0o440, "items": [{"key": key, "path": key}]},
    }


def _packed(package: Path) -> bytes:
    """Return the files of a package as an archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path in package_files(package):
            archive.add(path.resolve(), path.relative_to(package.parent).as_posix(), recursive=False)
    return buffer.getvalue()
