"""Recovery of a lost process from its peers: the survivors hand over all that it needs, and no step is lost.

In data-parallel training every process holds the whole model, so nothing has to be read from a checkpoint when one of
them dies. What a replacement needs is

- the variables, the optimizer state and the global step, which are the same in all survivors; and
- the *input cursor* of the lost process: where its own input and random generators stood after the last step. Each
  process sends its cursor to all others within the message of each step, so the survivors know it.

When a group forms again, each survivor announces a `Status`: the step that it has taken last. The steps may differ by
one: where a process dies in the middle of an exchange, some of its peers have received all messages and have updated,
others have not. The *leader* is the survivor with the highest step, or the first of several. `hand_over` sends the
leader's `Snapshot` to all: replacements start with it, and survivors that are one step behind take it over.
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
    """Return an input cursor as bytes, followed by the current state of torch's random generator on the CPU.

    The generator's state is 5,056 bytes. Encoding it as JSON would take longer than all else that a step does for the
    cursor, so it travels as it is.

    Args:
        cursor: JSON, without the state of that generator.
    """
    text = json.dumps(cursor).encode()
    return b"".join((len(text).to_bytes(_LENGTH_BYTES, "little"), text, torch.get_rng_state().numpy().tobytes()))


def decode_cursors(cursors: Tensor) -> list[dict[str, Any]]:
    """Return the cursors of all processes as JSON, each with the state of its generator, as a checkpoint holds them.

    Args:
        cursors: What `encode_cursor` returned in each process, padded: uint8 ``[replicas, bytes]``.
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

    Args:
        step: The global step.
        loss: The loss of the step before.
        last_step: The global step to end at, or None.
        variables: Parameters and buffers by name.
        slots: Optimizer state by name.
        state: What else a checkpoint holds, as JSON. Before the first step, that of the checkpoint that training began
            with.
        cursors: The input cursors of all processes, uint8 ``[replicas, bytes]``; None before the first step.
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
    """What a process that has trained announces when the group forms again.

    Args:
        step: The global step that it has taken last.
        layout: The layout of its messages, as JSON; None before the first step.
    """

    step: int
    layout: Any = None

    def as_text(self) -> str:
        """Return what `find_leader` takes."""
        return json.dumps({_STEP: self.step, _LAYOUT: self.layout})


def find_leader(statuses: Sequence[str]) -> tuple[int, list[Status]]:
    """Return the rank whose snapshot all processes go on with, and the statuses of all that have trained.

    Args:
        statuses: By rank, `Status.as_text`; empty for processes that have just started.

    >>> find_leader([*(Status(step).as_text() for step in (3, 4, 4)), ""])[0]
    1
    """
    known = {rank: Status(**json.loads(text)) for rank, text in enumerate(statuses) if text}
    furthest = max(one.step for one in known.values())
    return min(rank for rank, one in known.items() if one.step == furthest), list(known.values())


def hand_over(group: Group, leader: int, snapshot: Snapshot | None) -> Snapshot:
    """Send the leader's snapshot to all processes; return it in each of them.

    Args:
        group: The processes.
        leader: Rank of the leader.
        snapshot: The leader's own snapshot; None in all other processes.

    Raises:
        PeerLost: Another process is gone.
    """
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
    """Return the tensors of a snapshot by the name of the attribute, a space, and their own name."""
    tensors = {f"variables {name}": one for name, one in snapshot.variables.items()}
    tensors |= {f"slots {name}": one for name, one in snapshot.slots.items()}
    return tensors if snapshot.cursors is None else {**tensors, "cursors ": snapshot.cursors}
