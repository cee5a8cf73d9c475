"""The file ``checkpoint`` of a model directory, which names the latest checkpoint and the kept ones."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from torch_estimator import files
from torch_estimator.engine.retention import SavedCheckpoint
from torch_estimator.errors import CheckpointError

INDEX_NAME = "checkpoint"

HELD_NAME = "evaluating"
"""Of the file that names the checkpoint which another process is evaluating, and which therefore stays."""

_NAME = re.compile(r"model\.ckpt-(\d+)(?:\.\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointIndex:
    """What the file ``checkpoint`` says.

    Args:
        latest: Name of the latest checkpoint.
        saved: The checkpoints there are, `latest` among them, in the order of saving.
        last_preserved_timestamp: See `RetentionPolicy`; None where the file does not say.
    """

    latest: str
    saved: tuple[SavedCheckpoint, ...]
    last_preserved_timestamp: float | None

    @property
    def names(self) -> list[str]:
        """Names of the checkpoints, in the order of saving."""
        return [checkpoint.name for checkpoint in self.saved]


def checkpoint_step(name: str) -> int | None:
    """Returns the step in a checkpoint's name, or None where `name` is not one.

    >>> checkpoint_step("model.ckpt-100")
    100
    """
    match = _NAME.fullmatch(name)
    return int(match.group(1)) if match else None


def read_index(model_dir: str) -> CheckpointIndex | None:
    """Reads ``<model_dir>/checkpoint``; None where there is none.

    Raises:
        CheckpointError: It cannot be read, or something else wrote it.
    """
    path = files.join(model_dir, INDEX_NAME)
    try:
        text = files.read_text(path)
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise CheckpointError(f"model_dir {model_dir} cannot be a directory: a file is in the way.") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {files.reason(error)}.") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(_foreign(path)) from error
    if text.lstrip().startswith("model_checkpoint_path:"):
        raise CheckpointError(
            f"{path} was written by TensorFlow, whose checkpoints cannot be read here; use another model_dir."
        )
    try:
        return _parse(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(_foreign(path)) from error


def write_index(model_dir: str, index: CheckpointIndex) -> None:
    """Writes ``<model_dir>/checkpoint`` at one stroke."""
    content = {
        "model_checkpoint_path": index.latest,
        "all_model_checkpoint_paths": index.names,
        "all_model_checkpoint_timestamps": [checkpoint.timestamp for checkpoint in index.saved],
        "pinned": [checkpoint.name for checkpoint in index.saved if checkpoint.pinned],
        "last_preserved_timestamp": index.last_preserved_timestamp,
    }
    files.write_atomic(files.join(model_dir, INDEX_NAME), json.dumps(content, indent=2).encode() + b"\n")


def hold_checkpoint(model_dir: str, name: str | None) -> None:
    """Keeps those who train from removing a checkpoint; None releases the one that was held."""
    path = files.join(model_dir, HELD_NAME)
    if name is None:
        files.remove_tree(path)
    else:
        files.write_atomic(path, name.encode())


def held_checkpoint(model_dir: str) -> str | None:
    """Returns the name of the checkpoint that another process holds."""
    try:
        return files.read_text(files.join(model_dir, HELD_NAME))
    except (OSError, UnicodeDecodeError):
        return None


def _parse(content: dict[str, Any]) -> CheckpointIndex:
    latest = content["model_checkpoint_path"]
    names = content.get("all_model_checkpoint_paths", [latest])
    timestamps = content.get("all_model_checkpoint_timestamps", [0.0] * len(names))
    pinned = content.get("pinned", [])
    if not all(isinstance(name, str) and name for name in [latest, *names]):
        raise ValueError("a checkpoint's name must be a string")
    saved = tuple(
        SavedCheckpoint(name=name, timestamp=float(timestamp), pinned=name in pinned)
        for name, timestamp in zip(names, timestamps, strict=True)
    )
    if latest not in names:
        saved = (*saved, SavedCheckpoint(name=latest, timestamp=max(map(float, timestamps), default=0.0)))
    last = content.get("last_preserved_timestamp")
    return CheckpointIndex(latest=latest, saved=saved, last_preserved_timestamp=None if last is None else float(last))


def _foreign(path: str) -> str:
    return (
        f"{path} is damaged or was not written by torch_estimator: expected JSON with "
        "'model_checkpoint_path' naming a checkpoint beside it; "
        "put back a good copy of it, or use another model_dir."
    )
