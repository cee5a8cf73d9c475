"""What a replica tells the others of a step, as one piece of memory, so that one message carries all of it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_estimator.train.row_update import Mentions
from torch_estimator.train.step import TrainStep

CODE, READY, LEAVES, LOSS, LACKS = 0, 1, 2, 3, 4
HEADER = 16
"""Numbers in front: what the sender does, whether its update is compiled, whether it is to end, its loss, and how many
dense parameters that there is room for it has no gradient of."""

_ROUND = 64

# What a position takes in nearly all jobs, most of it the state of torch's random generator.
_POSITION_BYTES = 6144


@dataclass(frozen=True, slots=True)
class Layout:
    """What there is room for, the same for all replicas.

    Attributes:
        dense: Which of the step's dense parameters have a gradient.
        mentions: By table, how many rows a batch may touch.
        position: Bytes for where the sender is.
    """

    dense: tuple[bool, ...]
    mentions: tuple[int, ...]
    position: int = _POSITION_BYTES

    @classmethod
    def of(cls, dense: Sequence[Tensor | None], mentions: Sequence[Mentions | None]) -> Layout:
        """Returns that which these gradients need."""
        sizes = (0 if one is None else -(-len(one[0]) // _ROUND) * _ROUND for one in mentions)
        return cls(tuple(one is not None for one in dense), tuple(sizes))

    def holds(self, other: Layout) -> bool:
        """Whether there is room for all that the other one needs."""
        return self.joined([other]) == self

    def joined(self, others: Sequence[Layout]) -> Layout:
        """Returns one with room for all of them."""
        every = (self, *others)
        return Layout(
            tuple(any(present) for present in zip(*(one.dense for one in every), strict=True)),
            tuple(max(sizes) for sizes in zip(*(one.mentions for one in every), strict=True)),
            max(one.position for one in every),
        )

    def with_position(self, size: int) -> Layout:
        """Returns one with room for a position of ``size`` bytes, too."""
        return replace(self, position=max(self.position, -(-size // _ROUND) * _ROUND))

    def as_json(self) -> dict[str, Any]:
        """Returns what `from_json` takes."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Layout:
        """Returns what `as_json` was called on."""
        return cls(tuple(value["dense"]), tuple(value["mentions"]), value["position"])


