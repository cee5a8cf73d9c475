"""The controllers of Job and JobSet."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import copy
import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from scripts.fake_kubernetes.objects import NAMESPACE, Refusal, Thing, child_jobs, has, now, owned_by, set_condition
from scripts.fake_kubernetes.store import Store

_INDEX = "batch.kubernetes.io/job-completion-index"
_FAILURES = "batch.kubernetes.io/job-index-failure-count"
_ROLE = "jobset.sigs.k8s.io/replicatedjob-name"
_RETRY_SECS = 0.5


@dataclass(eq=False)
class _Record:
    """What the controller knows of a job. A job without indexes has them here all the same."""

    indexes: dict[str, int] = field(default_factory=dict)
    completed: set[int] = field(default_factory=set)
    failed_indexes: set[int] = field(default_factory=set)
    failures: collections.Counter[int] = field(default_factory=collections.Counter)
    # By index, or -1 for all of a job without a limit per index: failures, ignored ones too, and the last one's time.
    backoff: dict[int, tuple[int, float]] = field(default_factory=lambda: collections.defaultdict(lambda: (0, 0.0)))
    failed: int = 0
    succeeded: int = 0
    began: float | None = None
    ended: float = 0.0
    refused: float = 0.0
    failed_by_policy: str = ""
    # Complete or Failed, reason and message.
    verdict: tuple[str, str, str] | None = None


class Controllers:
    """Start pods for jobs, and jobs for jobsets, until these are complete or have failed."""

    def __init__(self, store: Store, backoff_secs: float) -> None:
        self.store, self.backoff_secs = store, backoff_secs
        self.records: dict[str, _Record] = collections.defaultdict(_Record)
        store.pod_ended = self._count

    async def run(self) -> None:
        while True:
            version = self.store.version
            for resource, name in list(self.store.things):
                thing = self.store.things.get((resource, name))
                if thing and "foregroundDeletion" in thing["metadata"].get("finalizers", []):
                    self.store.collect(resource, name)
                elif thing and resource == "jobs":
                    self._sync_job(thing)
                elif thing and resource == "jobsets":
                    self._sync_jobset(thing)
            if version == self.store.version:
                await self.store.changed.rung()
            # The end of the server is heard even if there is always something to do.
            await asyncio.sleep(0)

    def _active(self, job: Thing) -> tuple[list[Thing], list[Thing]]:
        """Return the pods of a job that have not ended: those that stay, and those that are being deleted."""
        pods = [thing for kind, thing in self.store.owned(job["metadata"]["uid"]) if kind == "pods"]
        pods = [pod for pod in pods if pod["status"]["phase"] in ("Pending", "Running")]
        ending = [pod for pod in pods if "deletionTimestamp" in pod["metadata"]]
        return [pod for pod in pods if pod not in ending], ending

    def _sync_job(self, job: Thing) -> None:
        name, spec, record = job["metadata"]["name"], job["spec"], self.records[job["metadata"]["uid"]]
        if has(job, "Complete", "Failed"):
            if "ttlSecondsAfterFinished" in spec:
                self._remove_after(name, record.ended + spec["ttlSecondsAfterFinished"])
            return
        if spec["suspend"]:
            record.began = None
        elif record.began is None:
            record.began = time.time()
        record.verdict = record.verdict or self._verdict(spec, record)
        if record.verdict or spec["suspend"]:
            for pod in self._active(job)[0]:
                self.store.delete("pods", pod["metadata"]["name"], {})
        else:
            self._start_pods(job, record)
        active, ending = self._active(job)
        with self.store.changing("jobs", name) as changed:
            status = changed["status"]
            status |= {
                "active": len(active),
                "terminating": len(ending),
                "ready": sum(has(pod, "Ready") for pod in active),
            }
            status |= {"succeeded": record.succeeded, "failed": record.failed, "uncountedTerminatedPods": {}}
            if spec["completionMode"] == "Indexed":
                status["completedIndexes"] = _ranges(record.completed)
            if "backoffLimitPerIndex" in spec:
                status["failedIndexes"] = _ranges(record.failed_indexes)
            if spec["suspend"]:
                status.pop("startTime", None)
                set_condition(changed, "Suspended", True, "JobSuspended", "Job suspended")
            else:
                status.setdefault("startTime", now())
                if has(changed, "Suspended"):
                    set_condition(changed, "Suspended", False, "JobResumed", "Job resumed")
            if record.verdict:
                final, *said = record.verdict
                # The last condition comes when no pod runs any more.
                set_condition(changed, "FailureTarget" if final == "Failed" else "SuccessCriteriaMet", True, *said)
                if not active and not ending:
                    set_condition(changed, final, True, *said)
                    record.ended = time.time()
                    status |= {"completionTime": now()} if final == "Complete" else {}

    def _remove_after(self, name: str, when: float) -> None:
        if time.time() < when:
            self.store.look_again(when)
        else:
            self.store.delete("jobs", name, {"propagationPolicy": "Foreground"})

    def _verdict(self, spec: Thing, record: _Record) -> tuple[str, str, str] | None:
        if record.failed_by_policy:
            return "Failed", "PodFailurePolicy", record.failed_by_policy
        if record.failed > spec["backoffLimit"]:
            return "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        if "activeDeadlineSeconds" in spec and record.began is not None:
            deadline = record.began + spec["activeDeadlineSeconds"]
            if time.time() >= deadline:
                return "Failed", "DeadlineExceeded", "Job was active longer than specified deadline"
            self.store.look_again(deadline)
        if len(record.failed_indexes) > spec.get("maxFailedIndexes", 2**31):
            message = "Job has exceeded the specified maximal number of failed indexes"
            return "Failed", "MaxFailedIndexesExceeded", message
        if len(record.completed | record.failed_indexes) < spec["completions"]:
            return None
        if record.failed_indexes:
            return "Failed", "FailedIndexes", "Job has failed indexes"
        return "Complete", "CompletionsReached", "Reached expected number of succeeded pods"

    def _start_pods(self, job: Thing, record: _Record) -> None:
        """Create the pods that are missing and may be created now."""
        spec, (active, ending) = job["spec"], self._active(job)
        in_place = active + ending if spec["podReplacementPolicy"] == "Failed" else active
        taken = {record.indexes[pod["metadata"]["uid"]] for pod in in_place}
        missing = [
            one for one in range(spec["completions"]) if one not in taken | record.completed | record.failed_indexes
        ]
        for index in missing[: max(0, spec["parallelism"] - len(in_place))]:
            failures, last = record.backoff[index if "backoffLimitPerIndex" in spec else -1]
            ready = max(
                last + self.backoff_secs * 2 ** (failures - 1) if failures else 0.0, record.refused + _RETRY_SECS
            )
            if time.time() < ready:
                self.store.look_again(ready)
                continue
            try:
                pod = self.store.create("pods", _pod(job, index, record.failures[index]))
                record.indexes[pod["metadata"]["uid"]] = index
            except Refusal as refusal:
                record.refused = time.time()
                self.store.look_again(record.refused + _RETRY_SECS)
                self.store.event(job, "FailedCreate", f"Error creating: {refusal}", "job-controller")

    def _count(self, pod: Thing) -> None:
        """Count a pod that has ended, once."""
        owner = (pod["metadata"].get("ownerReferences") or [{"uid": "", "name": ""}])[0]
        job, record = self.store.things.get(("jobs", owner["name"])), self.records[owner["uid"]]
        index = record.indexes.pop(pod["metadata"]["uid"], None)
        if index is None or job is None:
            return
        spec = job["spec"]
        if pod["status"]["phase"] == "Succeeded":
            record.succeeded += 1
            record.completed.add(index)
        elif not spec["suspend"]:
            key = index if "backoffLimitPerIndex" in spec else -1
            record.backoff[key] = (record.backoff[key][0] + 1, time.time())
            action, why = _action(spec, pod)
            if action != "Ignore":
                record.failed += 1
                record.failures[index] += 1
            if action == "FailJob":
                record.failed_by_policy = record.failed_by_policy or why
            if action == "FailIndex" or record.failures[index] > spec.get("backoffLimitPerIndex", 2**31):
                record.failed_indexes.add(index)

    def _sync_jobset(self, jobset: Thing) -> None:
        name, spec, network = jobset["metadata"]["name"], jobset["spec"], jobset["spec"].get("network") or {}
        jobs = [one for kind, one in self.store.owned(jobset["metadata"]["uid"]) if kind == "jobs"]
        if has(jobset, "Completed", "Failed"):
            self._delete([job for job in jobs if not has(job, "Complete", "Failed")])
            return
        with contextlib.suppress(Refusal):
            is_published = network.get("publishNotReadyAddresses", True)
            headless = {"clusterIP": "None", "publishNotReadyAddresses": is_published}
            headless["selector"] = {"jobset.sigs.k8s.io/jobset-name": name}
            service = {"name": network.get("subdomain") or name, "ownerReferences": owned_by(jobset)}
            self.store.create("services", {"metadata": service, "spec": headless})
        for job in child_jobs(jobset):
            # There may be one from before a restart.
            with contextlib.suppress(Refusal):
                self.store.create("jobs", job)
            with self.store.changing("jobs", job["metadata"]["name"]) as changed:
                changed["spec"]["suspend"] = spec.get("suspend", False)
        success = spec.get("successPolicy") or {}
        targets = success.get("targetReplicatedJobs") or [one["name"] for one in spec["replicatedJobs"]]
        done = [has(job, "Complete") for job in jobs if job["metadata"]["labels"][_ROLE] in targets]
        failed = [job for job in jobs if has(job, "Failed") and "deletionTimestamp" not in job["metadata"]]
        with self.store.changing("jobsets", name) as changed:
            status = changed["status"]
            status["replicatedJobsStatus"] = [
                _role_status(one["name"], [job for job in jobs if job["metadata"]["labels"][_ROLE] == one["name"]])
                for one in spec["replicatedJobs"]
            ]
            if failed and status["restarts"] < (spec.get("failurePolicy") or {}).get("maxRestarts", 0):
                status["restarts"] += 1
                self._delete(jobs)
            elif failed:
                first = f"(first failed job: {failed[0]['metadata']['name']})"
                message = f"jobset failed due to one or more job failures {first}"
                set_condition(changed, "Failed", True, "FailedJobs", message)
                status["terminalState"] = "Failed"
            elif done and (any if success.get("operator") == "Any" else all)(done):
                set_condition(changed, "Completed", True, "AllJobsCompleted", "jobset completed successfully")
                status["terminalState"] = "Completed"

    def _delete(self, jobs: list[Thing]) -> None:
        for job in jobs:
            if "deletionTimestamp" not in job["metadata"]:
                self.store.delete("jobs", job["metadata"]["name"], {"propagationPolicy": "Foreground"})


def _pod(job: Thing, index: int, failures: int) -> Thing:
    """Return a pod to create for a job."""
    name, spec = job["metadata"]["name"], job["spec"]
    pod: Thing = copy.deepcopy(spec["template"])
    pod["metadata"] |= {"ownerReferences": owned_by(job), "generateName": f"{name}-"}
    if spec["completionMode"] == "Indexed":
        pod["metadata"]["generateName"] += f"{index}-"
        annotations = {_INDEX: str(index), **({_FAILURES: str(failures)} if "backoffLimitPerIndex" in spec else {})}
        pod["metadata"]["annotations"] = {**(pod["metadata"].get("annotations") or {}), **annotations}
        pod["metadata"]["labels"][_INDEX] = str(index)
        pod["spec"]["hostname"] = f"{name}-{index}"
        source = {"fieldRef": {"fieldPath": f"metadata.labels['{_INDEX}']"}}
        for container in (pod["spec"].get("initContainers") or []) + pod["spec"]["containers"]:
            # The last, so that no other variable can refer to it.
            given = container.get("env") or []
            container["env"] = [*given, {"name": "JOB_COMPLETION_INDEX", "valueFrom": source}]
    return pod


def _action(spec: Thing, pod: Thing) -> tuple[str, str]:
    """Return what the podFailurePolicy of a job says to do after a pod failed, and why."""
    status, where = pod["status"], f"{NAMESPACE}/{pod['metadata']['name']}"
    for place, rule in enumerate((spec.get("podFailurePolicy") or {}).get("rules", [])):
        why = ""
        if codes := rule.get("onExitCodes"):
            for one in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
                own, code = one["name"], one["state"].get("terminated", {}).get("exitCode")
                is_listed = code in codes["values"]
                if code and own == (codes.get("containerName") or own) and is_listed == (codes["operator"] == "In"):
                    why = f"Container {own} for pod {where} failed with exit code {code}"
        for pattern in rule.get("onPodConditions") or []:
            for one in status["conditions"]:
                if (one["type"], one["status"]) == (pattern["type"], pattern.get("status") or "True"):
                    why = f"Pod {where} has condition {one['type']}"
        if why:
            return rule["action"], f"{why} matching {rule['action']} rule at index {place}"
    return "Count", ""


def _role_status(name: str, jobs: list[Thing]) -> Thing:
    return {
        "name": name,
        "active": sum(bool(job["status"].get("active")) for job in jobs),
        "ready": sum(job["status"].get("ready") == job["spec"]["parallelism"] for job in jobs),
        "succeeded": sum(has(job, "Complete") for job in jobs),
        "failed": sum(has(job, "Failed") for job in jobs),
        "suspended": sum(job["spec"]["suspend"] for job in jobs),
    }


def _ranges(numbers: Iterable[int]) -> str:
    """Return numbers as a job's status has them: ``0-2,5``."""
    found = []
    for _, group in itertools.groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]):
        run = [str(number) for _, number in group]
        found.append("-".join([run[0], run[-1]]) if len(run) > 2 else ",".join(run))
    return ",".join(found)
