"""What a parameter server and those who train say to each other.

A message is a header of 48 bytes, little endian, and what its kind has behind it: one piece of raw numbers for an
exchange, JSON and one frame per array for everything else. Nothing in it is code.

Servers close a connection on which a frame of more than `MOST_FRAME_BYTES` comes, so that nobody can fill their memory
with one frame, not even before the handshake. A question with larger frames travels in pieces, see `cut_up`. A limit as
large as the model would need frames, which ZeroMQ takes for a new address only, would let anybody send that much.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from torch_estimator.errors import ClusterError
from torch_estimator.parameter_server.plan import ServerPlan, TablePlan

VERSION = 2

MOST_FRAME_BYTES = 1 << 20

_MAGIC = b"TEPS"
_HEADER = struct.Struct("<4sHHiIQQQQ")

_LARGE = 1 << 20

# Plans, descriptions and positions of inputs take kilobytes.
_MOST_JSON_BYTES = 1 << 24

# Sums of a few of them have to fit into 64 bits.
_MOST_STEPS = 1 << 53

PUSHES = 1
PULLS = 2
"""Flags of an exchange: whether it brings gradients, and whether it asks for parameters."""
GOES = 4
"""Flag of an answer to one: the server has to go, and what it holds is to be saved."""

STOPS = 1
"""Flag of who leaves: all others are to end, too."""

SAVED = 1
"""Flag of a chief that asks for the status: what a server held that has to go is saved."""

VARIABLE, STEP = "variable", "step"
"""What a refusal of a gradient holds beside the reason: whose it is, and which step computed it."""


class Kind(IntEnum):
    """What a message is: first those of who trains, then the answers."""

    HELLO = 1
    START = 2
    EXCHANGE = 3
    STATE = 4
    STATUS = 5
    LEAVE = 6
    END = 7
    DEPOSIT = 8
    """Where its input stands, as JSON, for who comes in the place of its sender."""

    OK = 16
    EMPTY = 17
    """There are no parameters yet."""
    OVER = 18
    """Training has ended: nothing was applied."""
    REFUSED = 19
    """JSON with a reason; for a gradient that is not finite also with its `VARIABLE` and `STEP`."""


class Header(NamedTuple):
    """What every message begins with.

    Attributes:
        kind: What it is.
        worker: Rank of who trains.
        flags: By kind.
        life: Of that process, another one after a restart.
        number: Of the message, counted by its sender; the answer has the same. One that comes again is not applied
            again.
        step: The global step; in a question, that of the parameters which gradients were computed with.
    """

    kind: Kind
    worker: int
    flags: int = 0
    life: int = 0
    number: int = 0
    step: int = 0

    def pack(self) -> bytes:
        """The bytes of it."""
        return _HEADER.pack(_MAGIC, VERSION, self.kind, self.worker, self.flags, self.life, self.number, self.step, 0)

    @classmethod
    def unpack(cls, message: Any) -> Header:
        """Reads one.

        Raises:
            ClusterError: It is none, one of another version, or of a kind or a step that there is not.
        """
        if len(message) < _HEADER.size:
            raise ClusterError("Somebody who is no part of a torch-estimator cluster has sent a message.")
        magic, version, kind, worker, flags, life, number, step, _ = _HEADER.unpack_from(message)
        if magic != _MAGIC:
            raise ClusterError("Somebody who is no part of a torch-estimator cluster has sent a message.")
        if version != VERSION:
            raise ClusterError(
                f"A process of the cluster has another version of torch-estimator, whose messages are of version "
                f"{version}, not {VERSION}; install the same version everywhere."
            )
        if step >= _MOST_STEPS:
            raise ClusterError(f"A process of the cluster has sent global step {step}, which no training reaches.")
        try:
            return cls(Kind(kind), worker, flags, life, number, step)
        except ValueError as error:
            raise ClusterError(f"A process of the cluster has sent a message of kind {kind}, which is none.") from error


class Push(NamedTuple):
    """Gradients.

    Attributes:
        numbers: Settings that move, float64 ``[moving]``.
        present: Which dense parameters have a gradient, uint8 ``[dense]``.
        dense: Gradients of all of them, ``[dense_size]``.
        tables: By table: ids of rows, int64 ``[n]``, each once, and their gradients ``[n, dim]``.
        gradients: The memory of all gradients, where it is one piece, as in a message that was read.
    """

    numbers: np.ndarray
    present: np.ndarray
    dense: np.ndarray
    tables: Sequence[tuple[np.ndarray, np.ndarray]]
    gradients: np.ndarray | None = None


def pack_exchange(header: Header, push: Push | None, pull: Sequence[np.ndarray]) -> bytes:
    """An exchange: the push, if there is one, and by table the ids of rows that are asked for."""
    pushed = [] if push is None else [ids for ids, _ in push.tables]
    counts = np.array([*map(len, pushed), *map(len, pull)], np.int64)
    parts: list[Any] = [header.pack(), counts, *pushed, *pull]
    if push is not None:
        parts += [push.numbers, push.dense, *(values for _, values in push.tables), push.present]
    return b"".join(part if isinstance(part, bytes) else np.ascontiguousarray(part).data for part in parts)


def unpack_exchange(message: Any, plan: ServerPlan, flags: int) -> tuple[Push | None, list[np.ndarray]]:
    """The push, if there is one, and by table the ids of rows that are asked for; views of the message.

    Raises:
        ClusterError: It is not of this plan.
    """
    reader = _Reader(message)
    tables = len(plan.tables)
    pushes = bool(flags & PUSHES)
    counts = reader.read(np.int64, tables * (1 + pushes)).tolist()
    pushed = [reader.read(np.int64, count) for count in counts[: tables * pushes]]
    pull = [reader.read(np.int64, count) for count in counts[tables * pushes :]]
    for ids, table in zip([*pushed, *pull], plan.tables * (1 + pushes), strict=True):
        _check_rows(ids, table)
    if not pushes:
        reader.end()
        return None, pull
    dtype = np.dtype(plan.dtype)
    numbers = reader.read(np.float64, plan.moving_count)
    sizes = [len(ids) * table.dim for ids, table in zip(pushed, plan.tables, strict=True)]
    gradients = reader.read(dtype, plan.dense_size + sum(sizes))
    values = []
    at = plan.dense_size
    for ids, size, table in zip(pushed, sizes, plan.tables, strict=True):
        values.append(gradients[at : at + size].reshape(len(ids), table.dim))
        at += size
    present = reader.read(np.uint8, len(plan.dense))
    reader.end()
    push = Push(numbers, present, gradients[: plan.dense_size], list(zip(pushed, values, strict=True)), gradients)
    return push, pull


def pack_parameters(header: Header, dense: np.ndarray, rows: Sequence[np.ndarray]) -> bytes:
    """The answer to an exchange that pulls: all dense parameters, and by table the rows asked for."""
    return b"".join([header.pack(), dense.data, *(np.ascontiguousarray(one).data for one in rows)])


def unpack_parameters(
    message: Any, plan: ServerPlan, pull: Sequence[np.ndarray]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """What `pack_parameters` was given; views of the message."""
    reader, dtype = _Reader(message), np.dtype(plan.dtype)
    dense = reader.read(dtype, plan.dense_size)
    rows = [
        reader.read(dtype, len(ids) * table.dim).reshape(len(ids), table.dim)
        for ids, table in zip(pull, plan.tables, strict=True)
    ]
    return dense, rows


def pack_json(header: Header, content: Mapping[str, Any]) -> list[bytes]:
    """A message that carries JSON."""
    return [header.pack(), json.dumps(content).encode()]


def pack_arrays(header: Header, content: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> list[Any]:
    """A message that carries JSON and arrays by name."""
    described = {name: [str(one.dtype), list(one.shape)] for name, one in arrays.items()}
    whole = [np.ascontiguousarray(one).reshape(-1).data for one in arrays.values()]
    return [*pack_json(header, {**content, "arrays": described}), *whole]


def unpack_arrays(frames: Sequence[Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What `pack_arrays` was given; the arrays are views of the frames.

    Raises:
        ClusterError: They are something else.
    """
    if len(frames) > 1 and len(frames[1]) > _MOST_JSON_BYTES:
        raise ClusterError(f"A message of the cluster has {len(frames[1])} bytes of JSON; {_MOST_JSON_BYTES} may come.")
    try:
        content = json.loads(bytes(frames[1]))
        described = content.pop("arrays", {})
        arrays = {
            name: np.frombuffer(frame, dtype).reshape(shape)
            for (name, (dtype, shape)), frame in zip(described.items(), frames[2:], strict=True)
        }
        return content, arrays
    # Whatever goes wrong with bytes that somebody has sent, they are what is wrong.
    except Exception as error:
        raise ClusterError(f"A message of the cluster cannot be read ({type(error).__name__}).") from error


