"""The kubelet of the fake: pods as processes of this machine, with their volumes, names, logs and states."""

from __future__ import annotations

import asyncio
import base64
import collections
import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from scripts.fake_kubernetes.objects import LABEL, NAMESPACE, Thing, now, set_condition
from scripts.fake_kubernetes.store import Bell, Store

_ROOT = Path(__file__).resolve().parents[2]
_UNITS = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_NAME = re.compile(rf"(?P<host>{LABEL})\.(?P<service>{LABEL})(\.{NAMESPACE}(\.svc(\.cluster\.local)?)?)?:(?P<port>\d+)")


class Log:
    """The output of a container: lines, each with its time in nanoseconds."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, bytes]] = []
        self.grown = Bell()
        self.is_complete = False

    def add(self, *lines: bytes) -> None:
        for line in lines:
            # A time is a line's identity, so none comes twice.
            after = self.lines[-1][0] + 1 if self.lines else 0
            self.lines.append((max(time.time_ns(), after), line))
        self.grown.ring()

    async def read(self, pipe: int) -> None:
        """Add all that comes from a pipe until its other end is closed."""
        stream, rest = asyncio.StreamReader(), b""
        protocol = asyncio.StreamReaderProtocol(stream)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(pipe, "rb", 0))
        while chunk := await stream.read(2**16):
            *lines, rest = (rest + chunk).split(b"\n")
            self.add(*(line + b"\n" for line in lines))
        self.add(*filter(None, [rest]))


class _Stopped(Exception):
    """A pod is deleted before its next container runs."""


@dataclass(eq=False)
class Run:
    """What the kubelet has of a pod."""

    name: str
    folder: Path
    logs: dict[str, Log] = field(default_factory=dict)
    process: asyncio.subprocess.Process | None = None
    is_stopped: bool = False
    is_out_of_memory: bool = False

    def signal(self, number: int) -> None:
        """Send SIGKILL to all processes of a container, another signal to its first."""
        with contextlib.suppress(ProcessLookupError):
            if self.process:
                (os.killpg if number == signal.SIGKILL else os.kill)(self.process.pid, number)


class _Prepared(NamedTuple):
    """How a container is started."""

    command: list[str]
    environ: dict[str, str]
    folder: str


class Kubelet:
    """Runs the pods of a store, each in a task of its own."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store, self.folder = store, folder
        # By uid.
        self.runs: dict[str, Run] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.ports: dict[tuple[str, str, str], int] = {}
        store.start_pod, store.stop_pod = self._start, self._stop

    async def end(self) -> None:
        """Kill all pods."""
        while self.tasks:
            for run in self.runs.values():
                run.is_stopped = True
                run.signal(signal.SIGKILL)
            self.store.changed.ring()
            await asyncio.wait(self.tasks, timeout=0.1)

    def run_of(self, pod: Thing) -> Run:
        return self.runs[pod["metadata"]["uid"]]

    def _start(self, pod: Thing) -> None:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        run = self.runs[uid] = Run(name, self.folder / name)
        task = asyncio.create_task(self._run_pod(run))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _stop(self, name: str, grace: float | None) -> None:
        pod = self.store.things["pods", name]
        meta, run = pod["metadata"], self.run_of(pod)
        if pod["status"]["phase"] in ("Succeeded", "Failed"):
            self._remove(pod)
            return
        grace = pod["spec"]["terminationGracePeriodSeconds"] if grace is None else grace
        if meta.get("deletionGracePeriodSeconds", grace + 1) > grace:
            with self.store.changing("pods", name) as changed:
                changed["metadata"] |= {"deletionTimestamp": now(grace), "deletionGracePeriodSeconds": int(grace)}
            asyncio.get_running_loop().call_later(grace, run.signal, signal.SIGKILL)
        if not run.is_stopped:
            run.is_stopped = True
            run.signal(signal.SIGTERM)

    def _remove(self, pod: Thing) -> None:
        shutil.rmtree(self.runs.pop(pod["metadata"]["uid"]).folder, ignore_errors=True)
        self.store.remove("pods", pod["metadata"]["name"])

    async def _run_pod(self, run: Run) -> None:
        """Run the init containers of a pod and then its container, and end its object."""
        spec, code = self.store.things["pods", run.name]["spec"], 0
        containers = [("initContainerStatuses", one) for one in spec.get("initContainers") or []]
        reason = "PodInitializing" if containers else "ContainerCreating"
        containers += [("containerStatuses", one) for one in spec["containers"]]
        try:
            await self._wait_until(run, lambda: self._is_scheduled(run))
            with self.store.changing("pods", run.name) as pod:
                set_condition(pod, "PodScheduled", True)
                pod["spec"]["nodeName"] = "node-1"
                address = "127.0.0.1"
                pod["status"] |= {"hostIP": address, "podIP": address, "podIPs": [{"ip": address}], "startTime": now()}
                for kind, one in containers:
                    status = {"name": one["name"], "image": one.get("image", ""), "imageID": "", "lastState": {}}
                    status |= {"ready": False, "restartCount": 0, "state": {"waiting": {"reason": reason}}}
                    pod["status"].setdefault(kind, []).append(status)
            for kind, one in containers:
                if code := await self._run_container(run, kind, one):
                    break
        except _Stopped:
            code = 1
        with self.store.changing("pods", run.name) as pod:
            pod["status"]["phase"] = "Failed" if code else "Succeeded"
            set_condition(pod, "Ready", False, "PodFailed" if code else "PodCompleted")
        pod = self.store.things["pods", run.name]
        self.store.pod_ended(pod)
        if run.is_stopped:
            self._remove(pod)

    async def _wait_until(self, run: Run, succeeds: Callable[[], bool]) -> None:
        while not run.is_stopped:
            if succeeds():
                return
            await self.store.changed.rung()
        raise _Stopped

    def _is_scheduled(self, run: Run) -> bool:
        """Return whether a node has what a pod wants; if not, say so in the pod."""
        pod, node = self.store.things["pods", run.name], self.store.faults["node"]
        if node is None:
            return True
        asked = collections.Counter[str]()
        for container in pod["spec"]["containers"]:
            resources = container.get("resources") or {}
            for key, amount in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
                # In thousandths.
                asked[key] += round(1000 * _amount(amount))
        lacks = [f"Insufficient {key}" for key in asked if asked[key] > 1000 * _amount(node.get(key, "999999Ti"))]
        if (pod["spec"].get("nodeSelector") or {}).items() - node.get("labels", {}).items():
            lacks = ["node(s) didn't match Pod's node affinity/selector"]
        if lacks:
            message = f"0/3 nodes are available: {', '.join(f'3 {one}' for one in lacks)}."
            with self.store.changing("pods", run.name) as changed:
                set_condition(changed, "PodScheduled", False, "Unschedulable", message)
            if self.store.things["pods", run.name] is not pod:
                self.store.event(pod, "FailedScheduling", message, "default-scheduler")
        return not lacks

    def _set_state(self, run: Run, kind: str, own: str, state: Thing, **more: object) -> None:
        with self.store.changing("pods", run.name) as pod:
            next(one for one in pod["status"][kind] if one["name"] == own).update(state=state, **more)
            if "running" in state and kind == "containerStatuses":
                pod["status"]["phase"] = "Running"
                for condition in ("Initialized", "ContainersReady", "Ready"):
                    set_condition(pod, condition, True)

    async def _run_container(self, run: Run, kind: str, container: Thing) -> int:
        own, image = container["name"], container.get("image", "")
        log = run.logs[own] = Log()
        prepared: list[_Prepared] = []

        def is_ready() -> bool:
            """Prepare the container; if that is not possible yet, say so in the pod."""
            pod = self.store.things["pods", run.name]
            source = "Failed"
            try:
                if any(image.startswith(prefix) for prefix in self.store.faults["unpullable"]):
                    raise FileNotFoundError
                prepared.append(self._prepare(pod, run, container))
                return True
            except FileNotFoundError:
                message = f'failed to pull and unpack image "{image}": failed to resolve reference "{image}": not found'
                reason, message = "ErrImagePull", f"rpc error: code = NotFound desc = {message}"
                if "ErrImagePull" in str(pod["status"][kind]):
                    reason, message = "ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {message}'
            except LookupError as error:
                reason, message = "CreateContainerConfigError", str(error.args[0])
            except NotADirectoryError as error:
                source, reason, message = "FailedMount", "ContainerCreating", f"MountVolume.SetUp failed for {error}"
            self._set_state(run, kind, own, {"waiting": {"reason": reason, "message": message}})
            if self.store.things["pods", run.name] is not pod:
                self.store.event(pod, source, message, "kubelet")
                self.store.look_again(time.time() + 0.1)
            return False

        await self._wait_until(run, is_ready)
        state: Thing = {"exitCode": 128, "reason": "StartError", "startedAt": now()}
        # A pipe of our own: asyncio's would have wait() last until all processes that have inherited it have ended.
        output, end = os.pipe()
        reader = asyncio.create_task(log.read(output))
        try:
            run.process = await asyncio.create_subprocess_exec(
                *prepared[0].command or [""],
                env=prepared[0].environ,
                cwd=prepared[0].folder,
                stdin=subprocess.DEVNULL,
                stdout=end,
                stderr=end,
                start_new_session=True,
            )
        except OSError as error:
            state["message"] = f"failed to create containerd task: {error}"
        finally:
            os.close(end)
        if run.process:
            identity = f"process://{run.process.pid}"
            running = {"running": {"startedAt": now()}}
            self._set_state(run, kind, own, running, ready=True, started=True, containerID=identity)
            if run.is_stopped:
                run.signal(signal.SIGTERM)
            code = await run.process.wait()
            state["exitCode"] = 128 - code if code < 0 else code
            state["reason"] = "OOMKilled" if run.is_out_of_memory else "Error" if code else "Completed"
            # A container ends with its first process.
            run.signal(signal.SIGKILL)
            run.process = None
        await asyncio.wait([reader], timeout=2)
        log.is_complete = True
        log.grown.ring()
        if state["exitCode"] and container.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            state.setdefault("message", b"".join(line for _, line in log.lines[-80:]).decode(errors="replace"))
        is_ready_still = kind == "initContainerStatuses" and not state["exitCode"]
        self._set_state(run, kind, own, {"terminated": {**state, "finishedAt": now()}}, ready=is_ready_still)
        return int(state["exitCode"])

    def _prepare(self, pod: Thing, run: Run, container: Thing) -> _Prepared:
        """Make the volumes of a container, and say how it is started."""
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes") or []}
        folders = {}
        for mount in container.get("volumeMounts") or []:
            path = mount["mountPath"].rstrip("/") or "/"
            folder = self._volume(run, volumes[mount["name"]], path)
            folders[path] = path if folder == path else os.path.join(folder, mount.get("subPath") or "").rstrip("/")

        def moved(text: str, *kept: str) -> str:
            """Replace the paths of volumes in a container by those on this machine, in one pass."""
            paths = sorted(folders.keys() - kept, key=len, reverse=True)
            pattern = rf"(?<![\w.~/-])({'|'.join(map(re.escape, paths))})(?![\w.-])"
            return re.sub(pattern, lambda found: folders[found[1]], text) if paths else text

        values = {key: moved(self._on_this_machine(value)) for key, value in self._environ(pod, container).items()}
        words = [*(container.get("command") or []), *(container.get("args") or [])]
        command = [_expanded(moved(word, "/tmp", "/dev/shm"), values) for word in words]
        folder = moved(container.get("workingDir") or str(run.folder / "root"))
        os.makedirs(folder, exist_ok=True)
        environ = {"HOME": os.environ.get("HOME", "/"), "OMP_NUM_THREADS": "1", **values}
        environ["PATH"] = f"{Path(sys.executable).parent}:{values.get('PATH', os.defpath)}"
        environ["PYTHONPATH"] = ":".join(filter(None, [values.get("PYTHONPATH"), str(_ROOT)]))
        return _Prepared(command, environ, folder)

    def _environ(self, pod: Thing, container: Thing) -> dict[str, str]:
        """Return the variables of a container; raise a LookupError where a Secret or its key is missing."""
        values: dict[str, str] = {}
        for source in container.get("envFrom") or []:
            secret, prefix = self._secret(source["secretRef"]), source.get("prefix") or ""
            values |= {prefix + key: value.decode() for key, value in secret.items()}
        for entry in container.get("env") or []:
            source = entry.get("valueFrom") or {}
            if "fieldRef" in source:
                found: Any = pod
                # Such as metadata.name, or metadata.labels['x'].
                for quoted, plain in re.findall(r"\['([^']*)'\]|([^.\[]+)", source["fieldRef"]["fieldPath"]):
                    found = (found or {}).get(quoted or plain, "")
                values[entry["name"]] = found
            elif "secretKeyRef" in source:
                wanted = source["secretKeyRef"]
                secret = self._secret(wanted)
                if wanted["key"] in secret:
                    values[entry["name"]] = secret[wanted["key"]].decode()
                elif not wanted.get("optional"):
                    raise LookupError(f"couldn't find key {wanted['key']} in Secret {NAMESPACE}/{wanted['name']}")
            else:
                values[entry["name"]] = _expanded(entry.get("value") or "", values)
        return values

    def _secret(self, wanted: Thing) -> dict[str, bytes]:
        found = self.store.things.get(("secrets", wanted["name"]))
        if found is None and not wanted.get("optional"):
            raise LookupError(f'secret "{wanted["name"]}" not found')
        return {key: base64.b64decode(value) for key, value in (found or {"data": {}})["data"].items()}

    def _volume(self, run: Run, volume: Thing, path: str) -> str:
        """Return the folder that a volume is on this machine; raise a NotADirectoryError if it cannot be."""
        shown = f'volume "{volume["name"]}"'
        if "persistentVolumeClaim" in volume:
            if not os.path.isdir(path):
                raise NotADirectoryError(f"{shown} : this machine has no folder {path}")
            return path
        folder = run.folder / "volumes" / volume["name"]
        folder.mkdir(parents=True, exist_ok=True)
        if secret := volume.get("secret"):
            try:
                data = self._secret({**secret, "name": secret["secretName"]})
                for item in secret.get("items") or [{"key": key, "path": key} for key in data]:
                    file = folder / item["path"]
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.unlink(missing_ok=True)
                    file.write_bytes(data[item["key"]])
                    file.chmod(item.get("mode", secret.get("defaultMode", 0o644)))
            except LookupError as error:
                raise NotADirectoryError(f"{shown} : {error.args[0]}") from None
        return str(folder)

    def _on_this_machine(self, text: str) -> str:
        """Replace HOST.SERVICE:PORT by a port of this machine, where there is such a headless service."""

        def address(found: re.Match[str]) -> str:
            service = self.store.things.get(("services", found["service"]), {"spec": {}})["spec"]
            if service.get("clusterIP") != "None" or not service.get("publishNotReadyAddresses"):
                return found[0]
            key = (found["host"], found["service"], found["port"])
            while key not in self.ports:
                # Below those that the kernel gives to others.
                port = random.randrange(15000, 32000)
                with socket.socket() as probe, contextlib.suppress(OSError):
                    probe.bind(("127.0.0.1", port))
                    if port not in self.ports.values():
                        self.ports[key] = port
            return f"127.0.0.1:{self.ports[key]}"

        return _NAME.sub(address, text)

    async def lines(self, log: Log, at: int, follows: bool) -> AsyncIterator[list[tuple[int, bytes]]]:
        """Yield the lines of a log from a number on."""
        cuts = self.store.cuts
        while True:
            if part := log.lines[at : at + 1000]:
                at += len(part)
                yield part
            elif log.is_complete or not follows:
                return
            else:
                await log.grown.rung()
            if cuts != self.store.cuts:
                raise ConnectionAbortedError


def _expanded(text: str, values: dict[str, str]) -> str:
    """Replace $(NAME) of a known variable; $$ is a dollar."""

    def value(found: re.Match[str]) -> str:
        return "$" if found[1] == "$" else values.get(found[2], found[0])

    return re.sub(r"\$(\$|\(([^)]*)\))", value, text)


def _amount(quantity: object) -> float:
    number, unit = re.findall(r"^([\d.]+)(\w*)$", str(quantity))[0]
    return float(number) * _UNITS.get(unit, 1)
