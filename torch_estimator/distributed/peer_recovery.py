"""What replicas that are left hand to the one that comes in the place of another."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torch_estimator.checkpoint.checkpoint import Checkpoint
from torch_estimator.distributed.input_cursors import decoded

if TYPE_CHECKING:
    from torch_estimator.distributed.group import Group

_STEP, _LAYOUT = "step", "layout"

REPLICAS = "replicas"
"""Where a checkpoint's state holds the positions of all but the chief."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a training is, between two steps.

    Args:
        step: The global step.
        loss: Of the step before.
        last_step: To end at, or None.
        variables: Parameters and buffers by name.
        slots: Optimizer state by name.
        state: What else a checkpoint keeps; where the positions are not known, those that training began with.
        positions: Where the replicas are, ``[replicas, bytes]``, or None.
    """

    step: int
    loss: float
    last_step: int | None
    variables: Mapping[str, Tensor]
    slots: Mapping[str, Tensor]
    state: Mapping[str, Any]
    positions: Tensor | None = None

    def as_checkpoint(self, model_dir: str) -> Checkpoint:
        """Returns what a checkpoint at this step would hold."""
        state = dict(self.state)
        if self.positions is not None:
            chief, *others = decoded(self.positions)
            state = {**state, **chief, REPLICAS: [None, *others]}
        return Checkpoint(
            path=model_dir, step=self.step, variables=dict(self.variables), slots=dict(self.slots), state=state
        )


@dataclass(frozen=True, slots=True)
class Status:
    """What a replica that has trained says of itself when it meets the others again.

    Args:
        step: The global step it is at.
        layout: JSON of that of its messages, or None.
    """

    step: int
    layout: Any = None

    def as_text(self) -> str:
        """Returns what `leader_of` takes."""
        return json.dumps({_STEP: self.step, _LAYOUT: self.layout})


def leader_of(statuses: Sequence[str]) -> tuple[int, list[Status]]:
    """Returns the rank of the first that is furthest, and the statuses of all that have trained.

    Args:
        statuses: By rank; empty for those that have just come.

    >>> leader_of([*(Status(step).as_text() for step in (3, 4, 4)), ""])[0]
    1
    """
    told = {rank: Status(**json.loads(text)) for rank, text in enumerate(statuses) if text}
    furthest = max(one.step for one in told.values())
    return min(rank for rank, one in told.items() if one.step == furthest), list(told.values())


def handed(group: Group, leader: int, snapshot: Snapshot | None) -> Snapshot:
    """Gives all replicas that of one of them.

    Args:
        group: The replicas.
        leader: Whose.
        snapshot: For the leader, its own.

    Raises:
        PeerLost: Another process is gone.
    """
    about = ""
    tensors: dict[str, Tensor] = {}
    if snapshot is not None:
        tensors = {name: one.contiguous() for name, one in _tensors(snapshot).items()}
        about = json.dumps(
            {
                "step": snapshot.step,
                "loss": snapshot.loss,
                "last_step": snapshot.last_step,
                "state": snapshot.state,
                "tensors": {name: [str(one.dtype).removeprefix("torch."), one.shape] for name, one in tensors.items()},
            }
        )
    told = json.loads(group.gather_texts(about)[leader])
    if snapshot is None:
        tensors = {
            name: torch.empty(shape, dtype=getattr(torch, kind)) for name, (kind, shape) in told["tensors"].items()
        }
    group.broadcast(tensors.values(), leader)
    if snapshot is not None:
        return snapshot
    parts: dict[str, dict[str, Tensor]] = {"variables": {}, "slots": {}, "positions": {}}
    for name, tensor in tensors.items():
        part, _, own = name.partition(" ")
        parts[part][own] = tensor
    return Snapshot(
        told["step"],
        told["loss"],
        told["last_step"],
        parts["variables"],
        parts["slots"],
        told["state"],
        parts["positions"].get(""),
    )


def _tensors(snapshot: Snapshot) -> dict[str, Tensor]:
    tensors = {f"variables {name}": one for name, one in snapshot.variables.items()}
    tensors |= {f"slots {name}": one for name, one in snapshot.slots.items()}
    return tensors if snapshot.positions is None else {**tensors, "positions ": snapshot.positions}
