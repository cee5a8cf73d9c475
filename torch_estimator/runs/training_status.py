"""Status of a training, in a file in the model directory for processes that are not connected to the chief.

The chief writes ``training.json`` (``executors/chief.py``). Evaluators follow it with `StatusReader`
(``executors/evaluator.py``); workers ask `EndOfTraining`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from torch_estimator import files
from torch_estimator.cluster.process_start import job_start
from torch_estimator.errors import CheckpointError
from torch_estimator.runs.state_file import StateFile

NAME = "training.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStatus:
    """Status of one call of `train_and_evaluate` on the chief; times are in seconds since 1970.

    Its keys in ``training.json`` are described in docs/reference/model_directory.md.
    """

    run: str
    max_steps: int | None
    evaluates: bool = False
    over_at: float | None = None
    ended: bool = False
    failed: bool = False
    began: float = 0.0
    unfinished: bool = False
    evaluating: int | None = None


def status_path(model_dir: str) -> str:
    """Return the path of the status file in a model directory."""
    return files.join(model_dir, NAME)


def write_status(model_dir: str, status: TrainingStatus) -> None:
    """Replace the status file of a model directory atomically; raise a CheckpointError if it cannot be written."""
    try:
        _file(model_dir).write(status)
    except OSError as error:
        done = "written" if files.exists(model_dir) else "made"
        raise CheckpointError(
            f"model_dir {model_dir} cannot be {done}: {files.reason(error)}; use another model_dir."
        ) from error


def read_status(model_dir: str) -> TrainingStatus | None:
    """Return the status of the training in a model directory; None if there is no status file.

    Raise a CheckpointError if the file cannot be read or is damaged.
    """
    try:
        return _file(model_dir).read()
    except OSError as error:
        raise CheckpointError(f"{status_path(model_dir)} cannot be read: {files.reason(error)}.") from error


def _file(model_dir: str) -> StateFile[TrainingStatus]:
    return StateFile(status_path(model_dir), TrainingStatus, cure="remove it, and start the chief again")


# Ids of the trainings that this process has taken part in until their end.
_completed: set[str] = set()


class EndOfTraining:
    """Callable that returns whether the chief has announced the end of the training that this process belongs to.

    The status in the directory may be that of an earlier training, whose end does not count. A training is an earlier
    one if it was over before the job of this process began, or if this process has already completed it: a program may
    train several times.
    """

    def __init__(self, model_dir: str) -> None:
        self._model_dir = model_dir
        self._began = job_start()
        self._found = read_status(model_dir)

    def __enter__(self) -> EndOfTraining:
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(CheckpointError):
            if (status := read_status(self._model_dir)) is not None:
                _completed.add(status.run)

    def __call__(self) -> bool:
        status = read_status(self._model_dir)
        if status is None or status.over_at is None or status.run in _completed:
            return False
        # A status that has changed since this process started belongs to this job, even if the machines' clocks differ.
        # An unchanged status belongs to this job if it is newer than the job: then this process has started late.
        return status != self._found or status.over_at > self._began
