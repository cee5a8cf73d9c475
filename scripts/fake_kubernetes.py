"""A fake Kubernetes API server whose pods are processes of this machine, for tests and storms.

It speaks what jobs ask of Kubernetes 1.33, in its words: Jobs with indexes and JobSets start pods, pods have logs, and
everything can be listed, watched and deleted. A test orders faults by `Fake.control`.
"""

from __future__ import annotations

import asyncio
import base64
import collections
import contextlib
import copy
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
import traceback
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from torch_estimator.launch.layout import free_ports

Thing = dict[str, Any]

_ROOT = Path(__file__).resolve().parents[1]
_PATH = re.compile(r"/apis?(?:/([\w.-]+))?/v\w+(?:/namespaces/default)?(?:/(\w+)(?:/([\w.-]+))?(?:/(\w+))?)?")
_ADDRESS = re.compile(r"([a-z0-9-]+)\.([a-z0-9-]+):(\d+)")
_INDEX, _JOB = "batch.kubernetes.io/job-completion-index", "batch.kubernetes.io/job-name"
_SET = "jobset.sigs.k8s.io/jobset-name"
# What is deleted with an object, and the label that names it there.
_OWNED = {"jobs": [("pods", _JOB)], "jobsets": [("jobs", _SET), ("services", _SET)]}
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_FAULTS: Thing = {"forbid": [], "expired": False, "quota": None, "unpullable": [], "node": {}, "fails_until": 0.0}
_ENDED = ("Succeeded", "Failed")
# Everything looks so often for what is new.
_LOOK_SECS = 0.02
_KILL_SECS, _MOST_SECS = 2.0, 30.0
_MOST_LINE = 2**24


@dataclass(eq=False)
class Run:
    """What this machine has of a pod. The lines of its main container begin with their times."""

    folder: Path
    lines: list[bytes] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
    process: asyncio.subprocess.Process | None = None
    stop: int = 0
    has_ended: bool = False

    def send(self, number: int) -> None:
        """Have the pod end: signal its first process, or all by SIGKILL, as soon as there is one."""
        self.stop = number
        with contextlib.suppress(ProcessLookupError):
            if self.process is not None:
                (os.killpg if number == signal.SIGKILL else os.kill)(self.process.pid, number)


def _time(ahead: float = 0.0, form: str = "%Y-%m-%dT%H:%M:%SZ") -> str:
    return (datetime.now(UTC) + timedelta(seconds=ahead)).strftime(form)


def _condition(thing: Thing, kind: str, reason: str = "", message: str = "", *, holds: bool = True) -> None:
    known = [one for one in thing["status"].get("conditions", []) if one["type"] != kind]
    own = {"type": kind, "status": str(holds), "reason": reason, "message": message}
    thing["status"]["conditions"] = [*known, own]


def _has(thing: Thing, *kinds: str) -> bool:
    return any(one["type"] in kinds and one["status"] == "True" for one in thing["status"].get("conditions", []))


def _matches(thing: Thing, query: Mapping[str, str]) -> bool:
    """Return whether a labelSelector of one label, or the name of a fieldSelector, is that of an object."""
    key, _, value = query.get("labelSelector", "").partition("=")
    about = query.get("fieldSelector", "").removeprefix("involvedObject.name=")
    is_about = not about or thing.get("involvedObject", {}).get("name") == about
    return is_about and (not key or thing["metadata"].get("labels", {}).get(key) == value)


def _index(pod: Thing) -> int:
    return int(pod["metadata"]["annotations"][_INDEX])


