"""The two halves of a data-parallel training step, and the message that processes exchange between them.

In data-parallel training each process computes the gradients of its own batch, and all processes update their copies of
the model with the sum. `SendingStep` is the first half: it runs the forward and backward pass and packs the gradients
into one message. `ReceivingStep` is the second half: it unpacks the messages of all processes, adds up the gradients,
and updates. Between the two halves the processes exchange their messages. Each process sends everything in one message,
because on a network the number of messages costs more than their size.

A message is one contiguous tensor of float32 numbers, or of float64 numbers if the model has float64 tensors:

    header | dense gradients | per table: row ids, row gradients | buffers | flags | input cursor

- The header says what the sender is doing; see the constants below.
- For an embedding table, only the rows that the batch has used are sent: their ids, bit-cast to floats, and their
  gradients. The same row may occur several times. Unused entries hold the id of a spare row after the end of the table.
- Buffers, such as the statistics of batch normalisation, are sent by all processes; the chief's are used.
- The flags say which dense parameters have a gradient.
- The input cursor holds the states of the sender's input and random generators. If the sender is lost, the other
  processes send its last cursor to the replacement.

All messages of one exchange must have the same size, since the receivers do not know how many rows a sender's batch
uses. The `Layout` says which parts the message has space for. The processes negotiate it: it starts empty, and if one
batch does not fit (`MessageTooSmall`), all processes agree on the union of what they need. Sizes only grow, and they
are rounded up, so they no longer change after a few steps. That matters because compiled code is made for one size.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_estimator.errors import InvalidValueError
from torch_estimator.train.sparse_update import SparseGrad
from torch_estimator.train.step import TrainStep

# Indices into the header; each docstring describes the number stored there.
CODE = 0
"""What the sender is doing, such as `HAS_BATCH`; see `torch_estimator.strategies.synchronous_steps`."""
UPDATE_COMPILED = 1
"""1.0 if the sender can update with compiled code."""
STOP_REQUEST = 2
"""The code with which the sender asks all processes to end training after this step, or 0.0."""
LOSS = 3
"""The loss of the sender's batch."""
MISSING_GRADIENTS = 4
"""The number of dense parameters that have space in the layout, but no gradient in this step."""
HEADER = 16
"""Length of the header; its remaining numbers are unused."""

HAS_BATCH = 1.0
"""The code of a process that sends the gradients of a batch."""

_ROUND_TO = 64

