"""Trials that are jobs of their own: clusters, trials with GPUs, and all trials on another target than this machine.

    JOBS/NAME/jobs/NAME_3/    trial 3 as a job, which all commands show with ``--jobs JOBS/NAME/jobs``

Such a trial pauses when its job is cancelled, and goes on when the job is resumed. Its evaluator knows of no rung, so
that it may be trained some steps beyond it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch_estimator import files
from torch_estimator.errors import RESTART_ME, UserError
from torch_estimator.jobs.directory import FINAL, LAUNCHER_MODULE, JobDirectory, JobSpec
from torch_estimator.jobs.kinds import status_of
from torch_estimator.jobs.request import with_secrets, without_secrets
from torch_estimator.jobs.submission import cancel, resubmit, submit
from torch_estimator.tuning.directory import StudyDirectory, Trial
from torch_estimator.tuning.metrics import read_metric
from torch_estimator.tuning.trial import variables

_LOOK_SECS = 0.5


class Submitted:
    """Submits a job for each trial, or resumes it. It implements `Start`."""

    def __init__(self, directory: StudyDirectory, secrets: Sequence[str]) -> None:
        self._directory = directory
        self._secrets = secrets

    def __call__(self, trial: Trial) -> JobProcess:
        job, spec = self._directory.trial_job(trial.number), self._directory.job.spec()
        given = with_secrets(spec.arguments, spec.secret_arguments, self._secrets)
        given += [f"--{name}={value}" for name, value in trial.parameters.items()]
        if files.exists(job.url):
            resubmit(job, given, variables=variables(self._directory, trial))
        else:
            self._submit(job, spec, trial, given)
        return JobProcess(job, self._directory, trial)

    def adopt(self, trial: Trial) -> JobProcess | None:
        """Return the job of a trial that another controller submitted; None if there is none."""
        job = self._directory.trial_job(trial.number)
        return JobProcess(job, self._directory, trial) if files.exists(job.url) else None

    def _submit(self, job: JobDirectory, spec: JobSpec, trial: Trial, given: Sequence[str]) -> None:
        arguments, secrets = without_secrets(given, spec.secret_arguments)
        asked = replace(
            spec,
            name=job.name,
            created=time.time(),
            arguments=arguments,
            job_dir=trial.job_dir,
            settings=self._directory.study().target or spec.settings,
            max_running_secs=0.0,
            study=None,
            launcher=LAUNCHER_MODULE,
        )
        package = Path(self._directory.job.package) / spec.package
        submit(job, asked, package, secrets, variables=variables(self._directory, trial))


class JobProcess:
    """The job of a trial. It is cancelled, which pauses the trial, once the checkpoint of a rung is evaluated."""

    pid: int | None = None

    def __init__(self, job: JobDirectory, directory: StudyDirectory, trial: Trial) -> None:
        self._job = job
        self._directory = directory
        self._trial = trial
        self._next_look = 0.0
        self._is_over = False
        self._wants_end = False
        self.status: int | None = None

    def has_ended(self) -> bool:
        now = time.monotonic()
        if self._is_over or now < self._next_look:
            return self._is_over
        self._next_look = now + _LOOK_SECS
        state = status_of(self._job)
        if state.state in FINAL:
            self._is_over = True
            self.status = self._exit_status()
            if state.reason:
                with open(self._directory.log(self._trial.number), "a") as log:
                    log.write(f"job {self._job.name} {state.state}: {state.reason}\n")
        elif state.state == "RUNNING" and (self._wants_end or self._is_at_rung()):
            cancel(self._job)
        return self._is_over

    def end(self) -> None:
        """Have the job save and end, now or as soon as it runs."""
        self._wants_end = True
        self._next_look = 0.0

    def _is_at_rung(self) -> bool:
        rung = self._trial.pauses_at
        if rung is None:
            return False
        reported = self._directory.path(self._trial.number, ".metrics")
        try:
            measured = read_metric(self._trial.job_dir, self._directory.study().metric, reported)
        except UserError:
            # Nothing has been evaluated so far.
            return False
        return max(measured.values) >= rung

    def _exit_status(self) -> int | None:
        """Return the exit status of the job; None if its launcher was killed before it could write one."""
        last = self._job.events()[-1]
        if last.kind != "ended":
            return None
        return RESTART_ME if last.state == "CANCELLED" else last.status