class Cluster:
    """All objects of one namespace, what happens to them, and the processes of the pods."""

    def __init__(self, folder: Path, token: str, *, has_job_sets: bool) -> None:
        self.folder, self._token, self._has_job_sets = folder, token, has_job_sets
        self.things: dict[tuple[str, str], Thing] = {}
        self.history: list[tuple[str, str, Thing]] = []
        self.faults = copy.deepcopy(_FAULTS)
        self.runs: dict[str, Run] = {}
        self.cuts = 0
        self._ports: dict[str, int] = {}

    def all(self, resource: str, **query: str) -> list[Thing]:
        """Return the objects that a selector names."""
        return [thing for (kind, _), thing in self.things.items() if kind == resource and _matches(thing, query)]

    def put(self, resource: str, thing: Thing, what: str = "MODIFIED") -> None:
        """Keep an object that is new or has changed."""
        thing["metadata"]["resourceVersion"] = str(len(self.history) + 1)
        self.things[resource, thing["metadata"]["name"]] = thing
        if what == "DELETED":
            del self.things[resource, thing["metadata"]["name"]]
        self.history.append((resource, what, copy.deepcopy(thing)))

    def create(self, resource: str, thing: Thing, *, is_dry: bool = False) -> Thing:
        """Create an object; raise an HTTPException if that cannot be."""
        meta, pods = thing["metadata"], len(self.all("pods"))
        name = meta.setdefault("name", meta.get("generateName", "") + secrets.token_hex(3)[:5])
        if resource in ("jobs", "services", "jobsets") and not _NAME.fullmatch(name):
            raise HTTPException(422, f'{resource} "{name}" is invalid: metadata.name: Invalid value: "{name}"')
        if (resource, name) in self.things:
            raise HTTPException(409, f'{resource} "{name}" already exists')
        quota = self.faults["quota"]
        if resource == "pods" and quota is not None and pods >= quota:
            raise HTTPException(403, f'pods "{name}" is forbidden: exceeded quota: pods, used: {pods}')
        if is_dry:
            return thing
        meta |= {"uid": secrets.token_hex(16), "creationTimestamp": _time()}
        thing["status"] = {"phase": "Pending"} if resource == "pods" else {}
        self.put(resource, thing, "ADDED")
        if resource == "pods":
            run = self.runs[name] = Run(self.folder / "pods" / name)
            run.task = asyncio.create_task(self._run(thing, run))
        elif resource == "jobsets":
            self._expand(thing)
        return thing

    def delete(self, resource: str, name: str, grace: float | None = None) -> None:
        """Delete an object and what it owns; a pod that runs gets SIGTERM first."""
        thing = self.things[resource, name]
        if resource == "pods" and thing["status"]["phase"] not in _ENDED:
            secs = thing["spec"]["terminationGracePeriodSeconds"] if grace is None else grace
            thing["metadata"]["deletionTimestamp"] = _time(secs)
            self.put("pods", thing)
            self.runs[name].send(signal.SIGTERM)
            asyncio.get_running_loop().call_later(secs, self.runs[name].send, signal.SIGKILL)
            return
        self.put(resource, thing, "DELETED")
        if resource == "pods":
            del self.runs[name]
        for kind, key in _OWNED.get(resource, []):
            for one in self.all(kind, labelSelector=f"{key}={name}"):
                self.delete(kind, one["metadata"]["name"])

    async def answer(self, request: Request) -> Response:
        faults, query = self.faults, dict(request.query_params)
        body = json.loads(await request.body() or b"{}")
        if request.url.path == "/fake":
            self.cuts += body.pop("cut", False)
            self.faults = {**(copy.deepcopy(_FAULTS) if body.pop("reset", False) else faults), **body}
            return JSONResponse(self.all("pods"))
        if time.time() < faults["fails_until"]:
            raise HTTPException(500, "Internal error occurred: etcdserver: request timed out")
        if faults["expired"] or request.headers.get("authorization") != f"Bearer {self._token}":
            raise HTTPException(401, "Unauthorized")
        parsed = _PATH.fullmatch(request.url.path)
        if not parsed or (parsed[1] == "jobset.x-k8s.io" and not self._has_job_sets):
            raise HTTPException(404, "the server could not find the requested resource")
        group, resource, name, part = parsed.groups(default="")
        if not resource:
            return JSONResponse({"kind": "APIResourceList"})
        verb = {"GET": "get" if name else "list", "POST": "create", "DELETE": "delete"}[request.method]
        if resource == "selfsubjectaccessreviews":
            asked = body["spec"]["resourceAttributes"]
            target = "/".join(filter(None, [asked["resource"], asked["subresource"]]))
            return JSONResponse({"status": {"allowed": [asked["verb"], target] not in faults["forbid"]}})
        if [verb, resource] in faults["forbid"]:
            what = f'cannot {verb} resource "{resource}" in API group "{group}" in the namespace "default"'
            raise HTTPException(403, f'{f"{resource}.{group}".rstrip(".")} is forbidden: User "tester" {what}')
        if name and (resource, name) not in self.things:
            raise HTTPException(404, f'{resource} "{name}" not found')
        if part == "log":
            return StreamingResponse(self._log(self.runs[name]))
        if part == "eviction":
            message = "Eviction API: evicting"
            _condition(self.things["pods", name], "DisruptionTarget", "EvictionByEvictionAPI", message)
            self.delete("pods", name)
        elif verb == "create":
            return JSONResponse(self.create(resource, body, is_dry="dryRun" in query), 201)
        elif verb == "delete":
            self.delete(resource, name, body.get("gracePeriodSeconds"))
        elif "watch" in query:
            return StreamingResponse(self._watch(resource, query))
        elif name:
            return JSONResponse(self.things[resource, name])
        else:
            version = {"resourceVersion": str(len(self.history))}
            return JSONResponse({"metadata": version, "items": self.all(resource, **query)})
        return JSONResponse({})

    async def _log(self, run: Run) -> AsyncIterator[bytes]:
        at, cuts, is_complete = 0, self.cuts, False
        while not is_complete:
            is_complete, new = run.has_ended, run.lines[at:]
            at += len(new)
            yield b"".join(new)
            if cuts != self.cuts:
                raise ConnectionAbortedError
            await asyncio.sleep(_LOOK_SECS)

    async def _watch(self, resource: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        at, cuts = int(query["resourceVersion"]), self.cuts
        ends = time.monotonic() + float(query["timeoutSeconds"])
        while time.monotonic() < ends and cuts == self.cuts:
            new, at = self.history[at:], len(self.history)
            for kind, what, thing in new:
                if kind == resource and _matches(thing, query):
                    yield json.dumps({"type": what, "object": thing}).encode() + b"\n"
            await asyncio.sleep(_LOOK_SECS)

    async def control(self) -> None:
        """Start and end the pods of jobs."""
        while True:
            for one in self.all("jobs"):
                if not _has(one, "Complete", "Failed"):
                    self._sync(one)
            await asyncio.sleep(_LOOK_SECS)

    def _expand(self, found: Thing) -> None:
        """Create the service and the jobs of a job set."""
        spec, own = found["spec"], {_SET: found["metadata"]["name"]}
        network = {"clusterIP": "None", **spec["network"]}
        self.create("services", {"metadata": {"name": network["subdomain"], "labels": own}, "spec": network})
        for part in spec["replicatedJobs"]:
            job = copy.deepcopy(part["template"])
            job["metadata"]["name"] = f"{own[_SET]}-{part['name']}-0"
            job["metadata"]["labels"] |= own
            self.create("jobs", job)

    def _sync(self, job: Thing) -> None:
        spec = job["spec"]
        pods = self.all("pods", labelSelector=f"{_JOB}={job['metadata']['name']}")
        active = [pod for pod in pods if pod["status"]["phase"] not in _ENDED]
        done = {_index(pod) for pod in pods if pod["status"]["phase"] == "Succeeded"}
        actions = [(pod, _action(spec, pod)) for pod in pods if pod["status"]["phase"] == "Failed"]
        failures = collections.Counter(_index(pod) for pod, action in actions if action == "Count")
        if any(action == "FailJob" for _, action in actions):
            _condition(job, "FailureTarget", "PodFailurePolicy", "a container failed with exit code 2")
        elif sum(count > spec["backoffLimitPerIndex"] for count in failures.values()) > spec["maxFailedIndexes"]:
            why = "Job has exceeded the specified maximal number of failed indexes"
            _condition(job, "FailureTarget", "MaxFailedIndexesExceeded", why)
        if _has(job, "FailureTarget"):
            for pod in [one for one in active if "deletionTimestamp" not in one["metadata"]]:
                self.delete("pods", pod["metadata"]["name"])
            if not active:
                why = job["status"]["conditions"][0]
                _condition(job, "Failed", why["reason"], why["message"])
                self.put("jobs", job)
        elif len(done) == spec["completions"]:
            _condition(job, "Complete")
            self.put("jobs", job)
        else:
            for index in set(range(spec["completions"])) - done - {_index(pod) for pod in active}:
                self._start(job, index)

    def _start(self, job: Thing, index: int) -> None:
        name, pod = job["metadata"]["name"], copy.deepcopy(job["spec"]["template"])
        pod["metadata"]["generateName"] = f"{name}-{index}-"
        pod["metadata"]["labels"] |= {_JOB: name, _INDEX: str(index)}
        pod["metadata"].setdefault("annotations", {})[_INDEX] = str(index)
        try:
            self.create("pods", pod)
        except HTTPException as refusal:
            # The message names another pod each time, and the first one is enough.
            meta, said = {"name": f"{name}.{job['metadata']['uid']}"}, f"Error creating: {refusal.detail}"
            if ("events", meta["name"]) not in self.things:
                about = {"name": name}
                self.create("events", {"metadata": meta, "type": "Warning", "message": said, "involvedObject": about})

    def _waits(self, pod: Thing) -> bool:
        """Say in a pod why it cannot start yet, if it cannot."""
        container = pod["spec"]["containers"][0]
        image, requests = str(container["image"]), container["resources"]["requests"]
        if lacks := [key for key, most in self.faults["node"].items() if float(requests.get(key, 0)) > most]:
            said = f"0/3 nodes are available: 3 Insufficient {lacks[0]}."
            _condition(pod, "PodScheduled", "Unschedulable", said, holds=False)
            return True
        _condition(pod, "PodScheduled")
        pod["spec"]["nodeName"] = "node-1"
        waiting = {"reason": "PodInitializing"}
        if waits := image.startswith(tuple(self.faults["unpullable"])):
            said = f'failed to pull and unpack image "{image}": not found'
            waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{image}": {said}'}
        status = {"name": container["name"], "image": image, "state": {"waiting": waiting}}
        pod["status"]["containerStatuses"] = [status]
        return waits

    async def _run(self, pod: Thing, run: Run) -> None:
        code, spec = 1, pod["spec"]
        while self._waits(pod) and not run.stop:
            self.put("pods", pod)
            await asyncio.sleep(10 * _LOOK_SECS)
        first = [("initContainerStatuses", one) for one in spec.get("initContainers", [])]
        for kind, one in [*first, ("containerStatuses", spec["containers"][0])]:
            code = 1 if run.stop else await self._run_container(pod, run, kind, one)
            if code:
                break
        pod["status"]["phase"] = "Failed" if code else "Succeeded"
        run.has_ended = True
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
        lines: list[bytes] = run.lines if kind == "containerStatuses" else []
        reader = asyncio.create_task(self._read(output, lines))
        if run.stop:
            run.send(run.stop)
        code = await run.process.wait()
        # A container ends with its first process.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.process.pid, signal.SIGKILL)
        run.process = None
        await asyncio.wait([reader], timeout=_KILL_SECS)
        code = 128 - code if code < 0 else code
        said = b"".join(line.partition(b" ")[2] for line in lines[-80:]).decode(errors="replace") if code else ""
        reason = "Error" if code else "Completed"
        status["state"] = {"terminated": {"exitCode": code, "reason": reason, "message": said}}
        return code

    async def _read(self, output: int, lines: list[bytes]) -> None:
        stream = asyncio.StreamReader(_MOST_LINE)
        protocol, pipe = asyncio.StreamReaderProtocol(stream), os.fdopen(output, "rb", 0)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
        async for line in stream:
            lines.append(f"{_time(form='%Y-%m-%dT%H:%M:%S.%fZ')} ".encode() + line)

    def _prepared(self, pod: Thing, run: Run, container: Thing) -> tuple[list[str], dict[str, str], str]:
        """Return how a container is started. What is a pod's own lies in its folder, and claims are this machine's."""

        def moved(text: str) -> str:
            return re.sub("^/tmp$|/torch-estimator(?=/)", str(run.folder), text)

        volumes = {one["name"]: one.get("secret", {}) for one in pod["spec"]["volumes"]}
        for mount in container["volumeMounts"]:
            secret = volumes[mount["name"]]
            for item in secret.get("items", []):
                path = Path(moved(mount["mountPath"])) / item["path"]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(self._secret(secret["secretName"], item["key"]))
                path.chmod(secret["defaultMode"])
        environ: dict[str, str] = {}
        for one in container.get("env", []):
            source = one.get("valueFrom", {})
            if "secretKeyRef" in source:
                value = self._secret(source["secretKeyRef"]["name"], source["secretKeyRef"]["key"]).decode()
            elif "fieldRef" in source:
                value = str(_index(pod))
            else:
                value = _ADDRESS.sub(self._address, moved(_expanded(one["value"], environ)))
            environ[one["name"]] = value
        environ["PATH"] = f"{Path(sys.executable).parent}:{os.defpath}"
        environ["PYTHONPATH"] = ":".join(filter(None, [environ.get("PYTHONPATH"), str(_ROOT)]))
        folder = moved(container.get("workingDir", "/tmp"))
        os.makedirs(folder, exist_ok=True)
        return [_expanded(moved(word), environ) for word in container["command"]], environ, folder

    def _secret(self, name: str, key: str) -> bytes:
        return base64.b64decode(self.things["secrets", name]["data"][key])

    def _address(self, found: re.Match[str]) -> str:
        """Return an address of this machine for HOST.SERVICE:PORT, if there is such a service."""
        service = self.things.get(("services", found[2]), {"spec": {}})["spec"]
        if service.get("clusterIP") != "None" or not service.get("publishNotReadyAddresses"):
            return found[0]
        if found[0] not in self._ports:
            self._ports[found[0]] = free_ports(1)[0]
        return f"127.0.0.1:{self._ports[found[0]]}"


def _action(spec: Thing, pod: Thing) -> str:
    """Return what the podFailurePolicy of a job says of a pod that failed."""
    statuses = [*pod["status"].get("initContainerStatuses", []), *pod["status"].get("containerStatuses", [])]
    exits = [one["state"]["terminated"]["exitCode"] for one in statuses if "terminated" in one["state"]]
    for rule in spec["podFailurePolicy"]["rules"]:
        codes, conditions = rule.get("onExitCodes", {}).get("values", []), rule.get("onPodConditions", [])
        if set(codes) & set(exits) or any(_has(pod, one["type"]) for one in conditions):
            return str(rule["action"])
    return "Count"


def _expanded(text: str, values: Mapping[str, str]) -> str:
    """Replace $(NAME) of a known variable; $$ is a dollar."""
    return re.sub(r"\$(\$|\((\w*)\))", lambda one: "$" if one[1] == "$" else values.get(one[2], one[0]), text)


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
    """Run a fake Kubernetes in a process that ends with its stdin. The option --jobset gives it JobSets."""
    command = [sys.executable, "-m", __name__, str(folder), *options]
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


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = {"kind": "Status", "status": "Failure", "code": error.status_code, "message": error.detail}
    return JSONResponse(status, error.status_code)


async def _serve(folder: Path, *options: str) -> None:
    token = secrets.token_hex(16)
    cluster = Cluster(folder, token, has_job_sets="--jobset" in options)
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    parts = {"context": {"cluster": "fake", "user": "fake"}, "cluster": {"server": url}, "user": {"token": token}}
    config = {f"{kind}s": [{"name": "fake", kind: part}] for kind, part in parts.items()}
    (folder / "kubeconfig").write_text(json.dumps({"current-context": "fake", **config}))
    route = Route("/{path:path}", cluster.answer, methods=["GET", "POST", "DELETE"])
    app = Starlette(routes=[route], exception_handlers={HTTPException: _refused})
    api = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
    works = (cluster.control(), api.serve([listening]), asyncio.to_thread(sys.stdin.read))
    tasks = [asyncio.create_task(work) for work in works]
    print(url, flush=True)
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    tasks[0].cancel()
    for run in cluster.runs.values():
        run.send(signal.SIGKILL)
    await asyncio.wait([tasks[0], *(run.task for run in cluster.runs.values() if run.task)], timeout=_KILL_SECS)
    for error in filter(None, (task.exception() for task in done)):
        traceback.print_exception(error)
    # From Python 3.12 on, uvicorn waits for streams that clients keep open.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), *sys.argv[2:]))
