"""Studies in Python: `tune`, and what it returns."""

from __future__ import annotations

import json
import logging
import numbers
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from torch_estimator import files
from torch_estimator.errors import InvalidTypeError, InvalidValueError, exit_on_user_error
from torch_estimator.jobs.directory import JOB_FILE, JobDirectory, JobSpec
from torch_estimator.jobs.kinds import status_of
from torch_estimator.jobs.launcher import run
from torch_estimator.jobs.package import copy_package, find_package
from torch_estimator.launch.layout import Program
from torch_estimator.runs.locks import Holder
from torch_estimator.tuning.controller import only_controller, run_controller, threads_of
from torch_estimator.tuning.directory import StudyDirectory, Trial, best_trial, newest_export
from torch_estimator.tuning.function_code import digest_of_function, is_changed
from torch_estimator.tuning.space import Boolean, Categorical, Discrete, Double, Integer, Parameter, Space
from torch_estimator.tuning.starters import Forked, Fresh, has_used_gpu
from torch_estimator.tuning.study import Study
from torch_estimator.tuning.submission import study_spec
from torch_estimator.tuning.trial import Body

logger = logging.getLogger("torch_estimator")

Function = Callable[[dict[str, Any], str], Any]

_COLUMNS = ("trial", "state", "step", "secs")


def tune(
    program_or_function: str | Function,
    space: Mapping[str, Any],
    *,
    metric: str,
    directory: files.PathLike,
    goal: Literal["maximize", "minimize"] = "maximize",
    trials: int = 10,
    parallel: int = 1,
    early_stopping: bool = False,
    algorithm: Literal["grid", "random"] | None = None,
    arguments: Sequence[str] = (),
    seed: int = 0,
) -> TuningResult:
    """Search for good values of parameters: run several trainings, called trials, and return what they reached.

    A trial runs in a process of its own. With early stopping it pauses at its first evaluated checkpoint, and goes on
    to four times as many steps once it is among the best quarter there (ASHA). One that goes on ends with the same
    bits as an undisturbed one. A study that was killed goes on when it is called again with the same directory, and the
    same function: a change in its code, defaults or closure is refused. A change in the functions that it calls, or in
    global variables, is not seen.

    Args:
        program_or_function: A module of the current directory, such as ``"trainer.task"``, which gets
            ``--NAME=VALUE`` for each parameter, and ``--job-dir``. Or a function of a dict of parameters and a job
            directory, which returns an estimator, a `TrainSpec` and an `EvalSpec`; or else a number, which is its
            metric, but then its trials never pause. It runs in a fork of this process, the only one that has
            functions of notebooks and closures. So this process must not have used a GPU before.
        space: Values by name: a list of numbers, of texts or of bools, of which a function gets the same values as they
            are here, but Python's numbers for NumPy's; ``(low, high)`` for a range, of whole numbers if both are whole;
            ``(low, high, "log")`` for one on a logarithmic scale.
        metric: Name of a metric of the evaluation, such as ``"auc"`` or ``"holdout/auc"``, or a tag in event files.
        directory: Local directory of the study, which is that of a job; ``estimator jobs trials`` shows it, too. It is
            new or empty, or that of the same study.
        goal: Whether higher or lower values of the metric are better.
        trials: Number of trials.
        parallel: How many run at the same time.
        early_stopping: Whether trials without prospects stop early.
        algorithm: Who proposes values. By default that is Optuna, or ``"random"`` if it is not installed.
        arguments: Further arguments of the program, before the parameters.
        seed: With the same seed and one trial at a time, a study has the same trials.

    Raises:
        InvalidTypeError: An argument has another type.
        InvalidValueError: An argument cannot be used, this is not the main thread, or too many trials have failed.

    >>> def make(parameters, job_dir):
    ...     x = np.linspace(-1, 1, 100)
    ...     data = te.data.Dataset.from_arrays({"x": x}, 2 * x).repeat().batch(10)
    ...     column = fc.numeric_column("x")
    ...     estimator = te.LinearRegressor(
    ...         [column],
    ...         optimizer=te.optim.Adam(learning_rate=parameters["rate"]),
    ...         config=te.RunConfig(job_dir, random_seed=1, save_checkpoints_steps=10),
    ...     )
    ...     exporter = te.FinalExporter("line", te.serving_input.raw_features([column]))
    ...     evaluation = te.EvalSpec(lambda: data, steps=5, exporters=exporter)
    ...     return estimator, te.TrainSpec(lambda: data, max_steps=20), evaluation
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = te.tune(
    ...         make,
    ...         {"rate": [0.001, 0.1]},
    ...         metric="loss",
    ...         goal="minimize",
    ...         algorithm="grid",
    ...         trials=2,
    ...         directory=f"{folder}/line",
    ...     )
    ...     model = te.ExportedModel.load(result.best_export)
    >>> result.best_parameters
    {'rate': 0.1}
    """
    if threading.current_thread() is not threading.main_thread():
        raise InvalidValueError("tune must be called in the main thread, the only one that can handle signals.")
    if not (callable(program_or_function) or isinstance(program_or_function, str)):
        raise InvalidTypeError(
            f"the first argument must be a function or the name of a module, but got {program_or_function!r}."
        )
    if not isinstance(metric, str):
        raise InvalidTypeError(f"metric must be the name of a metric, such as 'auc', but got {metric!r}.")
    if not isinstance(early_stopping, bool):
        raise InvalidTypeError(f"early_stopping must be True or False, but got {early_stopping!r}.")
    if isinstance(arguments, str) or not all(isinstance(one, str) for one in arguments):
        raise InvalidTypeError(f"arguments must be a list of texts, such as ['--steps', '8'], but got {arguments!r}.")
    study = Study(
        space=_space(space, metric),
        goal=_one_of("goal", goal, {"maximize": "MAXIMIZE", "minimize": "MINIMIZE"}),
        metric=metric,
        max_trials=_whole("trials", trials),
        parallel=_whole("parallel", parallel),
        early_stopping=early_stopping,
        algorithm=_one_of("algorithm", algorithm, {"grid": "GRID", "random": "RANDOM", None: None}),
        seed=_whole("seed", seed),
        code=digest_of_function(program_or_function) if callable(program_or_function) else "",
    )
    url = files.as_url(directory)
    url = os.path.abspath(url) if files.is_local(url) else url
    job = JobDirectory(files.parent(url), files.basename(url))
    found = StudyDirectory(job)
    _make(found, study, program_or_function, arguments)
    if status_of(job).state != "SUCCEEDED":
        _run(found, program_or_function)
    return TuningResult(found)


