"""All objects of the fake, their changes, and the faults that a test has ordered."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

from scripts.fake_kubernetes.objects import NAMESPACE, Refusal, Thing, complete, named, now, selected

# forbid: verbs on resources, such as [{"verb": "create", "resource": "jobs"}], or "*"; expired: whether the token is;
# quota: how many pods there may be; unpullable: how the names of images begin that cannot be pulled; node: labels, and
# amounts such as {"cpu": 4, "memory": "8Gi", "labels": {}}, above which a pod is not scheduled; fail_secs: for how long
# all answers are 500; delay_secs: before each answer.
FAULTS: Thing = {"forbid": [], "expired": False, "quota": None, "unpullable": [], "node": None}
FAULTS |= {"fail_secs": 0, "delay_secs": 0}


class Bell:
    """Wakes all who wait for a change."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def rung(self, secs: float | None = None) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), secs)


class Store:
    """Objects by resource and name. Kept ones are never modified, but replaced."""

    def __init__(self) -> None:
        self.things: dict[tuple[str, str], Thing] = {}
        # A change is its resource, the object before it and the one after. Each raises the version by one.
        self.changes: list[tuple[str, Thing | None, Thing | None]] = []
        self.version = self.oldest = 1
        self.changed = Bell()
        self.cuts = 0
        self.faults = copy.deepcopy(FAULTS)
        self.start_pod: Callable[[Thing], None]
        self.stop_pod: Callable[[str, float | None], None]
        self.pod_ended: Callable[[Thing], None]

    def put(self, resource: str, thing: Thing) -> Thing:
        """Keep a copy of an object that is new or has changed, and return it."""
        key = (resource, thing["metadata"]["name"])
        before = self.things.get(key)
        if before == thing:
            return before
        after = self.things[key] = self._newer(thing)
        self._record(resource, before, after)
        return after

    def remove(self, resource: str, name: str) -> None:
        self._record(resource, self._newer(self.things.pop((resource, name))), None)

    def _newer(self, thing: Thing) -> Thing:
        self.version += 1
        thing = copy.deepcopy(thing)
        thing["metadata"]["resourceVersion"] = str(self.version)
        return thing

    def _record(self, resource: str, before: Thing | None, after: Thing | None) -> None:
        self.changes.append((resource, before, after))
        self.changed.ring()

    @contextlib.contextmanager
    def changing(self, resource: str, name: str) -> Iterator[Thing]:
        """Yield a copy of an object, and keep that afterwards."""
        thing = copy.deepcopy(self.things[resource, name])
        yield thing
        self.put(resource, thing)

    def all(self, resource: str) -> list[Thing]:
        return [thing for (kind, _), thing in self.things.items() if kind == resource]

    def owned(self, uid: str) -> list[tuple[str, Thing]]:
        """Return resource and object of all that name this owner."""
        return [
            (resource, thing)
            for (resource, _), thing in self.things.items()
            if any(owner["uid"] == uid for owner in thing["metadata"].get("ownerReferences") or [])
        ]

    def create(self, resource: str, thing: Thing, *, dry: bool = False) -> Thing:
        """Add an object, or with `dry` only return it; raise the Refusal of one that cannot be."""
        thing = complete(resource, thing)
        name, limit, pods = thing["metadata"]["name"], self.faults["quota"], len(self.all("pods"))
        if (resource, name) in self.things:
            raise Refusal(409, "AlreadyExists", f"{named(resource, name)} already exists")
        if resource == "pods" and limit is not None and pods >= limit:
            shown = named(resource, thing["metadata"].get("generateName") or name)
            full = f"exceeded quota: pods, requested: pods=1, used: pods={pods}, limited: pods={limit}"
            raise Refusal(403, "Forbidden", f"{shown} is forbidden: {full}")
        if not dry:
            thing = self.put(resource, thing)
            if resource == "pods":
                self.start_pod(thing)
        return thing

    def delete(self, resource: str, name: str, options: Mapping[str, Any]) -> None:
        """Delete an object, or begin to."""
        # The default for jobs is not that of other kinds, nor kubectl's.
        policy = options.get("propagationPolicy") or ("Orphan" if resource == "jobs" else "Background")
        if resource == "pods":
            grace = options.get("gracePeriodSeconds")
            self.stop_pod(name, None if grace is None else float(grace))
        elif policy == "Foreground":
            with self.changing(resource, name) as thing:
                thing["metadata"] = {"deletionTimestamp": now(), **thing["metadata"]}
                thing["metadata"]["finalizers"] = ["foregroundDeletion"]
        else:
            uid = self.things[resource, name]["metadata"]["uid"]
            self.remove(resource, name)
            for kind, owned in self.owned(uid):
                if policy == "Orphan":
                    with self.changing(kind, owned["metadata"]["name"]) as orphan:
                        del orphan["metadata"]["ownerReferences"]
                else:
                    self.delete(kind, owned["metadata"]["name"], {"propagationPolicy": policy})

    def collect(self, resource: str, name: str) -> None:
        """Go on with a deletion in the foreground: first what the object owns."""
        owned = self.owned(self.things[resource, name]["metadata"]["uid"])
        for kind, one in owned:
            if "deletionTimestamp" not in one["metadata"]:
                self.delete(kind, one["metadata"]["name"], {"propagationPolicy": "Foreground"})
        if not owned:
            self.remove(resource, name)

    def event(self, about: Thing, reason: str, message: str, source: str) -> None:
        """Add a warning about an object, or count it once more."""
        meta = about["metadata"]
        for known in self.all("events"):
            if known["involvedObject"]["uid"] == meta["uid"] and known["message"] == message:
                with self.changing("events", known["metadata"]["name"]) as event:
                    event |= {"count": event["count"] + 1, "lastTimestamp": now()}
                return
        involved = {"kind": about["kind"], "apiVersion": about["apiVersion"], "namespace": NAMESPACE}
        event = {
            "metadata": {"name": f"{meta['name']}.{secrets.token_hex(8)}"},
            "involvedObject": {**involved, "name": meta["name"], "uid": meta["uid"]},
            "source": {"component": source},
        }
        event |= {"type": "Warning", "reason": reason, "message": message}
        self.create("events", {**event, "count": 1, "firstTimestamp": now(), "lastTimestamp": now()})

    def look_again(self, when: float) -> None:
        """Have all look for changes at a time, though there may be none."""
        asyncio.get_running_loop().call_later(max(0.001, when - time.time()), self.changed.ring)

    async def watch(self, resource: str, query: Mapping[str, str]) -> AsyncIterator[Thing]:
        """Yield the events of a watch."""
        seen, cuts = int(query.get("resourceVersion") or 0), self.cuts
        ends = time.monotonic() + float(query.get("timeoutSeconds") or 3600)
        if not seen:
            seen = self.version
            for thing in self.all(resource):
                if selected(query, thing):
                    yield {"type": "ADDED", "object": thing}
        while cuts == self.cuts:
            if seen < self.oldest:
                message = f"too old resource version: {seen} ({self.oldest})"
                yield {"type": "ERROR", "object": Refusal(410, "Expired", message).status}
                return
            for kind, before, after in self.changes[seen - self.oldest :]:
                seen += 1
                was = before if before and kind == resource and selected(query, before) else None
                now_is = after if after and kind == resource and selected(query, after) else None
                if now_is:
                    yield {"type": "MODIFIED" if was else "ADDED", "object": now_is}
                elif was:
                    yield {"type": "DELETED", "object": after or was}
            if seen >= self.version:
                if time.monotonic() >= ends:
                    return
                await self.changed.rung(ends - time.monotonic())
        raise ConnectionAbortedError
