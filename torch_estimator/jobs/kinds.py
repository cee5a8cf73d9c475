"""The kinds of targets that there are."""

from __future__ import annotations

from torch_estimator.errors import InvalidValueError
from torch_estimator.jobs.directory import JOB_FILE, JobDirectory, JobEvent, Status
from torch_estimator.jobs.kubernetes.target import Kubernetes
from torch_estimator.jobs.ray import Ray
from torch_estimator.jobs.slurm import Slurm
from torch_estimator.jobs.targets import Local, Target

KINDS: dict[str, Target] = {"local": Local(), "slurm": Slurm(), "ray": Ray(), "kubernetes": Kubernetes()}
"""Target of each kind, by its name in ``estimator.toml``."""


def status_of(job: JobDirectory) -> Status:
    """Return the state of a job; its target says whether the launcher is still there."""

    def ended(launched: JobEvent) -> str | None:
        kind = job.spec().settings.get("kind")
        if kind not in KINDS:
            raise InvalidValueError(
                f"{job.url}/{JOB_FILE} names the kind of target {kind!r}, but there are {', '.join(KINDS)}; it is "
                "damaged, or a later version has written it."
            )
        return KINDS[kind].ended(job, launched)

    return job.status(ended)