def _run(directory: StudyDirectory, given: str | Function) -> None:
    job, study = directory.job, directory.study()
    if callable(given):
        if has_used_gpu():
            raise InvalidValueError(
                "this process has used a GPU, which none of its forks can; call tune before, or give it a module."
            )
        start: Any = Forked(directory, _body(given, study))
    else:
        # A fork would have those modules of the program that this process has imported, as they were then.
        start = Fresh(directory, os.environ)
    threads = 1 if callable(given) else threads_of(study)
    interrupted = False

    def body(job: JobDirectory, spec: JobSpec, secrets: list[str]) -> tuple[int, str, bool]:
        nonlocal interrupted
        say = partial(logger.info, "%s")
        status, reason, interrupted = run_controller(directory, lambda say: start, threads, say)
        return status, reason, interrupted

    with only_controller(job):
        here = Holder.this_process()
        job.add("launched", "PREPARING", pid=here.pid, host=here.host, place=here.place)
        status = run(job, body)
    if interrupted:
        raise KeyboardInterrupt
    if status:
        raise InvalidValueError(f"the study in {job.url} has failed: {job.status().reason}")


def _make(directory: StudyDirectory, study: Study, given: str | Function, arguments: Sequence[str]) -> None:
    """Make the directory of a study, unless it is there already."""
    job = directory.job
    name = _name(given) if callable(given) else given
    if files.exists(files.join(job.url, JOB_FILE)):
        spec, before = job.spec(), directory.study()
        asked = (replace(study, code=before.code), name, list(arguments))
        if asked != (before, spec.module_name, spec.arguments):
            raise InvalidValueError(f"{job.url} has the study of something else; give another directory.")
        if before.code and is_changed(study.code, before.code):
            raise InvalidValueError(
                f"{name} has changed since the study in {job.url} began, so that its trials could not be compared; "
                "give another directory."
            )
        return
    package = None
    if not callable(given):
        package = find_package(given, None)
        # This refuses a module that is not there.
        Program(module_name=given, package_path=str(package))
    spec = JobSpec(
        name=job.name,
        created=time.time(),
        target="local",
        module_name=name,
        folder=os.getcwd(),
        arguments=list(arguments),
        package="" if package is None else package.name,
        interpreter=sys.executable,
        settings={"kind": "local"},
    )
    spec = study_spec(spec, study, job)
    try:
        if files.listdir(job.url):
            raise InvalidValueError(f"{job.url} has files, but none of a study; give another directory.")
        job.create()
    except OSError as error:
        raise InvalidValueError(
            f"{job.url} cannot be the directory of a study: {files.reason(error)}; give another one."
        ) from error
    if package is not None:
        copy_package(package, job)
    job.write(spec)
    job.add("submitted", "QUEUED")


def _body(function: Function, study: Study) -> Body:
    def run_function(trial: Trial) -> int:
        with exit_on_user_error():
            made = function(study.space.values(trial.parameters), trial.job_dir)
            if isinstance(made, numbers.Real):
                with open(os.environ["CLOUD_ML_HP_METRIC_FILE"], "a") as file:
                    file.write(json.dumps({study.metric: float(made)}) + "\n")
                return 0
            if not (isinstance(made, tuple) and len(made) == 3):
                raise InvalidTypeError(
                    "the function must return an Estimator, a TrainSpec and an EvalSpec, or a number, but returned "
                    f"{made!r}."
                )
            from torch_estimator.executors.train_and_evaluate import train_and_evaluate

            train_and_evaluate(*made)
        return 0

    return run_function


