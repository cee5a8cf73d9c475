"""What those who train tell others: a small file in the model directory."""

from __future__ import annotations

import json
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass

from torch_estimator import files
from torch_estimator.cluster.process_start import job_start
from torch_estimator.errors import CheckpointError
from torch_estimator.json_text import parse_json

NAME = "training.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """One call of `train_and_evaluate` by the chief.

    Attributes:
        run: Its name, another one for every call.
        max_steps: As in its `TrainSpec`.
        evaluates: Whether the chief evaluates, too, so that an evaluator has nothing to do.
        over_at: When its last checkpoint was saved, in seconds since 1970, and all that was left was to end; else None.
        ended: Whether it has ended, so that the latest checkpoint is its last.
        failed: Whether the chief has ended with an error, so that nothing comes before it is started again.
        began: When it did, in seconds since 1970.
    """

    run: str
    max_steps: int | None
    evaluates: bool = False
    over_at: float | None = None
    ended: bool = False
    failed: bool = False
    began: float = 0.0


def new_training(max_steps: int | None, *, evaluates: bool = False) -> TrainingState:
    """Returns the state of a training that begins."""
    return TrainingState(run=uuid.uuid4().hex, max_steps=max_steps, evaluates=evaluates, began=time.time())


def training_state_path(model_dir: str) -> str:
    """Where the file is."""
    return files.join(model_dir, NAME)


def write_training_state(model_dir: str, state: TrainingState) -> None:
    """Writes the file at one stroke.

    Raises:
        CheckpointError: It cannot be written.
    """
    try:
        files.makedirs(model_dir)
        files.write_atomic(training_state_path(model_dir), json.dumps(asdict(state)).encode() + b"\n")
    except OSError as error:
        raise CheckpointError(
            f"model_dir {model_dir} cannot be written: {files.reason(error)}; use another model_dir."
        ) from error


def read_training_state(model_dir: str) -> TrainingState | None:
    """Reads the file; None where there is none.

    Raises:
        CheckpointError: It cannot be read, or is not of this kind.
    """
    path = training_state_path(model_dir)
    try:
        return TrainingState(**parse_json(files.read_text(path)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {files.reason(error)}.") from error
    except (ValueError, TypeError) as error:
        raise CheckpointError(
            f"{path} is damaged: {files.reason(error)}; remove it, and start the chief again."
        ) from error


# What this process has trained with to the end.
_seen: set[str] = set()


class EndOfTraining:
    """Asked whether the training that this process belongs to is over.

    One that was over before the job of this process began is an earlier one, as is one that the process has seen to
    the end: the next is still to begin.

    Args:
        model_dir: Of the training.
    """

    def __init__(self, model_dir: str) -> None:
        self._model_dir = model_dir
        self._began = job_start()
        self._found = self._look()

    def __enter__(self) -> EndOfTraining:
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(CheckpointError):
            if (state := self._look()) is not None:
                _seen.add(state.run)

    def __call__(self) -> bool:
        state = self._look()
        if state is None or state.over_at is None or state.run in _seen:
            return False
        # The first holds whatever the clocks of two machines say; the second, also for one that was slow to start.
        return state != self._found or state.over_at > self._began

    def _look(self) -> TrainingState | None:
        return read_training_state(self._model_dir)
