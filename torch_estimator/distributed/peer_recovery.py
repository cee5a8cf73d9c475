"""Recovery of a lost process from its peers: the survivors send the training's state to its replacement.

In data-parallel training every process holds the whole model. So if a process dies, nothing has to be read from a
checkpoint, and no step is lost. A replacement needs

- the variables, the optimizer state and the global step, which are the same in all survivors; and
- the *input cursor* of the lost process: the states of its input and its random generators after the last step. Each
  process sends its cursor to all others in the message of each step, so the survivors have it.

When a group forms again, each survivor announces a `Status`, which names the last step that it has taken. The steps may
differ by one: if a process dies in the middle of an exchange, some peers have received all messages and have updated,
and others have not. The *leader* is the survivor with the highest step; if there are several, the one with the lowest
rank. `hand_over` sends the leader's `Snapshot` to all processes: replacements start from it, and survivors that are one
step behind load it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torch_estimator.checkpoint.checkpoint import Checkpoint
from torch_estimator.train.training import REPLICAS

if TYPE_CHECKING:
    from torch_estimator.distributed.group import Group

_STEP, _LAYOUT = "step", "layout"
_RANDOM, _CPU = "random", "cpu"
_LENGTH_BYTES = 4


def encode_cursor(cursor: Mapping[str, Any]) -> bytes:
    """Serialize an input cursor to bytes, followed by the current state of torch's random generator on the CPU.

    The generator's state has 5,056 bytes. It is appended as raw bytes, because encoding it as JSON would take longer
    than everything else that a step does for the cursor. JSON can represent all values of `cursor`.
    """
    text = json.dumps(cursor).encode()
    return b"".join((len(text).to_bytes(_LENGTH_BYTES, "little"), text, torch.get_rng_state().numpy().tobytes()))


def decode_cursors(cursors: Tensor) -> list[dict[str, Any]]:
    """Decode the input cursors of all processes, and add to each the state of torch's random generator.

    `cursors` holds the bytes of `encode_cursor` by rank, padded, uint8 ``[replicas, bytes]``.
    """
    generator_bytes = len(torch.get_rng_state())
    decoded = []
    for row in cursors:
        data = row.numpy().tobytes()
        end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
        cursor = json.loads(data[_LENGTH_BYTES:end])
        cpu = base64.b64encode(data[end : end + generator_bytes]).decode("ascii")
        cursor[_RANDOM] = {**cursor.get(_RANDOM, {}), _CPU: cpu}
        decoded.append(cursor)
    return decoded


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole state of a training between two steps.

    `state` holds the parts of a checkpoint that are not tensors; JSON can represent them. Before the first step, it is
    the state of the checkpoint from which training started, and `cursors` is None; afterwards that is uint8
    ``[replicas, bytes]``.
    """

    step: int
    loss: float
    last_step: int | None
    variables: Mapping[str, Tensor]
    slots: Mapping[str, Tensor]
    state: Mapping[str, Any]
    cursors: Tensor | None = None

    def as_checkpoint(self, model_dir: str) -> Checkpoint:
        """Return the checkpoint that would be saved at this step."""
        state = dict(self.state)
        if self.cursors is not None:
            chief, *others = decode_cursors(self.cursors)
            state = {**state, **chief, REPLICAS: [None, *others]}
        return Checkpoint(
            path=model_dir, step=self.step, variables=dict(self.variables), slots=dict(self.slots), state=state
        )


@dataclass(frozen=True, slots=True)
class Status:
    """Summary of a survivor's training state, which the survivor announces when the group forms again.

    `step` is the last global step that the process has taken. `layout` is from `Layout.as_json`; None before the first
    step.
    """

    step: int
    layout: Any = None

    def as_text(self) -> str:
        """Return the status as text, for the process's announcement in the store."""
        return json.dumps({_STEP: self.step, _LAYOUT: self.layout})


def find_leader(statuses: Sequence[str]) -> tuple[int, list[Status]]:
    """Return the leader (the lowest rank among the survivors with the highest step), and all survivors' statuses.

    `statuses` holds by rank the text of `Status.as_text`; empty for processes that have just started.

    >>> find_leader([*(Status(step).as_text() for step in (3, 4, 4)), ""])[0]
    1
    """
    known = {rank: Status(**json.loads(text)) for rank, text in enumerate(statuses) if text}
    furthest = max(one.step for one in known.values())
    return min(rank for rank, one in known.items() if one.step == furthest), list(known.values())


def hand_over(group: Group, leader: int, snapshot: Snapshot | None) -> Snapshot:
    """Send the leader's snapshot (None elsewhere) to all processes; return the snapshot in each process."""
    header = ""
    tensors: dict[str, Tensor] = {}
    if snapshot is not None:
        tensors = {name: one.contiguous() for name, one in _tensors_of(snapshot).items()}
        header = json.dumps(
            {
                "step": snapshot.step,
                "loss": snapshot.loss,
                "last_step": snapshot.last_step,
                "state": snapshot.state,
                "tensors": {name: [str(one.dtype).removeprefix("torch."), one.shape] for name, one in tensors.items()},
            }
        )
    sent = json.loads(group.all_gather_texts(header)[leader])
    if snapshot is None:
        tensors = {
            name: torch.empty(shape, dtype=getattr(torch, dtype)) for name, (dtype, shape) in sent["tensors"].items()
        }
    group.broadcast(tensors.values(), leader)
    if snapshot is not None:
        return snapshot
    parts: dict[str, dict[str, Tensor]] = {"variables": {}, "slots": {}, "cursors": {}}
    for name, tensor in tensors.items():
        part, _, own_name = name.partition(" ")
        parts[part][own_name] = tensor
    return Snapshot(
        sent["step"],
        sent["loss"],
        sent["last_step"],
        parts["variables"],
        parts["slots"],
        sent["state"],
        parts["cursors"].get(""),
    )


def _tensors_of(snapshot: Snapshot) -> dict[str, Tensor]:
    """Return the tensors of a snapshot; each key is the name of the attribute, a space, and the tensor's own name."""
    tensors = {f"variables {name}": one for name, one in snapshot.variables.items()}
    tensors |= {f"slots {name}": one for name, one in snapshot.slots.items()}
    return tensors if snapshot.cursors is None else {**tensors, "cursors ": snapshot.cursors}
