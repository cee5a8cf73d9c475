"""Reading checkpoints.

A checkpoint is a directory ``model.ckpt-<step>`` in the model directory::

    variables.safetensors   parameters and buffers by name
    slots.safetensors       optimizer state by name
    state.json              step, input position, RNG states and whatever else is not a tensor

Processes of which each holds some rows write ``variables-00001-of-00002.safetensors`` and so on, where ``state.json``
names their number: what several of them hold of a name are its rows, one after the other. Any number of processes
reads them.

``<model_dir>/checkpoint`` names the latest and the kept ones, relative to itself, so that a model directory
can be moved. Nothing is unpickled: a checkpoint holds no code.

Each tensor and ``state.json`` have a CRC-32, so that a damaged byte is an error and not another model.
"""

from __future__ import annotations

import io
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

import safetensors
import safetensors.torch
import torch

from torch_estimator import files
from torch_estimator.checkpoint.index import INDEX_NAME, checkpoint_step, noted_unnamed, read_index
from torch_estimator.checkpoint.saved_tensors import SavedTensors, TensorFile, shape_in
from torch_estimator.errors import CheckpointError, InvalidTypeError
from torch_estimator.json_text import parse_json

VARIABLES_NAME = "variables.safetensors"
SLOTS_NAME = "slots.safetensors"
STATE_NAME = "state.json"
FORMAT = "torch_estimator.checkpoint/1"

# Absent from checkpoints of earlier versions.
_STATE_CHECKSUM = re.compile(rb', "crc32": "([0-9a-f]{8})"}\s*\Z')

_MOST_NAMES = 5
# The position of an input nests about as deep as the input has stages.
_STATE_DEPTH = 500
_ADVICE = "use an older checkpoint by naming it in 'checkpoint' of its model_dir"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint that was read.

    Args:
        path: Its directory.
        step: The global step it was saved at.
        variables: Parameters and buffers by name, in host memory.
        slots: Optimizer state by name, in host memory.
        state: Everything else; what `json` gives back for what was saved.
    """

    path: str
    step: int
    variables: Mapping[str, torch.Tensor]
    slots: Mapping[str, torch.Tensor] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)


def latest_checkpoint(model_dir: files.PathLike) -> str | None:
    """Returns the path of the latest checkpoint in `model_dir`, or None where there is none.

    Raises:
        CheckpointError: ``<model_dir>/checkpoint`` cannot be read, or something else wrote it.
    """
    index = read_index(files.as_url(model_dir))
    return None if index is None else files.join(model_dir, index.latest)


def is_reached(model_dir: files.PathLike, last_step: int | None) -> bool:
    """Whether the latest checkpoint in `model_dir` is of `last_step`, or of one after it.

    Raises:
        CheckpointError: As `latest_checkpoint`.
    """
    latest = latest_checkpoint(model_dir)
    step = None if latest is None else checkpoint_step(files.basename(latest))
    return step is not None and last_step is not None and step >= last_step


def is_complete(path: str) -> bool:
    """Return whether a checkpoint is complete: its state is written last and removed first."""
    return files.exists(files.join(path, STATE_NAME))


def check_some_named(model_dir: files.PathLike) -> None:
    """Raise where there are checkpoints, but no file ``checkpoint`` that says which one training goes on from.

    Args:
        model_dir: A model directory without a file ``checkpoint``.

    Raises:
        CheckpointError: There are checkpoints other than those of a process that was killed in its first save.
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
    """Return names of checkpoints by step, the first of them where there are many, for messages."""
    ordered = sorted(names, key=lambda name: checkpoint_step(name) or 0)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(ordered[:_MOST_NAMES]) + more


def checkpoint_paths(model_dir: files.PathLike) -> list[str]:
    """Returns the paths of the checkpoints in `model_dir` by step.

    Raises:
        CheckpointError: As `latest_checkpoint`.
    """
    index = read_index(files.as_url(model_dir))
    names = [] if index is None else index.names
    return [files.join(model_dir, name) for name in sorted(names, key=lambda name: checkpoint_step(name) or 0)]


def load_checkpoint(path_or_dir: files.PathLike) -> Checkpoint:
    """Reads a checkpoint, or the latest one of a model directory.

    Raises:
        CheckpointError: There is none, or it is damaged, or something else wrote it.
    """
    path = files.as_url(path_or_dir)
    while (latest := latest_checkpoint(path)) is not None:
        try:
            return _load(latest)
        except CheckpointError:
            # The process that trains may have removed it since: then there is a newer one.
            if latest_checkpoint(path) == latest:
                raise
    return _load(path)


def shard_name(name: str, shard: int, shards: int) -> str:
    """Returns what one of the files of a checkpoint is called where `shards` processes wrote it.

    >>> shard_name("variables.safetensors", 0, 2)
    'variables-00001-of-00002.safetensors'
    """
    stem, _, suffix = name.rpartition(".")
    return name if shards == 1 else f"{stem}-{shard + 1:05d}-of-{shards:05d}.{suffix}"


