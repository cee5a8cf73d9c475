"""The kinds of targets that there are."""

from __future__ import annotations

from torch_estimator.jobs.directory import JobDirectory, Status
from torch_estimator.jobs.ray import Ray
from torch_estimator.jobs.slurm import Slurm
from torch_estimator.jobs.targets import Local, Target

KINDS: dict[str, Target] = {"local": Local(), "slurm": Slurm(), "ray": Ray()}
"""Target of each kind, by its name in ``estimator.toml``."""


def status_of(job: JobDirectory) -> Status:
    """Return the state of a job; its target says whether the launcher is still there."""
    return job.status(lambda launched: KINDS[job.spec().settings["kind"]].ended(launched))
