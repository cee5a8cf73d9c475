"""Objects of Kubernetes for a server: Deployment, Service and what an operator wants beside them, or one of KServe."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from torch_estimator import files
from torch_estimator.errors import InvalidValueError
from torch_estimator.kubernetes_objects import RESTRICTED, label, unprivileged
from torch_estimator.serving.options import ServingOptions

Object = dict[str, Any]

_SECRETS = "/secrets"
# Load balancers hear a moment after the pod that it is going to end. Until then it takes new connections.
_GOING_SECS = 10
# Beyond the time to drain, for the process to end.
_END_SECS = 10
# KServe adds "-predictor-00001" to a name, which may then have 63 characters.
_MOST_KSERVE_NAME = 47
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_MEMORY = re.compile(r"[1-9][0-9]*(\.[0-9]+)?[KMGT]i?")
_USER = unprivileged(1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """A server in pods that run ``estimator serve`` with `arguments`, which mean `settings`.

    The pods mount the PersistentVolumeClaim `claim` at `mount`, for reading, and the Secret `secret` at ``/secrets``;
    the keys of the Secret `env_secret` are their environment variables. They run as `service_account`. There are
    `min_replicas` to `max_replicas` of them, each with `cpus` cores and as much `memory`.
    """

    name: str
    settings: ServingOptions
    arguments: Sequence[str]
    image: str
    namespace: str | None
    claim: str | None
    mount: str
    secret: str | None
    env_secret: str | None
    service_account: str | None
    min_replicas: int
    max_replicas: int
    cpus: float
    memory: str
    kserve: bool

    def __post_init__(self) -> None:
        if not self.image.strip():
            raise InvalidValueError(f"--image must be the name of an image, but got {self.image!r}.")
        for option in ("namespace", "claim", "secret", "env_secret", "service_account"):
            given = getattr(self, option)
            if given is not None and not _NAME.fullmatch(given):
                option = option.replace("_", "-")
                raise InvalidValueError(f"--{option} takes a name of Kubernetes, such as models-1, but got {given!r}.")
        if not self.mount.startswith("/") or self.mount.strip("/") in ("", "tmp", "secrets"):
            raise InvalidValueError(f"--mount must be a path such as /models, but got {self.mount!r}.")
        if not 0.001 <= self.cpus < math.inf:
            raise InvalidValueError(f"--cpus must be a number of cores, such as 2 or 0.5, but got {self.cpus}.")
        if not _MEMORY.fullmatch(self.memory):
            raise InvalidValueError(f"--memory must be a number with a unit, such as 2Gi, but got {self.memory!r}.")
        least = 0 if self.kserve else 1
        if not least <= self.min_replicas <= self.max_replicas or self.max_replicas < 1:
            raise InvalidValueError(
                f"--min-replicas must be from {least} to --max-replicas, but got {self.min_replicas} and "
                f"{self.max_replicas}{'' if self.kserve else '; only --kserve can start from 0'}."
            )
        if self.kserve and self.settings.grpc_ports:
            raise InvalidValueError("KServe passes on one port, that of REST; leave those of gRPC out.")
        own = self.settings
        if own.host not in ("0.0.0.0", "::") or 0 in self._ports().values():
            raise InvalidValueError("the pods must listen at 0.0.0.0 or ::, and at a port other than 0, to be reached.")
        self._check_paths("--claim", self.claim, self.mount, self._models())
        self._check_paths("--secret", self.secret, _SECRETS, [own.token_file, own.tls_certificate, own.tls_key])

    def _check_paths(self, option: str, given: str | None, place: str, paths: Sequence[str | None]) -> None:
        for path in (one for one in paths if one is not None and files.is_local(one)):
            if given is None:
                raise InvalidValueError(f"the pods have no {path}; name with {option} what they mount at {place}.")
            if ".." in PurePosixPath(path).parts or not PurePosixPath(path).is_relative_to(place):
                raise InvalidValueError(f"the pods have no {path}; name a path below {place}.")

    def _models(self) -> list[str]:
        own = self.settings
        return [path for path in (own.registry, *(model.path for model in own.models)) if path is not None]

    @property
    def label(self) -> str:
        """The name of all objects."""
        return label(self.name, _MOST_KSERVE_NAME) if self.kserve else label(self.name)

    @property
    def _labels(self) -> Object:
        return {"app.kubernetes.io/name": "estimator-serve", "app.kubernetes.io/instance": self.label}

    def objects(self) -> list[Object]:
        """Return the objects in the order in which they are to be created."""
        if self.kserve:
            return [self._inference_service()]
        own, ports = {"matchLabels": self._labels}, self._ports()
        # With all it needs on its disks, a server has nobody to call.
        is_closed = all(files.is_local(path) for path in self._models())
        policy = {
            "podSelector": own,
            "policyTypes": ["Ingress", "Egress"] if is_closed else ["Ingress"],
            "ingress": [{"ports": [{"protocol": "TCP", "port": port} for port in ports.values()]}],
        }
        forwarded = [{"name": name, "port": port, "targetPort": name} for name, port in ports.items()]
        deployment = {
            # The autoscaler sets the number of replicas; one from here would overrule it whenever this is applied.
            "selector": own,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {"metadata": {"labels": self._labels}, "spec": self._deployed_pod()},
        }
        load = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}
        scaler = {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": self.label},
            "minReplicas": self.min_replicas,
            "maxReplicas": self.max_replicas,
            "metrics": [{"type": "Resource", "resource": load}],
        }
        # A pod that does not serve anyway does not keep its node from being drained.
        budget = {"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": own}
        return [
            self._object("networking.k8s.io/v1", "NetworkPolicy", policy),
            self._object("v1", "Service", {"selector": self._labels, "ports": forwarded}),
            self._object("policy/v1", "PodDisruptionBudget", budget),
            self._object("apps/v1", "Deployment", deployment),
            self._object("autoscaling/v2", "HorizontalPodAutoscaler", scaler),
        ]

    def _deployed_pod(self) -> Object:
        apart = {"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": self._labels}}
        keys = ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
        pod = self._pod()
        pod["containers"][0]["lifecycle"] = {"preStop": {"sleep": {"seconds": _GOING_SECS}}}
        return {
            "terminationGracePeriodSeconds": _GOING_SECS + math.ceil(self.settings.drain_secs) + _END_SECS,
            "topologySpreadConstraints": [{**apart, "topologyKey": key} for key in keys],
            # The group is for volumes that only it may read.
            "securityContext": {**_USER, "fsGroup": 1000, "fsGroupChangePolicy": "OnRootMismatch"},
            **pod,
        }

    def _inference_service(self) -> Object:
        # Knative takes less: it sets security for the container only, and spreads the pods and drains them by itself.
        pod = self._pod()
        (container,) = pod["containers"]
        container["name"] = "kserve-container"
        container["env"].append({"name": "PROTOCOL", "value": "v2"})
        container["securityContext"].update(_USER)
        replicas = {"minReplicas": self.min_replicas, "maxReplicas": self.max_replicas}
        # The most that a request may take, which is also how long a pod may take to end.
        last_secs = math.ceil(max(self.settings.timeout_secs, self.settings.drain_secs)) + _END_SECS
        predictor = {**replicas, "timeout": last_secs, **pod}
        made = self._object("serving.kserve.io/v1beta1", "InferenceService", {"predictor": predictor})
        # KServe's other mode cannot start from zero by itself.
        made["metadata"].setdefault("annotations", {})["serving.kserve.io/deploymentMode"] = "Knative"
        return made

    def _object(self, version: str, kind: str, spec: Object) -> Object:
        metadata: Object = {"name": self.label, "labels": self._labels}
        if self.namespace is not None:
            metadata["namespace"] = self.namespace
        if self.label != self.name:
            metadata["annotations"] = {"torch-estimator/name": self.name}
        return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}

    def _ports(self) -> dict[str, int]:
        own = self.settings
        ports = {"http1" if self.kserve else "http": own.port, "grpc": own.grpc_port}
        if own.tf_serving_grpc_port != own.grpc_port:
            ports["grpc-tf-serving"] = own.tf_serving_grpc_port
        return {name: port for name, port in ports.items() if port is not None}

    def _pod(self) -> Object:
        volumes: list[Object] = [{"name": "tmp", "emptyDir": {}}]
        mounts: list[Object] = [{"name": "tmp", "mountPath": "/tmp"}]
        if self.claim is not None:
            source = {"claimName": self.claim, "readOnly": True}
            volumes.append({"name": "models", "persistentVolumeClaim": source})
            mounts.append({"name": "models", "mountPath": self.mount, "readOnly": True})
        if self.secret is not None:
            volumes.append({"name": "secrets", "secret": {"secretName": self.secret}})
            mounts.append({"name": "secrets", "mountPath": _SECRETS, "readOnly": True})
        # By itself, a process in a container would count the cores of the node.
        threads = str(self.settings.threads or max(1, int(self.cpus) // self.settings.most_nodes))
        environ = {"HOME": "/tmp", "OMP_NUM_THREADS": threads}
        resources = {"cpu": f"{self.cpus:g}", "memory": self.memory}
        container = {
            "name": "serve",
            "image": self.image,
            "command": ["estimator", "serve"],
            # Kubernetes replaces $(NAME) in arguments.
            "args": [one.replace("$(", "$$(") for one in (*self.arguments, "--threads", threads)],
            "env": [{"name": name, "value": value} for name, value in environ.items()],
            **({} if self.env_secret is None else {"envFrom": [{"secretRef": {"name": self.env_secret}}]}),
            "ports": [{"name": name, "containerPort": port} for name, port in self._ports().items()],
            # Five minutes to load the models. A restart would not help one without a version, so this is not readiness.
            "startupProbe": self._probe("live", periodSeconds=2, failureThreshold=150),
            "readinessProbe": self._probe("ready", periodSeconds=5, failureThreshold=3),
            # A busy server answers late, and its end would leave more to the others.
            "livenessProbe": self._probe("live", periodSeconds=10, failureThreshold=6),
            "resources": {"requests": resources, "limits": resources},
            "securityContext": dict(RESTRICTED),
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "volumeMounts": mounts,
        }
        shut: Object = {"automountServiceAccountToken": False, "enableServiceLinks": False}
        if self.service_account is not None:
            shut["serviceAccountName"] = self.service_account
        return {**shut, "containers": [container], "volumes": volumes}

    def _probe(self, path: str, **often: int) -> Object:
        own = self.settings
        get: Object
        # Ready are both. But kubelets do not ask gRPC over TLS.
        if path == "ready" and own.grpc_port is not None and own.tls_certificate is None:
            get = {"grpc": {"port": own.grpc_port}}
        else:
            scheme = "HTTP" if own.tls_certificate is None else "HTTPS"
            get = {"httpGet": {"path": f"/v2/health/{path}", "port": own.port, "scheme": scheme}}
        return {**get, "timeoutSeconds": 5, **often}