# Initial space for the input cursor, which is enough for nearly all jobs. The state of torch's random generator takes
# 5,056 bytes of this space.
_CURSOR_BYTES = 6144


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of the parts of a gradient message, which are the same in all processes.

    `dense` says for each dense parameter of the step whether there is space for its gradient; `mentions` how many rows
    of each embedding table there is space for.
    """

    dense: tuple[bool, ...]
    mentions: tuple[int, ...]
    cursor_bytes: int = _CURSOR_BYTES

    @classmethod
    def of(cls, dense: Sequence[Tensor | None], mentions: Sequence[SparseGrad | None]) -> Layout:
        """Return the layout that the gradients of a batch need; see `TrainStep.differentiate`."""
        rows = (0 if one is None else -(-len(one[0]) // _ROUND_TO) * _ROUND_TO for one in mentions)
        return cls(tuple(one is not None for one in dense), tuple(rows))

    def holds(self, other: Layout) -> bool:
        """Return whether this layout has space for everything that `other` has space for."""
        return self.joined([other]) == self

    def joined(self, others: Sequence[Layout]) -> Layout:
        """Return the union: the smallest layout with space for everything that any of the layouts has space for."""
        every = (self, *others)
        return Layout(
            tuple(any(present) for present in zip(*(one.dense for one in every), strict=True)),
            tuple(max(rows) for rows in zip(*(one.mentions for one in every), strict=True)),
            max(one.cursor_bytes for one in every),
        )

    def with_cursor(self, size: int) -> Layout:
        """Return a layout that also has space for an input cursor of ``size`` bytes."""
        return replace(self, cursor_bytes=max(self.cursor_bytes, -(-size // _ROUND_TO) * _ROUND_TO))

    def as_json(self) -> dict[str, Any]:
        """Return the layout as a dict that JSON can represent, for checkpoints and other processes."""
        return {"dense": self.dense, "mentions": self.mentions, "position": self.cursor_bytes}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Layout:
        """Make a layout from a dict that `as_json` has returned."""
        return cls(tuple(value["dense"]), tuple(value["mentions"]), value["position"])


class Packing:
    """Packs the gradients of one process into a message, and unpacks the messages of all processes.

    Numbers are sent as float32, or as float64 if a parameter or a buffer is float64. A complex number is sent as two
    numbers. `size` is the number of elements of a message.
    """

    def __init__(self, step: TrainStep, layout: Layout) -> None:
        self._buffers = [buffer for buffer in step.module.buffers() if _is_exchanged(buffer)]
        self._dense = list(zip(step.dense, layout.dense, strict=True))
        self._tables = [(update.table, rows) for update, rows in zip(step.tables, layout.mentions, strict=True)]
        wide = any(one.dtype in (torch.float64, torch.complex128) for one in (*step.dense, *self._buffers))
        self._dtype, self._id_dtype = (torch.float64, torch.int64) if wide else (torch.float32, torch.int32)
        for table, _ in self._tables:
            if table.rows > torch.iinfo(self._id_dtype).max:
                raise InvalidValueError(
                    f"The table of {table.pieces[0].name!r} has {table.rows} rows, but in a cluster a table of float32 "
                    "can have 2147483647: the messages of processes hold row ids as 32 bits; spread its columns over "
                    "tables of different dimension."
                )
        # Tables on parameter servers are on the device "meta", which says nothing.
        devices = (one.device for one in step.module.parameters() if not one.is_meta)
        self._device = next(devices, torch.device("cpu"))
        self.size = HEADER
        self.size += sum(_count(parameter) for parameter, present in self._dense if present)
        self.size += sum(rows * (1 + table.dim) for table, rows in self._tables)
        self.size += sum(_count(buffer) for buffer in self._buffers)
        self._flags = slice(self.size, self.size + len(self._dense))
        self._cursor = slice(self._flags.stop, self._flags.stop + layout.cursor_bytes // self._dtype.itemsize)
        self.size = self._cursor.stop

    def message(self) -> Tensor:
        """Return a new message of zeros, ``[size]``."""
        return torch.zeros(self.size, dtype=self._dtype, device=self._device)

    def pack(
        self, message: Tensor, loss: Tensor, dense: Sequence[Tensor | None], mentions: Sequence[SparseGrad | None]
    ) -> None:
        """Write a loss, gradients and the module's buffers into a message. The rest of the message stays as it is.

        `dense` holds None for a parameter without a gradient, `mentions` None for a table without a used row.
        """
        missing = sum(present and one is None for one, (_, present) in zip(dense, self._dense, strict=True))
        parts = [self._flat(loss), self._zeros(1) + missing, self._zeros(HEADER - MISSING_GRADIENTS - 1)]
        for gradient, (parameter, present) in zip(dense, self._dense, strict=True):
            if present:
                parts.append(self._zeros(_count(parameter)) if gradient is None else self._flat(gradient))
        for touched, (table, rows) in zip(mentions, self._tables, strict=True):
            count = 0 if touched is None else len(touched[0])
            if touched is not None:
                parts.append(touched[0].to(self._id_dtype).view(self._dtype))
            # Fill unused entries with the id of the spare row after the end of the table. That row is never used.
            unused = torch.full((rows - count,), table.rows, dtype=self._id_dtype, device=self._device)
            parts.append(unused.view(self._dtype))
            if touched is not None:
                parts.append(self._flat(touched[1]))
            parts.append(self._zeros((rows - count) * table.dim))
        parts += [self._flat(buffer) for buffer in self._buffers]
        flags = [float(gradient is not None) for gradient in dense]
        parts.append(torch.tensor(flags, dtype=self._dtype, device=self._device))
        message[LOSS : self._flags.stop].copy_(torch.cat(parts))

    def pack_nothing(self, message: Tensor) -> None:
        """Write a loss of 0 and no gradients into a message, for a process that has no batch."""
        self.pack(message, self._zeros(1), [None] * len(self._dense), [None] * len(self._tables))

    def put_cursor(self, message: Tensor, cursor: bytes) -> None:
        """Write an input cursor into a message."""
        space = self._cursor.stop - self._cursor.start
        padded = np.frombuffer(cursor.ljust(space * self._dtype.itemsize, b"\0"), np.uint8)
        part = message[self._cursor]
        if part.is_cpu:
            part.numpy().view(np.uint8)[:] = padded
        else:
            part.copy_(torch.from_numpy(padded.copy()).view(self._dtype))

    def cursors(self, messages: Tensor) -> Tensor:
        """Return a view of the input cursors in messages, ``[replicas, numbers]``, padded with zeros."""
        return messages[:, self._cursor]

    def parts(self, message: Tensor) -> tuple[list[Tensor | None], list[tuple[Tensor, Tensor]]]:
        """Return views of the gradients in one message.

        They are, for each dense parameter, its gradient, flat, or None if the layout has no space for it; and for each
        table the row ids, ``[rows]``, and their gradients, ``[rows, dim]``.
        """
        at = HEADER
        dense: list[Tensor | None] = []
        for parameter, present in self._dense:
            dense.append(message[at : at + _count(parameter)] if present else None)
            at += _count(parameter) if present else 0
        tables = []
        for table, rows in self._tables:
            ids = message[at : at + rows].view(self._id_dtype)
            at += rows
            tables.append((ids, message[at : at + rows * table.dim].view(rows, table.dim)))
            at += rows * table.dim
        return dense, tables

    def given(self, message: Tensor) -> Tensor:
        """Return the part of one or several messages that says for each dense parameter whether it has a gradient."""
        return message[..., self._flags]

    def missing(self, messages: Tensor) -> set[int]:
        """Return the indices of dense parameters for which messages have space, but no message has a gradient."""
        if not self._dense:
            return set()
        found = self.given(messages).any(0).tolist()
        return {index for index, (_, present) in enumerate(self._dense) if present and not found[index]}

    def unpack(
        self, messages: Tensor, scale: Tensor | float, missing: Collection[int] = ()
    ) -> tuple[Tensor, list[Tensor | None], list[SparseGrad | None]]:
        """Add up the losses and gradients of all messages; copy the chief's buffers into the module.

        Args:
            messages: ``[replicas, size]``; the chief's is the first.
            scale: Factor by which the sums are multiplied, one number.
            missing: Indices of dense parameters whose gradient is returned as None instead of zeros.

        Returns:
            The loss, one number; the gradients of the dense parameters; and the used rows of each table with their
            gradients, concatenated over the messages.
        """
        replicas = len(messages)
        at = HEADER
        dense: list[Tensor | None] = []
        for index, (parameter, present) in enumerate(self._dense):
            gradient = None
            if present:
                summed = messages[:, at : at + _count(parameter)].sum(0) * scale
                gradient = None if index in missing else _shaped(summed, parameter)
                at += _count(parameter)
            dense.append(gradient)
        mentions: list[SparseGrad | None] = []
        for table, rows in self._tables:
            touched = None
            if rows:
                ids = messages[:, at : at + rows].reshape(-1).view(self._id_dtype).to(torch.int64)
                at += rows
                values = messages[:, at : at + rows * table.dim].reshape(replicas * rows, table.dim) * scale
                values = values.to(table.weight.dtype)
                at += rows * table.dim
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


class MessageTooSmall(Exception):
    """The gradients of a batch do not fit into the message. The exception holds the gradients for a larger message.

    They are as `TrainStep.differentiate` returns them.
    """

    def __init__(self, loss: Tensor, dense: Sequence[Tensor | None], mentions: Sequence[SparseGrad | None]) -> None:
        super().__init__("a message of another size is needed")
        self.loss = loss
        self.dense = dense
        self.mentions = mentions

    @property
    def needed(self) -> Layout:
        """Layout of a message that has space for the gradients."""
        return Layout.of(self.dense, self.mentions)


class SendingStep(TrainStep):
    """First half of a step: computes gradients and packs them into a message. It updates nothing.

    `message` is that of the last batch, ``[packing.size]``.
    """

    def __init__(self, *args: Any, layout: Layout, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.layout = layout
        self.packing = Packing(self, layout)
        self.message = self.packing.message()

    def compute(self, features: Any, labels: Any, weights: Tensor | None) -> tuple[Tensor, list[Tensor | None]]:
        """Compute the gradients of a batch and fill the message; raise `MessageTooSmall` if it lacks space for them."""
        loss, dense, mentions = self.differentiate(features, labels, weights)
        with torch.no_grad():
            if not self.layout.holds(Layout.of(dense, mentions)):
                raise MessageTooSmall(loss.detach(), dense, mentions)
            self.packing.pack(self.message, loss, dense, mentions)
        return loss.detach(), []

    def end(self, steps: int = 1, *, advances: bool = True) -> None:
        """Do nothing, since the second half of the step updates with sums of gradients and advances the schedules."""

    def update_left(self, left: Sequence[Tensor | None]) -> None:
        """Do nothing, since the second half updates the parameters."""

    def assign(self, left: Sequence[Tensor | None]) -> None:
        """Do nothing, since the second half updates the parameters."""

    def average(self) -> None:
        """Do nothing, since the second half updates the averages."""

    def scratch(self) -> list[Tensor]:
        """Return the tensors that a step writes without reading them first, including the message."""
        return [*super().scratch(), self.message]

    def results(self) -> list[tuple[str, Tensor]]:
        """Return the gradients in the message."""
        dense, tables = self.packing.parts(self.message)
        parts = [*(one for one in dense if one is not None), *(part for table in tables for part in table)]
        return [("a gradient", part) for part in parts]


class ReceivingStep(TrainStep):
    """Second half of a step: updates parameters and optimizer state with the gradients of all processes.

    Its batch, passed as ``features``, is the tensor of all messages, ``[replicas, size]``. With `averages`, losses and
    gradients are averaged over the processes that have a batch, instead of summed.
    """

    rounds = False

    def __init__(self, *args: Any, layout: Layout, averages: bool, **kwargs: Any) -> None:
        super().__init__(*args, averages=averages, **kwargs)
        self.packing = Packing(self, layout)
        self._averages = averages

    def compute(self, features: Any, labels: Any, weights: Tensor | None) -> tuple[Tensor, list[Tensor | None]]:
        """Update the parameters with the gradients of all processes; ``features`` is the tensor of their messages."""
        with torch.no_grad():
            # Treat a missing gradient as zeros in compiled code, since a graph cannot depend on the numbers in a
            # message. If a gradient is missing from all messages, the caller runs this method in Python instead.
            missing = () if torch.compiler.is_compiling() else self.packing.missing(features)
            loss, dense, mentions = self.packing.unpack(features, self._scale(features), missing)
            return loss, self.apply(dense, mentions)

    def check_loss(self, loss: Tensor) -> None:
        """Do nothing: each process has already checked the loss of its own batch."""

    def loss(self, features: Any, labels: Any, weights: Tensor | None) -> Tensor:
        """Return the loss over the batches of all processes."""
        return self.packing.unpack(features, self._scale(features))[0]

    def _scale(self, messages: Tensor) -> Tensor | float:
        if not self._averages:
            return 1.0
        return 1.0 / (messages[:, CODE] == HAS_BATCH).sum()


def _is_exchanged(buffer: Tensor) -> bool:
    return buffer.is_floating_point() or buffer.is_complex()


def _count(tensor: Tensor) -> int:
    return tensor.numel() * (2 if tensor.is_complex() else 1)


def _shaped(numbers: Tensor, like: Tensor) -> Tensor:
    """Return numbers of a message in the shape and dtype of `like`, the tensor from which they were packed."""
    if not like.is_complex():
        return numbers.view(like.shape).to(like.dtype)
    pairs = numbers.reshape(*like.shape, 2)
    return torch.view_as_complex(pairs.contiguous()).to(like.dtype)
