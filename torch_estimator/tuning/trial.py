"""The process of one trial: it runs the user's program up to the next rung, or to its end.

A trial pauses by itself: after the evaluation of the first checkpoint at or beyond the step of its rung it sends itself
SIGTERM, and so ends with status 143 and the checkpoint of exactly that step. Nobody has to talk to a running trial, and
a trial that is started again goes on with the bits of an undisturbed one.

``python -m torch_estimator.tuning.trial JOBS/NAME N`` runs trial N in a fresh process.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
from collections.abc import Callable

from torch_estimator import files
from torch_estimator.cluster.process_start import JOB_BEGAN
from torch_estimator.cluster.task import Task
from torch_estimator.compile.policy import choose_with
from torch_estimator.errors import RESTART_ME
from torch_estimator.executors.evaluation_watch import EvaluationWatch, watch_with
from torch_estimator.jobs.directory import JobDirectory, JobSpec
from torch_estimator.jobs.request import SECRETS, with_secrets
from torch_estimator.launch.layout import Program
from torch_estimator.run_config import COMPILE
from torch_estimator.runs.locks import FileLock, Holder
from torch_estimator.runs.state_file import StateFile, encoded
from torch_estimator.tuning.directory import End, StudyDirectory, Trial
from torch_estimator.tuning.shapes import ShapeChoice

# A controller that was killed just before may have started another process for this trial.
_LOCK_SECS = 2.0

Body = Callable[[Trial], int]
"""Function that runs a trial, and returns its exit status."""


class Rung(EvaluationWatch):
    """The step at which a trial pauses: its checkpoint is evaluated in any case, and ends the process.

    That is written before, since a program may train in a process of its own, or go on after `train_and_evaluate`.
    """

    def __init__(self, step: int, start: int, end: StateFile[End]) -> None:
        self._step = step
        self._start = start
        self._end = end

    def wants(self, step: int) -> bool:
        return step >= self._step

    def evaluated(self, step: int, *, final: bool) -> None:
        # After the last checkpoint nothing is left to pause.
        if step >= self._step and not final:
            self._end.write(End(start=self._start, status=RESTART_ME, paused_at=step))
            signal.raise_signal(signal.SIGTERM)


def run_trial(directory: StudyDirectory, number: int, body: Body | None = None) -> int:
    """Run a trial in this process, which has nothing else to do; return the exit status.

    Without a body, the trial runs the program of the job.
    """
    try:
        lock = FileLock(directory.path(number, ".lock"), wait_secs=_LOCK_SECS)
    except BlockingIOError:
        print(f"trial {number} runs already, as {directory.holder(number)}.", file=sys.stderr)
        return 1
    lock.write(encoded(Holder.this_process()))
    trial, spec = directory.trial(number), directory.job.spec()
    os.chdir(spec.folder)
    os.environ.update(process_variables(directory, trial))
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(trial.threads)
    if trial.compile is None:
        choose_with(ShapeChoice(directory, number))
    end_file = directory.end(number)
    if trial.pauses_at is not None:
        watch_with(Rung(trial.pauses_at, trial.starts, end_file))
    status = _status_of(body or (lambda trial: _run_program(directory, spec, trial)), trial)
    end = end_file.read()
    if end is None or end.start != trial.starts:
        end_file.write(End(start=trial.starts, status=status))
    return status


def process_variables(directory: StudyDirectory, trial: Trial) -> dict[str, str]:
    """Return the variables of a trial that is a process of this machine."""
    return {
        **variables(directory, trial),
        JOB_BEGAN: str(trial.began),
        "OMP_NUM_THREADS": str(trial.threads),
        "MKL_NUM_THREADS": str(trial.threads),
    }


def variables(directory: StudyDirectory, trial: Trial) -> dict[str, str]:
    """Return the variables of a trial, among them those that programs for Google's service read."""
    return {
        "TF_CONFIG": json.dumps({"cluster": {}, "task": {"trial": str(trial.number)}}),
        "CLOUD_ML_JOB_ID": directory.job.name,
        "CLOUD_ML_TRIAL_ID": str(trial.number),
        "CLOUD_ML_HP_METRIC_TAG": directory.study().metric,
        "CLOUD_ML_HP_METRIC_FILE": directory.path(trial.number, ".metrics"),
        **({} if trial.compile is None else {COMPILE: "true" if trial.compile else "false"}),
    }


def _run_program(directory: StudyDirectory, spec: JobSpec, trial: Trial) -> int:
    """Run the job's module as Python's option -m does."""
    secrets = json.loads(os.environ.pop(SECRETS, "[]"))
    parameters = [f"--{name}={value}" for name, value in trial.parameters.items()]
    arguments = with_secrets(spec.arguments, spec.secret_arguments, secrets)
    program = Program(module_name=spec.module_name, package_path=files.join(directory.job.package, spec.package))
    os.environ["PYTHONPATH"] = program.environ(Task())["PYTHONPATH"]
    sys.path.insert(0, str(program.root))
    sys.argv = [spec.module_name, *arguments, *parameters, "--job-dir", trial.job_dir]
    runpy.run_module(spec.module_name, run_name="__main__", alter_sys=True)
    return 0


def _status_of(body: Body, trial: Trial) -> int:
    """Run a body; return the exit status that its end means."""
    try:
        return body(trial)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1


def main(arguments: list[str]) -> int:
    """Run the trial that the command line names."""
    url, number = arguments
    return run_trial(StudyDirectory(JobDirectory(files.parent(url), files.basename(url))), int(number))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
