"""Index of a model directory: the file ``checkpoint``, which lists the kept checkpoints and says which is the latest.

A checkpoint counts only if the index names it. The index has the keys of TensorFlow's file of the same name, in JSON.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch_estimator import files
from torch_estimator.checkpoint.retention import SavedCheckpoint
from torch_estimator.errors import CheckpointError
from torch_estimator.json_text import parse_json

INDEX_NAME = "checkpoint"

HELD_NAME = "evaluating"
"""Name of the file that contains the name of the checkpoint an evaluator is reading; training does not remove it."""

# Name of the file that lists the checkpoints that a running save is about to add to the index or remove from it.
_UNNAMED_NAME = f"{files.TEMPORARY_PREFIX}unnamed-checkpoints"

# First entry of TensorFlow's file of the same name, which is a protocol buffer as text.
_TENSORFLOW_INDEX = re.compile(r'\s*model_checkpoint_path:\s*"((?:[^"\\\n]|\\.)+)"')

_TENSORFLOW_FILES = re.compile(r"(?<=.)\.(index|meta|data-\d{5}-of-\d{5})$")

# Name of a checkpoint. Names are read from files that a user may have edited, so a name with a path separator, or a
# step of more than 19 digits, is refused.
_NAME = re.compile(r"model\.ckpt-([0-9]{1,19})(?:\.[0-9]{1,19})?")


class WrittenByTensorFlow(CheckpointError):
    """TensorFlow wrote the checkpoint or the index that was to be read.

    `message` is for a user who cannot go on with such a checkpoint. `prefix` is the path of the checkpoint, or of the
    newest one of a model directory, without the suffixes of its files.
    """

    def __init__(self, message: str, prefix: str) -> None:
        super().__init__(message)
        self.prefix = prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointIndex:
    """Content of the index: the names of the checkpoints and when each was saved.

    `saved` is in the order of saving, and includes the latest. For `last_preserved_timestamp` see `RetentionPolicy`; it
    is None if the file does not contain it.
    """

    latest: str
    saved: tuple[SavedCheckpoint, ...]
    last_preserved_timestamp: float | None

    @property
    def names(self) -> list[str]:
        """Names of all checkpoints in the index, in the order of saving."""
        return [checkpoint.name for checkpoint in self.saved]


def checkpoint_step(name: str) -> int | None:
    """Return the global step in a checkpoint's name, or None if `name` is not the name of a checkpoint.

    >>> checkpoint_step("model.ckpt-100")
    100
    """
    match = _NAME.fullmatch(name)
    return int(match.group(1)) if match else None


def checkpoint_in(model_dir: str, path: str) -> str:
    """Return `path` with its directory replaced by `model_dir`, after a check that its last part names a checkpoint.

    `path` comes from a file that may have been edited, or written before the model directory was moved. Raise
    ValueError for another name.
    """
    name = files.basename(path)
    if checkpoint_step(name) is None:
        raise ValueError(f"{path!r} is not a checkpoint, such as 'model.ckpt-100'")
    return files.join(model_dir, name)


def prefix_of(path: str) -> str:
    """Return the TensorFlow checkpoint that one of its files or a SavedModel's directory names; others stay."""
    inside = files.join(path, "variables", "variables")
    return inside if files.exists(f"{inside}.index") else _TENSORFLOW_FILES.sub("", path)


def checkpoints_in(directory: str) -> str:
    """Return text for messages: the newest checkpoints of a directory without an index, ours or TensorFlow's."""
    entries = files.listdir(directory)
    names = {name.removesuffix(".index") for name in entries if name.endswith(".index")}
    names |= {name for name in entries if checkpoint_step(name) is not None}
    return ", ".join(sorted(names, key=lambda name: (checkpoint_step(name) or 0, name))[-5:])


def read_index(model_dir: str) -> CheckpointIndex | None:
    """Read the index of a model directory; return None if the directory has no index file.

    All names in it are checked to be names of checkpoints, so that callers can safely join them to `model_dir`, read
    them and remove them.
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
    if named := _TENSORFLOW_INDEX.match(text):
        prefix = files.join(model_dir, files.basename(re.sub(r"\\(.)", r"\1", named[1])))
        raise WrittenByTensorFlow(
            f"{path} was written by TensorFlow; use another model_dir, into which "
            f"`estimator import-checkpoint {prefix} --into DIR` brings what TensorFlow trained.",
            prefix,
        )
    try:
        index = _parse(parse_json(text))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise CheckpointError(_foreign(path)) from error
    for name in index.names:
        if checkpoint_step(name) is None:
            raise CheckpointError(
                f"{path} names {name!r}, but may only name checkpoints in its own directory, such as 'model.ckpt-100'; "
                "remove that name, or put back a good copy of the file."
            )
    return index


def write_index(model_dir: str, index: CheckpointIndex) -> None:
    """Replace the index of a model directory atomically."""
    content = {
        "model_checkpoint_path": index.latest,
        "all_model_checkpoint_paths": index.names,
        "all_model_checkpoint_timestamps": [checkpoint.timestamp for checkpoint in index.saved],
        "pinned": [checkpoint.name for checkpoint in index.saved if checkpoint.pinned],
        "last_preserved_timestamp": index.last_preserved_timestamp,
    }
    files.write_atomic(files.join(model_dir, INDEX_NAME), json.dumps(content, indent=2).encode() + b"\n")


def hold_checkpoint(model_dir: str, name: str | None) -> None:
    """Keep training processes from removing the checkpoint `name` while it is read; None ends this.

    It replaces the name given before.
    """
    path = files.join(model_dir, HELD_NAME)
    if name is None:
        files.remove_tree(path)
    else:
        files.write_atomic(path, name.encode())


def held_checkpoint(model_dir: str) -> str | None:
    """Return the name of the checkpoint that an evaluator is reading and training must not remove, or None."""
    try:
        return files.read_text(files.join(model_dir, HELD_NAME))
    except (OSError, UnicodeDecodeError):
        return None


def note_unnamed(model_dir: str, names: Sequence[str]) -> None:
    """Write a file with the names of the checkpoints that a save is about to add or remove; without any, remove it.

    If the process is killed during the save, the next one finds these names and can remove the checkpoints that the
    index does not name. Call this before a checkpoint gets its name that is not in the index yet, and before a name is
    removed from the index.
    """
    path = files.join(model_dir, _UNNAMED_NAME)
    if names:
        files.write_file(path, ["\n".join(names).encode()])
    else:
        files.remove_tree(path)


def noted_unnamed(model_dir: str) -> list[str]:
    """Return the names of the checkpoints that a killed process was about to add or remove, from `note_unnamed`'s file.

    If the index names one of these checkpoints, the checkpoint must be kept.
    """
    try:
        names = files.read_text(files.join(model_dir, _UNNAMED_NAME)).split("\n")
    except (OSError, UnicodeDecodeError):
        return []
    return [name for name in names if checkpoint_step(name) is not None]


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
    index = CheckpointIndex(latest=latest, saved=saved, last_preserved_timestamp=None if last is None else float(last))
    if not all(map(math.isfinite, [*(one.timestamp for one in saved), index.last_preserved_timestamp or 0.0])):
        raise ValueError("a timestamp must be a finite number")
    return index


def _foreign(path: str) -> str:
    return (
        f"{path} is damaged or was not written by torch_estimator: expected JSON with "
        "'model_checkpoint_path' naming a checkpoint in the same directory; "
        "put back a good copy of it, or use another model_dir."
    )
