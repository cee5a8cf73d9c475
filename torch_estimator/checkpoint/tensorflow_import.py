"""Import of a checkpoint of TensorFlow into a model directory, as a checkpoint of this package."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch_estimator import files
from torch_estimator.checkpoint.checkpoint import latest_checkpoint
from torch_estimator.checkpoint.index import WrittenByTensorFlow
from torch_estimator.checkpoint.tensorflow import (
    IMPORTED,
    WEIGHTS_ONLY,
    Found,
    TensorFlowCheckpoint,
    read_tensorflow,
    tensorflow_prefix,
)
from torch_estimator.checkpoint.writer import CheckpointWriter
from torch_estimator.errors import CheckpointError, InvalidValueError
from torch_estimator.runs.lease import leased

_MOST_NAMES = 5


def import_checkpoint(
    path: files.PathLike, model_dir: files.PathLike, *, weights_only: bool = False, allow_unmatched: bool = False
) -> TensorFlowCheckpoint:
    """Write a checkpoint of TensorFlow into a model directory that has no checkpoint yet, and return what it held.

    `path` is as in `tensorflow_prefix`. `weights_only` leaves out the state of the optimizers, which then start anew;
    `allow_unmatched` the tensors that no checkpoint here can have.
    """
    try:
        if latest := latest_checkpoint(model_dir):
            raise InvalidValueError(f"{latest} is in the way; give a directory that has no checkpoint yet.")
    except WrittenByTensorFlow as error:
        raise InvalidValueError(
            f"{files.as_url(model_dir)} holds checkpoints of TensorFlow; give another directory for ours."
        ) from error
    imported = read_tensorflow(tensorflow_prefix(path))
    source = imported.checkpoint
    about = dict(source.state[IMPORTED])
    if weights_only:
        imported = TensorFlowCheckpoint(checkpoint=source, found=list(map(_without_slot, imported.found)))
        about[WEIGHTS_ONLY] = True
    left_out = _unmatched(imported.found, weights_only=weights_only)
    if left_out and not allow_unmatched:
        instead = "" if weights_only else ", or --weights-only to leave out all state of optimizers"
        raise CheckpointError(
            f"{source.path} has {_listed(left_out)}; give --allow-unmatched to go on without{instead}."
        )
    # Read everything first, so that a damaged file leaves no model directory behind.
    variables = dict(source.variables)
    slots = {} if weights_only else dict(source.slots)
    with leased(files.as_url(model_dir)), CheckpointWriter(model_dir) as writer:
        written = writer.save(source.step, variables, slots, {IMPORTED: about})
    checkpoint = dataclasses.replace(source, path=written)
    return TensorFlowCheckpoint(checkpoint=checkpoint, found=imported.found)


def _without_slot(found: Found) -> Found:
    return dataclasses.replace(found, target=None) if found.kind == "optimizer" else found


def _unmatched(found: Sequence[Found], *, weights_only: bool) -> list[Found]:
    needless = ("setting", "optimizer") if weights_only else ("setting",)
    return [one for one in found if one.target is None and one.kind not in needless]


def _listed(left_out: Sequence[Found]) -> str:
    names = [f"{one.name!r}{f' ({one.note})' if one.note else f' ({one.kind})'}" for one in left_out]
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    plural = "" if len(names) == 1 else "s"
    return f"{len(names)} tensor{plural} that cannot be imported: {', '.join(names[:_MOST_NAMES])}{more}"
