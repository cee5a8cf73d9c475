"""The pods of a job: a thread that knows what Kubernetes says of each, and the processes of roles that run in them."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from torch_estimator.cluster.task import PARAMETER_SERVER, Task
from torch_estimator.errors import RESTART_ME, UserError
from torch_estimator.jobs.directory import role_of
from torch_estimator.jobs.kubernetes.cluster import Cluster, MissingError, Object, RefusedError, UnreachableError
from torch_estimator.jobs.kubernetes.objects import INDEX, MAIN, ROLE, Objects, type_of
from torch_estimator.launch.lines import WriteLine
from torch_estimator.log import time_text

_WATCH_SECS = 240
_RETRY_SECS = 1.0
# Kubernetes is asked so often what became of a Job whose pod does not come.
_LOOK_SECS = 2.0
_SIGNALLED = 128
_FORCE_SECS = 5.0
_CAUSE_SECS = 5.0
_MARK = b"--- pod "


class Pods:
    """All pods of a job, by their roles. A thread watches them until `close`."""

    def __init__(self, cluster: Cluster, objects: Objects) -> None:
        self._cluster, self._selector = cluster, objects.selector
        self.changed = threading.Condition()
        self._pods: dict[str, Object] = {}
        self._is_closed = False
        self._has_listed = threading.Event()
        self._reported: set[str] = set()
        self.trouble = ""
        threading.Thread(target=self._run, name="pods", daemon=True).start()

    @property
    def are_known(self) -> bool:
        """Whether the cluster has said once which pods there are."""
        return self._has_listed.is_set()

    def close(self) -> None:
        """End the thread, once the cluster answers."""
        self._is_closed = True

    def of(self, role: str) -> list[Object]:
        """Return the pods that a role has had, the oldest first."""
        self._has_listed.wait()
        with self.changed:
            found = [pod for pod in self._pods.values() if _role(pod) == role]
        # The times are in whole seconds. A pod is replaced when it has ended.
        return sorted(found, key=lambda pod: (pod["metadata"]["creationTimestamp"], not has_ended(pod)))

    def others_run(self) -> bool:
        """Return whether a pod runs that is no parameter server."""
        with self.changed:
            return any(
                pod["metadata"]["labels"].get(ROLE) != PARAMETER_SERVER and not has_ended(pod)
                for pod in self._pods.values()
            )

    def report(self, pod: Object) -> None:
        """Note that the exit of a pod was told."""
        with self.changed:
            self._reported.add(pod["metadata"]["uid"])
            self.changed.notify_all()

    def owe_error_beside(self, pod: Object) -> bool:
        """Return whether another pod of the same Job has ended with a user's error that was not told yet."""
        type = pod["metadata"]["labels"].get(ROLE)
        with self.changed:
            return any(
                has_ended(one) and _outcome(one)[0] == UserError.exit_status
                for uid, one in self._pods.items()
                if one["metadata"]["labels"].get(ROLE) == type and uid not in {*self._reported, pod["metadata"]["uid"]}
            )

    def now(self, pod: Object) -> Object:
        """Return a pod as it is now, or was when it was deleted."""
        with self.changed:
            return self._pods[pod["metadata"]["uid"]]

    def wait(self, secs: float) -> None:
        """Wait until a pod has changed, at most for some seconds."""
        with self.changed:
            self.changed.wait(secs)

    def _run(self) -> None:
        while not self._is_closed:
            try:
                found = self._cluster.list("Pod", labelSelector=self._selector)
                there = {pod["metadata"]["uid"] for pod in found["items"]}
                self._take(found["items"], [uid for uid in self._pods if uid not in there])
                self.trouble = ""
                self._has_listed.set()
                version = found["metadata"]["resourceVersion"]
                for event in self._cluster.watch("Pod", version, _WATCH_SECS, labelSelector=self._selector):
                    pod = event["object"]
                    self._take([pod], [pod["metadata"]["uid"]] if event["type"] == "DELETED" else [])
                    if self._is_closed:
                        return
            except (RefusedError, UnreachableError) as error:
                # The cluster may answer again later, and then the list says what has happened meanwhile.
                self.trouble = str(error)
                time.sleep(_RETRY_SECS)

    def _take(self, pods: Iterable[Object], gone: Iterable[str]) -> None:
        with self.changed:
            self._pods.update((pod["metadata"]["uid"], pod) for pod in pods)
            for uid in gone:
                self._pods[uid] = {**self._pods[uid], "isGone": True}
            self.changed.notify_all()


