"""The HTTP side of the fake: paths and verbs, rights, streams, faults."""

from __future__ import annotations

import asyncio
import copy
import json
import re
import secrets
import signal
import time
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from scripts.fake_kubernetes.kubelet import Kubelet, Log
from scripts.fake_kubernetes.objects import (
    GROUPS,
    KINDS,
    NAMESPACE,
    Refusal,
    Thing,
    check,
    merged,
    named,
    selected,
    set_condition,
)
from scripts.fake_kubernetes.store import FAULTS, Store

_PATH = re.compile(
    r"/(?:api|apis)/(?P<version>(?:[^/]+/)?v1\w*)(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<resource>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<part>[a-z]+))?"
)
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_SUCCESS = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
_WAITING = {"ErrImagePull": "image can't be pulled", "ImagePullBackOff": "trying and failing to pull image"}


class Server:
    """The ASGI application."""

    def __init__(self, store: Store, kubelet: Kubelet, has_jobsets: bool) -> None:
        self.store, self.kubelet = store, kubelet
        self.token = secrets.token_hex(16)
        self.versions = {version: kinds for version, kinds in GROUPS.items() if has_jobsets or "jobset" not in version}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            response = await self._answer(Request(scope, receive))
        except Refusal as refusal:
            response = JSONResponse(refusal.status, refusal.status["code"])
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path, query, faults = request.url.path.rstrip("/"), dict(request.query_params), self.store.faults
        body = json.loads(await request.body() or b"{}")
        if path == "/fake/pods":
            return JSONResponse(self.store.all("pods"))
        if path == "/fake":
            return self._fake(body)
        await asyncio.sleep(faults["delay_secs"])
        if time.time() < faults["fail_secs"]:
            raise Refusal(500, "InternalError", "Internal error occurred: etcdserver: request timed out")
        if faults["expired"] or request.headers.get("authorization") != f"Bearer {self.token}":
            raise Refusal(401, "Unauthorized", "Unauthorized")
        if found := self._discovery().get(path):
            return JSONResponse(found)
        parsed = _PATH.fullmatch(path)
        if not parsed or parsed["version"] not in self.versions:
            return PlainTextResponse("404 page not found\n", 404)
        resource, name, part = parsed["resource"], parsed["name"] or "", parsed["part"] or ""
        if resource not in self.versions[parsed["version"]]:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        if resource == "selfsubjectaccessreviews":
            asked = body["spec"].get("resourceAttributes") or {}
            target = "/".join(filter(None, [asked.get("resource"), asked.get("subresource")]))
            status = {"allowed": not self._is_forbidden(asked.get("verb", ""), target)}
            return JSONResponse({**body, "status": status}, 201)
        reads = "get" if name else "watch" if _is_set(query, "watch") else "list"
        removes = "delete" if name else "deletecollection"
        verb = {"GET": reads, "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": removes}[request.method]
        target, namespace = f"{resource}/{part}".rstrip("/"), parsed["namespace"] or NAMESPACE
        if self._is_forbidden(verb, target):
            group = parsed["version"].rpartition("/")[0]
            cannot = f'User "tester" cannot {verb} resource "{target}" in API group "{group}"'
            message = f'{named(resource, name)} is forbidden: {cannot} in the namespace "{namespace}"'
            raise Refusal(403, "Forbidden", message)
        if namespace != NAMESPACE and verb == "create":
            raise Refusal(404, "NotFound", f'namespaces "{namespace}" not found')
        if name and (namespace != NAMESPACE or (resource, name) not in self.store.things):
            raise Refusal(404, "NotFound", f"{named(resource, name)} not found")
        if verb == "watch":
            return StreamingResponse(self._events(resource, query), media_type="application/json")
        options, dry = {**query, **body}, bool({"dryRun"} & {*query, *body})
        if not name and verb != "create":
            return self._collection(resource, verb, namespace, query, options)
        if part == "log":
            return self._log(self.store.things[resource, name], query)
        if part == "eviction":
            return self._evict(name, body.get("deleteOptions") or {})
        if verb == "create":
            return JSONResponse(self.store.create(resource, body, dry=dry), 201)
        if verb in ("patch", "update"):
            is_strategic = request.headers["content-type"].startswith("application/strategic-merge-patch+json")
            if not isinstance(body, dict) or (is_strategic and resource == "jobsets"):
                message = "the body of the request was in an unknown format - accepted media types include: "
                raise Refusal(415, "UnsupportedMediaType", message + "application/merge-patch+json")
            return JSONResponse(self._change(resource, name, body, verb == "patch", dry))
        if verb == "delete" and not dry:
            self.store.delete(resource, name, options)
            gone = {**_SUCCESS, "details": {"name": name, "kind": resource}}
            return JSONResponse(self.store.things.get((resource, name), gone))
        return JSONResponse(self.store.things[resource, name])

    def _collection(
        self, resource: str, verb: str, namespace: str, query: Mapping[str, str], options: Mapping[str, Any]
    ) -> Response:
        things = [one for one in self.store.all(resource) if namespace == NAMESPACE and selected(query, one)]
        if verb == "deletecollection":
            for one in things:
                self.store.delete(resource, one["metadata"]["name"], options)
        version, kind = KINDS[resource]
        meta = {"resourceVersion": str(self.store.version)}
        return JSONResponse({"kind": f"{kind}List", "apiVersion": version, "metadata": meta, "items": things})

    def _change(self, resource: str, name: str, body: Thing, is_patch: bool, dry: bool) -> Thing:
        old = self.store.things[resource, name]
        new = merged(old, body) if is_patch else copy.deepcopy(body)
        if new["metadata"].get("resourceVersion") not in (None, "", old["metadata"]["resourceVersion"]):
            words = "the object has been modified; please apply your changes to the latest version and try again"
            raise Refusal(409, "Conflict", f"Operation cannot be fulfilled on {named(resource, name)}: {words}")
        new["metadata"] |= {
            key: old["metadata"][key] for key in ("name", "uid", "creationTimestamp", "resourceVersion")
        }
        new |= {key: old[key] for key in ("kind", "apiVersion", "status") if key in old}
        check(resource, new)
        if resource == "jobs" and new["spec"]["template"] != old["spec"]["template"] and not old["spec"]["suspend"]:
            message = f'Job.batch "{name}" is invalid: spec.template: Invalid value: …: field is immutable'
            raise Refusal(422, "Invalid", message)
        return new if dry else self.store.put(resource, new)

    def _evict(self, name: str, options: Mapping[str, Any]) -> Response:
        with self.store.changing("pods", name) as pod:
            set_condition(pod, "DisruptionTarget", True, "EvictionByEvictionAPI", "Eviction API: evicting")
        self.store.delete("pods", name, options)
        return JSONResponse({**_SUCCESS, "code": 201}, 201)

    async def _events(self, resource: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        async for event in self.store.watch(resource, query):
            yield json.dumps(event).encode() + b"\n"

    def _log(self, pod: Thing, query: Mapping[str, str]) -> Response:
        name, status, spec = pod["metadata"]["name"], pod["status"], pod["spec"]
        containers = [one["name"] for one in spec["containers"]]
        own = query.get("container") or containers[0]
        states = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
        waiting = next((one["state"].get("waiting") for one in states if one["name"] == own), None)
        refused = ""
        if "container" not in query and len(containers) > 1:
            refused = f"a container name must be specified for pod {name}, choose one of: [{' '.join(containers)}]"
        elif own not in [*containers, *(one["name"] for one in spec.get("initContainers") or [])]:
            refused = f"container {own} is not valid for pod {name}"
        elif _is_set(query, "previous"):
            refused = f'previous terminated container "{own}" in pod "{name}" not found'
        elif waiting:
            why = _WAITING.get(waiting["reason"], waiting["reason"])
            refused = f'container "{own}" in pod "{name}" is waiting to start: {why}'
        if refused:
            raise Refusal(400, "BadRequest", refused)
        # A pod that has no node yet has an empty log.
        log = self.kubelet.run_of(pod).logs.get(own)
        return StreamingResponse(self._lines(log, query), media_type="text/plain") if log else PlainTextResponse("")

    async def _lines(self, log: Log, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        at = 0
        if "sinceSeconds" in query:
            since = time.time_ns() - int(query["sinceSeconds"]) * 10**9
            at = sum(when < since for when, _ in log.lines)
        if "tailLines" in query:
            at = max(at, len(log.lines) - int(query["tailLines"]))
        async for lines in self.kubelet.lines(log, at, _is_set(query, "follow")):
            yield b"".join((_nanos(when) if _is_set(query, "timestamps") else b"") + line for when, line in lines)

    def _is_forbidden(self, verb: str, target: str) -> bool:
        rules = self.store.faults["forbid"]
        return any(one["verb"] in (verb, "*") and one["resource"] in (target, "*") for one in rules)

    def _fake(self, faults: Thing) -> Response:
        if faults.pop("reset", False):
            self.store.faults = copy.deepcopy(FAULTS)
        if faults.pop("cut", False):
            self.store.cuts += 1
            for run in self.kubelet.runs.values():
                for log in run.logs.values():
                    log.grown.ring()
        if faults.pop("compact", False):
            self.store.changes.clear()
            self.store.oldest = self.store.version
        if name := faults.pop("out_of_memory", None):
            run = self.kubelet.run_of(self.store.things["pods", name])
            run.is_out_of_memory = True
            run.signal(signal.SIGKILL)
        if unknown := faults.keys() - self.store.faults.keys():
            raise Refusal(400, "BadRequest", f"there is no fault {', '.join(unknown)}")
        if "fail_secs" in faults:
            faults["fail_secs"] += time.time()
        self.store.faults |= faults
        self.store.changed.ring()
        return JSONResponse({})

    def _discovery(self) -> dict[str, Thing]:
        groups, found = [], dict[str, Thing]()
        for version, kinds in self.versions.items():
            common = {"namespaced": True, "verbs": _VERBS}
            resources = [
                {"name": name, "singularName": kind.lower(), "kind": kind, **common} for name, kind in kinds.items()
            ]
            listed = {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
            group, _, short = version.rpartition("/")
            found[f"/apis/{version}" if group else "/api/v1"] = listed
            if group:
                pair = {"groupVersion": version, "version": short}
                groups.append({"name": group, "versions": [pair], "preferredVersion": pair})
                found[f"/apis/{group}"] = {"kind": "APIGroup", "apiVersion": "v1", **groups[-1]}
        found["/apis"] = {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        found["/api"] = {"kind": "APIVersions", "versions": ["v1"]}
        # The client wants all of these.
        facts = ["gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"]
        found["/version"] = {**dict.fromkeys(facts, ""), "major": "1", "minor": "33", "gitVersion": "v1.33.0"}
        return found


def _is_set(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "false").lower() not in ("false", "0")


def _nanos(when: int) -> bytes:
    return f"{datetime.fromtimestamp(when // 10**9, UTC):%Y-%m-%dT%H:%M:%S}.{when % 10**9:09d}Z ".encode()
