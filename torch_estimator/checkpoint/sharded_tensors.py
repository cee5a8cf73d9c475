"""Tensors of which this process holds some rows, as torch.distributed.fsdp leaves parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torch_estimator.checkpoint.saved_tensors import rows_in
from torch_estimator.errors import InvalidTypeError, InvalidValueError


def is_sharded(tensor: object) -> bool:
    """Whether other processes hold other parts of a tensor."""
    # That of torch's class, whose import takes half a second of every other training.
    return isinstance(tensor, Tensor) and hasattr(tensor, "device_mesh")


def own(tensor: Any) -> Any:
    """What this process holds of a tensor: the same memory; anything else is returned as it is."""
    if not is_sharded(tensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


def copy_saved(target: Tensor, saved: Mapping[str, Tensor], name: str) -> None:
    """Copies a saved tensor into another, or those of its rows that are held here."""
    if not is_sharded(target):
        target.copy_(saved[name])
        return
    mesh: Any = target.device_mesh  # type: ignore[attr-defined]
    rows, here = len(target), own(target)
    # The first ones hold as many as any, as torch.chunk does it.
    start = min(mesh.get_local_rank() * -(-rows // mesh.size()), rows)
    here.copy_(rows_in(saved, name, start, start + len(here)))


def part_to_save(tensors: Mapping[str, Tensor], *, is_chief: bool) -> dict[str, Tensor]:
    """What this process saves of them: its rows of those that are sharded; the chief also all others.

    Raises:
        InvalidTypeError: One is divided in another way, as the state of some optimizers is.
    """
    part: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if is_sharded(tensor) and not _is_by_rows(tensor):
            raise InvalidTypeError(
                f"{name!r} is spread over the processes by {tensor.placements}, but only rows can be saved; "  # type: ignore[attr-defined]
                "use an optimizer whose state has the shape of the parameters, such as AdamW."
            )
        piece = own(tensor)
        if is_chief or (is_sharded(tensor) and len(piece)):
            part[name] = piece
    return part


def check_whole(tensor: object, use: str) -> None:
    """Raises where only a part of a tensor is here.

    Raises:
        InvalidValueError: It is sharded; says what it was wanted for.
    """
    if is_sharded(tensor):
        raise InvalidValueError(
            f"{use} needs whole variables, but with FullyShardedStrategy each process holds a part of them; read them "
            "from checkpoints, with Estimator.get_variable_value or by evaluating these."
        )


def _is_by_rows(tensor: Any) -> bool:
    return bool(len(tensor.placements) == 1 and tensor.placements[0].is_shard(0))
