"""Saving and loading of tensors that this process does not hold, or holds some rows of.

These are DTensors of torch.distributed.fsdp, and large tables on parameter servers, which are on the device ``meta``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torch_estimator.checkpoint.saved_tensors import copy_into, saved_rows
from torch_estimator.errors import InvalidTypeError, InvalidValueError


def is_sharded(tensor: object) -> bool:
    """Return whether a tensor is a DTensor, of which this process may hold only a part."""
    # Test for an attribute of DTensor instead of using isinstance, because importing DTensor takes half a second.
    return isinstance(tensor, Tensor) and hasattr(tensor, "device_mesh")


def to_local(tensor: Any) -> Any:
    """Return this process's part of a sharded tensor, without copying the part. Return any other value unchanged."""
    if not is_sharded(tensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


def copy_saved(target: Tensor, saved: Mapping[str, Tensor], name: str) -> None:
    """Copy a saved tensor into a model's tensor. If the model's tensor is sharded, copy only this process's rows.

    Nothing is copied for a tensor on parameter servers, which read the checkpoint themselves.
    """
    if target.is_meta:
        return
    if not is_sharded(target):
        copy_into(target, saved, name)
        return
    mesh: Any = target.device_mesh  # type: ignore[attr-defined]
    rows, local = len(target), to_local(target)
    # FSDP splits rows as torch.chunk does: each process holds ceil(rows / size) rows, the last ones fewer or none.
    start = min(mesh.get_local_rank() * -(-rows // mesh.size()), rows)
    local.copy_(saved_rows(saved, name, start, start + len(local)))


def part_to_save(tensors: Mapping[str, Tensor], *, is_chief: bool) -> dict[str, Tensor]:
    """Return the tensors that this process saves: its rows of sharded tensors and, on the chief, all other tensors.

    Parameter servers save those that are on them.
    """
    part: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.is_meta:
            continue
        if is_sharded(tensor) and not _is_by_rows(tensor):
            raise InvalidTypeError(
                f"{name!r} is spread over the processes by {tensor.placements}, but only rows can be saved; "  # type: ignore[attr-defined]
                "use an optimizer whose state has the shape of the parameters, such as AdamW."
            )
        piece = to_local(tensor)
        if is_chief or (is_sharded(tensor) and len(piece)):
            part[name] = piece
    return part


def check_whole(tensor: object, use: str) -> None:
    """Raise an error if this process does not hold a whole tensor; `use`, the subject of the message, needs it."""
    if isinstance(tensor, Tensor) and tensor.is_meta:
        raise InvalidValueError(
            f"{use} needs whole variables, but large tables are on parameter servers; read them from checkpoints, with "
            "Estimator.get_variable_value or by evaluating these."
        )
    if is_sharded(tensor):
        raise InvalidValueError(
            f"{use} needs whole variables, but with FullyShardedStrategy each process holds a part of them; read them "
            "from checkpoints, with Estimator.get_variable_value or by evaluating these."
        )


def _is_by_rows(tensor: Any) -> bool:
    return bool(len(tensor.placements) == 1 and tensor.placements[0].is_shard(0))
