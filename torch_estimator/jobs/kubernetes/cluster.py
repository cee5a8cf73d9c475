"""A Kubernetes cluster, as far as jobs need it: objects are created, read, watched and deleted as parsed JSON.

The official client finds the cluster and logs in. Its generated classes are not used: their methods differ from version
to version, and most of a job's objects are built as JSON anyway.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from torch_estimator import files
from torch_estimator.errors import ClusterError, InvalidValueError

Object = dict[str, Any]

_PATHS = {
    "Job": ("/apis/batch/v1", "jobs"),
    "JobSet": ("/apis/jobset.x-k8s.io/v1alpha2", "jobsets"),
    "Service": ("/api/v1", "services"),
    "Secret": ("/api/v1", "secrets"),
    "Pod": ("/api/v1", "pods"),
    "Event": ("/api/v1", "events"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
}
_SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_CONNECT_SECS, _READ_SECS = 10.0, 30.0
_UNAUTHORIZED, _GONE = 401, 410


class RefusedError(ClusterError):
    """The cluster answered a request with an error, whose HTTP status is `code`."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class MissingError(RefusedError):
    """What was asked for is not there."""


class TakenError(RefusedError):
    """There is an object of this name already."""


class UnreachableError(ClusterError):
    """The cluster did not answer."""