def _name(function: Function) -> str:
    while isinstance(function, partial):
        function = function.func
    named: Any = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _space(space: Mapping[str, Any], metric: str) -> Space:
    if not isinstance(space, Mapping):
        raise InvalidTypeError(f"space must be a dict of values by name, but got {space!r}.")
    for name in space:
        if not isinstance(name, str):
            raise InvalidTypeError(f"the name of a parameter must be a text, but got {name!r}.")
        if name in (*_COLUMNS, metric):
            raise InvalidValueError(
                f"parameter {name!r} has the name of another column of the table; give it another name."
            )
    return Space(tuple(_parameter(name, values) for name, values in space.items()))


def _parameter(name: str, values: Any) -> Parameter:
    if isinstance(values, list | tuple):
        # Python's own numbers in place of NumPy's.
        plain = [one.item() if isinstance(one, np.generic) else one for one in values]
        values = plain if isinstance(values, list) else tuple(plain)
    if isinstance(values, list) and values:
        for kinds, kind in (((int, float), Discrete), ((str,), Categorical), ((bool,), Boolean)):
            if all(type(one) in kinds for one in values):
                return kind(name, tuple(map(str, values)))
        raise InvalidValueError(
            f"the values of parameter {name!r} must be numbers, texts or bools, and all of one kind, but got "
            f"{values!r}; give names to others, which the function looks up."
        )
    if isinstance(values, tuple) and len(values) in (2, 3) and values[2:] in ((), ("log",)):
        low, high = values[:2]
        if all(type(one) in (int, float) for one in (low, high)):
            is_whole = isinstance(low, int) and isinstance(high, int)
            return (Integer if is_whole else Double)(name, low, high, scale="LOG" if values[2:] else "LINEAR")
    raise InvalidValueError(
        f'the values of parameter {name!r} must be a list, (low, high) or (low, high, "log"), but got {values!r}.'
    )


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise InvalidTypeError(f"{name} must be a whole number, but got {value!r}.")
    return int(value)


def _one_of(name: str, given: Any, known: Mapping[Any, Any]) -> Any:
    if given not in list(known):
        raise InvalidValueError(f"{name} must be one of {', '.join(map(repr, known))}, but got {given!r}.")
    return known[given]


class TuningResult:
    """The trials of a study, as `tune` returns them.

    Args:
        directory: The directory of the study.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = te.tune(
    ...         lambda parameters, job_dir: (parameters["x"] - 3) ** 2,
    ...         {"x": [1, 2, 3]},
    ...         metric="error",
    ...         goal="minimize",
    ...         algorithm="grid",
    ...         trials=3,
    ...         directory=f"{folder}/square",
    ...     )
    ...     table = result.frame()
    >>> result.best_parameters, result.best_value
    ({'x': 3}, 0.0)
    >>> table["error"].tolist()
    [4.0, 1.0, 0.0]
    """

    def __init__(self, directory: StudyDirectory) -> None:
        self._study = directory.study()
        self._trials = directory.trials()
        self._directory = directory.job.url
        best = best_trial(self._trials, self._study)
        if best is None:
            raise InvalidValueError(f"no trial of the study in {self._directory} has a value yet.")
        self._best = best

    @property
    def best_parameters(self) -> dict[str, float | str]:
        """The parameters of the best trial."""
        return self._study.space.values(self._best.parameters)

    @property
    def best_value(self) -> float:
        """The metric of the best trial."""
        assert self._best.value is not None
        return self._best.value

    @property
    def best_dir(self) -> str:
        """The job directory of the best trial."""
        return self._best.job_dir

    @property
    def best_export(self) -> str | None:
        """The newest export of the best trial; None if it has none."""
        return newest_export(self.best_dir)

    def frame(self) -> Any:
        """Return a pandas DataFrame: a row for each trial, with its state, step, metric, seconds and parameters.

        The columns are ``state``, ``step``, ``secs`` (from the trial's first start to its end, pauses included), and
        those with the names of the metric and of the parameters; ``trial`` is the index.
        """
        import pandas as pd

        rows = [
            {
                "trial": one.number,
                "state": one.state,
                "step": one.step,
                "secs": one.ended - one.began if one.ended else None,
                self._study.metric: one.value,
                **self._study.space.values(one.parameters),
            }
            for one in self._trials
        ]
        return pd.DataFrame(rows).set_index("trial")

    def __repr__(self) -> str:
        best = f"trial {self._best.number}, {self._study.metric} = {self.best_value:g}"
        return f"TuningResult({len(self._trials)} trials in {self._directory}; best: {best})"
