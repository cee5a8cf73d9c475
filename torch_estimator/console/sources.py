"""What there is to show: the jobs of a directory, their trials, and directories with event files of any framework.

Each has an id for addresses: ``job:census_1``, ``trial:study_1/3``, ``run:experiments/first``.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from torch_estimator import files
from torch_estimator.errors import InvalidValueError, UserError
from torch_estimator.jobs.directory import JobDirectory, JobSpec, names
from torch_estimator.runs import training_status as status
from torch_estimator.web.errors import RequestError

if TYPE_CHECKING:
    from torch_estimator.tuning.directory import Trial

MOST_LISTED = 20_000
"""Most jobs and runs that are listed, the newest ones."""

# Most directories that are looked into for event files, of one job and of all runs.
_MOST_FOLDERS = 2000
_MOST_RUN_FOLDERS = 3 * MOST_LISTED
_DEPTH = 4
_MOST_LOOKED_INTO = 20
_NAMES_SECS = 1.0
_RUNS_SECS = 10.0
_REST = 20
_REACHED_SECS = 30.0
# Directories that hold no event files, but many others.
_WITHOUT_EVENTS = ("model.ckpt-", "export", ".", "package")


@dataclass(frozen=True, slots=True)
class Entry:
    """Something in the list: its id, and when its directory changed, in seconds since 1970."""

    id: str
    changed: float

    @property
    def name(self) -> str:
        """Its name for people."""
        return self.id.partition(":")[2]


@dataclass(frozen=True, slots=True)
class Found:
    """A job, a trial of a job, or a run.

    `folder` is where it writes event files, checkpoints and exports; empty if that is not known, or cannot be reached,
    as the sentence `problem` says, and for a study, whose trials have one each.
    """

    id: str
    folder: str
    job: JobDirectory | None = None
    spec: JobSpec | None = None
    trial: Trial | None = None
    problem: str = ""

    @property
    def name(self) -> str:
        """Its name for people."""
        return self.id.partition(":")[2]

    def has(self, place: str) -> bool:
        """Return whether the event files of a directory below `folder` are its own."""
        return self.job is not None or all(map(is_part, place.split("/")))


@dataclass(slots=True)
class Sources:
    """The directories that were given, and the address of the server of the registry's models; each may be None."""

    jobs: str | None
    logdir: str | None = None
    registry: str | None = None
    server: str | None = None
    _listed: dict[str, tuple[float, Any]] = field(default_factory=dict)
    _reached: dict[str, tuple[float, str]] = field(default_factory=dict)
    _unnamed: bool = False
    _locks: defaultdict[str, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))

    def entries(self) -> list[Entry]:
        """Return what is listed, the newest first."""
        jobs, runs = self._kept("jobs", _NAMES_SECS, self._jobs), self._kept("runs", _RUNS_SECS, self._runs)
        return sorted([*jobs, *runs], key=_newest_first)[:MOST_LISTED] if jobs and runs else jobs or runs

    def problems(self) -> list[str]:
        """Return what is wrong with the directories, in sentences."""
        problems = [problem_of(self.jobs, "--jobs"), problem_of(self.logdir, "--logdir")]
        if self._unnamed:
            problems.append(f"Directories below {self.logdir} whose names are not UTF-8 are not shown; rename them.")
        return list(filter(None, problems))

    def find(self, id: str) -> Found:
        """Return what an id names; raise a RequestError if there is no such thing."""
        kind, _, name = id.partition(":")
        try:
            if kind == "job" and self.jobs and self._has_job(name):
                job = JobDirectory(self.jobs, name)
                spec = job.spec()
                folder = "" if spec.study is not None else folder_of(spec, self.jobs)
                problem = self._unreachable(folder)
                return Found(id, "" if problem else folder, job, spec, problem=problem)
            study, _, number = name.rpartition("/")
            if kind == "trial" and self.jobs and number.isdecimal() and len(number) < 10 and self._has_job(study):
                # The list shows no trials.
                from torch_estimator.tuning.directory import StudyDirectory

                job = JobDirectory(self.jobs, study)
                spec, trial = job.spec(), StudyDirectory(job).trial(int(number))
                # It may be a path in the folder of the study.
                return Found(id, folder_of(replace(spec, job_dir=trial.job_dir), self.jobs), job, spec, trial)
            runs = self._kept("runs", _RUNS_SECS, self._runs) if kind == "run" else []
            if self.logdir and any(one.id == id for one in runs):
                return Found(id, self.logdir if name == "." else files.join(self.logdir, name))
        except UserError as error:
            raise RequestError(404, str(error)) from error
        except OSError as error:
            raise RequestError(404, f"{id} cannot be read: {files.reason(error)}.") from error
        raise RequestError(404, f"There is no {id or 'run without a name'} here; it may have been removed.")

    def _has_job(self, name: str) -> bool:
        # One of 100,000 is looked for without a list of them. A name has no slash.
        assert self.jobs is not None
        return "/" not in name and name not in ("", ".", "..") and files.is_dir(files.join(self.jobs, name))

    def _unreachable(self, url: str) -> str:
        """Return why a URL cannot be reached, in a sentence; it is tried now and then."""
        if not url or files.is_local(url):
            return ""
        known = self._reached.get(url)
        if known is None or time.monotonic() > known[0]:
            known = self._reached[url] = time.monotonic() + _REACHED_SECS, _why_not(files.is_dir, url)
        return known[1]

    def _kept(self, key: str, secs: float, read: Any) -> list[Entry]:
        with self._locks[key]:
            known, began = self._listed.get(key), time.monotonic()
            if known is None or began > known[0]:
                entries: list[Entry] = []
                with contextlib.suppress(OSError, UserError, ValueError):
                    entries = sorted(read(), key=_newest_first)[:MOST_LISTED]
                # A list that takes long, as of 100,000 jobs, is made less often.
                now = time.monotonic()
                known = self._listed[key] = now + max(secs, _REST * (now - began)), entries
            found: list[Entry] = known[1]
            return found

    def _jobs(self) -> Iterator[Entry]:
        if self.jobs is None:
            return
        if not files.is_local(self.jobs):
            for place, name in enumerate(reversed(names(self.jobs))):
                yield Entry(f"job:{name}", -float(place))
            return
        there = set(names(self.jobs))
        with os.scandir(self.jobs) as found:
            for one in found:
                with contextlib.suppress(OSError):
                    if one.name in there and one.is_dir():
                        yield Entry(f"job:{one.name}", one.stat().st_mtime)

    def _runs(self) -> Iterator[Entry]:
        if self.logdir is not None:
            found = folders_with_events(self.logdir, _MOST_RUN_FOLDERS)
            # What is part of a run stands for the run.
            runs = (parent if is_part(base) else one for one in found for parent, _, base in [one.rpartition("/")])
            self._unnamed = False
            for name in dict.fromkeys(runs):
                if not _is_text(name):
                    self._unnamed = True
                    continue
                path = files.join(self.logdir, name) if name else self.logdir
                yield Entry(f"run:{name or '.'}", os.stat(path).st_mtime if files.is_local(path) else 0.0)