class Cluster:
    """A namespace of the cluster that a context of the kubeconfig names; without one, in a pod, that of the pod.

    Raise an InvalidValueError if there is none.
    """

    def __init__(self, context: str, namespace: str) -> None:
        from kubernetes import client, config

        file = os.environ.get("KUBECONFIG")
        try:
            if not context and not file and os.path.exists(_SERVICE_ACCOUNT):
                configuration = client.Configuration()
                config.load_incluster_config(client_configuration=configuration)
                own = files.read_text(_SERVICE_ACCOUNT).strip()
            else:
                contexts, active = config.list_kube_config_contexts(file)
                chosen = next((one for one in contexts if one["name"] == context), None) if context else active
                if chosen is None:
                    known = ", ".join(one["name"] for one in contexts)
                    raise InvalidValueError(f"the kubeconfig has no context {context!r}; there are {known}.")
                configuration = client.Configuration()
                config.load_kube_config(file, context or None, client_configuration=configuration)
                own = chosen["context"].get("namespace", "default")
        except InvalidValueError:
            raise
        except config.ConfigException as error:
            raise InvalidValueError(
                f"there is no Kubernetes cluster to use: {files.reason(error)}; KUBECONFIG must name a file with which "
                "kubectl get pods works."
            ) from error
        except Exception as error:
            # The client raises what its parsers raise.
            raise InvalidValueError(
                f"the kubeconfig {file or '~/.kube/config'} cannot be read: {type(error).__name__}: "
                f"{' '.join(str(error).split())[:300]}; mend it until kubectl get pods works."
            ) from error
        self.namespace = namespace or own
        self._configuration = configuration
        self._pool = client.ApiClient(configuration).rest_client.pool_manager

    @functools.cached_property
    def has_job_sets(self) -> bool:
        """Whether the cluster knows JobSets."""
        try:
            self._request("GET", _PATHS["JobSet"][0])
        except MissingError:
            return False
        return True

    def create(self, body: Object, *, is_dry: bool = False) -> None:
        """Create an object, or only see whether the cluster would."""
        self._request("POST", self._path(body["kind"]), {"dryRun": "All"} if is_dry else {}, body)

    def find(self, kind: str, name: str) -> Object | None:
        """Return an object, or None if it is not there."""
        try:
            return self._request("GET", self._path(kind, name))  # type: ignore[no-any-return]
        except MissingError:
            return None

    def list(self, kind: str, **query: str) -> Object:
        """Return the list of the objects that a labelSelector or fieldSelector names."""
        found: Object = self._request("GET", self._path(kind), query)
        return found

    def delete(self, kind: str, name: str, grace_secs: int | None = None) -> None:
        """Delete an object and what it owns, unless it is gone."""
        options: Object = {"propagationPolicy": "Background"}
        if grace_secs is not None:
            options["gracePeriodSeconds"] = grace_secs
        with contextlib.suppress(MissingError):
            self._request("DELETE", self._path(kind, name), {}, options)

    def plural(self, kind: str) -> str:
        """Return what the cluster calls the objects of a kind."""
        return _PATHS[kind][1]

    def may(self, verb: str, kind: str, subresource: str = "") -> bool:
        """Return whether the user has a right; True where the cluster does not say."""
        prefix, plural = _PATHS[kind]
        wanted = {"namespace": self.namespace, "verb": verb, "resource": plural, "subresource": subresource}
        group = prefix.split("/")[2] if prefix.startswith("/apis/") else ""
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**wanted, "group": group}},
        }
        try:
            said = self._request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {}, body)
        except RefusedError:
            return True
        return bool(said["status"]["allowed"])

    def watch(self, kind: str, version: str, secs: int, **query: str) -> Iterator[Object]:
        """Yield the events of objects after a version of their list, for some time."""
        more = {"watch": "true", "resourceVersion": version, "timeoutSeconds": str(secs), **query}
        for line in self._lines(self._path(kind), more, secs + _READ_SECS):
            event = json.loads(line)
            if event["type"] == "ERROR":
                raise RefusedError(f"the watch has ended: {event['object'].get('message')}", _GONE)
            yield event

    def log(self, pod: str, container: str) -> Iterator[bytes]:
        """Yield the lines of a pod's log, each after its time, until the container has ended."""
        query = {"container": container, "follow": "true", "timestamps": "true"}
        # A program may print nothing for hours.
        return self._lines(f"{self._path('Pod', pod)}/log", query, None)

    def _path(self, kind: str, name: str = "") -> str:
        prefix, plural = _PATHS[kind]
        return f"{prefix}/namespaces/{self.namespace}/{plural}{'/' if name else ''}{name}"

    def _lines(self, path: str, query: Mapping[str, str], read_secs: float | None) -> Iterator[bytes]:
        with self._answer("GET", path, query, None, read_secs) as answer:
            rest = b""
            for chunk in answer.stream(None, decode_content=False):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from lines
            if rest:
                yield rest

    def _request(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: Object | None = None
    ) -> Any:
        with self._answer(method, path, query or {}, body, _READ_SECS) as answer:
            return json.loads(answer.read())

    @contextlib.contextmanager
    def _answer(
        self, method: str, path: str, query: Mapping[str, str], body: Object | None, read_secs: float | None
    ) -> Iterator[Any]:
        import urllib3

        host = self._configuration.host
        try:
            headers = {one["key"]: one["value"] for one in self._configuration.auth_settings().values()}
            answer = self._pool.request(
                method,
                f"{host}{path}?{urlencode(query)}",
                body=None if body is None else json.dumps(body).encode(),
                headers={**headers, "Content-Type": "application/json", "Accept": "application/json"},
                preload_content=False,
                retries=False,
                timeout=urllib3.Timeout(connect=_CONNECT_SECS, read=read_secs),
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise UnreachableError(
                f"no Kubernetes cluster answers at {host}: {files.reason(error)}; see whether kubectl get pods works."
            ) from error
        try:
            if answer.status == _UNAUTHORIZED:
                raise RefusedError(
                    f"the Kubernetes cluster at {host} does not accept the login: it has expired, or is wrong; log in "
                    "again until kubectl get pods works.",
                    _UNAUTHORIZED,
                )
            if answer.status >= 400:
                raise _ERRORS.get(answer.status, RefusedError)(
                    f"Kubernetes says: {_message(answer.read())}.", answer.status
                )
            yield answer
        except urllib3.exceptions.HTTPError as error:
            raise UnreachableError(f"{host} has ended an answer: {error}.") from error
        finally:
            answer.close()


_ERRORS = {404: MissingError, 409: TakenError}


def _message(content: bytes) -> str:
    try:
        message = str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        message = content.decode(errors="replace").strip()
    return message.partition("\n")[0][:1000].rstrip(".")
