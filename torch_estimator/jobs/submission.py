"""What the commands do with a job: submit it, cancel it, and start it again."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch_estimator import files
from torch_estimator.errors import RESTART_ME, InvalidValueError
from torch_estimator.jobs.directory import FINAL, JobDirectory, JobSpec
from torch_estimator.jobs.kinds import KINDS, status_of
from torch_estimator.jobs.launcher import ended_by_sigterm
from torch_estimator.jobs.package import copy_package, local_package, package_digest
from torch_estimator.jobs.request import SECRETS, with_secrets, without_secrets
from torch_estimator.launch.layout import Program


def submit(
    job: JobDirectory,
    spec: JobSpec,
    package: Path,
    secrets: Sequence[str],
    *,
    variables: Mapping[str, str] | None = None,
    is_dry: bool = False,
) -> tuple[JobSpec, str]:
    """Make the directory of a job with a package, and start it; return its complete specification, and what was run.

    The launcher gets `variables` beside this process's own, and passes them on to the roles. A dry run makes nothing.
    Raise a UserError for a mistake, before anything has been made.
    """
    target = KINDS[spec.settings["kind"]]
    # This refuses a module that is not there.
    Program(module_name=spec.module_name, package_path=str(package))
    target.check(spec, job.url, package)
    if job.url.startswith("memory:"):
        raise InvalidValueError(f"--jobs {job.jobs} is in the memory of this process; name a folder or a store's URL.")
    spec = dataclasses.replace(spec, package=package.name)
    plan = target.plan(spec, job.url, package)
    if is_dry:
        return spec, plan
    job.check_new()
    # Until it is complete, it has a name that no job has, which nobody sees if this process is killed.
    made = JobDirectory(job.jobs, f".{job.name}-{os.getpid()}") if job.is_local else job
    with ended_by_sigterm(SystemExit(RESTART_ME)):
        try:
            made.make()
            spec = dataclasses.replace(spec, package_sha256=copy_package(package, made))
            made.write(spec)
            made.add("submitted", "QUEUED")
            if made is not job:
                os.rename(made.url, job.url)
                made = job
            _start(job, spec, secrets, variables)
        except BaseException as error:
            # Nobody would end what never began, and its name would be taken.
            with contextlib.suppress(OSError):
                files.remove_tree(made.url)
            if isinstance(error, OSError):
                raise InvalidValueError(
                    f"{job.url} cannot be made: {files.reason(error)}; give another --jobs."
                ) from error
            raise
    return spec, plan


def resubmit(job: JobDirectory, arguments: Sequence[str] | None, *, variables: Mapping[str, str] | None = None) -> None:
    """Start a job again that failed or was cancelled, with its own package; all arguments where some are secret."""
    spec, status = job.spec(), status_of(job)
    state = status.state
    if state == "SUCCEEDED":
        raise InvalidValueError(f"job {job.name} SUCCEEDED, so that nothing is left to do; submit another one.")
    if status.host:
        raise InvalidValueError(
            f"job {job.name} is {status.shown}: {status.reason} Resume it there, or, if it has ended, say so: "
            f"""echo '{{"kind": "ended", "time": 0, "state": "FAILED"}}' >{job.next_event()}"""
        )
    if state not in FINAL:
        raise InvalidValueError(f"job {job.name} is {state}; cancel it first, or wait for its end.")
    secrets: list[str] = []
    if arguments is not None:
        kept, secrets = without_secrets(arguments, spec.secret_arguments)
        if kept != spec.arguments:
            raise InvalidValueError(
                f"job {job.name} goes on with the arguments that it was submitted with, {' '.join(spec.arguments)}; "
                "submit a new job for others."
            )
    with_secrets(spec.arguments, spec.secret_arguments, secrets)
    if spec.package_sha256 not in ("", package_digest(job)):
        raise InvalidValueError(
            f"{job.package} has changed since job {job.name} was submitted; restore it, or submit a new job."
        )
    with local_package(job) as folder:
        KINDS[spec.settings["kind"]].check(spec, job.url, folder / spec.package)
    if not os.path.isdir(spec.folder):
        raise InvalidValueError(f"job {job.name} ran in {spec.folder}, which is not there any more; make it again.")
    job.add("requeued", "QUEUED")
    _start(job, spec, secrets, variables)


def cancel(job: JobDirectory) -> None:
    """Ask the launcher of a job to end it."""
    spec, state = job.spec(), status_of(job).state
    if state in FINAL:
        raise InvalidValueError(f"job {job.name} has ended already: it is {state}.")
    launched = job.launched()
    if launched is not None:
        target = KINDS[spec.settings["kind"]]
        target.check_cancel(job, launched)
        # The launcher looks for this event when it gets the signal.
        job.add("cancelling", "CANCELLING", reason="it was cancelled.")
        target.cancel(job, launched)


def _start(job: JobDirectory, spec: JobSpec, secrets: Sequence[str], variables: Mapping[str, str] | None) -> None:
    environ = {**os.environ, **(variables or {}), **({SECRETS: json.dumps(list(secrets))} if secrets else {})}
    KINDS[spec.settings["kind"]].submit(job, spec, environ)
