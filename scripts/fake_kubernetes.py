"""A fake Kubernetes API server whose pods are processes of this machine, for tests and storms.

It speaks what jobs ask of Kubernetes 1.33, in its words: Jobs with indexes and JobSets start pods, pods have logs, and
everything can be listed, watched and deleted. A test orders faults by `Fake.control`.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import copy
import json
import os
import random
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

Thing = dict[str, Any]

_ROOT = Path(__file__).resolve().parents[1]
_PATH = re.compile(r"/apis?(?:/([\w.-]+))?/v\w+/(?:namespaces/default/)?(\w+)(?:/([\w.-]+))?(?:/(\w+))?")
_ADDRESS = re.compile(r"([a-z0-9-]+)\.([a-z0-9-]+):(\d+)")
_INDEX, _JOB = "batch.kubernetes.io/job-completion-index", "batch.kubernetes.io/job-name"
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_FAULTS: Thing = {"forbid": [], "expired": False, "quota": None, "unpullable": [], "node": None, "fails_until": 0.0}
_ENDED = ("Succeeded", "Failed")
_RETRY_SECS = 0.1
_MOST_SECS = 30.0


class Refusal(Exception):
    """An answer that is a Status."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status: Thing = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}


@dataclass(eq=False)
class Run:
    """What this machine has of a pod. The lines of its main container have their times."""

    folder: Path
    lines: list[tuple[str, bytes]] = field(default_factory=list)
    is_complete: bool = False
    process: asyncio.subprocess.Process | None = None
    is_stopped: bool = False

    def signal(self, number: int) -> None:
        """Send a signal to the first process, SIGKILL to all."""
        with contextlib.suppress(ProcessLookupError):
            if self.process is not None:
                (os.killpg if number == signal.SIGKILL else os.kill)(self.process.pid, number)