class Role:
    """What all processes of a role share: its pods, and where the log of the last one was left.

    Args:
        pods: The pods of the job.
        cluster: The cluster that runs them.
        objects: The objects of the job.
        task: The role's task.
        log: Lines that the role's log has already, each after its time.
    """

    def __init__(self, pods: Pods, cluster: Cluster, objects: Objects, task: Task, log: Iterable[bytes]) -> None:
        self.pods, self.cluster, self.objects = pods, cluster, objects
        self.name = role_of(task)
        self.is_server = task.type == PARAMETER_SERVER
        self.job_name = objects.job_name(type_of(task))
        # The name of each pod that the log has lines of, and the times of the last of them; the others are complete.
        self._seen: dict[str, list[str]] = {}
        self._last: list[str] = []
        for line in log:
            stamp, _, text = line.partition(b" ")
            if text.startswith(_MARK):
                self._last = self._seen[text.split()[2].decode()] = []
            elif self._last[:1] == [stamp.decode()]:
                self._last.append(stamp.decode())
            elif self._seen:
                self._last[:] = [stamp.decode()]
        self._done = set(list(self._seen)[:-1])

    def has_next(self) -> bool:
        """Return whether there is a pod that nobody has followed yet."""
        return bool(self._undone())

    def _undone(self) -> list[Object]:
        return [pod for pod in self.pods.of(self.name) if pod["metadata"]["name"] not in self._done]

    def next(self) -> Object | None:
        """Wait for the next pod; return None if there will be none."""
        look_at = time.monotonic() + _LOOK_SECS
        while True:
            for pod in self._undone():
                return pod
            if time.monotonic() > look_at:
                if self.end():
                    return None
                look_at = time.monotonic() + _LOOK_SECS
            self.pods.wait(_LOOK_SECS)

    def end(self) -> str:
        """Return why Kubernetes starts no pod of the role again, in a sentence; an empty text if it does, or may."""
        try:
            job = self.cluster.find("Job", self.job_name)
        except (RefusedError, UnreachableError):
            # It may answer again later.
            return ""
        if job is None or "deletionTimestamp" in job["metadata"]:
            return f"the Job {self.job_name} was deleted."
        failed = next((one for one in _conditions(job) if one["type"] in ("Failed", "FailureTarget")), None)
        if failed is None:
            return ""
        return f"Kubernetes has ended the Job {self.job_name}: {failed.get('message', failed.get('reason'))}."

    def copy(self, pod: Object, write: WriteLine) -> None:
        """Write the lines of a pod until it has ended, each after its time, without those that the log has."""
        name = pod["metadata"]["name"]
        while not has_started(pod):
            self.pods.wait(_LOOK_SECS)
            pod = self.pods.now(pod)
        if not _has_run(pod):
            # The init container has failed.
            self._done.add(name)
            return
        seen = self._seen.setdefault(name, [])
        if not seen:
            node = pod["spec"].get("nodeName", "")
            write(f"{time_text()} ".encode() + _MARK + f"{name} on {node} ---".encode(), False)
        while True:
            was_over = has_ended(self.pods.now(pod))
            try:
                for stamp, text in _new(self.cluster.log(name, MAIN), seen):
                    write(stamp.encode() + b" " + text, True)
                is_complete = True
            except MissingError:
                is_complete = True
            except RefusedError as error:
                is_complete = was_over
                if was_over:
                    write(f"{time_text()} the last lines cannot be read: {error}".encode(), True)
            except UnreachableError:
                is_complete = False
            # A log that was opened before the end may have been cut.
            if was_over and is_complete:
                break
            if not has_ended(self.pods.now(pod)):
                self.pods.wait(_RETRY_SECS)
        self._done.add(name)

    def is_followed(self, pod: Object) -> bool:
        """Return whether there is a newer pod of the role."""
        return bool(self.pods.of(self.name)[-1]["metadata"]["uid"] != pod["metadata"]["uid"])


class PodProcess:
    """Process of a role, as the job sees it: the next pod of the role. It goes on with another one after an eviction.

    Args:
        role: The role.
        is_first: Whether the role may have had pods that were reported already, by a launcher that was killed.
        write: As for `Start`.
        on_exit: As for `Start`.
    """

    def __init__(
        self,
        role: Role,
        is_first: bool,
        write: WriteLine,
        on_exit: Callable[[int], None],
    ) -> None:
        self._role, self._write, self._on_exit = role, write, on_exit
        self._was_followed = {
            pod["metadata"]["uid"] for pod in (role.pods.of(role.name) if is_first else []) if role.is_followed(pod)
        }
        self._pod: Object | None = None
        self._thread = threading.Thread(target=self._follow, name=role.name, daemon=True)
        self._thread.start()

    @property
    def pid(self) -> None:
        """None, since the process is elsewhere."""

    def send(self, number: int) -> None:
        """Have Kubernetes end all pods of the role. If a pod does not end even then, remove it."""
        role = self._role
        if role.objects.is_job_set and role.is_server:
            # A JobSet ends as a whole, and an evaluator may still be at work.
            threading.Thread(target=self._end_last, name=f"end {role.name}", daemon=True).start()
            return
        with contextlib.suppress(RefusedError, UnreachableError):
            if number == signal.SIGTERM:
                role.cluster.delete(*role.objects.owner(role.job_name))
            elif self._pod is not None:
                ends = role.pods.now(self._pod)["metadata"].get("deletionTimestamp")
                delay = max(0.0, _seconds(ends) - time.time()) if ends else 0.0
                timer = threading.Timer(delay + _FORCE_SECS, self._remove)
                timer.daemon = True
                timer.start()

    def _note(self, text: str) -> None:
        if text:
            self._write(f"{time_text()} {text}".encode(), True)

    def _end_last(self) -> None:
        role = self._role
        while role.pods.others_run():
            role.pods.wait(_RETRY_SECS)
        with contextlib.suppress(RefusedError, UnreachableError):
            role.cluster.delete(*role.objects.owner(role.job_name))

    def _remove(self) -> None:
        assert self._pod is not None
        with contextlib.suppress(RefusedError, UnreachableError):
            self._role.cluster.delete("Pod", self._pod["metadata"]["name"], 0)

    def wait_for_lines(self, secs: float) -> bool:
        """Wait until all lines are written; they are, once the exit is reported."""
        self._thread.join(secs)
        return not self._thread.is_alive()

    def _follow(self) -> None:
        role = self._role
        while (pod := role.next()) is not None:
            self._pod = pod
            role.copy(pod, self._write)
            pod = role.pods.now(pod)
            if pod["metadata"]["uid"] in self._was_followed:
                continue
            why = next((one for one in _conditions(pod) if one["type"] == "DisruptionTarget"), None)
            if why is not None and not role.end():
                self._note(f"evicted: {why.get('message')} Kubernetes starts it again.")
                continue
            status, said = _outcome(pod)
            self._note(said)
            self._wait_for_cause(pod)
            self._on_exit(status)
            role.pods.report(pod)
            return
        self._note(role.end())
        self._on_exit(1)

    def _wait_for_cause(self, pod: Object) -> None:
        """Wait until the error of the user was told for which Kubernetes has ended this pod."""
        deadline = time.monotonic() + _CAUSE_SECS
        while self._role.pods.owe_error_beside(pod) and time.monotonic() < deadline:
            self._role.pods.wait(_RETRY_SECS)


