"""Where a version of a model comes from: the job and the trial that wrote its export, and the rows they read."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch_estimator import files
from torch_estimator.console.sources import Sources
from torch_estimator.console.texts import arguments_of
from torch_estimator.errors import UserError
from torch_estimator.jobs.directory import JobDirectory, JobSpec
from torch_estimator.registry import VersionInfo
from torch_estimator.tuning.directory import StudyDirectory

_BATCH_SIZE = re.compile(r"-*(?:train[-_])?batch[-_]size")


@dataclass(frozen=True, slots=True)
class Origin:
    """The job and the trial by their ids, empty if there is none, and the batch size if an argument names it.

    `missing` says in a sentence why there is no job.
    """

    job: str = ""
    trial: str = ""
    batch_size: int | None = None
    missing: str = ""

    def rows(self, step: int | None) -> int | None:
        """Return on how many rows a model was trained up to a step; None if that is not known."""
        return None if step is None or self.batch_size is None else step * self.batch_size


class Provenance:
    """Finds the origins of versions; what was asked for does not change, so that each job is read once."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        # The specification of each job, and where it writes.
        self._known: dict[str, tuple[JobSpec, list[str]] | None] = {}

    def of(self, version: VersionInfo) -> Origin:
        """Return the origin of a version."""
        folders = self._folders()
        # A version may be a copy of another version, and then only its run is that of a job.
        for path in filter(None, (version.origin, version.run)):
            place, below, name = real_path(path), "", path
            while place not in folders and name:
                place, name = os.path.split(place)
                below = f"{name}/{below}"
            if place in folders:
                return self._origin(folders[place], below, files.basename(version.origin))
        return Origin(missing=self._missing(version))

    def _origin(self, jobs: list[JobSpec], below: str, export: str) -> Origin:
        # Jobs may have written into one folder, one after the other. An export has the time in its name.
        at = float(export) if export.isdecimal() else float("inf")
        spec = max(jobs, key=lambda spec: (spec.created <= at + 1, spec.created))
        number = re.match(r"(?:trials/)?(\d+)/", below) if spec.study is not None else None
        if number is None or self._sources.jobs is None:
            return Origin(f"job:{spec.name}", batch_size=_batch_size(spec, {}))
        parameters: Mapping[str, str] = {}
        with contextlib.suppress(UserError, OSError):
            study = StudyDirectory(JobDirectory(self._sources.jobs, spec.name))
            parameters = study.trial(int(number[1])).parameters
        return Origin(f"job:{spec.name}", f"trial:{spec.name}/{number[1]}", _batch_size(spec, parameters))

    def _folders(self) -> dict[str, list[JobSpec]]:
        """Return the jobs by the directories that they were given, and studies also by their own."""
        found: dict[str, list[JobSpec]] = {}
        for entry in self._sources.entries():
            if entry.id.startswith("job:"):
                if entry.name not in self._known:
                    self._known[entry.name] = self._read(entry.name)
                known = self._known[entry.name]
                if known is not None:
                    for place in known[1]:
                        found.setdefault(place, []).append(known[0])
        return found

    def _read(self, name: str) -> tuple[JobSpec, list[str]] | None:
        with contextlib.suppress(UserError, OSError, ValueError):
            job = JobDirectory(self._sources.jobs or "", name)
            spec = job.spec()
            places = [real_path(job.url)] if spec.study is not None else []
            if spec.job_dir is not None:
                url = files.as_url(spec.job_dir)
                places.append(real_path(os.path.join(spec.folder, url) if files.is_local(url) else url))
            return spec, places
        return None

    def _missing(self, version: VersionInfo) -> str:
        if not version.origin:
            return "Its manifest does not say from where it was copied."
        is_there = False
        with contextlib.suppress(OSError, UserError, ValueError):
            is_there = files.exists(version.origin)
        where = f"in {self._sources.jobs}" if self._sources.jobs else "here, since the console shows no jobs"
        still = "still" if is_there else "no longer"
        return f"It was copied from {version.origin}, which is {still} there. No job {where} has written it."


def real_path(path: str) -> str:
    """Return a path without links and such; directories that are gone have names, too."""
    return os.path.realpath(path) if files.is_local(path) else path.rstrip("/")


def _batch_size(spec: JobSpec, parameters: Mapping[str, str]) -> int | None:
    """Return the batch size that an argument of a program names; what a step of a cluster reads, no argument says."""
    arguments = {**arguments_of(spec.arguments), **parameters}
    found = [value for name, value in arguments.items() if _BATCH_SIZE.fullmatch(name)]
    return int(found[-1]) if found and found[-1].isdecimal() and not spec.is_cluster else None
