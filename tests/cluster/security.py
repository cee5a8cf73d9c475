"""What an operator asks of every pod before signing a manifest off."""

from __future__ import annotations

from typing import Any


def objections(pod: Any) -> list[str]:
    """Return what the restricted profile of Kubernetes' Pod Security Standards, and a little more, does not allow.

    Args:
        pod: Specification of a pod.
    """
    found = []
    if pod.get("automountServiceAccountToken") is not False:
        found.append("the pod gets a token of the cluster")
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        own = container.get("securityContext", {})
        # A container has the settings of its pod where it has none itself.
        secure = {**pod.get("securityContext", {}), **own}
        wanted = {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        found += [f"{container['name']}: {name}" for name, value in wanted.items() if secure.get(name) != value]
        if not secure.get("runAsUser") or not secure.get("runAsGroup"):
            found.append(f"{container['name']}: no user")
        mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
        volumes = {one["name"]: one for one in pod["volumes"]}
        if "emptyDir" not in volumes.get(mounts.get("/tmp"), {}):
            found.append(f"{container['name']}: nowhere to write")
        environ = {one["name"]: one.get("value") for one in container.get("env", [])}
        if environ.get("HOME") != "/tmp" or not environ.get("OMP_NUM_THREADS", "").isdigit():
            found.append(f"{container['name']}: HOME or number of threads")
        resources = container["resources"]
        if not {"cpu", "memory"} <= resources["requests"].keys() or "memory" not in resources["limits"]:
            found.append(f"{container['name']}: resources")
    return found