def trouble_of(pod: Object) -> str:
    """Return why a pod cannot start yet, as Kubernetes says it; an empty text if it says nothing."""
    for status in _statuses(pod):
        waiting = status.get("state", {}).get("waiting", {})
        if waiting.get("reason", "ContainerCreating") not in ("ContainerCreating", "PodInitializing"):
            return f"{waiting['reason']}: {waiting.get('message', status['image'])}"
    for one in _conditions(pod):
        if one["type"] == "PodScheduled" and one["status"] == "False":
            return str(one.get("message", one.get("reason", "it waits for a node")))
    return ""


def has_started(pod: Object) -> bool:
    """Return whether the program of a pod runs, or has run, or never will."""
    return has_ended(pod) or _has_run(pod)


def has_ended(pod: Object) -> bool:
    """Return whether a pod has ended."""
    return "isGone" in pod or pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def _has_run(pod: Object) -> bool:
    return any({"running", "terminated"} & one.get("state", {}).keys() for one in _statuses(pod) if one["name"] == MAIN)


def _outcome(pod: Object) -> tuple[int, str]:
    """Return the status of a pod that has ended, as a job knows it, and what its log does not say of the end."""
    for one in _statuses(pod):
        ended: Mapping[str, Any] = one.get("state", {}).get("terminated", {})
        if not ended or (one["name"] != MAIN and not ended["exitCode"]):
            continue
        code, said = int(ended["exitCode"]), ""
        if one["name"] != MAIN:
            # Nobody reads the log of this container.
            said = str(ended.get("message", "")).strip()
        if ended.get("reason") == "OOMKilled":
            said = "error: the process needed more memory than its limit; choose a machine type with more."
        return (_SIGNALLED - code if code > _SIGNALLED and code != RESTART_ME else code), said
    message = pod.get("status", {}).get("message", "")
    return -signal.SIGKILL, f"error: Kubernetes says of the pod: {message}." if message else ""


def _new(lines: Iterable[bytes], seen: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the lines of a pod after those that were seen, and the time of each, which is added to `seen`.

    `seen` has the time of the last line, once for each line of that time.
    """
    last, skip = (seen[0], len(seen)) if seen else ("", 0)
    second, offset, prefix, zone = b"", b"Z", "", ""
    for line in lines:
        stamp, _, text = line.partition(b" ")
        if stamp[:19] != second:
            second = stamp[:19]
            # Nodes write their own time, so the offset from UTC need not be Z.
            offset = b"Z" if stamp.endswith(b"Z") else stamp[-6:]
            local = time_text(_seconds((second + offset).decode()))
            prefix, zone = local[:20], local[23:]
        at = f"{prefix}{stamp[20 : -len(offset)].decode() or '0':0<9}{zone}"
        if at == last and skip:
            skip -= 1
            continue
        if at < last:
            continue
        if seen[:1] == [at]:
            seen.append(at)
        else:
            seen[:] = [at]
        yield at, text


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _role(pod: Object) -> str:
    metadata = pod["metadata"]
    return f"{metadata['labels'].get(ROLE)}-{metadata.get('annotations', {}).get(INDEX)}"


def _statuses(pod: Object) -> list[Object]:
    status = pod.get("status", {})
    return [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]


def _conditions(one: Object) -> list[Object]:
    return [
        each
        for each in one.get("status", {}).get("conditions", [])
        if each["status"] == "True" or each["type"] == "PodScheduled"
    ]