def _time(ahead: float = 0.0) -> str:
    return datetime.fromtimestamp(time.time() + ahead, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _condition(thing: Thing, kind: str, status: bool = True, reason: str = "", message: str = "") -> None:
    known = thing["status"].setdefault("conditions", [])
    known[:] = [one for one in known if one["type"] != kind]
    known.append({"type": kind, "status": str(status), "reason": reason, "message": message})


def _has(thing: Thing, *kinds: str) -> bool:
    return any(one["type"] in kinds and one["status"] == "True" for one in thing["status"].get("conditions", []))


class Cluster:
    """All objects of one namespace, what happens to them, and the processes of the pods."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.things: dict[tuple[str, str], Thing] = {}
        self.history: list[tuple[str, str, Thing]] = []
        self.faults = copy.deepcopy(_FAULTS)
        self.runs: dict[str, Run] = {}
        self.cuts = 0
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ports: dict[str, int] = {}
        # Of each job: the indexes that are done, failures of each, when each may start again, pods that were counted.
        self._records: dict[str, tuple[set[int], dict[int, int], dict[int, float], set[str]]] = {}

    async def change(self, secs: float) -> None:
        """Wait for a change, at most for some seconds."""
        # Before Python 3.12, wait_for loses a cancellation that comes with the change.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(secs):
                await self._changed.wait()

    def all(self, resource: str, query: Mapping[str, str] | None = None) -> list[Thing]:
        """Return the objects that a labelSelector of one label, or a fieldSelector of one field, names."""
        query = query or {}
        found = [thing for (kind, _), thing in self.things.items() if kind == resource]
        key, _, value = query.get("labelSelector", "").partition("=")
        about = query.get("fieldSelector", "").removeprefix("involvedObject.name=")
        labelled = [one for one in found if not key or one["metadata"].get("labels", {}).get(key) == value]
        return [one for one in labelled if not about or one.get("involvedObject", {}).get("name") == about]

    def put(self, resource: str, thing: Thing, what: str = "MODIFIED") -> Thing:
        """Keep an object that is new or has changed."""
        thing["metadata"]["resourceVersion"] = str(len(self.history) + 1)
        if what == "DELETED":
            self.things.pop((resource, thing["metadata"]["name"]))
        else:
            self.things[resource, thing["metadata"]["name"]] = thing
        self.history.append((resource, what, copy.deepcopy(thing)))
        self._changed.set()
        self._changed = asyncio.Event()
        return thing

    def create(self, resource: str, thing: Thing, *, is_dry: bool = False) -> Thing:
        """Create an object; raise a Refusal."""
        meta = thing["metadata"]
        name = meta.setdefault("name", meta.get("generateName", "") + secrets.token_hex(3)[:5])
        if resource in ("jobs", "services", "jobsets") and not _NAME.fullmatch(name):
            raise Refusal(422, "Invalid", f'{resource} "{name}" is invalid: metadata.name: Invalid value: "{name}"')
        if (resource, name) in self.things:
            raise Refusal(409, "AlreadyExists", f'{resource} "{name}" already exists')
        quota = self.faults["quota"]
        if resource == "pods" and quota is not None and len(self.all("pods")) >= quota:
            used = f"requested: pods=1, used: pods={len(self.all('pods'))}, limited: pods={quota}"
            raise Refusal(403, "Forbidden", f'pods "{name}" is forbidden: exceeded quota: pods, {used}')
        if is_dry:
            return thing
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": _time()}
        thing["status"] = {"phase": "Pending"} if resource == "pods" else {}
        self.put(resource, thing, "ADDED")
        if resource == "pods":
            self.runs[name] = Run(self.folder / "pods" / name)
            task = asyncio.create_task(self._run(thing, self.runs[name]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return thing

    def delete(self, resource: str, name: str, grace: float | None = None) -> None:
        """Delete an object and what it owns; a pod that runs gets SIGTERM first."""
        thing = self.things[resource, name]
        owned = {"jobs": ("pods", f"{_JOB}={name}"), "jobsets": ("jobs", f"jobset={name}")}.get(resource)
        if resource != "pods" or thing["status"]["phase"] in _ENDED:
            self.put(resource, thing, "DELETED")
            for one in self.all(owned[0], {"labelSelector": owned[1]}) if owned else []:
                self.delete(owned[0], one["metadata"]["name"])  # type: ignore[index]
            self.runs.pop(name, None) if resource == "pods" else None
            return
        run, secs = self.runs[name], thing["spec"]["terminationGracePeriodSeconds"] if grace is None else grace
        thing["metadata"]["deletionTimestamp"] = _time(secs)
        self.put("pods", thing)
        run.signal(signal.SIGTERM)
        run.is_stopped = True
        asyncio.get_running_loop().call_later(secs, run.signal, signal.SIGKILL)

    def event(self, about: Thing, message: str) -> None:
        """Add a Warning about an object, once."""
        name = about["metadata"]["name"]
        if not any(one["message"] == message for one in self.all("events", {"fieldSelector": name})):
            meta = {"name": f"{name}.{secrets.token_hex(4)}"}
            known = {"metadata": meta, "type": "Warning", "message": message, "involvedObject": {"name": name}}
            self.create("events", known)

    async def control(self) -> None:
        """Start the pods of jobs, and the jobs of jobsets."""
        while True:
            for one in self.all("jobsets"):
                self._sync_set(one)
            for one in self.all("jobs"):
                if not _has(one, "Complete", "Failed"):
                    self._sync(one)
            await self.change(0.05)

    def _sync_set(self, found: Thing) -> None:
        name, spec, policy = found["metadata"]["name"], found["spec"], found["spec"]["successPolicy"]
        jobs = {f"{name}-{one['name']}-0": one for one in spec["replicatedJobs"]}
        if not _has(found, "Created", "Completed", "Failed"):
            _condition(found, "Created")
            network = {"clusterIP": "None", "publishNotReadyAddresses": spec["network"]["publishNotReadyAddresses"]}
            self.create("services", {"metadata": {"name": spec["network"]["subdomain"]}, "spec": network})
            for child, one in jobs.items():
                job = copy.deepcopy(one["template"])
                job["metadata"] |= {"name": child, "labels": {**job["metadata"]["labels"], "jobset": name}}
                self.create("jobs", job)
        there = {child: self.things.get(("jobs", child)) for child in jobs}
        failed = any(job is not None and _has(job, "Failed") for job in there.values())
        targets = [there[f"{name}-{one}-0"] for one in policy["targetReplicatedJobs"]]
        if failed or all(job is not None and _has(job, "Complete") for job in targets):
            if not _has(found, "Completed", "Failed"):
                _condition(found, "Failed" if failed else "Completed")
                self.put("jobsets", found)
            for child, job in there.items():
                if job is not None and not _has(job, "Complete", "Failed"):
                    self.delete("jobs", child)

    def _sync(self, job: Thing) -> None:
        name, spec = job["metadata"]["name"], job["spec"]
        done, failures, ready, counted = self._records.setdefault(job["metadata"]["uid"], (set(), {}, {}, set()))
        pods = self.all("pods", {"labelSelector": f"{_JOB}={name}"})
        for pod in [one for one in pods if one["status"]["phase"] in _ENDED and one["metadata"]["uid"] not in counted]:
            index = int(pod["metadata"]["annotations"][_INDEX])
            counted.add(pod["metadata"]["uid"])
            if pod["status"]["phase"] == "Succeeded":
                done.add(index)
            elif (action := _action(spec, pod)) == "FailJob":
                _condition(job, "FailureTarget", True, "PodFailurePolicy", "a container failed with exit code 2")
            elif action == "Count":
                failures[index] = failures.get(index, 0) + 1
                ready[index] = time.time() + _RETRY_SECS * 2 ** (failures[index] - 1)
        active = [pod for pod in pods if pod["status"]["phase"] not in _ENDED]
        if sum(count > spec["backoffLimitPerIndex"] for count in failures.values()) > spec["maxFailedIndexes"]:
            why = "Job has exceeded the specified maximal number of failed indexes"
            _condition(job, "FailureTarget", True, "MaxFailedIndexesExceeded", why)
        if _has(job, "FailureTarget"):
            for pod in [one for one in active if "deletionTimestamp" not in one["metadata"]]:
                self.delete("pods", pod["metadata"]["name"])
        if not active and (len(done) == spec["completions"] or _has(job, "FailureTarget")):
            last = next((one for one in job["status"].get("conditions", [])), {"reason": "", "message": ""})
            _condition(
                job, "Failed" if _has(job, "FailureTarget") else "Complete", True, last["reason"], last["message"]
            )
            self.put("jobs", job)
            return
        taken = {int(pod["metadata"]["annotations"][_INDEX]) for pod in active} | done
        for index in set() if _has(job, "FailureTarget") else set(range(spec["completions"])) - taken:
            if time.time() >= ready.get(index, 0.0):
                self._start(job, index, ready)

    def _start(self, job: Thing, index: int, ready: dict[int, float]) -> None:
        name, pod = job["metadata"]["name"], copy.deepcopy(job["spec"]["template"])
        pod["metadata"] |= {"generateName": f"{name}-{index}-"}
        pod["metadata"]["labels"] |= {_JOB: name, _INDEX: str(index)}
        pod["metadata"].setdefault("annotations", {})[_INDEX] = str(index)
        pod["spec"]["hostname"] = f"{name}-{index}"
        try:
            self.create("pods", pod)
        except Refusal as refusal:
            ready[index] = time.time() + 0.5
            self.event(job, f"Error creating: {refusal}")

    def _waits(self, pod: Thing) -> bool:
        """Say in a pod why it cannot start yet, if it cannot."""
        node, container = self.faults["node"], pod["spec"]["containers"][0]
        if node is not None and any(
            float(container["resources"]["requests"].get(key, 0)) > amount for key, amount in node.items()
        ):
            _condition(
                pod,
                "PodScheduled",
                False,
                "Unschedulable",
                f"0/3 nodes are available: 3 Insufficient {next(iter(node))}.",
            )
            return True
        _condition(pod, "PodScheduled")
        pod["spec"]["nodeName"] = "node-1"
        image = str(container["image"])
        state: Thing = {"waiting": {"reason": "PodInitializing"}}
        if waits := image.startswith(tuple(self.faults["unpullable"])):
            said = (
                f'Back-off pulling image "{image}": ErrImagePull: failed to pull and unpack image "{image}": not found'
            )
            state = {"waiting": {"reason": "ImagePullBackOff", "message": said}}
        pod["status"]["containerStatuses"] = [{"name": container["name"], "image": image, "state": state}]
        return waits

    async def _run(self, pod: Thing, run: Run) -> None:
        code = 1
        while self._waits(pod) and not run.is_stopped:
            self.put("pods", pod)
            await self.change(1.0)
        kinds = [("initContainerStatuses", one) for one in pod["spec"].get("initContainers", [])]
        for kind, one in [*kinds, ("containerStatuses", pod["spec"]["containers"][0])]:
            if run.is_stopped:
                break
            code = await self._run_container(pod, run, kind, one)
            if code:
                break
        pod["status"]["phase"] = "Failed" if code else "Succeeded"
        run.is_complete = True
        self.put("pods", pod)
        if "deletionTimestamp" in pod["metadata"]:
            self.delete("pods", pod["metadata"]["name"])

    async def _run_container(self, pod: Thing, run: Run, kind: str, container: Thing) -> int:
        status = {"name": container["name"], "image": container["image"], "state": {"running": {}}}
        command, environ, folder = self._prepared(pod, run, container)
        output, end = os.pipe()
        run.process = await asyncio.create_subprocess_exec(
            *command, env=environ, cwd=folder, stdin=subprocess.DEVNULL, stdout=end, stderr=end, start_new_session=True
        )
        os.close(end)
        pod["status"] |= {kind: [status], **({"phase": "Running"} if kind == "containerStatuses" else {})}
        self.put("pods", pod)
        own: list[tuple[str, bytes]] = run.lines if kind == "containerStatuses" else []
        reader = asyncio.create_task(self._read(output, own))
        if run.is_stopped:
            run.signal(signal.SIGTERM)
        code = await run.process.wait()
        # A container ends with its first process.
        run.signal(signal.SIGKILL)
        run.process = None
        await asyncio.wait([reader], timeout=2)
        code = 128 - code if code < 0 else code
        said = b"".join(line for _, line in own[-80:]).decode(errors="replace") if code else ""
        status["state"] = {
            "terminated": {"exitCode": code, "reason": "Error" if code else "Completed", "message": said}
        }
        return code

    async def _read(self, output: int, lines: list[tuple[str, bytes]]) -> None:
        stream, rest = asyncio.StreamReader(), b""
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(output, "rb", 0))
        while chunk := await stream.read(2**16):
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                # A time is a line's identity, so none comes twice.
                seconds, fraction = divmod(time.time_ns(), 10**9)
                stamp = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{fraction:09}Z"
                lines.append((stamp, line + b"\n"))
            self._changed.set()
            self._changed = asyncio.Event()

    def _prepared(self, pod: Thing, run: Run, container: Thing) -> tuple[list[str], dict[str, str], str]:
        """Return how a container is started. Its paths are replaced by those of this machine."""
        volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
        places: dict[str, str] = {}
        for mount in container["volumeMounts"]:
            volume, path = volumes[mount["name"]], mount["mountPath"]
            own = Path(path) if "persistentVolumeClaim" in volume else run.folder / volume["name"]
            own.mkdir(parents=True, exist_ok=True)
            places[path] = str(own)
            for item in volume.get("secret", {}).get("items", []):
                (own / item["path"]).write_bytes(self._secret(volume["secret"]["secretName"], item["key"]))
                (own / item["path"]).chmod(volume["secret"]["defaultMode"])

        def moved(text: str, *kept: str) -> str:
            paths = "|".join(map(re.escape, sorted(places.keys() - kept, key=len, reverse=True)))
            return re.sub(rf"(?<![\w.~/-])({paths})(?![\w.-])", lambda one: places[one[1]], text)

        environ: dict[str, str] = {}
        for one in container.get("env", []):
            source = one.get("valueFrom", {})
            if "secretKeyRef" in source:
                value = self._secret(source["secretKeyRef"]["name"], source["secretKeyRef"]["key"]).decode()
            elif source:
                value = pod["metadata"]["annotations"][re.findall("'(.*)'", source["fieldRef"]["fieldPath"])[0]]
            else:
                value = _ADDRESS.sub(self._address, moved(_expanded(one["value"], environ)))
            environ[one["name"]] = value
        environ["PATH"] = f"{Path(sys.executable).parent}:{os.defpath}"
        environ["PYTHONPATH"] = ":".join(filter(None, [environ.get("PYTHONPATH"), str(_ROOT)]))
        command = [_expanded(moved(word, "/tmp", "/dev/shm"), environ) for word in container["command"]]
        folder = moved(container.get("workingDir", "/tmp"))
        os.makedirs(folder, exist_ok=True)
        return command, environ, folder

    def _secret(self, name: str, key: str) -> bytes:
        return base64.b64decode(self.things["secrets", name]["data"][key])

    def _address(self, found: re.Match[str]) -> str:
        """Return an address of this machine for HOST.SERVICE:PORT, if there is such a service."""
        service = self.things.get(("services", found[2]), {"spec": {}})["spec"]
        if service.get("clusterIP") != "None" or not service.get("publishNotReadyAddresses"):
            return found[0]
        while found[0] not in self._ports:
            # Below those that the kernel gives to others.
            port = random.randrange(15_000, 32_000)
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                self._ports[found[0]] = port
        return f"127.0.0.1:{self._ports[found[0]]}"

    async def end(self) -> None:
        """Kill all pods."""
        for run in self.runs.values():
            run.is_stopped = True
            run.signal(signal.SIGKILL)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2)


def _action(spec: Thing, pod: Thing) -> str:
    """Return what the podFailurePolicy of a job says of a pod that failed."""
    status = pod["status"]
    states = [one["state"] for one in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]]
    for rule in spec["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes", {}).get("values", [])
        if any(state.get("terminated", {}).get("exitCode") in codes for state in states):
            return str(rule["action"])
        if any(_has(pod, one["type"]) for one in rule.get("onPodConditions", [])):
            return str(rule["action"])
    return "Count"


def _expanded(text: str, values: Mapping[str, str]) -> str:
    """Replace $(NAME) of a known variable; $$ is a dollar."""
    return re.sub(r"\$(\$|\((\w*)\))", lambda one: "$" if one[1] == "$" else values.get(one[2], one[0]), text)


class Server:
    """Answers requests for the objects of a cluster."""

    def __init__(self, cluster: Cluster, token: str, *, has_job_sets: bool) -> None:
        self._cluster, self._token, self._has_job_sets = cluster, token, has_job_sets

    async def answer(self, request: Request) -> Response:
        try:
            return await self._answer(request)
        except Refusal as refusal:
            return JSONResponse(refusal.status, refusal.status["code"])

    async def _answer(self, request: Request) -> Response:
        cluster, faults, query = self._cluster, self._cluster.faults, dict(request.query_params)
        body = json.loads(await request.body() or b"{}")
        if request.url.path == "/fake":
            cluster.cuts += body.pop("cut", False)
            cluster.faults = {**(copy.deepcopy(_FAULTS) if body.pop("reset", False) else faults), **body}
            return JSONResponse(cluster.all("pods"))
        if time.time() < faults["fails_until"]:
            raise Refusal(500, "InternalError", "Internal error occurred: etcdserver: request timed out")
        if faults["expired"] or request.headers.get("authorization") != f"Bearer {self._token}":
            raise Refusal(401, "Unauthorized", "Unauthorized")
        parsed = _PATH.fullmatch(request.url.path)
        group, resource, name, part = parsed.groups(default="") if parsed else ("", "", "", "")
        if not resource or (group == "jobset.x-k8s.io" and not self._has_job_sets):
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        verb = {"GET": "get" if name else "list", "POST": "create", "DELETE": "delete"}[request.method]
        if resource == "selfsubjectaccessreviews":
            asked = body["spec"]["resourceAttributes"]
            target = "/".join(filter(None, [asked["resource"], asked["subresource"]]))
            return JSONResponse({"status": {"allowed": [asked["verb"], target] not in faults["forbid"]}})
        if [verb, resource] in faults["forbid"]:
            what = (
                f'User "tester" cannot {verb} resource "{resource}" in API group "{group}" in the namespace "default"'
            )
            raise Refusal(403, "Forbidden", f"{f'{resource}.{group}'.rstrip('.')} is forbidden: {what}")
        if name and (resource, name) not in cluster.things:
            raise Refusal(404, "NotFound", f'{resource} "{name}" not found')
        if part == "log":
            return StreamingResponse(self._log(cluster.runs[name]))
        if part == "eviction":
            message = "Eviction API: evicting"
            _condition(cluster.things["pods", name], "DisruptionTarget", True, "EvictionByEvictionAPI", message)
            cluster.delete("pods", name)
            return JSONResponse({})
        if verb == "create":
            return JSONResponse(cluster.create(resource, body, is_dry="dryRun" in query), 201)
        if verb == "delete":
            cluster.delete(resource, name, body.get("gracePeriodSeconds"))
            return JSONResponse({})
        if "watch" in query:
            return StreamingResponse(self._watch(resource, query))
        if name:
            return JSONResponse(cluster.things[resource, name])
        version = {"resourceVersion": str(len(cluster.history))}
        return JSONResponse({"metadata": version, "items": cluster.all(resource, query)})

    async def _log(self, run: Run) -> AsyncIterator[bytes]:
        at, cuts = 0, self._cluster.cuts
        while at < len(run.lines) or not run.is_complete:
            for stamp, line in run.lines[at : at + 1000]:
                yield f"{stamp} ".encode() + line
                at += 1
            if cuts != self._cluster.cuts:
                raise ConnectionAbortedError
            if at == len(run.lines) and not run.is_complete:
                await self._cluster.change(1.0)

    async def _watch(self, resource: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        cluster, at, cuts = self._cluster, int(query["resourceVersion"]), self._cluster.cuts
        key, _, value = query.get("labelSelector", "").partition("=")
        ends = time.monotonic() + float(query["timeoutSeconds"])
        while time.monotonic() < ends and cuts == cluster.cuts:
            for kind, what, thing in cluster.history[at:]:
                at += 1
                if kind == resource and thing["metadata"].get("labels", {}).get(key) == value:
                    yield json.dumps({"type": what, "object": thing}).encode() + b"\n"
            await cluster.change(1.0)


@dataclass(frozen=True)
class Fake:
    """A fake Kubernetes that runs."""

    kubeconfig: Path
    url: str

    def control(self, **faults: object) -> list[Thing]:
        """Set faults, which `_FAULTS` names, until they are set again or `reset`; `cut` breaks all streams once."""
        with urllib.request.urlopen(f"{self.url}/fake", json.dumps(faults).encode(), _MOST_SECS) as answer:
            found: list[Thing] = json.load(answer)
        return found

    def pods(self) -> dict[str, Thing]:
        """Return all pods by name."""
        return {pod["metadata"]["name"]: pod for pod in self.control()}


@contextlib.contextmanager
def fake_kubernetes(folder: Path, *options: str) -> Iterator[Fake]:
    """Run a fake Kubernetes in a process of its own, which ends with its stdin."""
    command = [sys.executable, "-m", __name__, "--folder", str(folder), *options]
    with subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield Fake(folder / "kubeconfig", process.stdout.readline().strip())
        finally:
            process.stdin.close()
            try:
                process.wait(_MOST_SECS)
            finally:
                process.kill()


async def _serve(folder: Path, *, has_job_sets: bool) -> None:
    cluster, token = Cluster(folder), secrets.token_hex(16)
    server = Server(cluster, token, has_job_sets=has_job_sets)
    route = Route("/{path:path}", server.answer, methods=["GET", "POST", "DELETE"])
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        config = {
            "current-context": "fake",
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "tester"}}],
            "clusters": [{"name": "fake", "cluster": {"server": url}}],
            "users": [{"name": "tester", "user": {"token": token}}],
        }
        (folder / "kubeconfig").write_text(json.dumps(config))
        api = uvicorn.Server(uvicorn.Config(Starlette(routes=[route]), log_level="critical", lifespan="off"))
        tasks = [asyncio.create_task(api.serve([listening])), asyncio.create_task(cluster.control())]
        print(url, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        # Otherwise it would start the killed pods again.
        tasks[1].cancel()
        await cluster.end()
        # From Python 3.12 on, uvicorn waits for streams that clients keep open.
        os._exit(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A fake Kubernetes, until its stdin is closed.")
    parser.add_argument("--folder", type=Path, required=True, help="for kubeconfig and what pods have on disk")
    parser.add_argument("--jobset", action="store_true", help="have JobSets")
    options = parser.parse_args()
    asyncio.run(_serve(options.folder, has_job_sets=options.jobset))
