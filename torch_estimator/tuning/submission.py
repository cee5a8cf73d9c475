"""What a command does to submit a study. It imports neither PyTorch nor Optuna."""

from __future__ import annotations

from dataclasses import asdict, replace

from torch_estimator import files
from torch_estimator.errors import InvalidValueError
from torch_estimator.jobs.directory import JobDirectory, JobSpec
from torch_estimator.jobs.kinds import KINDS
from torch_estimator.tuning.directory import StudyDirectory
from torch_estimator.tuning.samplers import Grid, Sampler, sampler_of
from torch_estimator.tuning.study import Study

_CONTROLLER = "torch_estimator.tuning.controller"


def study_spec(spec: JobSpec, study: Study, job: JobDirectory) -> JobSpec:
    """Return the specification of a job that is a study; raise a UserError if it cannot run."""
    if spec.settings["kind"] != "local" or spec.is_cluster or any(one.gpus for one in spec.machines.values()):
        # Each trial is a job there, and the controller a process of this machine.
        KINDS[spec.settings["kind"]].check(spec, job.url)
        study = replace(study, target=spec.settings)
        spec = replace(spec, settings={"kind": "local"})
    if spec.hang_secs and study.target is None:
        raise InvalidValueError(
            "--hang-secs watches the roles of a job, but the trials of this study are none; leave it out, or give a "
            "scaleTier above BASIC, with which each trial is a job."
        )
    if not job.is_local:
        raise InvalidValueError(f"the trials of a study lock local files, but {job.url} is none; give another --jobs.")
    taken = [name for name in files.listdir(spec.job_dir) if name.strip("/").isdecimal()] if spec.job_dir else []
    if taken:
        raise InvalidValueError(
            f"--job-dir {spec.job_dir} has trials of another study already, such as {taken[0].strip('/')}, whose "
            "values would count; give another directory."
        )
    if study.resume_previous is not None:
        sampler = sampler_of(study)
        add_earlier_trials(sampler, study, job.jobs)
        if isinstance(sampler, Grid):
            if not sampler.size:
                raise InvalidValueError(
                    f"job {study.resume_previous} has tried all {study.space.size} points of the grid; give more "
                    "values."
                )
            study.check_grid(sampler.size)
    return replace(spec, study=asdict(study), launcher=_CONTROLLER)


def add_earlier_trials(sampler: Sampler, study: Study, jobs: str) -> None:
    """Add the trials of the job that a study resumes, if it does; raise an InvalidValueError if they do not fit."""
    if study.resume_previous is None:
        return
    directory = StudyDirectory(JobDirectory(jobs, study.resume_previous))
    earlier = directory.study()
    if (earlier.metric, earlier.goal) != (study.metric, study.goal):
        raise InvalidValueError(
            f"the trials of job {study.resume_previous} cannot be added, because its goal is to {earlier.goal.lower()} "
            f"{earlier.metric!r}, and that of this study to {study.goal.lower()} {study.metric!r}."
        )
    for trial in directory.trials():
        if trial.value is not None and trial.state != "FAILED":
            sampler.add(trial.parameters, trial.value, None if trial.state == "SUCCEEDED" else trial.step)
