"""Wire format of the messages between workers and parameter servers.

A message is a header of 48 bytes, little endian, and a body. The body of an exchange, which is sent in every step, is
one block of raw numbers; `pack_exchange` and `pack_parameters` define their order. The body of every other message is
JSON and one frame per array. No part of a message is executed as code.

Servers close a connection on which a frame of more than `MOST_FRAME_BYTES` arrives, so that no peer can fill their
memory with one frame, not even before the handshake. A request with larger frames is sent in pieces; see
`split_frames`. A limit as large as the model would be simpler, but ZeroMQ needs the limit before the socket is bound,
when the server does not know the model yet.
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

VERSION = 4

MOST_FRAME_BYTES = 1 << 20

_MAGIC = b"TEPS"
_HEADER = struct.Struct("<4sHHiIQQQQ")

_LARGE = 1 << 20

# Maximum size of the JSON in a message. The JSON of a real message has only kilobytes.
_MOST_JSON_BYTES = 1 << 24

# Limit of the global step in a message, so that adding a few steps cannot overflow 64 bits.
_MOST_STEPS = 1 << 53

PUSHES = 1
PULLS = 2
"""Flags of an exchange: whether it brings gradients, and whether it asks for parameters."""
STOPPING = 4
"""Flag of the reply to an exchange: the server is shutting down, and the chief must save what it holds."""

STOP_ALL = 1
"""Flag of LEAVE: all other workers must stop as well."""

SAVED = 1
"""Flag of the chief's STATUS: a checkpoint has been saved for the servers that are shutting down."""

VARIABLE, STEP = "variable", "step"
"""JSON keys of a refused gradient: the variable that it belongs to, and the step that computed it."""

OTHER_RUN = "other_run"
"""JSON key of a refusal: whether the server holds another training than that of the request."""


class Kind(IntEnum):
    """Message types: requests from workers (1 to 15), replies (16 and up)."""

    HELLO = 1
    """Asks which training the server holds, and for the input cursor of the sender's rank."""
    START = 2
    """From the chief: parameters and optimizer state, which replace everything that the server held."""
    EXCHANGE = 3
    """Pushes gradients, pulls parameters, or both."""
    STATE = 4
    """Asks for all parameters and the whole optimizer state, for a checkpoint."""
    STATUS = 5
    """Asks which workers are active."""
    LEAVE = 6
    """The sender no longer trains."""
    END = 7
    """From the chief: training is over."""
    CURSOR = 8
    """The sender's input cursor as JSON, from which a process that replaces the sender continues."""

    WRITE = 9
    """From the chief: write the rows of large tables, as they were at the last STATE, into a checkpoint's directory."""
    WRITTEN = 10
    """Asks how far the server has come with that. It may come from a connection of its own."""

    OK = 16
    EMPTY = 17
    """The server has no parameters yet."""
    OVER = 18
    """Training is over; nothing was applied."""
    REFUSED = 19
    """JSON with a reason; with `VARIABLE` and `STEP` of a gradient that is not finite, or with `OTHER_RUN`."""


class Header(NamedTuple):
    """The first 48 bytes of every message between workers and servers.

    Attributes:
        kind: Type of the message.
        worker: Rank of the worker.
        flags: Flags of the kind.
        incarnation: Number of the worker's process; a process that replaces another one has a higher number.
        number: Number of the message, counted by its sender; the reply repeats it. A push whose number a server has
            applied before is not applied again.
        step: The global step; in a request, the step of the parameters that the gradients were computed with.
        run_id: Number of the training; 0 if the sender knows none, or the server holds none.
    """

    kind: Kind
    worker: int
    flags: int = 0
    incarnation: int = 0
    number: int = 0
    step: int = 0
    run_id: int = 0

    def pack(self) -> bytes:
        """Return the header as bytes."""
        return _HEADER.pack(_MAGIC, VERSION, *self)

    @classmethod
    def unpack(cls, message: Any) -> Header:
        """Read the header of a message; raise `ClusterError` for another version, unknown kind or impossible step."""
        if len(message) < _HEADER.size:
            raise ClusterError("A peer that does not belong to a torch-estimator cluster has sent a message.")
        magic, version, kind, worker, flags, incarnation, number, step, run_id = _HEADER.unpack_from(message)
        if magic != _MAGIC:
            raise ClusterError("A peer that does not belong to a torch-estimator cluster has sent a message.")
        if version != VERSION:
            raise ClusterError(
                f"A process of the cluster has another version of torch-estimator, whose messages are of version "
                f"{version}, not {VERSION}; install the same version everywhere."
            )
        if step >= _MOST_STEPS:
            raise ClusterError(f"A process of the cluster has sent global step {step}, which no training reaches.")
        try:
            return cls(Kind(kind), worker, flags, incarnation, number, step, run_id)
        except ValueError as error:
            raise ClusterError(f"A process of the cluster has sent a message of kind {kind}, which is none.") from error


