"""What those who train tell the evaluator: a small file in the model directory."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass

from torch_estimator import files
from torch_estimator.errors import CheckpointError

NAME = "training.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """One call of `train_and_evaluate` by the chief.

    Attributes:
        run: Its name, another one for every call.
        max_steps: As in its `TrainSpec`.
        ended: Whether it has ended, so that the latest checkpoint is its last.
    """

    run: str
    max_steps: int | None
    ended: bool = False


def new_training(max_steps: int | None) -> TrainingState:
    """Returns the state of a training that begins."""
    return TrainingState(run=uuid.uuid4().hex, max_steps=max_steps)


def write_training_state(model_dir: str, state: TrainingState) -> None:
    """Writes the file at one stroke.

    Raises:
        CheckpointError: It cannot be written.
    """
    try:
        files.makedirs(model_dir)
        files.write_atomic(files.join(model_dir, NAME), json.dumps(asdict(state)).encode() + b"\n")
    except OSError as error:
        raise CheckpointError(
            f"model_dir {model_dir} cannot be written: {files.reason(error)}; use another model_dir."
        ) from error


def read_training_state(model_dir: str) -> TrainingState | None:
    """Reads the file; None where there is none.

    Raises:
        CheckpointError: It cannot be read, or is not of this kind.
    """
    path = files.join(model_dir, NAME)
    try:
        return TrainingState(**json.loads(files.read_text(path)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {files.reason(error)}.") from error
    except (ValueError, TypeError) as error:
        raise CheckpointError(
            f"{path} is damaged: {files.reason(error)}; remove it, and start the chief again."
        ) from error
