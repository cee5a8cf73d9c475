"""What Kubernetes objects are: kinds, valid names, defaults, selectors, conditions, patches."""

from __future__ import annotations

import base64
import copy
import random
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

Thing = dict[str, Any]

NAMESPACE = "default"
GROUPS = {
    "v1": {
        "pods": "Pod",
        "services": "Service",
        "secrets": "Secret",
        "events": "Event",
        "persistentvolumeclaims": "PersistentVolumeClaim",
    },
    "batch/v1": {"jobs": "Job"},
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
    "networking.k8s.io/v1": {"networkpolicies": "NetworkPolicy"},
    "authorization.k8s.io/v1": {"selfsubjectaccessreviews": "SelfSubjectAccessReview"},
    "jobset.x-k8s.io/v1alpha2": {"jobsets": "JobSet"},
}
KINDS = {resource: (version, kind) for version, kinds in GROUPS.items() for resource, kind in kinds.items()}
LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_JOBSET = "jobset.sigs.k8s.io/"
_SUBDOMAIN = (
    rf"{LABEL}(?:\.{LABEL})*",
    253,
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character",
)
_DNS_1035 = (
    r"[a-z](?:[-a-z0-9]*[a-z0-9])?",
    63,
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character",
)
_VALUE = (
    r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?",
    63,
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character",
)


class Refusal(Exception):
    """An answer that is a Status."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        self.status: Thing = {**status, "message": message, "reason": reason, "code": code}


def now(ahead: float = 0) -> str:
    return datetime.fromtimestamp(time.time() + ahead, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def named(resource: str, name: str = "") -> str:
    """Return how messages name a resource or an object: ``jobs.batch "x"``."""
    group = KINDS[resource][0].rpartition("/")[0]
    return ".".join(filter(None, [resource, group])) + (f' "{name}"' if name else "")


def owned_by(thing: Thing) -> list[Thing]:
    """Return the ownerReferences of what a controller creates for an object."""
    who = {"name": thing["metadata"]["name"], "uid": thing["metadata"]["uid"], "controller": True}
    return [{"apiVersion": thing["apiVersion"], "kind": thing["kind"], "blockOwnerDeletion": True, **who}]


def has(thing: Thing, *conditions: str) -> bool:
    """Return whether an object has one of these conditions."""
    known = thing["status"].get("conditions", [])
    return any(one["type"] in conditions and one["status"] == "True" for one in known)


def set_condition(thing: Thing, kind: str, status: bool, reason: str = "", message: str = "") -> None:
    """Add or replace a condition; one that says the same stays as it is."""
    said = {"type": kind, "status": str(status), **({"reason": reason, "message": message} if reason else {})}
    conditions = thing["status"].setdefault("conditions", [])
    for one in conditions:
        if one["type"] == kind:
            if not said.items() <= one.items():
                one |= {**said, "lastTransitionTime": now()}
            return
    conditions.append({**said, "lastTransitionTime": now()})


def selected(query: Mapping[str, str], thing: Thing) -> bool:
    """Return whether labelSelector and fieldSelector of a query hold."""
    labels = thing["metadata"].get("labels") or {}
    for term in re.findall(r"[^,(]+(?:\([^)]*\))?", query.get("labelSelector", "")):
        pattern = r"\s*(!?)([\w./-]+)\s*(?:(=|==|!=)\s*([\w.-]*)|(in|notin)\s*\(([^)]*)\))?\s*"
        if not (parsed := re.fullmatch(pattern, term)):
            raise Refusal(400, "BadRequest", f"unable to parse requirement: {term!r}")
        absent, key, operator, value, within, values = parsed.groups()
        if operator or within:
            wanted = [value] if operator else [one.strip() for one in values.split(",")]
            if (labels.get(key) in wanted) == ((operator or within) in ("!=", "notin")):
                return False
        elif (key in labels) == bool(absent):
            return False
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        path, operator, value = re.split(r"(!=|==|=)", term, maxsplit=1)
        found: Any = thing
        for key in path.split("."):
            found = (found or {}).get(key)
        if ((found or "") == value) == (operator == "!="):
            return False
    return True


def merged(old: Any, patch: Any) -> Any:
    """Return what a merge patch makes of a value."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    new = copy.deepcopy(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = merged(new.get(key), value)
    return new