def cut_up(frames: Sequence[Any]) -> list[Any]:
    """Return frames as they travel to a server: none larger than `MOST_FRAME_BYTES`.

    A piece that is as large as that is followed by another piece of the same frame, which may be empty.
    """
    pieces: list[Any] = []
    for frame in frames:
        view = memoryview(frame)
        if view.nbytes < MOST_FRAME_BYTES:
            pieces.append(frame)
        else:
            view = view.cast("B")
            pieces += [view[at : at + MOST_FRAME_BYTES] for at in range(0, view.nbytes + 1, MOST_FRAME_BYTES)]
    return pieces


def put_together(pieces: Sequence[Any]) -> list[Any]:
    """Return the frames that `cut_up` was given; those that were cut are copied.

    Raises:
        ClusterError: The last piece of a frame is missing.
    """
    frames: list[Any] = []
    begun: list[Any] = []
    for piece in pieces:
        if not begun and len(piece) < MOST_FRAME_BYTES:
            frames.append(piece)
            continue
        begun.append(piece)
        if len(piece) < MOST_FRAME_BYTES:
            frames.append(b"".join(begun))
            begun = []
    if begun:
        raise ClusterError("A message of the cluster ends in the middle of a frame.")
    return frames


class Assembly:
    """Puts the pieces of an exchange together, in memory that it keeps: to get as much anew takes longer than to copy.

    What it returns can be used until the next call.
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def exchange(self, pieces: Sequence[Any], plan: ServerPlan) -> Any:
        """Return an exchange, which has one frame.

        Raises:
            ClusterError: It is larger than any of this plan.
        """
        if len(pieces) == 1:
            return pieces[0]
        size = sum(map(len, pieces))
        if size > _HEADER.size + plan.most_exchange_bytes:
            raise ClusterError("A message of the cluster is longer than what it is to hold.")
        if size > len(self._memory):
            self._memory = np.empty(size, np.uint8)
        at = 0
        for piece in pieces:
            self._memory[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)
        return self._memory[:size].data


def is_small(frames: Sequence[Any]) -> bool:
    """Whether copying a message takes less time than handing its memory over to ZeroMQ's thread."""
    return sum(memoryview(frame).nbytes for frame in frames) < _LARGE


class _Reader:
    def __init__(self, message: Any) -> None:
        self._message = message
        self._at = _HEADER.size

    def read(self, dtype: Any, count: int) -> np.ndarray:
        if not count:
            return np.empty(0, dtype)
        if not 0 < count * np.dtype(dtype).itemsize <= len(self._message) - self._at:
            raise ClusterError("A message of the cluster ends before what it is to hold.")
        numbers = np.frombuffer(self._message, dtype, count, self._at)
        self._at += numbers.nbytes
        return numbers

    def end(self) -> None:
        if self._at != len(self._message):
            raise ClusterError("A message of the cluster is longer than what it is to hold.")


def _check_rows(ids: np.ndarray, table: TablePlan) -> None:
    # Each row comes once, so that an answer is no larger than the table.
    if len(ids) > table.rows:
        raise ClusterError(f"A message of the cluster names {len(ids)} rows of {table.name}, which has {table.rows}.")
    # A negative one is a large one, too.
    if len(ids) and ids.view(np.uint64).max() >= table.rows:
        raise ClusterError(f"A message of the cluster names a row that {table.name} has not, of {table.rows}.")
