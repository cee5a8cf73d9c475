"""Reading of checkpoints, and the check that a checkpoint fits a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_estimator import files
from torch_estimator.checkpoint.format import SLOTS_NAME, STATE_NAME, VARIABLES_NAME, read_state, shard_name
from torch_estimator.checkpoint.index import (
    INDEX_NAME,
    WrittenByTensorFlow,
    checkpoint_step,
    noted_unnamed,
    prefix_of,
    read_index,
)
from torch_estimator.checkpoint.row_file import RowFile, RowFileName
from torch_estimator.checkpoint.saved_tensors import RowTensors, SavedTensors, read_tensors, saved_shape
from torch_estimator.errors import CheckpointError

_MOST_NAMES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Content of a checkpoint.

    Tensors are on the CPU, and each is read when it is first used. `state` is everything that is not a tensor, as
    parsed from JSON. `shards` and `row_files` say in which files the tensors are.
    """

    path: str
    step: int
    variables: Mapping[str, torch.Tensor]
    slots: Mapping[str, torch.Tensor] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    shards: int = 0
    row_files: tuple[RowFileName, ...] = ()


def latest_checkpoint(model_dir: files.PathLike) -> str | None:
    """Return the path of the latest checkpoint in `model_dir`, or None if it has none.

    Args:
        model_dir: Path or URL of the model directory.

    Raises:
        CheckpointError: ``<model_dir>/checkpoint`` cannot be read, or another program wrote it.

    >>> te.latest_checkpoint("memory://nothing_here") is None
    True
    >>> estimator = te.BaselineRegressor("memory://te.latest_checkpoint")
    >>> estimator = estimator.train(lambda: ({"x": [1.0]}, [2.0]), steps=3)
    >>> te.latest_checkpoint("memory://te.latest_checkpoint")
    'memory://te.latest_checkpoint/model.ckpt-3'
    """
    index = read_index(files.as_url(model_dir))
    return None if index is None else files.join(model_dir, index.latest)


def is_reached(model_dir: files.PathLike, last_step: int | None) -> bool:
    """Return whether the latest checkpoint in `model_dir` was saved at `last_step` or later; False if that is None."""
    latest = latest_checkpoint(model_dir)
    step = None if latest is None else checkpoint_step(files.basename(latest))
    return step is not None and last_step is not None and step >= last_step


def is_complete(path: str) -> bool:
    """Return whether a checkpoint has ``state.json``, the file that is written last and removed first."""
    return files.exists(files.join(path, STATE_NAME))


def check_some_named(model_dir: files.PathLike) -> None:
    """Check that a model directory without a file ``checkpoint`` has no complete checkpoints either.

    The file ``checkpoint`` says which checkpoint training resumes from. Training from step 0 although the directory has
    checkpoints would probably be a mistake of the user. Those of a process killed in its first save do not count.
    """
    url = files.as_url(model_dir)
    noted = noted_unnamed(url)
    candidates = [name for name in files.listdir(url) if checkpoint_step(name) is not None and name not in noted]
    if names := [name for name in candidates if is_complete(files.join(url, name))]:
        newest = max(names, key=lambda name: checkpoint_step(name) or 0)
        raise CheckpointError(
            f"{url} holds {names_by_step(names)}, but no file {INDEX_NAME!r} that says which of them to go on from; "
            f'put that file back, or make one that holds {{"model_checkpoint_path": "{newest}"}}, or use another '
            "model_dir to begin anew."
        )


def names_by_step(names: Sequence[str]) -> str:
    """Return text for messages: the names of checkpoints in the order of their steps, shortened if there are many."""
    ordered = sorted(names, key=lambda name: checkpoint_step(name) or 0)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(ordered[:_MOST_NAMES]) + more


def checkpoint_paths(model_dir: files.PathLike) -> list[str]:
    """Return the paths of the checkpoints in `model_dir`, in the order of their steps."""
    index = read_index(files.as_url(model_dir))
    names = [] if index is None else index.names
    return [files.join(model_dir, name) for name in sorted(names, key=lambda name: checkpoint_step(name) or 0)]