def check(resource: str, thing: Thing) -> None:
    """Raise the Refusal of an object that is invalid."""
    meta, spec = thing["metadata"], thing.get("spec") or {}
    name = meta["name"]
    kind = ".".join(filter(None, [KINDS[resource][1], KINDS[resource][0].rpartition("/")[0]]))

    def refuse(path: str, value: str, why: str) -> None:
        raise Refusal(422, "Invalid", f'{kind} "{name}" is invalid: {path}: Invalid value: "{value}": {why}')

    def must_be(rule: tuple[str, int, str], path: str, value: str) -> None:
        pattern, longest, words = rule
        if len(value) > longest:
            refuse(path, value, f"must be no more than {longest} characters")
        if not re.fullmatch(pattern, value):
            refuse(path, value, f"{words} (regex used for validation is '{pattern}')")

    must_be(_DNS_1035 if resource == "services" else _SUBDOMAIN, "metadata.name", name)
    for value in (meta.get("labels") or {}).values():
        must_be(_VALUE, "metadata.labels", value)
    if resource == "jobs":
        for value in [name, *(spec["template"].get("metadata", {}).get("labels") or {}).values()]:
            must_be(_VALUE, "spec.template.labels", value)
        last = f"{name}-{spec.get('completions', 1) - 1}"
        if spec.get("completionMode") == "Indexed" and (len(last) > 63 or not re.fullmatch(LABEL, last)):
            refuse("metadata.name", name, f"will not able to create pod with invalid DNS label: {last}")
        if (policy := spec["template"]["spec"].get("restartPolicy", "Always")) == "Always":
            refuse("spec.template.spec.restartPolicy", policy, 'valid values: "OnFailure", "Never"')
    if resource == "jobsets":
        for job in child_jobs({**thing, "metadata": {"uid": "", **meta}}):
            check("jobs", job)


def complete(resource: str, thing: Thing) -> Thing:
    """Return a new object with what the server adds to it; raise the Refusal of one that is invalid."""
    version, kind = KINDS[resource]
    thing = {**copy.deepcopy(thing), "kind": kind, "apiVersion": version}
    meta, spec = thing.setdefault("metadata", {}), thing.get("spec") or {}
    ending = "".join(random.choices("bcdfghjklmnpqrstvwxz2456789", k=5))
    meta.setdefault("name", meta.get("generateName", "") + ending)
    check(resource, thing)
    meta |= {"namespace": NAMESPACE, "uid": str(uuid.uuid4()), "creationTimestamp": now(), "generation": 1}
    if resource == "secrets":
        texts = thing.pop("stringData", None) or {}
        encoded = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
        thing = {"type": "Opaque", **thing, "data": {**(thing.get("data") or {}), **encoded}}
    elif resource == "pods":
        spec |= {"terminationGracePeriodSeconds": 30, **spec}
        thing["status"] = {"phase": "Pending", "conditions": [], "qosClass": "BestEffort"}
    elif resource == "jobs":
        limit = 2**31 - 1 if "backoffLimitPerIndex" in spec else 6
        replaces = "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed"
        spec |= {"parallelism": 1, "completionMode": "NonIndexed", "suspend": False, "backoffLimit": limit, **spec}
        spec |= {"completions": spec["parallelism"], "podReplacementPolicy": replaces, **spec}
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": meta["uid"]}}
        template = spec["template"].setdefault("metadata", {})
        own = {"controller-uid": meta["uid"], "job-name": meta["name"]}
        own |= {f"batch.kubernetes.io/{key}": value for key, value in own.items()}
        template["labels"] = {**(template.get("labels") or {}), **own}
        thing["status"] = {}
    elif resource == "jobsets":
        thing["status"] = {"restarts": 0}
    return thing


def child_jobs(jobset: Thing) -> Iterator[Thing]:
    """Yield the jobs that the controller of a jobset creates."""
    name, spec = jobset["metadata"]["name"], jobset["spec"]
    for replicated in spec["replicatedJobs"]:
        for number in range(replicated.get("replicas", 1)):
            job = {"metadata": {}, **copy.deepcopy(replicated["template"])}
            template = job["spec"]["template"]
            labels = {"jobset-name": name, "replicatedjob-name": replicated["name"], "job-index": str(number)}
            for meta in (job["metadata"], template.setdefault("metadata", {})):
                meta["labels"] = {**(meta.get("labels") or {}), **{_JOBSET + key: labels[key] for key in labels}}
            job["metadata"] |= {"name": f"{name}-{replicated['name']}-{number}", "ownerReferences": owned_by(jobset)}
            template["spec"].setdefault("subdomain", (spec.get("network") or {}).get("subdomain") or name)
            job["spec"]["suspend"] = spec.get("suspend", False)
            yield job