def check_compatible(
    checkpoint: Checkpoint,
    variables: Mapping[str, torch.Tensor | Sequence[int]],
    slots: Mapping[str, torch.Tensor | Sequence[int]] | None = None,
) -> None:
    """Checks that `checkpoint` was made by a model like this one.

    Args:
        checkpoint: The checkpoint.
        variables: The model's parameters and buffers by name, as tensors or only their shapes.
        slots: The optimizer's state in the same form; None leaves it unchecked.

    Raises:
        CheckpointError: Names or shapes differ; lists which.
    """
    differences = _differences(checkpoint.variables, variables, "variable")
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
        f"{name!r} ({shape_in(saved, name)} in the checkpoint, {_shape(value)} in the model)"
        for name, value in expected.items()
        if name in saved and shape_in(saved, name) != _shape(value)
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


def _load(path: str) -> Checkpoint:
    document = read_state(path)
    return Checkpoint(
        path=path,
        step=document["step"],
        variables=_read_shards(path, VARIABLES_NAME, document["shards"]),
        slots=_read_shards(path, SLOTS_NAME, document["shards"]),
        state=document["state"],
    )


def state_document(step: int, state: Mapping[str, Any], shards: int) -> bytes:
    """Return what `read_state` reads: JSON that ends with a checksum of what is before it.

    Raises:
        InvalidTypeError: `state` is not JSON.
    """
    content = {"format": FORMAT, "step": int(step), **({"shards": shards} if shards > 1 else {}), "state": dict(state)}
    try:
        text = json.dumps(content).encode().removesuffix(b"}")
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(f"the state saved at step {step} must be JSON: {files.reason(error)}.") from error
    return text + b', "crc32": "%08x"}' % zlib.crc32(text)


def read_state(path: str) -> dict[str, Any]:
    """Returns what is not a tensor: ``step``, ``state`` and the number of ``shards``.

    Raises:
        CheckpointError: It is missing or damaged, or something else wrote it.
    """
    file = files.join(path, STATE_NAME)
    try:
        text = files.read_bytes(file)
        document = parse_json(text.decode(), most_depth=_STATE_DEPTH)
    except FileNotFoundError as error:
        raise CheckpointError(_missing(path)) from error
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {files.reason(error)}.") from error
    except ValueError as error:
        raise CheckpointError(f"{file} is damaged: {files.reason(error)}; {_ADVICE}.") from error
    if (found := _STATE_CHECKSUM.search(text)) and int(found[1], 16) != zlib.crc32(text[: found.start()]):
        raise CheckpointError(
            f"{file} is damaged, or was edited: its checksum differs; {_ADVICE}, or remove the entry 'crc32' from a "
            "file that you have edited."
        )
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise CheckpointError(f"{file} is not of the format {FORMAT!r}; another program or version wrote it.")
    step = document.get("step")
    if not isinstance(step, int) or not 0 <= step < 2**63 or not isinstance(document.get("state"), dict):
        raise CheckpointError(f"{file} is damaged: it lacks 'step' or 'state'; {_ADVICE}.")
    shards = document.setdefault("shards", 1)
    if not isinstance(shards, int) or shards < 1:
        raise CheckpointError(f"{file} is damaged: 'shards' must be a number of files, but is {shards!r}; {_ADVICE}.")
    return document


def _missing(path: str) -> str:
    if files.exists(f"{path}.index"):
        return f"{path} is a checkpoint of TensorFlow, which cannot be read here; use another one."
    if files.is_dir(path):
        return f"there is no checkpoint in {path}: it holds neither 'checkpoint' nor {STATE_NAME!r}."
    index = files.join(files.parent(path), INDEX_NAME)
    if files.exists(index):
        return f"there is no checkpoint at {path}; if {index} names it, let it name another or remove it."
    return f"there is no checkpoint at {path}."


def _incomplete(path: str) -> str:
    return f"{path} is missing, so its checkpoint is not whole; {_ADVICE}."


def _read_shards(path: str, name: str, shards: int) -> Mapping[str, torch.Tensor]:
    return SavedTensors([_read_tensors(files.join(path, shard_name(name, shard, shards))) for shard in range(shards)])


def _read_tensors(path: str) -> TensorFile:
    try:
        if files.is_local(path):
            with open(path, "rb") as file:
                return TensorFile(path, safetensors.torch.load_file(path), _header(file))
        content = files.read_bytes(path)
        return TensorFile(path, safetensors.torch.load(content), _header(io.BytesIO(content)))
    except FileNotFoundError as error:
        raise CheckpointError(_incomplete(path)) from error
    except RuntimeError as error:
        # safetensors opens a file twice, the second time through torch, which has one kind of error for everything.
        problem = f"{path} cannot be read: {files.reason(error)}." if files.exists(path) else _incomplete(path)
        raise CheckpointError(problem) from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {files.reason(error)}.") from error
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path} is truncated or damaged: {files.reason(error)}; {_ADVICE}.") from error


def _header(file: IO[bytes]) -> dict[str, Any]:
    """Return the header of a safetensors file that safetensors has read without a complaint."""
    header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return dict(header)