class Packing:
    """Puts a replica's gradients into one tensor, ``[size]``, and takes those of all replicas apart.

    It is float32, or float64 where a parameter or a buffer is; a complex number is two numbers. Behind gradients and
    buffers it says which parameters have a gradient, and where the replica is after this batch.

    Args:
        step: Whose gradients these are.
        layout: What there is room for.

    Attributes:
        size: Numbers in a message.
    """

    def __init__(self, step: TrainStep, layout: Layout) -> None:
        self._buffers = [buffer for buffer in step.module.buffers() if _is_exchanged(buffer)]
        self._dense = list(zip(step.dense, layout.dense, strict=True))
        self._tables = [(update.table, room) for update, room in zip(step.tables, layout.mentions, strict=True)]
        wide = any(one.dtype in (torch.float64, torch.complex128) for one in (*step.dense, *self._buffers))
        self._dtype, self._id_dtype = (torch.float64, torch.int64) if wide else (torch.float32, torch.int32)
        self._device = next(iter(step.module.parameters())).device
        self.size = HEADER
        self.size += sum(_count(parameter) for parameter, present in self._dense if present)
        self.size += sum(room * (1 + table.dim) for table, room in self._tables)
        self.size += sum(_count(buffer) for buffer in self._buffers)
        self._given = slice(self.size, self.size + len(self._dense))
        self._position = slice(self._given.stop, self._given.stop + layout.position // self._dtype.itemsize)
        self.size = self._position.stop

    def message(self) -> Tensor:
        """Returns one to be filled."""
        return torch.zeros(self.size, dtype=self._dtype, device=self._device)

    def pack(
        self, message: Tensor, loss: Tensor, dense: Sequence[Tensor | None], mentions: Sequence[Mentions | None]
    ) -> None:
        """Fills a message, but for what the sender does."""
        lacks = sum(present and one is None for one, (_, present) in zip(dense, self._dense, strict=True))
        parts = [self._flat(loss), self._zeros(1) + lacks, self._zeros(HEADER - LACKS - 1)]
        for gradient, (parameter, present) in zip(dense, self._dense, strict=True):
            if present:
                parts.append(self._zeros(_count(parameter)) if gradient is None else self._flat(gradient))
        for touched, (table, room) in zip(mentions, self._tables, strict=True):
            count = 0 if touched is None else len(touched[0])
            if touched is not None:
                parts.append(touched[0].to(self._id_dtype).view(self._dtype))
            none = torch.full((room - count,), table.rows, dtype=self._id_dtype, device=self._device)
            parts.append(none.view(self._dtype))
            if touched is not None:
                parts.append(self._flat(touched[1]))
            parts.append(self._zeros((room - count) * table.dim))
        parts += [self._flat(buffer) for buffer in self._buffers]
        given = [float(gradient is not None) for gradient in dense]
        parts.append(torch.tensor(given, dtype=self._dtype, device=self._device))
        message[LOSS : self._given.stop].copy_(torch.cat(parts))

    def parts(self, message: Tensor) -> tuple[list[Tensor | None], list[tuple[Tensor, Tensor]]]:
        """Views of a message's gradients, ``[numbers]`` each, and by table of the ids and their gradients."""
        at = HEADER
        dense: list[Tensor | None] = []
        for parameter, present in self._dense:
            dense.append(message[at : at + _count(parameter)] if present else None)
            at += _count(parameter) if present else 0
        tables = []
        for table, room in self._tables:
            ids = message[at : at + room].view(self._id_dtype)
            at += room
            tables.append((ids, message[at : at + room * table.dim].view(room, table.dim)))
            at += room * table.dim
        return dense, tables

    def nothing(self, message: Tensor) -> None:
        """Fills a message with that of a replica without a batch."""
        self.pack(message, self._zeros(1), [None] * len(self._dense), [None] * len(self._tables))

    def given(self, message: Tensor) -> Tensor:
        """The part of a message, or of each of several, that says which dense parameters have a gradient."""
        return message[..., self._given]

    def put_position(self, message: Tensor, position: bytes) -> None:
        """Says in a message where the sender is."""
        room = self._position.stop - self._position.start
        padded = np.frombuffer(position.ljust(room * self._dtype.itemsize, b"\0"), np.uint8)
        part = message[self._position]
        if part.is_cpu:
            part.numpy().view(np.uint8)[:] = padded
        else:
            part.copy_(torch.from_numpy(padded.copy()).view(self._dtype))

    def positions(self, messages: Tensor) -> Tensor:
        """The part of messages that says where their senders are, ``[replicas, numbers]``; its bytes are padded."""
        return messages[:, self._position]

    def missing(self, messages: Tensor) -> set[int]:
        """Places of parameters that there is room for, but no replica has a gradient of this time."""
        if not self._dense:
            return set()
        found = self.given(messages).any(0).tolist()
        return {place for place, (_, present) in enumerate(self._dense) if present and not found[place]}

    def unpack(
        self, messages: Tensor, scale: Tensor | float, missing: Collection[int] = ()
    ) -> tuple[Tensor, list[Tensor | None], list[Mentions | None]]:
        """Returns loss and gradients of all replicas together, times ``scale``; takes over the chief's buffers.

        Args:
            messages: ``[replicas, size]``.
            scale: One number.
            missing: Of which parameters to return None.
        """
        replicas = len(messages)
        at = HEADER
        dense: list[Tensor | None] = []
        for place, (parameter, present) in enumerate(self._dense):
            gradient = None
            if present:
                summed = messages[:, at : at + _count(parameter)].sum(0) * scale
                gradient = None if place in missing else _shaped(summed, parameter)
                at += _count(parameter)
            dense.append(gradient)
        mentions: list[Mentions | None] = []
        for table, room in self._tables:
            touched = None
            if room:
                ids = messages[:, at : at + room].reshape(-1).view(self._id_dtype).to(torch.int64)
                at += room
                values = messages[:, at : at + room * table.dim].reshape(replicas * room, table.dim) * scale
                values = values.to(table.weight.dtype)
                at += room * table.dim
                touched = (ids, values)
            mentions.append(touched)
        for buffer in self._buffers:
            buffer.copy_(_shaped(messages[0, at : at + _count(buffer)], buffer))
            at += _count(buffer)
        return messages[:, LOSS].sum() * scale, dense, mentions

    def _flat(self, tensor: Tensor) -> Tensor:
        tensor = tensor.detach()
        return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1).to(self._dtype)

    def _zeros(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=self._dtype, device=self._device)


def _is_exchanged(buffer: Tensor) -> bool:
    return buffer.is_floating_point() or buffer.is_complex()


def _count(tensor: Tensor) -> int:
    return tensor.numel() * (2 if tensor.is_complex() else 1)


def _shaped(numbers: Tensor, like: Tensor) -> Tensor:
    """Numbers as a message holds them, in the shape and dtype of what they are of."""
    if not like.is_complex():
        return numbers.view(like.shape).to(like.dtype)
    pairs = numbers.reshape(*like.shape, 2)
    return torch.view_as_complex(pairs.contiguous()).to(like.dtype)