def load_checkpoint(path_or_dir: files.PathLike) -> Checkpoint:
    """Return the content of a checkpoint, or of the latest checkpoint of a model directory.

    Checkpoints of TensorFlow are read, too. Weights have the names that TensorFlow gave them, or those of the premade
    models here where these differ; the state of optimizers has the names of TF 1.x, ``<variable>/Adagrad``.

    Args:
        path_or_dir: Path or URL of a checkpoint, or of a model directory. For TensorFlow, a checkpoint's path without
            the suffixes of its files, or one of these files, or the directory of a SavedModel.

    Returns:
        Object with the attributes ``path``; ``step``, the global step; ``variables``, the parameters and buffers by
        name; ``slots``, the state of the optimizers by name; and ``state``, everything that is not a tensor. Tensors
        are on the CPU, and each is read when it is first used.

    Raises:
        CheckpointError: The checkpoint does not exist or is damaged, or another program wrote it.

    >>> estimator = te.LinearRegressor([fc.numeric_column("x")], "memory://load_checkpoint")
    >>> estimator = estimator.train(lambda: ({"x": [1.0]}, [2.0]), steps=3)
    >>> checkpoint = te.load_checkpoint("memory://load_checkpoint")
    >>> checkpoint.step, checkpoint.variables["linear/linear_model/x/weights"].shape
    (3, torch.Size([1, 1]))
    """
    path = files.as_url(path_or_dir)
    try:
        return _load_own(path)
    except WrittenByTensorFlow as found:
        prefix = found.prefix
    except CheckpointError:
        prefix = prefix_of(path)
        if not files.exists(path) or files.is_dir(prefix):
            raise
    from torch_estimator.checkpoint.tensorflow import read_tensorflow

    return read_tensorflow(prefix).checkpoint


def _load_own(path: str) -> Checkpoint:
    while (latest := latest_checkpoint(path)) is not None:
        try:
            return _load(latest)
        except CheckpointError:
            # Training may have removed this checkpoint after saving a newer one. If so, load the newer one.
            if latest_checkpoint(path) == latest:
                raise
    return _load(path)


def _load(path: str) -> Checkpoint:
    document = read_state(path)
    row_files, shards = tuple(document["row_files"]), document["shards"]
    return Checkpoint(
        path=path,
        step=document["step"],
        variables=_read_files(path, VARIABLES_NAME, shards, row_files),
        slots=_read_files(path, SLOTS_NAME, shards, row_files),
        state=document["state"],
        shards=shards,
        row_files=row_files,
    )


def _read_files(path: str, name: str, shards: int, row_files: Sequence[RowFileName]) -> Mapping[str, torch.Tensor]:
    by_rows = [one for one in row_files if name.startswith(f"{one.kind}.")]
    return SavedTensors(
        [
            *(read_tensors(files.join(path, shard_name(name, shard, shards))) for shard in range(shards)),
            *(RowTensors(RowFile(files.join(path, one.name), one.digest)) for one in by_rows),
        ]
    )


def check_compatible(
    checkpoint: Checkpoint,
    variables: Mapping[str, torch.Tensor | Sequence[int]] | None = None,
    slots: Mapping[str, torch.Tensor | Sequence[int]] | None = None,
) -> None:
    """Check that the tensors of a checkpoint have the names and shapes of a model's variables, or slots, if given."""
    differences = []
    if variables is not None:
        differences += _differences(checkpoint.variables, variables, "variable")
    if slots is not None:
        differences += _differences(checkpoint.slots, slots, "optimizer variable")
    if differences:
        raise CheckpointError(
            f"checkpoint {checkpoint.path} was made by another model: {'; '.join(differences)}; "
            "use another model_dir for this model."
        )


def _differences(
    saved: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor | Sequence[int]], noun: str
) -> list[str]:
    missing = [repr(name) for name in expected if name not in saved]
    unknown = [repr(name) for name in saved if name not in expected]
    reshaped = [
        f"{name!r} ({saved_shape(saved, name)} in the checkpoint, {_shape(value)} in the model)"
        for name, value in expected.items()
        if name in saved and saved_shape(saved, name) != _shape(value)
    ]
    kinds = [
        (missing, "only in the model"),
        (unknown, "only in the checkpoint"),
        (reshaped, "of another shape"),
    ]
    return [_summary(names, noun, how) for names, how in kinds if names]


def _summary(names: list[str], noun: str, how: str) -> str:
    plural = "" if len(names) == 1 else "s"
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{len(names)} {noun}{plural} {how}: {', '.join(names[:_MOST_NAMES])}{more}"


def _shape(value: torch.Tensor | Sequence[int]) -> list[int]:
    return list(value.shape) if isinstance(value, torch.Tensor) else list(value)