class Push(NamedTuple):
    """The gradients of one step, as a worker sends them to a server.

    Attributes:
        settings: The optimizers' settings that may change with every step, float64 ``[changing]``.
        present: 1 for each dense parameter that has a gradient, uint8 ``[parameters]``.
        dense: Gradients of all dense parameters, ``[dense_size]``.
        tables: For each table the ids of rows, int64 ``[n]``, each once, and their gradients ``[n, dim]``.
        gradients: All gradients as one array, if they lie in one block of memory, as in a received message; otherwise
            None.
    """

    settings: np.ndarray
    present: np.ndarray
    dense: np.ndarray
    tables: Sequence[tuple[np.ndarray, np.ndarray]]
    gradients: np.ndarray | None = None


def pack_exchange(header: Header, push: Push | None, pull: Sequence[np.ndarray]) -> bytes:
    """Return the request with which a worker pushes gradients, pulls parameters, or both (an exchange).

    The header has `PUSHES` and `PULLS` among its flags. `pull` holds for each table the ids of the rows to reply with,
    int64 ``[n]``.
    """
    pushed = [] if push is None else [ids for ids, _ in push.tables]
    counts = np.array([*map(len, pushed), *map(len, pull)], np.int64)
    parts: list[Any] = [header.pack(), counts, *pushed, *pull]
    if push is not None:
        parts += [push.settings, push.dense, *(values for _, values in push.tables), push.present]
    return b"".join(part if isinstance(part, bytes) else np.ascontiguousarray(part).data for part in parts)


def unpack_exchange(message: Any, plan: ServerPlan, flags: int) -> tuple[Push | None, list[np.ndarray]]:
    """Decode an exchange: return the gradients, if any, and for each table the ids of the requested rows.

    All arrays are views of the message.
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
    settings = reader.read(np.float64, plan.changing_count)
    sizes = [len(ids) * table.dim for ids, table in zip(pushed, plan.tables, strict=True)]
    gradients = reader.read(dtype, plan.dense_size + sum(sizes))
    values = []
    at = plan.dense_size
    for ids, size, table in zip(pushed, sizes, plan.tables, strict=True):
        values.append(gradients[at : at + size].reshape(len(ids), table.dim))
        at += size
    present = reader.read(np.uint8, len(plan.dense))
    reader.end()
    push = Push(settings, present, gradients[: plan.dense_size], list(zip(pushed, values, strict=True)), gradients)
    return push, pull


def pack_parameters(header: Header, dense: np.ndarray, rows: Sequence[np.ndarray]) -> bytes:
    """Return the reply to a pull: the dense parameters, ``[dense_size]``, and of each table the rows, ``[n, dim]``."""
    return b"".join([header.pack(), dense.data, *(np.ascontiguousarray(one).data for one in rows)])


def unpack_parameters(
    message: Any, plan: ServerPlan, pull: Sequence[np.ndarray]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Decode the reply to a pull: return views of the dense parameters and of the requested rows of each table."""
    reader, dtype = _Reader(message), np.dtype(plan.dtype)
    dense = reader.read(dtype, plan.dense_size)
    rows = [
        reader.read(dtype, len(ids) * table.dim).reshape(len(ids), table.dim)
        for ids, table in zip(pull, plan.tables, strict=True)
    ]
    return dense, rows


