"""Format of a checkpoint on disk.

A checkpoint is a directory ``model.ckpt-<step>`` inside the model directory::

    variables.safetensors   parameters and buffers, by name
    slots.safetensors       state of the optimizers, by name
    state.json              step, input cursor, random states, and everything else that is not a tensor

If several processes hold different rows of the variables, each process writes its own files:
``variables-00001-of-00002.safetensors`` and so on. ``state.json`` contains their number, and the rows of a tensor that
is in several files are concatenated in the order of the files. Any number of processes can read such a checkpoint.

Parameter servers write their rows of large tables themselves, one file for the variables and one for each kind of
state: ``variables-of-ps-0.safetensors``, ``slots-0-of-ps-0.safetensors`` and so on (see `row_file`). ``state.json``
names these files.

The file ``<model_dir>/checkpoint`` (see `index`) names the latest checkpoint and the others that are kept. Its paths
are relative, so a model directory can be moved. Nothing is pickled: reading a checkpoint runs no code from it.

Each tensor and ``state.json`` have a CRC-32, so that a damaged byte is an error instead of a different model.
Checkpoints of versions before these checksums have none.
"""

from __future__ import annotations

import dataclasses
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from torch_estimator import files
from torch_estimator.checkpoint.index import INDEX_NAME, WrittenByTensorFlow, checkpoints_in
from torch_estimator.checkpoint.row_file import DAMAGED_ADVICE, RowFileName
from torch_estimator.errors import CheckpointError, InvalidTypeError
from torch_estimator.json_text import parse_json

VARIABLES_NAME = "variables.safetensors"
SLOTS_NAME = "slots.safetensors"
STATE_NAME = "state.json"
FORMAT = "torch_estimator.checkpoint/1"
FORMAT_WITH_ROW_FILES = "torch_estimator.checkpoint/2"
"""Format of a checkpoint with files that hold every n-th row of large tables, which earlier versions cannot read."""

CHECKSUMS = "crc32"
"""Key in the metadata of a safetensors file: a CRC-32 in hexadecimal for each tensor, in the order of the header."""

DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

_STATE_CHECKSUM = re.compile(rb', "crc32": "([0-9a-f]{8})"}\s*\Z')
# Limit of the nesting in state.json. The input cursor nests by about one level for each stage of the input.
_STATE_DEPTH = 500


def shard_name(name: str, shard: int, shards: int) -> str:
    """Return the file name of one shard, if each of `shards` processes writes a part of the file `name`.

    >>> shard_name("variables.safetensors", 0, 2)
    'variables-00001-of-00002.safetensors'
    """
    stem, _, suffix = name.rpartition(".")
    return name if shards == 1 else f"{stem}-{shard + 1:05d}-of-{shards:05d}.{suffix}"


def storable(tensor: torch.Tensor) -> bool:
    """Return whether a tensor can be saved in a checkpoint: it is dense, and safetensors supports its dtype."""
    return tensor.layout == torch.strided and tensor.dtype in DTYPE_NAMES


def as_bytes(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the memory of a contiguous tensor on the CPU as bytes, without a copy."""
    return tensor.reshape(-1).view(torch.uint8).numpy()


def checksum(name: str, entry: Mapping[str, Any], tensor: torch.Tensor) -> int:
    """Return the CRC-32 of a tensor on the CPU together with its name, dtype and shape.

    `entry` is the tensor's entry in the header of its file, with ``dtype`` and ``shape``.
    """
    return zlib.crc32(as_bytes(tensor).data, zlib.crc32(json.dumps([name, entry["dtype"], entry["shape"]]).encode()))


def state_document(step: int, state: Mapping[str, Any], shards: int, row_files: Sequence[RowFileName] = ()) -> bytes:
    """Return the content of ``state.json``: JSON that ends with a checksum of everything before it."""
    content = {
        "format": FORMAT_WITH_ROW_FILES if row_files else FORMAT,
        "step": int(step),
        **({"shards": shards} if shards > 1 else {}),
        **({"row_files": [dataclasses.asdict(one) for one in row_files]} if row_files else {}),
        "state": dict(state),
    }
    try:
        text = json.dumps(content).encode().removesuffix(b"}")
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(f"the state saved at step {step} must be JSON: {files.reason(error)}.") from error
    return text + b', "crc32": "%08x"}' % zlib.crc32(text)


def with_row_files(document: bytes, row_files: Sequence[RowFileName]) -> bytes:
    """Return the content of ``state.json`` with the names of files that hold rows of large tables."""
    content = json.loads(document)
    return state_document(content["step"], content["state"], content.get("shards", 1), row_files)


def read_state(path: str) -> dict[str, Any]:
    """Return the content of a checkpoint's ``state.json``, with ``step``, ``state``, ``shards`` and ``row_files``."""
    file = files.join(path, STATE_NAME)
    try:
        text = files.read_bytes(file)
        document = parse_json(text.decode(), most_depth=_STATE_DEPTH)
    except FileNotFoundError as error:
        if files.exists(f"{path}.index"):
            raise WrittenByTensorFlow(_foreign(path), path) from error
        raise CheckpointError(_missing(path)) from error
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {files.reason(error)}.") from error
    except ValueError as error:
        raise CheckpointError(f"{file} is damaged: {files.reason(error)}; {DAMAGED_ADVICE}.") from error
    if (found := _STATE_CHECKSUM.search(text)) and int(found[1], 16) != zlib.crc32(text[: found.start()]):
        raise CheckpointError(
            f"{file} is damaged, or was edited: its checksum differs; {DAMAGED_ADVICE}, or remove the entry 'crc32' "
            "from a file that you have edited."
        )
    if not isinstance(document, dict) or document.get("format") not in (FORMAT, FORMAT_WITH_ROW_FILES):
        raise CheckpointError(f"{file} is not of the format {FORMAT!r}; another program or version wrote it.")
    step = document.get("step")
    if not isinstance(step, int) or not 0 <= step < 2**63 or not isinstance(document.get("state"), dict):
        raise CheckpointError(f"{file} is damaged: it lacks 'step' or 'state'; {DAMAGED_ADVICE}.")
    shards = document.setdefault("shards", 1)
    if not isinstance(shards, int) or shards < 1:
        raise CheckpointError(
            f"{file} is damaged: 'shards' must be a number of files, but is {shards!r}; {DAMAGED_ADVICE}."
        )
    try:
        document["row_files"] = [RowFileName(**one) for one in document.get("row_files", ())]
    except TypeError as error:
        raise CheckpointError(f"{file} is damaged: 'row_files' is not what it must be; {DAMAGED_ADVICE}.") from error
    return document


def _foreign(path: str) -> str:
    return f"{path} is a checkpoint of TensorFlow; `estimator import-checkpoint {path} --into DIR` makes one of ours."


def _missing(path: str) -> str:
    if files.is_dir(path):
        names = checkpoints_in(path)
        hint = f"; name one of those in it: {names}" if names else ""
        return f"there is no checkpoint in {path}: it holds neither 'checkpoint' nor {STATE_NAME!r}{hint}."
    index = files.join(files.parent(path), INDEX_NAME)
    if files.exists(index):
        return f"there is no checkpoint at {path}; if {index} names it, let it name another or remove it."
    return f"there is no checkpoint at {path}."