def _is_text(name: str) -> bool:
    """Return whether a name is UTF-8, as all of a page has to be."""
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


def _newest_first(entry: Entry) -> tuple[float, str]:
    return -entry.changed, entry.id


def is_evaluation(name: str) -> bool:
    """Return whether a directory has the curves of an evaluation of the run around it."""
    return name in ("eval", "validation", "val", "test") or name.startswith("eval_")


def is_part(name: str) -> bool:
    """Return whether a directory has curves of the run around it, as this package and Keras write them."""
    return not name or name == "train" or is_evaluation(name) or name.startswith("replica_")


def main_folder(found: Found) -> str:
    """Return the folder of the training itself: that of a run, or the first one below it with a training's files."""
    inside = sorted((name for name in files.listdir(found.folder) if not is_evaluation(name)), key="train".__ne__)
    for place in ["", *inside][:_MOST_LOOKED_INTO]:
        folder = files.join(found.folder, place) if place else found.folder
        names = [] if place.startswith(_WITHOUT_EVENTS) else _listed(folder)
        if status.NAME in names or any("tfevents" in name for name in names):
            return folder
    return found.folder


def _listed(folder: str) -> list[str]:
    try:
        return files.listdir(folder)
    except NotADirectoryError:
        return []


def folders_with_events(top: str, most: int = _MOST_FOLDERS) -> list[str]:
    """Return the paths below a directory of those with event files; the directory itself is ``""``."""
    if not files.is_local(top):
        inside = [name.rpartition("/")[0] for name in files.all_files(top) if "tfevents" in files.basename(name)]
        return sorted(set(inside))
    found, looked, waiting = [], 0, deque([("", 0)])
    own = os.path.join(os.path.realpath(top), "")
    while waiting and looked < most:
        below, depth = waiting.popleft()
        looked += 1
        has_events = False
        with contextlib.suppress(OSError), os.scandir(os.path.join(top, below)) as entries:
            for one in entries:
                if "tfevents" in one.name:
                    has_events = True
                elif depth < _DEPTH and not one.name.startswith(_WITHOUT_EVENTS) and one.is_dir():
                    to = os.path.join(os.path.realpath(one.path), "") if one.is_symlink() else None
                    # What a link within the directory leads to, or to what is around it, is found anyway.
                    if to is not None and (to.startswith(own) or own.startswith(to)):
                        continue
                    waiting.append((f"{below}/{one.name}" if below else one.name, depth + 1))
        if has_events:
            found.append(below)
    return sorted(found)