def pack_json(header: Header, content: Mapping[str, Any]) -> list[bytes]:
    """Return the frames of a message whose body is JSON."""
    return [header.pack(), json.dumps(content).encode()]


def pack_arrays(header: Header, content: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> list[Any]:
    """Return the frames of a message whose body is JSON and named arrays. The frames are views of the arrays."""
    described = {name: [str(one.dtype), list(one.shape)] for name, one in arrays.items()}
    whole = [np.ascontiguousarray(one).reshape(-1).data for one in arrays.values()]
    return [*pack_json(header, {**content, "arrays": described}), *whole]


def unpack_arrays(frames: Sequence[Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Decode a message from `pack_json` or `pack_arrays`; return the JSON, and the arrays as views of the frames."""
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
    # A malformed message can raise any error, and nothing else can raise one here.
    except Exception as error:
        raise ClusterError(f"A message of the cluster cannot be read ({type(error).__name__}).") from error


def split_frames(frames: Sequence[Any]) -> list[Any]:
    """Split the frames of a message to a server into pieces that are no larger than `MOST_FRAME_BYTES`.

    A piece of exactly that size is followed by another piece of the same frame, which may be empty. This is how
    `join_frames` knows where a frame ends.
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


def join_frames(pieces: Sequence[Any]) -> list[Any]:
    """Join the pieces that `split_frames` made, and return the frames; only frames that were split are copied."""
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


class ExchangeBuffer:
    """Memory in which a server joins the pieces of a message that pushes or pulls (an exchange).

    The memory is reused for each exchange, because allocating it anew takes longer than copying the pieces into it.
    """

    def __init__(self) -> None:
        self._memory = np.empty(0, np.uint8)

    def join(self, pieces: Sequence[Any], plan: ServerPlan) -> Any:
        """Join the pieces of an exchange to its only frame and return the frame, which is valid until the next call."""
        if len(pieces) == 1:
            return pieces[0]
        size = sum(map(len, pieces))
        if size > _HEADER.size + plan.most_exchange_bytes:
            raise ClusterError("A message of the cluster is too long for its content.")
        if size > len(self._memory):
            self._memory = np.empty(size, np.uint8)
        at = 0
        for piece in pieces:
            self._memory[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)
        return self._memory[:size].data


def is_small(frames: Sequence[Any]) -> bool:
    """Return whether a message is so small that copying it is faster than passing its memory to ZeroMQ's thread."""
    return sum(memoryview(frame).nbytes for frame in frames) < _LARGE


class _Reader:
    """Reads the body of an exchange as arrays, one after the other, without a copy."""

    def __init__(self, message: Any) -> None:
        self._message = message
        self._at = _HEADER.size

    def read(self, dtype: Any, count: int) -> np.ndarray:
        """Return the next `count` numbers of the message."""
        if not count:
            return np.empty(0, dtype)
        if not 0 < count * np.dtype(dtype).itemsize <= len(self._message) - self._at:
            raise ClusterError("A message of the cluster ends too early for its content.")
        numbers = np.frombuffer(self._message, dtype, count, self._at)
        self._at += numbers.nbytes
        return numbers

    def end(self) -> None:
        """Raise an error if the message has bytes that were not read."""
        if self._at != len(self._message):
            raise ClusterError("A message of the cluster is too long for its content.")


def _check_rows(ids: np.ndarray, table: TablePlan) -> None:
    # A worker requests each row once. Refuse longer lists, so that no reply is larger than the table.
    if len(ids) > table.rows:
        raise ClusterError(f"A message of the cluster names {len(ids)} rows of {table.name}, which has {table.rows}.")
    # Read as an unsigned number, a negative id is very large, so one comparison finds negative and too large ids.
    if len(ids) and ids.view(np.uint64).max() >= table.rows:
        raise ClusterError(f"A message of the cluster names a row that {table.name} has not, of {table.rows}.")
