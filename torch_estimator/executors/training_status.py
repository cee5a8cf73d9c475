"""Status of a training, in a file in the model directory for processes that are not connected to the chief.

The chief writes ``training.json`` with `AnnouncedTraining` (``announced_training.py``). Evaluators follow it with
`StatusReader`; workers ask `EndOfTraining`.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass

from torch_estimator import files
from torch_estimator.cluster.process_start import job_start, process_start
from torch_estimator.errors import CheckpointError
from torch_estimator.executors.evaluation_record import EvaluationRecord
from torch_estimator.json_text import parse_json

NAME = "training.json"

# A chief that is started together with the evaluator needs some seconds before it announces its training.
_GRACE_SECS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStatus:
    """Status of one call of `train_and_evaluate` on the chief.

    Attributes:
        run: Id of the call.
        max_steps: The ``max_steps`` of its `TrainSpec`.
        evaluates: Whether the chief evaluates, too; then an evaluator has nothing to do.
        over_at: Time at which the last checkpoint was saved and nothing was left to train, in seconds since 1970; None
            before.
        ended: Whether the call has ended, so that the latest checkpoint is its last.
        failed: Whether the chief has ended with an error, so that no checkpoint comes before it is started again.
        began: Time at which the call began, in seconds since 1970.
    """

    run: str
    max_steps: int | None
    evaluates: bool = False
    over_at: float | None = None
    ended: bool = False
    failed: bool = False
    began: float = 0.0


def new_status(max_steps: int | None, *, evaluates: bool = False) -> TrainingStatus:
    """Return the status of a training that begins now."""
    return TrainingStatus(run=uuid.uuid4().hex, max_steps=max_steps, evaluates=evaluates, began=time.time())


def status_path(model_dir: str) -> str:
    """Return the path of the status file in a model directory."""
    return files.join(model_dir, NAME)


def write_status(model_dir: str, status: TrainingStatus) -> None:
    """Write a status to the status file of a model directory; the file is replaced atomically.

    Raises:
        CheckpointError: The file cannot be written.
    """
    try:
        files.makedirs(model_dir)
        files.write_atomic(status_path(model_dir), json.dumps(asdict(status)).encode() + b"\n")
    except OSError as error:
        raise CheckpointError(
            f"model_dir {model_dir} cannot be written: {files.reason(error)}; use another model_dir."
        ) from error


def read_status(model_dir: str) -> TrainingStatus | None:
    """Return the status of the training in a model directory; None if there is no status file.

    Raises:
        CheckpointError: The file cannot be read, or is damaged.
    """
    path = status_path(model_dir)
    try:
        return TrainingStatus(**parse_json(files.read_text(path)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {files.reason(error)}.") from error
    except (ValueError, TypeError) as error:
        raise CheckpointError(
            f"{path} is damaged: {files.reason(error)}; remove it, and start the chief again."
        ) from error


# Ids of the trainings that this process has taken part in until their end.
_completed: set[str] = set()


class EndOfTraining:
    """Callable that returns whether the chief has announced the end of the training that this process belongs to.

    The status in the directory may be that of an earlier training, whose end does not count. A training is an earlier
    one if it was over before the job of this process began, or if this process has already completed it: a program may
    train several times.

    Args:
        model_dir: Directory of the training.
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


class StatusReader:
    """Reader of the status file for an evaluator. It skips the status of an earlier training in the directory.

    Args:
        model_dir: Directory of the training.
        max_steps: The ``max_steps`` that the evaluator itself was given.
        clock: Returns monotonic seconds.

    Attributes:
        earlier: The earlier training that the status file still names, or None.
    """

    def __init__(self, model_dir: str, max_steps: int | None, clock: Callable[[], float]) -> None:
        self.earlier: TrainingStatus | None = None
        self._model_dir = model_dir
        self._max_steps = max_steps
        self._clock = clock
        self._grace_ends = clock() + _GRACE_SECS
        self._before = read_status(model_dir)

    def read(self, record: EvaluationRecord) -> TrainingStatus | None:
        """Return the status of the training that the evaluator follows; None if the chief has not written it yet.

        Args:
            record: The trainings that this evaluator, and the ones it replaces, have followed and completed.
        """
        status = read_status(self._model_dir)
        is_earlier = status is not None and self._is_earlier(status, record)
        self.earlier = status if is_earlier else None
        return None if is_earlier else status

    def had_begun(self, status: TrainingStatus) -> bool:
        """Return whether the chief had already begun the training `status` when this evaluator started."""
        return self._before is not None and status.run == self._before.run

    def _is_earlier(self, status: TrainingStatus, record: EvaluationRecord) -> bool:
        is_followed = record.followed == (status.run, self._max_steps)
        if record.finished == status.run:
            # The last checkpoint of this training has been evaluated, so wait for the next training. But if a launcher
            # has restarted this evaluator after that evaluation, follow this training, so that the evaluator ends.
            return not (is_followed and job_start() < record.finished_at < process_start())
        if is_followed:
            return False
        if self._before is None or not self.had_begun(status):
            return False
        if status.max_steps != self._max_steps:
            # This training has another max_steps than the evaluator, so wait for the chief to begin the evaluator's
            # training. But follow this training if it was running when the evaluator started, and has since ended.
            return self._before.ended or not status.ended
        # Follow a training that had already ended only if the chief announces no new training within some seconds.
        return self._before.ended and self._clock() < self._grace_ends