def folder_of(spec: JobSpec, jobs: str) -> str:
    """Return the job directory that a program was given.

    Where jobs were copied from another machine, it may be beside them.
    """
    if spec.job_dir is None:
        return ""
    url = files.as_url(spec.job_dir)
    if not files.is_local(url):
        return url
    path = os.path.join(spec.folder, url)
    if os.path.isdir(path) or not files.is_local(jobs):
        return path
    parts = [part for part in path.split("/") if part]
    for count in range(min(len(parts), 4), 0, -1):
        for base in (os.path.dirname(jobs), jobs):
            other = os.path.join(base, *parts[-count:])
            if os.path.isdir(other):
                return other
    return path


def problem_of(url: str | None, option: str) -> str:
    """Return what is wrong with a directory, in a sentence; empty if it can be listed."""
    why = "" if url is None else _why_not(_look_into, url)
    return f"{why} {option} names another directory." if why else ""


def _look_into(url: str) -> None:
    if files.is_local(url):
        os.scandir(url).close()
    elif not files.is_dir(url) and not files.listdir(url):
        raise InvalidValueError(f"{url} does not exist, or nothing is in it.")


def _why_not(use: Callable[[str], object], url: str) -> str:
    """Return why a directory cannot be used, in a sentence; empty if it can."""
    try:
        use(url)
    except UserError as error:
        return str(error)
    except (OSError, ValueError) as error:
        return f"{url} cannot be read: {files.reason(error)}."
    except Exception as error:
        # The packages of object stores have errors of their own.
        return f"{url} cannot be reached: {files.reason(error)}."
    return ""


@contextlib.contextmanager
def refused_as_conflict() -> Iterator[None]:
    """Answer what cannot be done as things are now, such as for a job that has ended or was removed meanwhile."""
    try:
        yield
    except UserError as error:
        raise RequestError(409, f"{str(error)[:1].upper()}{str(error)[1:]}") from error
    except (OSError, ValueError) as error:
        place = getattr(error, "filename", None) or "A file"
        raise RequestError(409, f"{place} cannot be used: {files.reason(error)}.") from error
